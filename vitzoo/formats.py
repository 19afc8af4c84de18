"""Checkpoint formats: layouts of keys, recognised and brought to the model's own.

A format offers two methods. `claims(keys)` tells whether a file's keys are in its layout;
`canonical(tensors)` returns the tensors under the keys of `VisionTransformer.state_dict()`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Format(Protocol):
    """What a contribution to `vitzoo_checkpoint_formats` must offer."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether keys are in this layout."""
        ...

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under the model's own keys."""
        ...


class TimmFormat:
    """timm's layout, which is the model's own: fused qkv, `blocks.N`, `norm`, `head`."""

    MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether at least two of the layout's typical keys are there."""
        return sum(mark in keys for mark in self.MARKS) >= 2

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors as they are."""
        return dict(tensors)


timm = TimmFormat()
