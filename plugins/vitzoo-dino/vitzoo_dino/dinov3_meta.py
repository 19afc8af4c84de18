"""The names of Meta's DINOv3: masked biases, and the periods of its rotations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, KeyMap, Keys, Tensors, without
from vitzoo_dino.dino import MetaFormat, prefix_of
from vitzoo_dino.dinov3 import LAYER, MASK, STEM, TEMPERATURE, DinoV3Format, usual

PLAIN = KeyMap(
    {**STEM, "storage_tokens": "reg_token"},
    {"ls1.gamma": "ls1.gamma", "ls2.gamma": "ls2.gamma", **LAYER},
)
GATE = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
GATED = replace(PLAIN, layer={**GATE, **PLAIN.layer})
PERIODS = "rope_embed.periods"
ROUNDING = 2**-8  # periods were published as bfloat16, in which a number is known to 2 ** -9


class MetaDinoV3Format(DinoV3Format, MetaFormat):
    """Meta's DINOv3, as published or as a teacher among the files of training.

    Biases of the keys are masked: what the mask hides is left out, as it counts for nothing. The
    periods of the rotations are no part of the network, which computes its own; they are compared.
    They follow from a head's width.
    """

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the names of a plain MLP or of a gated one."""
        gated = any(".mlp.w1." in key or ".mlp.fc1_g." in key for key in tensors)
        return GATED if gated else PLAIN

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, and part the biases of queries, keys and values where the keys' are masked.

        Raises:
            CheckpointError: a mask hides something else than the keys' biases, or the periods are
                not those that the model computes.
        """
        prefix = prefix_of(tensors)
        _check_periods(tensors.get(prefix + PERIODS))
        plain = _unmasked(tensors, prefix)
        masks = [k for k in plain if k.startswith(prefix) and k.endswith(f".{MASK}")]
        odd = {key.removeprefix(prefix): plain[key] for key in masks}  # without a bias to mask
        return super().to_model(plain) | odd

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return masks, periods, the mask token and what else only training needs."""
        rest = set(super().ignored_keys(keys))
        return [key for key in keys if key in rest or key.endswith(f".{MASK}")]

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, with masked biases, periods, and a mask token of zeros."""
        written = _masked(super().from_model(tensors))
        token = tensors.get("cls_token")
        if token is not None and self.heads:
            written["mask_token"] = torch.zeros_like(token).flatten(0, -2)
            written[PERIODS] = _periods(token.shape[-1] // self.heads // 4).to(token)
        return written

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of heads that the periods show: there is one for each four channels."""
        prefix = prefix_of(tensors)
        periods, token = (tensors.get(f"{prefix}{key}") for key in (PERIODS, "cls_token"))
        if periods is None or token is None or not (periods.dim() and token.dim()):
            return None
        width = 4 * periods.shape[-1]
        return token.shape[-1] // width if width and not token.shape[-1] % width else None


def _periods(quarter: int) -> Tensor:
    steps = torch.arange(quarter, dtype=torch.float32, device="cpu") / max(quarter, 1)
    return TEMPERATURE**steps


def _check_periods(periods: Tensor | None) -> None:
    """Refuse rotations by other angles than the model's."""
    if periods is None or periods.is_meta:
        return
    good = periods.dim() == 1 and periods.is_floating_point()
    expected = _periods(len(periods)) if good else None
    if expected is None or not torch.allclose(periods.float(), expected, rtol=ROUNDING, atol=0):
        raise CheckpointError(
            f"{PERIODS} are not those of rope with temperature {TEMPERATURE:g}, which all "
            "published DINOv3 have: the model would turn by other angles"
        )


def _unmasked(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Part the biases whose mask hides the keys'.

    Raises:
        CheckpointError: a mask is not ones for queries and values, and zeros for keys.
    """
    result = dict(tensors)
    masks = [name for name in tensors if name.startswith(prefix) and name.endswith(f".{MASK}")]
    for name in masks:
        mask, key = tensors[name], name.removesuffix("_mask")
        bias = tensors.get(key)
        if bias is None or bias.shape != mask.shape or not mask.dim() or len(mask) % 3:
            continue
        query, _, value = bias.tensor_split(3)
        q, k, v = mask.tensor_split(3)
        if not mask.is_meta and not (q.eq(1).all() and k.eq(0).all() and v.eq(1).all()):
            raise CheckpointError(
                f"{ascii(name)[1:-1]} must be 1 for queries and values and 0 for keys; with "
                "another mask the network would compute something else"
            )
        before = key.removesuffix("qkv.bias")
        result = without(result, [key, name])
        result |= {f"{before}q_bias": query, f"{before}v_bias": value}
    return result


def _masked(tensors: Tensors) -> dict[str, Tensor]:
    """Join biases of queries and values to masked ones."""
    result = {k: t for k, t in tensors.items() if not k.endswith((".attn.q_bias", ".attn.v_bias"))}
    for name in [name for name in tensors if name.endswith(".attn.q_bias")]:
        before, query = name.removesuffix("q_bias"), tensors[name]
        one, none = torch.ones_like(query), torch.zeros_like(query)
        values = tensors.get(f"{before}v_bias", query)
        result[f"{before}qkv.bias"] = torch.cat((query, none, values))
        result[f"{before}qkv.bias_mask"] = torch.cat((one, none, one))
    return result


meta = MetaDinoV3Format(
    "dinov3/meta",
    by_head=True,
    keymap=PLAIN,
    marks=("storage_tokens", "blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight"),
    ignored=("mask_token", PERIODS, "local_cls_norm.", "projectors."),
    **usual("class"),
)
