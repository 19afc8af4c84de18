"""What a call of `create` asks for, before its weights are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint, open_file
from vitzoo.checkpoint.saved import read_network, read_saved
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.registry.registry import Registry
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Preprocessing, Variant
from vitzoo.schema.spec import Spec

PARTS = ("pool", "head", "patch_embed", "pos_embed")
OVERRIDDEN = ("num_classes", "in_chans", "image_size", "pre_norm", *PARTS)
"""Fields of a spec, beside `block`, in which weights may differ from their variant."""


@dataclass(frozen=True)
class Request:
    """What the first argument of `create` means.

    Args:
        spec: the network it describes, complete.
        changes: what its author changed, of the fields in which weights may differ from the
            network: plain data under the keys of a spec. What a spec only repeats from its variant
            is not a change.
        variant: the registered variant behind it, whose builder and weights apply.
        saved: the file written by `save`, if it is one.
    """

    spec: Spec
    changes: Mapping[str, Any] = field(default_factory=dict)
    variant: Variant | None = None
    saved: Checkpoint | None = None

    @property
    def base(self) -> Spec:
        """The network that weights belong to unless they state another.

        It has the variant's values in the fields that weights may override; other changes of the
        spec, such as its depth, stay.
        """
        if self.variant is None or self.saved:
            return self.spec
        fields = (*OVERRIDDEN, "block")
        return replace(self.spec, **{f: getattr(self.variant.spec, f) for f in fields})

    @property
    def other_head(self) -> bool:
        """Whether the spec asks for another head than that of the variant's weights."""
        return self.variant is not None and not {"num_classes", "head"}.isdisjoint(self.changes)

    def preprocessing_of(self, spec: Spec) -> Preprocessing | None:
        """Return the preprocessing of the variant's default weights, if it fits a spec."""
        return self.variant.preprocessing_of(spec) if self.variant else None


def changed(spec: Spec, *changes: Mapping[str, Any]) -> Spec:
    """Return a spec with a user's changes, the later ones over the earlier.

    Raises:
        InvalidOption, UnknownOption: a change that no spec can have.
    """
    for change in filter(None, changes):
        spec = Spec.read(Reader(change, "create()", InvalidOption), spec)
    return spec


def from_mapping(reader: Reader, zoo: Registry) -> Request:
    """Return the request of a user's mapping or file."""
    spec, variant = read_network(reader, zoo)
    return Request(spec, _changes(spec, variant, reader.table), variant)


def from_spec(spec: Spec, zoo: Registry) -> Request:
    """Return the request of a `Spec`.

    A `Spec` states every field, so only a value that differs from its variant's is a change.
    """
    reader = Reader(spec.to_data(), "spec", InvalidOption)
    spec, variant = read_network(reader, zoo)
    return Request(spec, _changes(spec, variant, {}), variant)


def from_saved(path: Path, zoo: Registry) -> Request:
    """Return the request of a file written by `save`.

    Raises:
        CheckpointError: `save` did not write it.
    """
    checkpoint = open_file(path)
    saved = read_saved(checkpoint, str(path))
    if saved is None:
        raise CheckpointError(nameless(path))
    spec, variant = read_network(saved.reader(zoo), zoo)
    return Request(spec, variant=variant, saved=saved.add_to(checkpoint))


def nameless(path: Path) -> str:
    """Write the message about a weights file that does not name its network."""
    return (
        f"{path} was not written by vitzoo.save, so it does not say which network it is; "
        f"name the variant: create('vit_b16', weights={str(path)!r})"
    )


def _changes(spec: Spec, variant: Variant | None, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the author of a spec changed.

    Args:
        spec: complete.
        variant: that it starts from; without one, everything stated is a change, and the number of
            classes is the spec's whatever the weights have.
        stated: the table that the user wrote.
    """
    data = spec.to_data()
    if variant is not None:
        return differences(variant.spec, spec)
    changes = {key: data[key] for key in OVERRIDDEN if key in stated or key == "num_classes"}
    block = {key: data["block"][key] for key in stated.get("block", ()) if key in data["block"]}
    return changes | ({"block": block} if block else {})


def differences(base: Spec, spec: Spec) -> dict[str, Any]:
    """Return what brings `base` to `spec`, of the fields in which weights may differ."""
    data = spec.to_data()
    changes = {key: data[key] for key in OVERRIDDEN if getattr(base, key) != getattr(spec, key)}
    block = {
        option.name: getattr(spec.block, option.name)
        for option in dataclasses.fields(spec.block)
        if getattr(spec.block, option.name) != getattr(base.block, option.name)
    }
    return changes | ({"block": block} if block else {})
