"""The tensors of timm's models by the names of vitzoo's networks."""

from __future__ import annotations

import re

import torch
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from vitzoo.formats import KeyMap

DISTILLED = KeyMap(
    {"dist_token": "reg_token", "head.": "head.cls.", "head_dist.": "head.dist."}, others=True
)
OTHERS = KeyMap(
    {"rope.freqs": "positions.freqs"},
    {
        "gamma_1": "ls1.gamma",
        "gamma_2": "ls2.gamma",
        ("attn.q_proj.", "attn.k_proj.", "attn.v_proj."): "attn.qkv.",
        **{f"attn.{x}_proj.bias": f"attn.{x}_bias" for x in "qkv"},
        "in_norm.": "norm.",
        "attn_out_proj.": "attn.proj.",
        "mlp_out_proj.": "mlp.fc2.",
        "mlp_bias": "mlp.fc1.bias",  # of a parallel block without other biases
        "q_norm.": "attn.q_norm.",
        "k_norm.": "attn.k_norm.",
    },
    others=True,
)
PARALLEL = re.compile(r"blocks\.\d+\.in_proj\.(weight|bias)")  # MLP, query, key and value
TABLE = re.compile(r"blocks\.\d+\.attn\.relative_position_bias_table")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a timm model by the names of vitzoo; unknown names stay."""
    if isinstance(model, VisionTransformerDistilled):
        return DISTILLED.to_model(model.state_dict())
    found = OTHERS.to_model(model.state_dict())
    if tables := [found.pop(name) for name in list(found) if TABLE.fullmatch(name)]:
        found["pos_embed"] = torch.stack(tables)
    for name in [name for name in found if PARALLEL.fullmatch(name)]:
        block, _, kind = name.rpartition("in_proj.")
        hidden, packed = found[f"{block}mlp.fc2.weight"].shape[1], found.pop(name)
        found[f"{block}mlp.fc1.{kind}"] = packed[:hidden]
        found[f"{block}attn.qkv.{kind}"] = packed[hidden:]
    return found
