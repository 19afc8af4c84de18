"""The table of all kinds of parts and formats; docs/architecture.md says how to add a kind."""

from __future__ import annotations

from typing import NamedTuple

from vitzoo.schema.rows import (
    CheckpointFormat,
    Contribution,
    DropPathPolicyEntry,
    HeadEntry,
    PatchEmbedderEntry,
    PoolEntry,
    PositionEmbeddingEntry,
    Variant,
)


class Kind(NamedTuple):
    """A kind of contribution.

    Args:
        name: in messages and listings.
        hook: name of the hook function that plugins implement.
        row: class of the entries that the hook returns.
        field: of a spec, and argument of `create`, that selects an entry; empty for formats.
    """

    name: str
    hook: str
    row: type[Contribution]
    field: str = ""

    @property
    def table(self) -> str:
        """Name of the table in a manifest."""
        return self.hook.removeprefix("vitzoo_")


KINDS = (
    Kind("patch embedder", "vitzoo_patch_embedders", PatchEmbedderEntry, "patch_embed"),
    Kind("position embedding", "vitzoo_position_embeddings", PositionEmbeddingEntry, "pos_embed"),
    Kind("pool", "vitzoo_pools", PoolEntry, "pool"),
    Kind("head", "vitzoo_heads", HeadEntry, "head"),
    Kind("drop-path policy", "vitzoo_drop_path_policies", DropPathPolicyEntry, "drop_path"),
    Kind("checkpoint format", "vitzoo_checkpoint_formats", CheckpointFormat),
)
FORMAT_HOOK, VARIANT_HOOK = "vitzoo_checkpoint_formats", "vitzoo_variants"
HOOKS: dict[str, type[Contribution] | type[Variant]] = {
    **{kind.hook: kind.row for kind in KINDS},
    VARIANT_HOOK: Variant,
}
KIND_OF_HOOK = {kind.hook: kind.name for kind in KINDS}
KIND_OF_FIELD = {kind.field: kind.name for kind in KINDS if kind.field}
PARTS = tuple(KIND_OF_FIELD)  # fields of a spec, and arguments of `create`
PARTS_OF_WEIGHTS = tuple(name for name in PARTS if name != "drop_path")  # weights may state them
