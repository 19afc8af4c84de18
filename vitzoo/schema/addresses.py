"""Names of weights and addresses on the Hub, as users write them."""

from __future__ import annotations

import re

from vitzoo.errors import InvalidOption
from vitzoo.files.names import (
    CONVERTED,
    PATH,
    PULL_REQUEST,
    valid_file,
    valid_repo,
    valid_revision,
)
from vitzoo.schema.reader import NAME

ADDRESS = re.compile(r"(?:hf-hub:|hf_hub:|hf://|hf:|https://huggingface\.co/)")  # owner/name
REFS = rf"(?:{PULL_REQUEST.pattern}|{CONVERTED.pattern})"  # revisions that keep their slashes
HF_ADDRESS = re.compile(
    rf"hf://(?P<repo>[^@/]+/[^@/]+)(@(?P<revision>{REFS}(?=/|$)|[^/]+))?(/(?P<file>.+))?"
)
SLASH = "%2F"  # in any other revision, as in the addresses of huggingface_hub
MAIN = "main"  # the revision of an address without one


def parts_of_address(address: str) -> tuple[str, str, str]:
    """Return repository, revision and file of an hf:// address; the file may be empty.

    Raises:
        InvalidOption: the address has another form.
    """
    match = HF_ADDRESS.fullmatch(address)
    revision = re.sub(SLASH, "/", (match and match["revision"]) or MAIN, flags=re.IGNORECASE)
    if not (
        match
        and valid_repo(match["repo"])
        and valid_revision(revision)
        and valid_file(match["file"] or MAIN)
    ):
        raise InvalidOption(
            "an address on the Hub is written hf://owner/repo, hf://owner/repo@revision or "
            f"hf://owner/repo@revision/file, with {SLASH} for a slash in the name of a branch, got "
            f"{address[:300]!r}"
        )
    return match["repo"], revision, match["file"] or ""


def address_of(repo: str, revision: str, file: str = "") -> str:
    """Return the hf:// address of a repository or file, which has one form for each revision."""
    kept = re.fullmatch(REFS, revision)
    at = revision if kept else revision.replace("/", SLASH)
    return f"hf://{repo}@{at}" + (f"/{file}" if file else "")


def one_form(address: str) -> str:
    """Return an hf:// address in the form of `address_of`; without a revision as it is.

    Raises:
        InvalidOption: the address has another form.
    """
    repo, revision, file = parts_of_address(address)
    return address_of(repo, revision, file) if "@" in address else address


def parts_of_name(name: str) -> tuple[str, str | None]:
    """Return the variant and the weights of `variant:weights`; None without a colon."""
    variant, colon, weights = name.partition(":")
    return (variant, weights) if colon and not PATH.match(name) else (name, None)  # not C:\file


def repository(name: str) -> str:
    """Return the address of the Hub repository that a name may mean, empty if it means none."""
    repo = ADDRESS.sub("", name, count=1).rstrip("/")
    return f"hf://{repo}" if valid_repo(repo) else ""


def is_repository(name: str) -> bool:
    """Tell whether a name is a repository of the Hub, because no variant can have such a name."""
    other = ADDRESS.match(name) or not NAME.fullmatch(name.partition("/")[2])
    return bool(other and repository(name))
