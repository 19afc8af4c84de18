"""Valid names of repositories, revisions, commits and files on the Hub, and addresses of files.

A name is checked before it is used for anything; a name that breaks the rule for its kind is
refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.settings import has_host

SAFETENSORS, NPZ, INDEX = ".safetensors", ".npz", ".safetensors.index.json"
WEIGHTS = (SAFETENSORS, NPZ, INDEX)
PATHS = (SAFETENSORS, NPZ, ".json", ".pt", ".pth", ".bin", ".ckpt")  # a text is a path, no name

REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", re.ASCII)
FILE = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,7}", re.ASCII
)
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
PULL_REQUEST = re.compile(r"refs/pr/[1-9][0-9]{0,8}")  # the newest commit of one
CONVERTED = re.compile(r"refs/convert/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)  # by the Hub
SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")
HTTPS = re.compile(
    r"https://[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?"
    r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]+(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?",
    re.ASCII,
)
MAX_ADDRESS = 2048
PATH = re.compile(r"[./~\\]|[A-Za-z]:[/\\]")  # how a path begins that no name of a network has
DEVICE = "(?:con|prn|aux|nul|com[0-9]|lpt[0-9])"
WINDOWS_DEVICE = re.compile(rf"{DEVICE}(\..*)?", re.IGNORECASE)


def with_slashes(path: str, separator: str = os.sep) -> str:
    """Return a path as data has it on every system: `/` in place of the system's separator."""
    return path.replace(separator, "/")


def on_hub(name: object) -> bool:
    """Tell whether a name of a network or of weights is an address that begins with hf://."""
    return isinstance(name, str) and name.startswith("hf://")


def valid_https(text: str) -> bool:
    """Tell whether `text` is the https address of a file, without user, password and fragment."""
    return len(text) <= MAX_ADDRESS and bool(HTTPS.fullmatch(text)) and has_host(text)


def not_https(text: str) -> str:
    """Return what is wrong with an address; a user, a password and a query are not repeated."""
    shown = "one with '@', which is not repeated here" if "@" in text else repr(without_query(text))
    return (
        "must be the https address of a file, such as https://host/model.safetensors, in ASCII "
        f"and without a user, a password and a fragment, got {shown[:200]}"
    )


def without_query(address: str) -> str:
    """Return an address without its query, which may contain a token."""
    return address.partition("?")[0]


def valid_repo(text: str) -> bool:
    """Tell whether `text` is `owner/name` as the Hub allows it."""
    return bool(REPO.fullmatch(text)) and "--" not in text and ".." not in text


def valid_revision(text: str) -> bool:
    """Tell whether `text` is a commit, branch or tag."""
    return bool(REVISION.fullmatch(text)) and ".." not in text


def valid_file(text: str) -> bool:
    """Tell whether `text` is a plain relative path that every operating system allows."""
    device = any(WINDOWS_DEVICE.fullmatch(part) for part in text.split("/"))
    return bool(FILE.fullmatch(text)) and ".." not in text and len(text) <= 255 and not device


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that ends in .safetensors."""
    target = Path(path)
    if target.suffix != SAFETENSORS:
        raise InvalidOption(f"the path must end in .safetensors, got {str(path)!r}")
    return target
