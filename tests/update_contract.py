"""Writes tests/golden/contract.json: what users' code and scripts rely on.

    python tests/update_contract.py

The file has the parameters of every public function, class and method, without their types; bases
and exit code of every exception; and the keys of what commands print with `--json`. A name, a
parameter or a key that leaves the file breaks a user's code. Read the change before you commit it.
Options of commands are in docs/cli.md, and keys of `vitzoo list --json` in tests/cli.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import io
import json
import os
import runpy
import shutil
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from vitzoo import errors

HERE = Path(__file__).parent
CONTRACT = HERE / "golden" / "contract.json"
FIXTURES = HERE / "fixtures" / "ec83163"
COMMANDS = """
show vit_b16
show local/tiny
which vit_b16
which vit_base_patch16_224
summary labelled.safetensors
plugins
registry check registry.toml
fetch local/tiny
import tiny.safetensors
verify local/tiny
verify pushed
lock
predict labelled.safetensors scans/4.png
embed labelled.safetensors scans --out vectors --workers 1
convert plain.safetensors --to transformers_vit out.safetensors
link local/tiny linked_again --for transformers
push labelled.safetensors acme/tiny --license mit --dry-run --folder pushed_again
plugins why vit_b16
"""


def api() -> dict[str, Any]:
    """Return the public names of each public path with what they take."""
    names = runpy.run_path(str(HERE / "test_public.py"))["NAMES"]
    return {path: {name: _taken(path, name) for name in sorted(names[path])} for path in names}


def _taken(path: str, name: str) -> Any:
    value = getattr(importlib.import_module(path), name)
    if not inspect.isclass(value):
        return _parameters(value) if callable(value) else type(value).__name__
    if issubclass(value, errors.VitzooError | Warning):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"{bases}: exit code {getattr(value, 'exit_code', None)}"
    if issubclass(value, enum.Enum):
        return {member.name: member.value for member in value}
    fields = getattr(value, "__dataclass_fields__", {})  # they are parameters of the class
    return {"()": _parameters(value)} | {
        attribute.name: _parameters(getattr(value, attribute.name))
        for attribute in inspect.classify_class_attrs(value)
        if attribute.name[0] != "_"
        and attribute.name not in fields
        and attribute.defining_class.__module__.partition(".")[0] == "vitzoo"
    }


def _parameters(value: Any) -> str:
    """Return a signature without types, which may name any module."""
    if not callable(value):
        return "attribute"
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "callable"
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def keys(data: Any) -> Any:
    """Return the keys of JSON data; those of the rows of a list together."""
    if isinstance(data, dict):
        return {key: keys(value) for key, value in data.items()}
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        merged: dict[str, Any] = {}
        for item in data:
            merged |= item
        return [keys(merged)]
    return None


def printed(command: str) -> Any:
    """Run a command with `--json`, and return what it prints."""
    (script,) = entry_points(group="console_scripts", name="vitzoo")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        code = script.load()([*command.split(), "--json"])
    try:
        return json.loads(out.getvalue())
    except ValueError:
        raise SystemExit(f"vitzoo {command}: exit code {code}: {err.getvalue()}") from None


def prepare(folder: Path) -> dict[str, str]:
    """Copy the files that the commands read, and return the settings for them."""
    shutil.copytree(FIXTURES, folder)
    (stored,) = folder.glob("home/sha256/??/*")
    shutil.copy(stored, folder / "tiny.safetensors")
    registry = str(folder / "registry.toml")
    home = str(folder / "home")
    return {"VITZOO_HOME": home, "VITZOO_REGISTRY": registry, "VITZOO_OFFLINE": "1"}


def snapshot() -> dict[str, Any]:
    """Return the contract; the working directory and the settings are those of `prepare`."""
    return {"api": api(), "json": {c: keys(printed(c)) for c in COMMANDS.strip().splitlines()}}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= prepare(Path(folder, "files"))
        os.chdir(Path(folder, "files"))
        text = json.dumps(snapshot(), indent=1) + "\n"
        os.chdir(HERE)
    CONTRACT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
