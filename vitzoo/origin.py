"""What the first argument of `create` means: a name, a spec, or a file."""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitzoo import facts
from vitzoo.checkpoint.checkpoint import Checkpoint, open_file
from vitzoo.checkpoint.saved import read_network, read_saved
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    UnknownName,
)
from vitzoo.files.shard_index import ENDING
from vitzoo.registry.registry import registry
from vitzoo.schema.reader import Reader, describe
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec

log = logging.getLogger("vitzoo")

SPEC_FILES = {".toml": tomllib.loads, ".json": json.loads}
WEIGHTS_ONLY = (".npz", ENDING)


@dataclass(frozen=True)
class Origin:
    """What the first argument of `create` means.

    Args:
        spec: the network it describes.
        variant: the registered variant behind it, whose builder and weights apply.
        saved: the file written by `save`, if it is one.
        stated: the keys of a mapping or file of the user's, with those of its block.
    """

    spec: Spec
    variant: Variant | None = None
    saved: Checkpoint | None = None
    stated: frozenset[str] = frozenset()

    @property
    def native(self) -> Spec:
        """The network that the weights belong to."""
        return self.variant.spec if self.variant and not self.saved else self.spec

    @property
    def has_other_head(self) -> bool:
        """Whether the spec asks for another head than the weights have."""
        native = self.native
        return (self.spec.num_classes, self.spec.head) != (native.num_classes, native.head)

    @property
    def chosen(self) -> frozenset[str]:
        """What the user's own spec says of the facts of weights: fields, and `block.option`s.

        What it only repeats from its variant is not chosen.
        """
        if self.variant is None:
            return self.stated
        return frozenset(facts.differing(self.native, self.spec))


def origin_of(name: object) -> Origin:
    if isinstance(name, Spec):
        return replace(origin_of(name.to_data()), stated=frozenset())  # it always says everything
    if isinstance(name, Mapping):
        return _from_mapping(Reader(name, "spec", InvalidOption))
    if not isinstance(name, str | os.PathLike):
        raise InvalidOption(
            f"name must be a registered name, a spec or a path, got {describe(name)}"
        )
    if name == "":
        raise InvalidOption(
            "name is '' (an unset shell variable?), expected a registered name such as 'vit_b16', "
            "a spec or a path; `vitzoo list` shows all names"
        )
    path = Path(name)
    if path.suffix == ".safetensors":
        return from_saved(path)
    if path.name.endswith(WEIGHTS_ONLY):
        raise CheckpointError(_nameless(path))
    if path.suffix in SPEC_FILES:
        return _from_mapping(Reader(_parse(path), str(path), InvalidOption))
    if isinstance(name, os.PathLike):
        _check_nothing_there(path)
        raise InvalidOption(f"a path must end in .toml, .json or .safetensors, got {str(path)!r}")
    try:
        variant = registry().variant(name)
    except UnknownName:
        _check_nothing_there(path)
        raise
    return Origin(variant.spec, variant)


def _check_nothing_there(path: Path) -> None:
    """Say what a path is that was given as a name, and how its weights are loaded.

    Raises:
        CheckpointError: something is there.
    """
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder, which does not say which network its weights belong to; name "
            f"the variant: create('vit_b16', weights='{path}/')"
        )
    if path.is_file():
        open_file(path)  # says what it is, if it is no weights
        raise CheckpointError(_nameless(path))


def _from_mapping(reader: Reader) -> Origin:
    spec, variant = read_network(reader)
    block = [f"block.{key}" for key in reader.table.get("block", {})]
    return Origin(spec, variant, stated=frozenset([*reader.table, *block]) - {"block"})


def from_saved(path: Path) -> Origin:
    checkpoint = open_file(path)
    saved = read_saved(checkpoint, str(path))
    if saved is None:
        raise CheckpointError(_nameless(path))
    return replace(_from_mapping(saved.reader()), saved=saved.add_to(checkpoint))


def _nameless(path: Path) -> str:
    return (
        f"{path} was not written by vitzoo.save, so it does not say which network it is; "
        f"name the variant: create('vit_b16', weights={str(path)!r})"
    )


def _parse(path: Path) -> Any:
    try:
        return SPEC_FILES[path.suffix](path.read_bytes().decode())
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from error
