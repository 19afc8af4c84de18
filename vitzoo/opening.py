"""Which network is meant: a model, a spec, an address on the Hub, a registered name or a path.

`locate` returns a small class for each form that a user may write, a `Reference`. Its method
`statement` reads what is stated about the network, without its tensors.
docs/create.md#which-network describes the rules. Importing this module does not import torch, so
that commands can refuse a wrong name early.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from vitzoo.errors import CheckpointError, InvalidOption, UnknownName
from vitzoo.files.access import read_regular
from vitzoo.files.names import INDEX, PATH, PATHS, on_hub
from vitzoo.files.safetensors import PICKLE_INDEX
from vitzoo.files.strict_json import strict_json
from vitzoo.files.strict_toml import strict_toml
from vitzoo.registry.choice import choose
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.addresses import is_repository, one_form, parts_of_name
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from torch import nn

    from vitzoo.loading.statement import Statement

SPEC_FILES = (".toml", ".json")
MAX_SPEC = 1024 * 1024  # bytes


@dataclass(frozen=True)
class Named:
    """A registered network.

    Args:
        name: of the variant, as it was given.
        variant: its entry.
        row: the weights that were named after a colon, None if there is no colon.
    """

    name: str
    variant: Variant
    row: Weights | None = None

    def statement(self, zoo: Registry) -> Statement:
        """Return what the registry states about the network."""
        from vitzoo.loading.statement import Statement

        return Statement(self.variant.spec, zoo, self.variant, self.row)


@dataclass(frozen=True)
class Described:
    """A network that the user describes: a complete spec, or keys of one."""

    data: Spec | Mapping[str, Any]

    def statement(self, zoo: Registry) -> Statement:
        """Return what the spec states; raise InvalidOption or UnknownName for a wrong value."""
        from vitzoo.loading.statement import from_mapping

        return from_mapping(self.data, "spec", zoo)


@dataclass(frozen=True)
class OnHub:
    """An address on the Hub: `hf://owner/repo`, with or without `@revision` and `/file`."""

    address: str

    def statement(self, zoo: Registry) -> Statement:
        """Return what the repository states; raise VitzooError if it states no network."""
        from vitzoo.loading.statement import from_hub

        return from_hub(self.address, zoo)


@dataclass(frozen=True)
class File:
    """A path, at which there need not be a file."""

    path: Path

    def statement(self, zoo: Registry) -> Statement:
        """Return what a spec, a file of `save`, or the configs beside a weights file state.

        Raises:
            VitzooError: the file is missing or damaged, or does not state its network.
        """
        from vitzoo.loading.statement import from_file, from_mapping

        if is_spec(self.path):
            check_exists(self.path)
            return from_mapping(_parse(self.path), str(self.path), zoo)
        return from_file(self.path, zoo)


@dataclass(frozen=True)
class Folder:
    """The path of a folder."""

    path: Path

    def statement(self, zoo: Registry) -> Statement:
        """Return what a file of `save`, or the configs, in the folder state.

        Raises:
            VitzooError: a file is missing or damaged, or does not state the network.
        """
        from vitzoo.loading.statement import from_folder

        return from_folder(self.path, zoo)


Reference = Named | Described | OnHub | File | Folder


def locate(
    name: object, weights: object = None, zoo: Registry | None = None
) -> Reference | nn.Module:
    """Return which network a user means; a model stays as it is.

    Args:
        name: what the user gave.
        weights: the argument `weights`, which must be None if `name` states weights.
        zoo: the registry; None: that of this process.

    Raises:
        UnknownName, WeightsUnavailable: the variant, or its weights, are not registered.
        InvalidOption: it is none of these, or an address is malformed.
        CheckpointError: it is the path of an image.
    """
    if isinstance(name, Spec | Mapping):
        return Described(name)
    if isinstance(name, os.PathLike):
        return _at(Path(name))
    if not isinstance(name, str):
        if is_model(name):
            return name
        raise InvalidOption(
            "the network must be a registered name, a spec, a path or a model of vitzoo.create, "
            f"got {describe(name)}"
        )
    if name == "":
        raise InvalidOption(
            "the name of the network is '' (an unset shell variable?), expected a registered name "
            "such as 'vit_b16', a path, hf://owner/repo or a spec; `vitzoo list --all` shows all "
            "names"
        )
    if on_hub(name):
        return OnHub(one_form(name))  # raises if it is malformed
    found = _registered_or_path(name, zoo or registry())
    if weights is not None and isinstance(found, Named) and found.row:
        raise InvalidOption(
            f"{name} names the weights {found.row.name!r}, got weights={describe(weights)}; name "
            "weights once"
        )
    return found


def _registered_or_path(name: str, zoo: Registry) -> Named | File | Folder:
    """Return the registered network of a name, or else its path; no name looks like a path."""
    folder = name.endswith("/") and not is_repository(name)
    if folder or PATH.match(name) or name.endswith((*PATHS, *SPEC_FILES)):
        return _at(Path(name))
    try:
        return registered(name, zoo)
    except UnknownName:
        if os.path.exists(name):  # noqa: PTH110  # False for a name that is too long
            return _at(Path(name))
        raise


def _at(path: Path) -> File | Folder:
    """Return a path as what it is; one that is named as a spec is refused as a spec.

    Raises:
        CheckpointError: it is an image.
    """
    from vitzoo.images.find import is_image  # not for names

    if is_image(path.name) and os.path.isfile(path):  # noqa: PTH113  # False if too long
        raise CheckpointError(
            f"{path} is an image, expected a network, which is named before the images"
        )
    folder = not is_spec(path) and os.path.isdir(path)  # noqa: PTH112  # False if too long
    return Folder(path) if folder else File(path)


def registered(name: str, zoo: Registry) -> Named:
    """Return the variant of `name` or `name:weights`, and these weights.

    Raises:
        UnknownName: no variant has this name; the message suggests similar names.
        WeightsUnavailable: the variant has no such weights.
    """
    base, weights = parts_of_name(name)
    if weights is None or "://" in name or is_repository(name):
        return Named(name, zoo.variant(name))
    variant = zoo.variant(base)
    return Named(base, variant, choose(variant, weights, zoo))


def stated(name: object, zoo: Registry, weights: object = None) -> Statement:
    """Return what is stated about a network that is no model.

    Args:
        name, weights, zoo: as in `locate`.

    Raises:
        InvalidOption: it is a model.
        VitzooError: as `locate`; or a file is missing or damaged, or does not state its network.
    """
    found = locate(name, weights, zoo)
    if isinstance(found, Reference):
        return found.statement(zoo)
    raise InvalidOption(
        f"expected a registered name, a spec or a path, got {describe(found)}; pass model.spec for "
        "a new network of the same kind"
    )


def is_model(value: object) -> TypeGuard[nn.Module]:
    """Return whether a value is a module of torch, of vitzoo or not."""
    from torch import nn

    return isinstance(value, nn.Module)


def check_exists(path: Path) -> None:
    """Raise VitzooError if nothing is at a path."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        error = InvalidOption if is_spec(path) else CheckpointError
        raise error(f"cannot read {path}: there is no such file") from None
    except (OSError, ValueError):
        pass


def is_spec(path: Path) -> bool:
    """Return whether a path names a file with a spec."""
    index = path.name.endswith(INDEX) or PICKLE_INDEX.fullmatch(path.name)
    return path.suffix in SPEC_FILES and not index


def _parse(path: Path) -> Any:
    """Return the data in a TOML or JSON file; raise InvalidOption if it cannot be read."""
    text = read_regular(path, MAX_SPEC, InvalidOption) or b""
    try:
        return strict_toml(text) if path.suffix == ".toml" else strict_json(text)
    except ValueError as error:
        verb = "" if path.suffix == ".toml" else "is not valid JSON: "
        raise InvalidOption(f"{path} {verb}{error}") from error
