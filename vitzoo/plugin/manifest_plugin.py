"""Registry files: the contributions of the hooks, written in TOML.

The core's `registry.toml`, a plugin's manifest and the file that `VITZOO_REGISTRY` names share
one schema; docs/registry.md lists every key. Reading one imports nothing but this package.
"""

from __future__ import annotations

from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.schema.manifest import Manifest
from vitzoo.schema.rows import (
    CheckpointFormat,
    DropPathPolicy,
    Head,
    PatchEmbedder,
    PositionEmbedding,
    Variant,
)


class ManifestPlugin:
    """A manifest as pluggy sees it: an object whose hook implementations return its rows."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    @hookimpl
    def vitzoo_patch_embedders(self) -> tuple[PatchEmbedder, ...]:
        return self.manifest.patch_embedders

    @hookimpl
    def vitzoo_position_embeddings(self) -> tuple[PositionEmbedding, ...]:
        return self.manifest.position_embeddings

    @hookimpl
    def vitzoo_heads(self) -> tuple[Head, ...]:
        return self.manifest.heads

    @hookimpl
    def vitzoo_drop_path_policies(self) -> tuple[DropPathPolicy, ...]:
        return self.manifest.drop_path_policies

    @hookimpl
    def vitzoo_checkpoint_formats(self) -> tuple[CheckpointFormat, ...]:
        return self.manifest.checkpoint_formats

    @hookimpl
    def vitzoo_variants(self) -> tuple[Variant, ...]:
        return self.manifest.variants
