"""The names of DINOv3: Meta's own, timm's and transformers'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitzoo import formats
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, Format, KeyMap, Keys, Tensors, TransformersFormat, same
from vitzoo_dino.dino import MetaFormat

TEMPERATURE = 100.0
ROPE = {"temperature": TEMPERATURE, "coordinates": "centered", "layout": "half"}
MASK = "attn.qkv.bias_mask"  # of Meta's files, where only queries and values have biases
STEM = same("cls_token", "patch_embed.proj.", "norm.")
LAYER = same("norm1.", "attn.qkv.", "attn.q_bias", "attn.v_bias", "attn.proj.", "norm2.")
LAYER |= same("mlp.fc1.", "mlp.fc2.")
DEFAULTS = {
    "block": {"activation": "gelu", "norm_eps": 1e-5},
    "pos_embed": {"name": "rope", **ROPE},
    "pool": "class",
}
NETWORK = {
    "num_registers": (lambda spec: spec.num_registers > 0,),
    "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
    "block.qkv_bias": (True, False, "qv"),
    "block.mlp": ("mlp", "swiglu"),
    "pos_embed": ("rope",),
    **{f"pos_embed.{option}": (None, value) for option, value in ROPE.items()},
    "pos_embed.absolute": (None, False),
    **formats.free("pos_embed.prefix", "pos_embed.periods"),
}
TRANSFORMERS = KeyMap(
    {
        "embeddings.cls_token": "cls_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.patch_embeddings.": "patch_embed.proj.",
        "norm.": "norm.",
    },
    {
        **same("norm1.", "norm2."),
        ("attention.q_proj.", "attention.k_proj.", "attention.v_proj."): "attn.qkv.",
        "attention.q_proj.bias": "attn.q_bias",  # without a bias of the key
        "attention.v_proj.bias": "attn.v_bias",
        "attention.o_proj.": "attn.proj.",
        "layer_scale1.lambda1": "ls1.gamma",
        "mlp.up_proj.": "mlp.fc1.",
        "mlp.down_proj.": "mlp.fc2.",
        "layer_scale2.lambda1": "ls2.gamma",
    },
    "layer.{}.",
    prefixes=("model.",),
)
GATE = {"mlp.gate_proj.": "mlp.fc1_g.", "mlp.up_proj.": "mlp.fc1_x."}
GATED = replace(TRANSFORMERS, layer={**TRANSFORMERS.layer, **GATE})
META = KeyMap({**STEM, "storage_tokens": "reg_token"}, same("ls1.gamma", "ls2.gamma") | LAYER)
META_GATE = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
META_GATED = replace(META, layer={**META_GATE, **META.layer})
PERIODS = "rope_embed.periods"
ROUNDING, HALF = 1e-6, 2**-10  # of temperatures to a power, in single and in half precision


class TimmDinoV3Format(Format):
    """timm's DINOv3 and LingBot-Vision in the names of its EVA, `gamma_1` and `gamma_2`."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Refuse the config of another network with these names."""
        stated = config.get("architecture")
        good = not isinstance(stated, str) or "dinov3" in stated or "lingbot" in stated
        expected = "one of timm's DINOv3 or LingBot-Vision"
        formats.check_config(good, "architecture", expected, stated)
        return super().stated(config)


class TransformersDinoV3Format(TransformersFormat):
    """transformers' `DINOv3ViTModel`; without registers, its file has a table of 0 registers."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        found = super().to_model(tensors)
        return {name: t for name, t in found.items() if name != "reg_token" or t.numel()}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        written, token = super().from_model(tensors), tensors.get("cls_token")
        if token is not None and "reg_token" not in tensors:
            written["embeddings.register_tokens"] = token[:, :0]
        return written

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; a gated MLP and the biases depend on several keys."""
        table = self.own_config(config)
        gated = table.get("use_gated_mlp", False)
        formats.check_config(type(gated) is bool, "use_gated_mlp", "true or false", gated)
        if gated:
            activation = table.get("hidden_act", "gelu")
            expected = "silu (the gate of the model's MLP)"
            formats.check_config(activation == "silu", "hidden_act", expected, activation)
            table = {key: value for key, value in table.items() if key != "hidden_act"}
        found = CONFIG.read(table)
        mlp = {"mlp": "swiglu" if gated else "mlp"} if "use_gated_mlp" in table else {}
        biases = {
            f"{x}_bias": table.get(f"{x}_bias", x != "key") for x in ("query", "key", "value")
        }
        option = BIASES_OF_CONFIG.get(tuple(biases.values()))
        expected = "biases of all, of none, or of queries and values"
        formats.check_config(option is not None, ", ".join(biases), expected, biases)
        bias = {"qkv_bias": option} if biases.keys() & table.keys() else {}
        return formats.merged(found, {"block": {**mlp, **bias}})


