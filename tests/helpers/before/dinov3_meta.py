"""The layout of Meta's DINOv3: masked biases, and the periods of its rotations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from before import unsupported
from before.dino import beside, prefix_of
from before.dino_names import Names, parameters, without
from before.dinov3 import (
    BIASES,
    GATE,
    MASK,
    MODULES,
    NORM,
    STEM,
    TEMPERATURE,
    lacks,
    usual,
)
from before.keymap import split_qkv, unique
from vitzoo.errors import CheckpointError
from vitzoo.schema.spec import Spec

META = Names(
    STEM | NORM | {"storage_tokens": "reg_token"},
    {"ls1.gamma": "ls1.gamma", "ls2.gamma": "ls2.gamma"} | BIASES | parameters(MODULES | GATE),
)
GATED_META = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
PERIODS = "rope_embed.periods"
TRAINING = re.compile(r"mask_token|local_cls_norm\..+|projectors\..+")
ROUNDING = 2**-8  # periods were published as bfloat16, in which a number is known to 2 ** -9


@dataclass(frozen=True)
class MetaDinoV3Format:
    """Meta's DINOv3, as published or as a teacher among the files of training.

    Biases of the keys are masked: what the mask hides is left out, as it counts for nothing. The
    periods of the rotations are no part of the network, which computes its own; they are compared.

    Args:
        heads: to write the periods, which follow from a head's width; None where not known.
    """

    heads: int | None = None

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether Meta's name for registers is there, and LayerScale."""
        prefix = prefix_of(keys)
        needed = ("storage_tokens", "blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight")
        return all(f"{prefix}{key}" in keys for key in needed)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and part the biases of queries, keys and values where the keys' are masked.

        Raises:
            CheckpointError: a mask hides something else than the keys' biases, or the periods are
                not those that the model computes.
        """
        prefix = prefix_of(tensors)
        plain = unique(
            (name.removeprefix(prefix), tensor)
            for name, tensor in without(tensors, beside(tensors, prefix)).items()
        )
        _check_periods(plain.get(PERIODS))
        plain = _unmasked(plain)
        kept = {name: t for name, t in plain.items() if not _is_left_out(name)}
        gated = unique((_renamed(name), tensor) for name, tensor in kept.items())
        return META.read(gated)

    def left_out(self, keys: Collection[str]) -> list[str]:
        """Return masks, periods, the mask token and what else only training needs."""
        prefix = prefix_of(keys)
        rest = set(beside(keys, prefix))
        names = ((key, key.removeprefix(prefix)) for key in keys)
        return [
            key
            for key, name in names
            if key in rest or _is_left_out(name) or name.endswith(f".{MASK}")
        ]

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, with masked biases, periods, and a mask token of zeros.

        Raises:
            CheckpointError: tensors that Meta's network does not have, or the number of heads is
                not known (`for_heads`).
        """
        if self.heads is None:
            raise CheckpointError(
                "the layout dinov3/meta has periods that follow from the width of a head, and the "
                "tensors do not say how many heads there are; name the variant (--variant), or "
                "give num_heads (--heads)"
            )
        written = dict(_masked(META.written(tensors, "dinov3/meta")))
        if any("mlp.fc1_g." in name for name in written):
            back = {ours: theirs for theirs, ours in GATED_META.items()}
            written = unique((_renamed(name, back), t) for name, t in written.items())
        token = tensors.get("cls_token")
        if token is not None:
            written["mask_token"] = torch.zeros_like(token).flatten(0, -2)
            quarter = token.shape[-1] // self.heads // 4
            written[PERIODS] = _periods(quarter).to(token)
        return written

    def expresses(self, spec: Spec) -> list[str]:
        """Return what Meta's DINOv3 lacks of a spec."""
        return [*lacks(spec), *unsupported.pooled(spec, "class")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what Meta's code computes, and which biases the file has."""
        if config:
            return {}
        return usual(keys) | {"pool": "class"}

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return the number of heads that the periods show: there is one for each four channels."""
        prefix = prefix_of(tensors)
        periods, token = (tensors.get(f"{prefix}{key}") for key in (PERIODS, "cls_token"))
        if periods is None or token is None or not (periods.dim() and token.dim()):
            return None
        width = 4 * periods.shape[-1]
        return token.shape[-1] // width if width and not token.shape[-1] % width else None

    def for_heads(self, num_heads: int) -> MetaDinoV3Format:
        """Return the format that writes the periods of so many heads."""
        return replace(self, heads=num_heads)


def _renamed(name: str, table: Mapping[str, str] = GATED_META) -> str:
    found = next((part for part in table if part in name), None)
    return name if found is None else name.replace(found, table[found])


def _is_left_out(name: str) -> bool:
    return name == PERIODS or TRAINING.fullmatch(name) is not None


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


def _unmasked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Part the biases whose mask hides the keys'."""
    result = dict(tensors)
    for name in [name for name in tensors if name.endswith(f".{MASK}")]:
        mask, bias = tensors[name], tensors.get(name.removesuffix("_mask"))
        parts = None if bias is None or bias.shape != mask.shape else split_qkv(bias)
        if parts is None:
            continue
        _check_mask(name, mask)
        before = name.removesuffix("qkv.bias_mask")
        del result[name], result[name.removesuffix("_mask")]
        result |= {f"{before}q_bias": parts[0], f"{before}v_bias": parts[2]}
    return result


def _check_mask(name: str, mask: Tensor) -> None:
    """Refuse a mask that is not ones for queries and values, and zeros for keys."""
    if mask.is_meta:
        return
    q, k, v = split_qkv(mask) or (mask, mask, mask)
    if not (q.eq(1).all() and k.eq(0).all() and v.eq(1).all()):
        raise CheckpointError(
            f"{ascii(name)[1:-1]} must be 1 for queries and values and 0 for keys; with another "
            "mask the network would compute something else"
        )


def _masked(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Join biases of queries and values to masked ones."""
    for name, tensor in tensors.items():
        if name.endswith(".attn.q_bias"):
            before = name.removesuffix("q_bias")
            values = tensors.get(f"{before}v_bias", tensor)
            one, none = torch.ones_like(tensor), torch.zeros_like(tensor)
            yield f"{before}qkv.bias", torch.cat((tensor, none, values))
            yield f"{before}qkv.bias_mask", torch.cat((one, none, one))
        elif not name.endswith(".attn.v_bias"):
            yield name, tensor


meta = MetaDinoV3Format()
