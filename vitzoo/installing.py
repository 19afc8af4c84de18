"""Commands that install packages into the running Python, for messages; torch-free.

Before the first release, vitzoo and its plugins are on no package index, where anybody could
register their names; see docs/releasing.md. Until then they are installed from a clone of the
repository, `FROM_CLONE`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from shutil import which
from urllib.parse import urlsplit

FROM_CLONE = " (in a clone of vitzoo's repository)"
ALL = ("-r", "plugins/all.txt")  # in the root of the repository


def pip(*arguments: str) -> str:
    """Return a command of pip for the running Python.

    >>> pip("install", "timm>=1.0").partition(" -m ")[2]
    "pip install 'timm>=1.0'"
    """
    return " ".join([_python(), "-m pip", *map(quoted, arguments)])


def from_clone(*arguments: str, update: bool = False) -> str:
    """Return how to install what the repository has; `arguments` are relative to its root.

    The command changes to the clone that this vitzoo is from, if that is known. With `update`, it
    pulls the newest version first.
    """
    root = _clone()
    command = ("git pull && " if update else "") + pip("install", *arguments)
    return f"cd {quoted(str(root))} && {command}" if root else f"{command}{FROM_CLONE}"


def update() -> str:
    """Return how to update vitzoo."""
    return f"update vitzoo: {from_clone('.', update=True)}"


def quoted(text: str) -> str:
    """Quote a word of a command, if the shell of this system needs that."""
    if "\\" in sys.executable:  # on Windows, whose shells know double quotes
        return f'"{text}"' if set(text) & set(" <>&|^") else text
    return shlex.quote(text)


@cache
def _python() -> str:
    """Return `python` if that is the running Python, else its path."""
    running, found = sys.executable, which("python")
    if not running:  # embedded in another program
        return "python"
    same = found and Path(found).parent == Path(running).parent  # `python3` beside `python`
    return "python" if same and Path(found or "").samefile(running) else quoted(running)


@cache
def _clone() -> Path | None:
    """Return the clone of the repository that this vitzoo was installed from, if it is there."""
    for root in (Path(__file__).parents[1], _source()):  # a checkout, or an editable one
        if root and os.path.isfile(root / ALL[-1]):  # noqa: PTH113  # never raises
            return root
    return None


def _source() -> Path | None:
    """Return the folder that vitzoo was installed from."""
    return _folder("vitzoo")[0]


def editable(name: str) -> str:
    """Return the folder of a distribution if its installation is editable, else an empty text."""
    folder, is_editable = _folder(name)
    return str(folder) if folder and is_editable else ""


def _folder(name: str) -> tuple[Path | None, bool]:
    """Return the folder that a distribution was installed from, as pip records it (PEP 610).

    The second value is whether the installation is editable.
    """
    from urllib.request import url2pathname  # which imports http and ssl

    try:
        distribution = metadata.distribution(name)
        record = json.loads(distribution.read_text("direct_url.json") or "")
        url, how = urlsplit(record["url"]), record.get("dir_info", {})
    except Exception:  # noqa: BLE001  # it is not installed, or not from a folder
        return None, False
    folder = Path(url2pathname(url.path)) if url.scheme == "file" else None
    return folder, how.get("editable") is True
