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
        "q_norm.": "attn.q_norm.",
        "k_norm.": "attn.k_norm.",
    },
    others=True,
)
TABLE = re.compile(r"blocks\.\d+\.attn\.relative_position_bias_table")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a timm model under the names of the vitzoo network.

    What has the names already keeps them. A name that is not known stays as it is, for whoever
    compares them with the network's.
    """
    if isinstance(model, VisionTransformerDistilled):
        return DISTILLED.to_model(model.state_dict())
    found = OTHERS.to_model(model.state_dict())
    tables = [found.pop(name) for name in list(found) if TABLE.fullmatch(name)]
    if tables:
        found["pos_embed"] = torch.stack(tables)
    for block in range(len(model.blocks)):  # type: ignore[arg-type]  # a list of them
        _unpacked(found, f"blocks.{block}.")
    return found


def _unpacked(tensors: dict[str, Tensor], prefix: str) -> None:
    """Split the matrix in which a parallel block has its MLP's first layer and the projections."""
    packed = tensors.pop(f"{prefix}in_proj.weight", None)
    if packed is None:
        return
    hidden = tensors[f"{prefix}mlp.fc2.weight"].shape[1]
    tensors[f"{prefix}mlp.fc1.weight"] = packed[:hidden]
    tensors[f"{prefix}attn.qkv.weight"] = packed[hidden:]
    bias, alone = (tensors.pop(prefix + name, None) for name in ("in_proj.bias", "mlp_bias"))
    if bias is not None:
        tensors[f"{prefix}mlp.fc1.bias"] = bias[:hidden]
        tensors[f"{prefix}attn.qkv.bias"] = bias[hidden:]
    elif alone is not None:
        tensors[f"{prefix}mlp.fc1.bias"] = alone
