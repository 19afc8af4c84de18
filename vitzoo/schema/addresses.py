"""Names of weights and addresses on the Hub, as users write them."""

from __future__ import annotations

import re

from vitzoo.errors import InvalidOption
from vitzoo.files.names import PATH, PULL_REQUEST, valid_file, valid_repo, valid_revision
from vitzoo.schema.reader import NAME

ADDRESS = re.compile(r"(?:hf-hub:|hf_hub:|hf://|hf:|https://huggingface\.co/)")  # owner/name
HF_ADDRESS = re.compile(
    r"hf://(?P<repo>[^@/]+/[^@/]+)"
    rf"(@(?P<revision>{PULL_REQUEST.pattern}(?=/|$)|[^/]+))?(/(?P<file>.+))?"
)
MAIN = "main"  # the revision of an address without one


def parts_of_address(address: str) -> tuple[str, str, str]:
    """Return repository, revision and file of an hf:// address; the file may be empty.

    Raises:
        InvalidOption: the address has another form.
    """
    match = HF_ADDRESS.fullmatch(address)
    if not (
        match
        and valid_repo(match["repo"])
        and valid_revision(match["revision"] or MAIN)
        and valid_file(match["file"] or MAIN)
    ):
        raise InvalidOption(
            "an address on the Hub is written hf://owner/repo, hf://owner/repo@revision or "
            f"hf://owner/repo@revision/file, got {address[:300]!r}"
        )
    return match["repo"], match["revision"] or MAIN, match["file"] or ""


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
