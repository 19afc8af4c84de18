"""The network that a call asks for, before its weights are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vitzoo.checkpoint.checkpoint import Checkpoint, open_file
from vitzoo.checkpoint.saved import read_network, read_saved
from vitzoo.errors import CheckpointError
from vitzoo.loading import overrides
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec


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
        return frozenset(overrides.differing(self.native, self.spec))


def from_mapping(reader: Reader) -> Origin:
    spec, variant = read_network(reader)
    block = [f"block.{key}" for key in reader.table.get("block", {})]
    return Origin(spec, variant, stated=frozenset([*reader.table, *block]) - {"block"})


def from_saved(path: Path) -> Origin:
    checkpoint = open_file(path)
    saved = read_saved(checkpoint, str(path))
    if saved is None:
        raise CheckpointError(nameless(path))
    return replace(from_mapping(saved.reader()), saved=saved.add_to(checkpoint))


def nameless(path: Path) -> str:
    return (
        f"{path} was not written by vitzoo.save, so it does not say which network it is; "
        f"name the variant: create('vit_b16', weights={str(path)!r})"
    )