BIASES_OF_CONFIG: dict[tuple[bool, ...], bool | str] = {
    (True, True, True): True,
    (False, False, False): False,
    (True, False, True): "qv",
}


def _temperature(value: Any) -> dict[str, Any]:
    good = type(value) in (int, float) and 1 < value < float("inf")
    formats.expect(good, "a number above 1")
    return {"pos_embed": {"temperature": float(value)}}


OF_ROPE = replace(formats.whole("pos_embed.temperature"), read=_temperature)
CONFIG = formats.WITH_MLP.but(
    {
        "rope_theta": (OF_ROPE, TEMPERATURE),
        "num_register_tokens": (formats.whole("num_registers", least=0), 0),
        "layerscale_value": (formats.positive("layer_scale"), 1.0),
        "query_bias": (formats.read_with, True),
        "key_bias": (formats.read_with, False),
        "value_bias": (formats.read_with, True),
        "use_gated_mlp": (formats.read_with, False),
    },
    applied={key: formats.flag(f"block.{key}") for key in ("proj_bias", "mlp_bias")},
    irrelevant={
        "acts on coordinates in training only": (
            *("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"),
        )
    },
    defaults={**formats.sizes(384, 12, 6, 1536), "layer_norm_eps": 1e-5},
    network={"pos_embed": {"name": "rope", **ROPE}},
)


def _bias(option: bool | str) -> dict[str, Any]:
    return {"block": {"qkv_bias": option}}


class MetaDinoV3Format(MetaFormat):
    """Meta's DINOv3, with masks that hide the biases of the keys, and periods of the rotations."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, and take masked biases apart; masks and periods must be the usual ones."""
        prefix = self.file_prefix(tensors)
        periods = tensors.get(f"{prefix}{PERIODS}")
        if periods is not None and not periods.is_meta:
            _rounding(periods)
        plain = _unmasked(tensors)
        left = [key for key in plain if key.startswith(prefix) and key.endswith(f".{MASK}")]
        return super().to_model(plain) | {key.removeprefix(prefix): plain[key] for key in left}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, with masked biases, periods, and a mask token of zeros."""
        written, token = _masked(super().from_model(tensors)), tensors.get("cls_token")
        if token is not None and self.heads:
            written[PERIODS] = _periods(token.shape[-1] // self.heads // 4).to(token.device)
        return written

    def overrides_in(self, keys: Keys, read: Callable[[str], Tensor]) -> dict[str, Any]:
        """Return how the periods of a file are rounded; Meta published them as bfloat16."""
        key = f"{self.file_prefix(keys)}{PERIODS}"
        rounding = _rounding(read(key)) if key in keys else "float32"
        return {} if rounding == "float32" else {"pos_embed": {"periods": rounding}}

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of heads that the periods show, one period for four channels."""
        prefix = self.file_prefix(tensors)
        periods, token = (tensors.get(f"{prefix}{key}") for key in (PERIODS, "cls_token"))
        if periods is None or token is None or not (periods.dim() and token.dim()):
            return None
        width = 4 * periods.shape[-1]
        return token.shape[-1] // width if width and not token.shape[-1] % width else None


def _periods(quarter: int) -> Tensor:
    steps = torch.arange(quarter, dtype=torch.float32, device="cpu") / max(quarter, 1)
    return TEMPERATURE**steps


def _rounding(periods: Tensor) -> str:
    """Return the option `periods` of rope with which the model has the periods of a file."""
    good = periods.dim() == 1 and periods.is_floating_point()
    expected = _periods(len(periods)) if good else periods
    rounding = HALF if periods.dtype == torch.float16 else ROUNDING
    if good and torch.allclose(periods.float(), expected, rtol=rounding, atol=0):
        return "float32"
    if good and torch.equal(periods.float(), expected.bfloat16().float()):
        return "bfloat16"
    raise CheckpointError(
        f"{PERIODS} are not those of rope with temperature {TEMPERATURE:g}, rounded to float32 or "
        "to bfloat16, which all published DINOv3 have: the model would rotate by other angles"
    )


