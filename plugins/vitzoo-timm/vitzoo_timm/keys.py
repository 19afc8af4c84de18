"""The tensors of timm's models by the names of vitzoo's networks."""

from __future__ import annotations

import re

import torch
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
DISTILLED = {
    "dist_token": "reg_token",
    "head.weight": "head.cls.weight",
    "head.bias": "head.cls.bias",
    "head_dist.weight": "head.dist.weight",
    "head_dist.bias": "head.dist.bias",
}
GAMMAS = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
PARALLEL = {"in_norm": "norm", "attn_out_proj": "attn.proj", "mlp_out_proj": "mlp.fc2"}
PARALLEL |= {"q_norm": "attn.q_norm", "k_norm": "attn.k_norm"}
TABLE = "attn.relative_position_bias_table"
FREQUENCIES = "positions.freqs"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a timm model under the names of the vitzoo network.

    What has the names already keeps them. A name that is not known stays as it is, for whoever
    compares them with the network's.
    """
    state = dict(model.state_dict())
    if isinstance(model, VisionTransformerDistilled):
        return {DISTILLED.get(name, name): tensor for name, tensor in state.items()}
    renamed: dict[str, Tensor] = {}
    tables: list[Tensor] = []
    for name, tensor in state.items():
        match = BLOCK.fullmatch(name)
        if match is None:
            renamed[FREQUENCIES if name == "rope.freqs" else name] = tensor
        elif match[2] == TABLE:
            tables.append(tensor)
        else:
            renamed[f"blocks.{match[1]}.{_renamed(match[2])}"] = tensor
    if tables:
        renamed["pos_embed"] = torch.stack(tables)
    for block in range(len(model.blocks)):  # type: ignore[arg-type]  # a list of them
        prefix = f"blocks.{block}."
        for change in (_fused, _unpacked):
            change(renamed, prefix)
    return renamed


def _renamed(rest: str) -> str:
    first, dot, last = rest.rpartition(".")
    return GAMMAS.get(rest) or (PARALLEL[first] + dot + last if first in PARALLEL else rest)


def _fused(tensors: dict[str, Tensor], prefix: str) -> None:
    """Stack separate projections of query, key and value into one."""
    if f"{prefix}attn.q_proj.weight" not in tensors:
        return
    for kind in ("weight", "bias"):
        found = {
            x: t
            for x in "qkv"
            if (t := tensors.pop(f"{prefix}attn.{x}_proj.{kind}", None)) is not None
        }
        if len(found) == 3:
            tensors[f"{prefix}attn.qkv.{kind}"] = torch.cat([found[x] for x in "qkv"])
        else:
            tensors |= {f"{prefix}attn.{x}_{kind}": tensor for x, tensor in found.items()}


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
