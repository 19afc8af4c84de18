"""Resolve the first argument of `create`: a name, a spec, or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitzoo.checkpoint.checkpoint import open_file
from vitzoo.errors import CheckpointError, InvalidOption, UnknownName
from vitzoo.files.access import read_regular
from vitzoo.files.names import INDEX, NPZ, SAFETENSORS
from vitzoo.files.strict_json import strict_json
from vitzoo.files.strict_toml import strict_toml
from vitzoo.loading.request import (
    Request,
    from_folder,
    from_hub,
    from_mapping,
    from_saved,
    nameless,
)
from vitzoo.loading.source import on_hub
from vitzoo.registry.registry import Registry
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec

SPEC_FILES = (".toml", ".json")
MAX_SPEC = 1024 * 1024  # bytes
WEIGHTS_ONLY = (NPZ, INDEX)


def resolve(name: object, zoo: Registry) -> Request:
    """Return the request for a name, a spec (mapping, `Spec` or path), or a file of `save`."""
    if isinstance(name, Spec | Mapping):
        return from_mapping(name, "spec", zoo)
    if not isinstance(name, str | os.PathLike):
        raise InvalidOption(
            f"name must be a registered name, a spec or a path, got {describe(name)}"
        )
    if name == "":
        raise InvalidOption(
            "name is '' (an unset shell variable?), expected a registered name such as 'vit_b16', "
            "a spec or a path; `vitzoo list --all` shows all names"
        )
    if on_hub(name):
        return from_hub(str(name), zoo)
    path = Path(name)
    if path.suffix in (SAFETENSORS, *SPEC_FILES) or path.name.endswith(WEIGHTS_ONLY):
        return _from_file(path, zoo)
    if isinstance(name, os.PathLike):
        return _from_folder(path, zoo)
    try:
        variant = zoo.variant(name)
    except UnknownName:
        if os.path.exists(path):  # noqa: PTH110  # False for a name that is too long
            return _from_folder(path, zoo)
        raise
    return Request(variant.spec, variant=variant)


def _from_file(path: Path, zoo: Registry) -> Request:
    """Return the request of a file of `save` or of a spec."""
    if path.suffix == SAFETENSORS:
        return from_saved(path, zoo)
    if path.name.endswith(WEIGHTS_ONLY):
        raise CheckpointError(nameless(path))
    return from_mapping(_parse(path), str(path), zoo)


def _from_folder(path: Path, zoo: Registry) -> Request:
    """Return the request of a folder; for another file, explain how to load its weights."""
    if os.path.isdir(path):  # noqa: PTH112  # False for a name that is too long
        return from_folder(path, zoo)
    if os.path.isfile(path):  # noqa: PTH113
        open_file(path)  # raises another error if the file contains no weights
        raise CheckpointError(nameless(path))
    raise InvalidOption(
        f"a path must be a folder or end in .toml, .json or .safetensors, got {str(path)!r}"
    )


def _parse(path: Path) -> Any:
    """Return the data in a TOML or JSON file; raise InvalidOption if it cannot be read."""
    if (text := read_regular(path, MAX_SPEC, InvalidOption)) is None:
        raise InvalidOption(f"cannot read {path}: No such file or directory")
    try:
        return strict_toml(text) if path.suffix == ".toml" else strict_json(text)
    except ValueError as error:
        verb = "" if path.suffix == ".toml" else "is not valid JSON: "
        raise InvalidOption(f"{path} {verb}{error}") from error