def _unmasked(tensors: Tensors) -> dict[str, Tensor]:
    """Replace masked biases by the biases of queries and of values."""
    result = dict(tensors)
    for name in [name for name in tensors if name.endswith(f".{MASK}")]:
        mask, bias = tensors[name], tensors.get(name.removesuffix("_mask"))
        if bias is None or bias.shape != mask.shape or not mask.dim() or len(mask) % 3:
            continue
        expected = torch.ones_like(mask).reshape(3, -1)
        expected[1] = 0
        if not mask.is_meta and not torch.equal(mask, expected.flatten()):
            raise CheckpointError(
                f"{ascii(name)[1:-1]} must be 1 for queries and values and 0 for keys; with "
                "another mask the network would compute something else"
            )
        before = name.removesuffix("qkv.bias_mask")
        del result[name], result[f"{before}qkv.bias"]
        result[f"{before}q_bias"], _, result[f"{before}v_bias"] = bias.tensor_split(3)
    return result


def _masked(tensors: Tensors) -> dict[str, Tensor]:
    """Replace biases of queries and of values by masked biases."""
    result = dict(tensors)
    for name in [name for name in tensors if name.endswith(".attn.q_bias")]:
        before, query = name.removesuffix("q_bias"), result.pop(name)
        value = result.pop(f"{before}v_bias", query)
        one, none = torch.ones_like(query), torch.zeros_like(query)
        result[f"{before}qkv.bias"] = torch.cat((query, none, value))
        result[f"{before}qkv.bias_mask"] = torch.cat((one, none, one))
    return result


BIASES = {"cls_token": _bias(False), "blocks.0.attn.qkv.bias": _bias(True)}
timm_eva = TimmDinoV3Format(
    "dinov3/timm",
    keymap=KeyMap(
        STEM | same("reg_token", "head."),
        {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"} | LAYER | same("mlp.fc1_g.", "mlp.fc1_x."),
    ),
    marks=("blocks.0.gamma_1", "reg_token", "blocks.0.attn.qkv.weight", "norm.weight"),
    excludes=("pos_embed",),
    defaults={**DEFAULTS, "pool": "mean"},
    defaults_with={**BIASES, "blocks.0.attn.q_bias": _bias("qv")},
    network={**NETWORK, "block.qkv_bias": (False, "qv"), "pool": ("mean", "class")},
)
transformers = TransformersDinoV3Format(
    "dinov3/transformers",
    configs={"dinov3_vit": CONFIG},
    keymap=TRANSFORMERS,
    keymaps=dict.fromkeys((".mlp.gate_proj.", ".mlp.fc1_g.", ".mlp.fc1_x."), GATED),
    marks=("embeddings.patch_embeddings.weight", "layer.0.layer_scale1.lambda1"),
    ignored=("embeddings.mask_token",),
    mask_token=("embeddings.mask_token", 3),
    defaults=DEFAULTS,
    defaults_with={
        "embeddings.cls_token": _bias(False),
        "layer.0.attention.q_proj.bias": _bias("qv"),
        "layer.0.attention.k_proj.bias": _bias(True),
    },
    network={
        **NETWORK,
        **formats.free("num_registers", "block.proj_bias", "block.mlp_bias"),
        **formats.free("pos_embed.temperature"),
    },
)
meta = MetaDinoV3Format(
    "dinov3/meta",
    by_head=True,
    keymap=META,
    keymaps=dict.fromkeys((".mlp.w1.", ".mlp.fc1_g."), META_GATED),
    marks=("storage_tokens", "blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight"),
    mask_token=("mask_token", 2),
    ignored=("mask_token", PERIODS, f"*.{MASK}", "local_cls_norm.*", "projectors.*"),
    defaults=DEFAULTS,
    defaults_with={**BIASES, f"blocks.0.{MASK}": _bias("qv")},
    network={**NETWORK, "pos_embed.periods": (None, "float32")},  # as they are written
)
