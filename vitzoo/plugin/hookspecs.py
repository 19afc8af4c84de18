"""The hooks of pluggy that a plugin can implement; docs/plugins.md describes plugins.

A manifest, such as that of the core, has a table for each hook.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from vitzoo.schema.rows import (
    CheckpointFormat,
    DropPathPolicy,
    Head,
    PatchEmbedder,
    Pool,
    PositionEmbedding,
    Variant,
)

hookspec = pluggy.HookspecMarker("vitzoo")
hookimpl = pluggy.HookimplMarker("vitzoo")


@hookspec
def vitzoo_patch_embedders() -> Iterable[PatchEmbedder]:  # type: ignore[empty-body]  # a hook spec has no body
    """Patch embedders, for `create(..., patch_embed="acme/overlap")`::

    @vitzoo.hookimpl
    def vitzoo_patch_embedders():
        yield vitzoo.PatchEmbedder("overlap", OverlapEmbed, "7x7 stem of stride 4")
    """


@hookspec
def vitzoo_position_embeddings() -> Iterable[PositionEmbedding]:  # type: ignore[empty-body]  # a hook spec has no body
    """Position embeddings, for `create(..., pos_embed="acme/fourier")`::

    @vitzoo.hookimpl
    def vitzoo_position_embeddings():
        yield vitzoo.PositionEmbedding("fourier", FourierPositions, "random Fourier features")
    """


@hookspec
def vitzoo_pools() -> Iterable[Pool]:  # type: ignore[empty-body]  # a hook spec has no body
    """Pools, for `create(..., pool="acme/max")`::

    @vitzoo.hookimpl
    def vitzoo_pools():
        yield vitzoo.Pool("max", MaxPool, "largest number of each channel of the patch tokens")
    """


@hookspec
def vitzoo_heads() -> Iterable[Head]:  # type: ignore[empty-body]  # a hook spec has no body
    """Heads, for `create(..., head="acme/cosine")`::

    @vitzoo.hookimpl
    def vitzoo_heads():
        yield vitzoo.Head("cosine", CosineHead, "cosine similarity to class prototypes")
    """


@hookspec
def vitzoo_drop_path_policies() -> Iterable[DropPathPolicy]:  # type: ignore[empty-body]  # a hook spec has no body
    """Drop-path policies, for `create(..., drop_path={"name": "acme/late", "rate": 0.2})`::

    @vitzoo.hookimpl
    def vitzoo_drop_path_policies():
        yield vitzoo.DropPathPolicy("late", late, "0 in the first half, rate in the second")
    """


@hookspec
def vitzoo_checkpoint_formats() -> Iterable[CheckpointFormat]:  # type: ignore[empty-body]  # a hook spec has no body
    """Checkpoint formats, which map the names of the tensors in a weights file::

    @vitzoo.hookimpl
    def vitzoo_checkpoint_formats():
        yield vitzoo.CheckpointFormat("acme", Format("acme/acme", keymap=NAMES), "Acme's ViT")
    """


@hookspec
def vitzoo_variants() -> Iterable[Variant]:  # type: ignore[empty-body]  # a hook spec has no body
    """Variants, for `create("acme/vit_b16_overlap")`::

    @vitzoo.hookimpl
    def vitzoo_variants():
        base = vitzoo.describe("vit_b16").spec
        spec = dataclasses.replace(base, patch_embed=vitzoo.PartSpec("acme/overlap"))
        yield vitzoo.Variant("vit_b16_overlap", "B/16, overlapping stem", spec, 86_600_000)
    """
