"""The layout of timm's EVA-02 in the sizes whose query, key and value are three matrices.

The others, with one matrix, are in the model's own layout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from before import unsupported
from before.keymap import split_qkv, stack_qkv, unheld, unique
from vitzoo.schema.spec import Spec

MARKS = ("patch_embed.proj.weight", "blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight")
BIASES = {"q_proj.bias": "q_bias", "v_proj.bias": "v_bias"}
PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
POSITIONS = ("rope", "learned", "none")


class TimmEvaFormat:
    """timm's `Eva` with `qkv_fused=False`: query, key and value apart, no bias of the key."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether timm's patch projection and a first query and value are there."""
        return all(mark in keys for mark in MARKS)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stack query, key and value, and rename their biases."""
        plain, found = dict(tensors), {}
        for query in [name for name in tensors if re.fullmatch(_key(PROJECTIONS[0]), name)]:
            keys = [query.removesuffix(PROJECTIONS[0]) + part for part in PROJECTIONS]
            rows = stack_qkv(plain.get(key) for key in keys)
            if rows is not None:
                found[query.replace("q_proj", "qkv")] = rows
                plain = {name: tensor for name, tensor in plain.items() if name not in keys}
        pairs = ((_rename(name), tensor) for name, tensor in plain.items())
        return unique([*found.items(), *pairs])

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Split, and rename back.

        Raises:
            CheckpointError: biases of all three, or tensors that would come back otherwise.
        """
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            rows = split_qkv(tensor) if re.fullmatch(_key("qkv.weight"), name) else None
            if rows is not None:
                before = name.removesuffix("qkv.weight")
                written |= {before + p: part for p, part in zip(PROJECTIONS, rows, strict=True)}
            elif re.fullmatch(_key(r"(qkv|[qkv]_proj)\.\w+"), name):
                left.append(name)
            else:
                written[_inverse(name)] = tensor
        if left:
            raise unheld("eva02/timm", left)
        return written

    def expresses(self, spec: Spec) -> list[str]:
        """Return what timm's `Eva` lacks of a spec."""
        allowed = ("qkv_bias", "qk_norm", "mlp", "attn_norm", "mlp_norm", "post_norm")
        blocks = unsupported.plain_blocks(spec, allowed=(*allowed, "num_registers"))
        known = spec.pos_embed.name in POSITIONS
        good = known and dict(spec.pos_embed.options).get("where", "stem") == "stem"
        return [
            *unsupported.patch_bias(spec),
            *(row for row in blocks if not row.startswith("block.qkv_bias")),
            *(["block.qkv_bias = true"] if spec.block.qkv_bias is True else []),
            *([] if good else [unsupported.part("pos_embed", spec.pos_embed)]),
            *unsupported.pooled(spec, "class", "mean"),
        ]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return nothing: a file in timm's layout is evaluated as its variant is."""
        return {}


def _key(part: str) -> str:
    """Return a pattern for a name in the attention of a block."""
    return rf"blocks\.\d+\.attn\.{part}"


def _rename(name: str) -> str:
    match = re.fullmatch(r"(blocks\.\d+\.attn\.)([qv]_proj\.bias)", name)
    return match[1] + BIASES[match[2]] if match else name


def _inverse(name: str) -> str:
    match = re.fullmatch(r"(blocks\.\d+\.attn\.)([qv])_bias", name)
    return f"{match[1]}{match[2]}_proj.bias" if match else name


timm_eva = TimmEvaFormat()
