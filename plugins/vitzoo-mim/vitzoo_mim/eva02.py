"""timm's names of EVA-02 in the sizes whose query, key and value are three matrices.

The others, with one matrix, have the model's own names.
"""

from __future__ import annotations

import re

from torch import Tensor

from vitzoo import Spec
from vitzoo.formats import Format, KeyMap, Tensors, unheld, unsupported

BLOCKS = ("num_registers", "qkv_bias", "qk_norm", "mlp", "attn_norm", "mlp_norm", "post_norm")
FUSED = re.compile(r"blocks\.\d+\.attn\.(qkv\.(?!weight)|[qkv]_proj\.)\w+")


class TimmEvaFormat(Format):
    """timm's `Eva` with `qkv_fused=False`: query, key and value apart, no bias of the key."""

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Split, and rename back.

        Raises:
            CheckpointError: biases of all three, or as `Format.from_model`.
        """
        if left := [name for name in tensors if FUSED.fullmatch(name)]:
            raise unheld(self.name, left)
        return super().from_model(tensors)

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's `Eva` lacks of a spec."""
        known = spec.pos_embed.name in ("rope", "learned", "none")
        good = known and dict(spec.pos_embed.options).get("where", "stem") == "stem"
        return [
            *(row for row in super().unsupported(spec) if not row.startswith("block.qkv_bias")),
            *(["block.qkv_bias = true"] if spec.block.qkv_bias is True else []),
            *([] if good else [unsupported.part("pos_embed", spec.pos_embed)]),
        ]


timm_eva = TimmEvaFormat(
    "eva02/timm",
    keymap=KeyMap(
        layer={
            ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"): "attn.qkv.weight",
            "attn.q_proj.bias": "attn.q_bias",
            "attn.v_proj.bias": "attn.v_bias",
        },
        others=True,
    ),
    marks=(
        "patch_embed.proj.weight",
        "blocks.0.attn.q_proj.weight",
        "blocks.0.attn.v_proj.weight",
    ),
    network={
        "token": False,
        "blocks": BLOCKS,
        "positions": None,
        "pools": ("class", "mean"),
    },
)
