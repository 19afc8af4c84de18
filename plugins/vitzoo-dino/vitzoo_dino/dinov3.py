"""The layouts of DINOv3: timm's, Meta's own and transformers'."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import networks
from vitzoo.formats.keys import split_qkv, unique
from vitzoo.formats.transformers import transformers_vit
from vitzoo.spec import Spec
from vitzoo_dino.dino import beside, prefix_of
from vitzoo_dino.names import Names, parameters, parted, stacked, without

TEMPERATURE = 100.0
ROPE = {
    "name": "rope",
    "temperature": TEMPERATURE,
    "coordinates": "centered",
    "layout": "half",
}
MODULES = {
    "norm1": "norm1",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
BIASES = {"attn.q_bias": "attn.q_bias", "attn.v_bias": "attn.v_bias"}
STEM = {"cls_token": "cls_token"} | parameters({"patch_embed.proj": "patch_embed.proj"})
NORM = parameters({"norm": "norm"})
GATE = {"mlp.fc1_g": "mlp.fc1_g", "mlp.fc1_x": "mlp.fc1_x"}
TIMM = Names(
    STEM | NORM | {"reg_token": "reg_token"} | parameters({"head": "head", "fc_norm": "fc_norm"}),
    {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"} | BIASES | parameters(MODULES | GATE),
)
META = Names(
    STEM | NORM | {"storage_tokens": "reg_token"},
    {"ls1.gamma": "ls1.gamma", "ls2.gamma": "ls2.gamma"} | BIASES | parameters(MODULES | GATE),
)
GATED_META = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
TRANSFORMERS = Names(
    {"embeddings.cls_token": "cls_token", "embeddings.register_tokens": "reg_token"}
    | NORM
    | parameters({"embeddings.patch_embeddings": "patch_embed.proj"}),
    {
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
        "attention.q_proj.bias": "attn.q_bias",
        "attention.v_proj.bias": "attn.v_bias",
    }
    | parameters(
        {
            "norm1": "norm1",
            "attention.qkv_proj": "attn.qkv",
            "attention.o_proj": "attn.proj",
            "norm2": "norm2",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        }
    ),
    before="layer.",
)
GATED_TRANSFORMERS = Names(
    TRANSFORMERS.stem,
    {theirs: ours for theirs, ours in TRANSFORMERS.layer.items() if "up_proj" not in theirs}
    | parameters({"mlp.gate_proj": "mlp.fc1_g", "mlp.up_proj": "mlp.fc1_x"}),
    before="layer.",
)
QKV = tuple(f".attention.{part}_proj." for part in "qkv")
MASK = "attn.qkv.bias_mask"
PERIODS = "rope_embed.periods"
TRAINING = re.compile(r"mask_token|local_cls_norm\..+|projectors\..+")
ROUNDING = 2**-8  # periods were published as bfloat16, in which a number is known to 2 ** -9


class TimmDinoV3Format:
    """timm's DINOv3, in the names of its EVA: `gamma_1` and `gamma_2` instead of modules."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether EVA's factors and registers are there, and no table of positions."""
        needed = ("blocks.0.gamma_1", "reg_token", "blocks.0.attn.qkv.weight", "norm.weight")
        return all(key in keys for key in needed) and "pos_embed" not in keys

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename."""
        return TIMM.read(tensors)

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename back.

        Raises:
            CheckpointError: tensors that timm's DINOv3 does not have.
        """
        return TIMM.written(tensors, "dinov3/timm")

    def expresses(self, spec: Spec) -> list[str]:
        """Return what timm's DINOv3 lacks of a spec; it has no biases of keys."""
        bias = ["block.qkv_bias = true"] if spec.block.qkv_bias is True else []
        return [*_lacks(spec), *bias, *networks.pooled(spec, "class", "mean")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what timm computes: it averages the patch tokens, where Meta's code does not.

        Raises:
            CheckpointError: the config states another of timm's networks with these names.
        """
        stated = config.get("architecture")
        if isinstance(stated, str) and "dinov3" not in stated:
            raise CheckpointError(
                f"config.json: architecture {stated[:100]!a} is none of timm's DINOv3; create it "
                "as what it is"
            )
        return {} if config else _usual(keys) | {"pool": "mean"}


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
                "tensors do not say how many heads there are; name the variant, or give the number"
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
        return [*_lacks(spec), *networks.pooled(spec, "class")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what Meta's code computes, and which biases the file has."""
        if config:
            return {}
        return _usual(keys) | {"pool": "class"}

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


class TransformersDinoV3Format:
    """transformers' `DINOv3ViTModel`: no classifier, biases as the config says."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether the patch projection and the LayerScale of a DINOv3 are there."""
        plain = {_plain(key) for key in keys}
        needed = ("embeddings.patch_embeddings.weight", "layer.0.layer_scale1.lambda1")
        return all(key in plain for key in needed)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value."""
        kept = without(tensors, self.left_out(tensors))
        plain = unique((_plain(name), tensor) for name, tensor in kept.items())
        gated = any(".mlp.gate_proj." in name for name in plain)
        names = GATED_TRANSFORMERS if gated else TRANSFORMERS
        return names.read(stacked(plain, QKV, ".attention.qkv_proj."))

    def left_out(self, keys: Collection[str]) -> list[str]:
        """Return the mask token."""
        return [key for key in keys if _plain(key) == "embeddings.mask_token"]

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split, with a mask token of zeros, as a new model has it.

        Raises:
            CheckpointError: tensors that transformers' DINOv3 does not have.
        """
        gated = any(".mlp.fc1_g." in name or ".mlp.fc1_x." in name for name in tensors)
        names = GATED_TRANSFORMERS if gated else TRANSFORMERS
        written = parted(names.written(tensors, "dinov3/transformers"), ".attention.qkv_proj.", QKV)
        token = tensors.get("cls_token")
        if token is not None:
            written["embeddings.mask_token"] = torch.zeros_like(token)
        return written

    def expresses(self, spec: Spec) -> list[str]:
        """Return what transformers' DINOv3 lacks of a spec; the base of its rotations is free."""
        return [*_lacks(spec, temperature=None), *networks.pooled(spec, "class")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what transformers computes, and which biases the file has.

        Raises:
            CheckpointError: the config states what the model cannot do.
        """
        if not config:
            return _usual(keys) | {"pool": "class"}
        stated = dict(config)
        if stated.get("use_gated_mlp") is True:
            activation = stated.pop("hidden_act", "gelu")
            if activation != "silu":
                raise CheckpointError(
                    f"config.json: hidden_act {str(activation)[:50]!a} gates the MLP, the model's "
                    "is gated by silu"
                )
        facts = transformers_vit.facts(stated, keys)
        if "rope_theta" in config:
            facts["pos_embed"] = {"temperature": _base(config["rope_theta"])}
        return facts

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        return transformers_vit.num_heads(config, tensors)


def _base(stated: object) -> float:
    if type(stated) not in (int, float) or not 1 < stated < float("inf"):  # type: ignore[operator]
        raise CheckpointError(
            f"config.json: rope_theta must be a number above 1, got {str(stated)[:50]!a}"
        )
    return float(stated)  # type: ignore[arg-type]  # one of the two


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _usual(keys: Collection[str]) -> dict[str, Any]:
    """Return the facts of all DINOv3, with the biases that keys of a file show."""
    block: dict[str, Any] = {"activation": "gelu", "norm_eps": 1e-5}
    if keys:
        block["qkv_bias"] = _bias(keys)
    return {"block": block, "pos_embed": ROPE}


def _bias(keys: Collection[str]) -> bool | str:
    first = [key for key in keys if re.search(r"\.0\.att", key)]
    masked = any(key.endswith((MASK, "attn.q_bias")) for key in first)
    if masked or any(key.endswith("q_proj.bias") for key in first):
        return True if any(key.endswith("k_proj.bias") for key in first) else "qv"
    return any(key.endswith("attn.qkv.bias") for key in first)


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


def _lacks(spec: Spec, temperature: float | None = TEMPERATURE) -> list[str]:
    """Return what no DINOv3 has: registers, factors of the channels, rotations."""
    allowed = ("layer_scale", "num_registers", "qkv_bias", "qv_bias", "mlp")
    options = dict(spec.pos_embed.options)
    other = {key: value for key, value in options.items() if key in ROPE and value != ROPE[key]}
    if temperature is None:
        other.pop("temperature", None)
    rope = spec.pos_embed.name == "rope" and not other and not options.get("absolute", False)
    mlp = spec.block.mlp not in ("mlp", "swiglu")
    return [
        *networks.class_token(spec),
        *networks.patch_bias(spec),
        *networks.plain_blocks(spec, allowed=allowed),
        *([] if spec.num_registers else ["num_registers = 0"]),
        *(["block.layer_scale = none"] if spec.block.layer_scale is None else []),
        *([f"block.mlp = {spec.block.mlp}"] if mlp else []),
        *([] if rope else [networks.part("pos_embed", spec.pos_embed)]),
    ]


timm_eva = TimmDinoV3Format()
meta = MetaDinoV3Format()
transformers = TransformersDinoV3Format()
