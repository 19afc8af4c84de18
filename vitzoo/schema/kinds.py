"""The kinds of contributions, in one table: name, hook, entry, and the field of a spec.

A new kind is one line here, a row in `vitzoo/schema/rows.py`, a hook in
`vitzoo/plugin/hookspecs.py`, a protocol in `vitzoo/parts/protocols.py` and conformance tests in
`vitzoo/testing/`; torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitzoo.schema.rows import (
    CheckpointFormat,
    Contribution,
    DropPathPolicy,
    Head,
    PatchEmbedder,
    Pool,
    PositionEmbedding,
    Variant,
)


@dataclass(frozen=True)
class Kind:
    """A kind of contribution.

    Args:
        name: in messages and listings.
        hook: that plugins implement.
        row: class of what the hook returns.
        field: of a spec, and argument of `create`, that chooses one; empty if none does.
    """

    name: str
    hook: str
    row: type[Contribution]
    field: str = ""

    @property
    def table(self) -> str:
        """Name of its table in a manifest."""
        return self.hook.removeprefix("vitzoo_")


KINDS = (
    Kind("patch embedder", "vitzoo_patch_embedders", PatchEmbedder, "patch_embed"),
    Kind("position embedding", "vitzoo_position_embeddings", PositionEmbedding, "pos_embed"),
    Kind("pool", "vitzoo_pools", Pool, "pool"),
    Kind("head", "vitzoo_heads", Head, "head"),
    Kind("drop-path policy", "vitzoo_drop_path_policies", DropPathPolicy, "drop_path"),
    Kind("checkpoint format", "vitzoo_checkpoint_formats", CheckpointFormat),
)
VARIANT_HOOK = "vitzoo_variants"
HOOKS: dict[str, type[Contribution] | type[Variant]] = {
    **{kind.hook: kind.row for kind in KINDS},
    VARIANT_HOOK: Variant,
}
KIND_OF_HOOK = {kind.hook: kind.name for kind in KINDS}
KIND_OF_FIELD = {kind.field: kind.name for kind in KINDS if kind.field}
FIELD_OF_KIND = {kind.name: kind.field for kind in KINDS if kind.field}
