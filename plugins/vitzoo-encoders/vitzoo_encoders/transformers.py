"""The names of transformers' image encoders: a format for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitzoo import formats
from vitzoo.formats import Config, KeyMap, Keys, Names, Tensors, TransformersFormat, same

TOKENS = "radio_model.model.patch_generator.cls_token.token"
SUMMARY = "radio_model.summary_idxs"
COUNTS = ("num_cls_tokens", "num_registers", "max_img_size")
ONE_SIDE = "one number of px (transformers interpolates positions from a square grid)"


class EncoderFormat(TransformersFormat):
    """An image encoder alone, or as the tower of a whole model.

    A file may have all prefix tokens in one tensor, which `keymap` calls `cls_token`.
    """

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        found = super().to_model(tensors)
        token = found.get("cls_token")
        if token is None or token.dim() != 3 or token.shape[1] < 2:
            return found
        return found | {"cls_token": token[:, :1], "reg_token": token[:, 1:]}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        if {"cls_token", "reg_token"} <= tensors.keys():
            tokens = torch.cat((tensors["cls_token"], tensors["reg_token"]), dim=1)
            tensors = {**formats.without(tensors, ["reg_token"]), "cls_token": tokens}
        return super().from_model(tensors)

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; InternVL's final norm is a layer norm in any case."""
        found, table = super().stated(config), self.own_config(config)
        good = table.get("norm_type") != "rms_norm" or table.get("use_mean_pooling") is True
        expected = "true with norm_type rms_norm (else the final norm is of another kind)"
        formats.check_config(good, "use_mean_pooling", expected, table.get("use_mean_pooling"))
        return found


class RadioFormat(EncoderFormat):
    """transformers' C-RADIO, whose patch projection is a matrix."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        found = super().to_model(tensors)
        kernel, mean = (found.get(f"patch_embed.{name}") for name in ("proj.weight", "mean"))
        if kernel is not None and mean is not None and kernel.dim() == 2 and len(mean):
            side = math.isqrt(kernel.shape[1] // len(mean))
            if len(mean) * side**2 == kernel.shape[1]:
                found["patch_embed.proj.weight"] = kernel.reshape(-1, len(mean), side, side)
        for name in [name for name in found if name.endswith(".norm1.weight")]:
            for scale in ("ls1", "ls2"):  # of 1, which published files leave out
                key = name.replace("norm1.weight", f"{scale}.gamma")
                found.setdefault(key, torch.ones_like(found[name]))
        return found

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        kernel = {k: t.flatten(1) for k, t in tensors.items() if k == "patch_embed.proj.weight"}
        return super().from_model({**tensors, **kernel})

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        return tensor[None] if key == TOKENS and tensor.dim() == 2 else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        return tensor[0] if key == TOKENS and tensor.dim() == 3 else tensor

    def overrides_in(self, keys: Keys, read: Callable[[str], Tensor]) -> dict[str, Any]:
        """Return which class tokens are the output."""
        if SUMMARY not in keys:
            return {}
        indices = read(SUMMARY).tolist()
        return {"pool": {"indices": indices}, "head": {"tokens": len(indices)}}

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; prefix tokens, positions and pixels have two keys each."""
        found, table = super().stated(config), {**RADIO.defaults, **self.own_config(config)}
        first, others, largest = (found.pop(key, RADIO.defaults[key]) for key in COUNTS)
        indices = table["summary_idxs"]
        indices = [0, 1] if indices is None else indices
        good = isinstance(indices, list) and bool(indices)
        good = good and all(i in range(first) for i in indices)
        expected = f"indices of class tokens, 0 to {first - 1}"
        formats.check_config(good, "summary_idxs", expected, indices)
        side = largest // found.get("patch_size", 16)
        pixels = {"mean": table["norm_mean"], "std": table["norm_std"]}
        changes = {
            "num_registers": first + others - 1,
            "patch_embed": {"name": "radio/normalised", "bias": False, **pixels},
            "pos_embed": {"name": "radio/cropped", "side": side},
            "pool": {"name": "radio/summary", "indices": indices},
            "head": {"name": "radio/summary", "tokens": len(indices)},
        }
        return formats.merged(found, changes)


class VitPoseFormat(EncoderFormat):
    """transformers' ViTPose, which adds the position of a class token to every patch."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        found = super().to_model(tensors)
        table = found.get("pos_embed")
        if table is None or table.dim() != 3:
            return found
        return found | {"pos_embed": table[:, 1:] + table[:, :1]}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and split; the position of the class token is zero."""
        table = tensors.get("pos_embed")
        if table is not None and table.dim() == 3:
            zero = torch.full_like(table[:, :1], -0.0)  # -0.0 + x has the bits of x
            tensors = {**tensors, "pos_embed": torch.cat((zero, table), dim=1)}
        return super().from_model(tensors)


def _class_tokens(value: Any) -> dict[str, Any]:
    return {"num_registers": formats.whole("")(value)[""] - 1}


BOTH = (False, True)
SQUARE = {key: formats.size(key, square=ONE_SIDE) for key in ("image_size", "patch_size")}
ENCODER = formats.WITH_MLP.but(applied=SQUARE)
HUGE = {**formats.sizes(1280, 32, 16), "layer_norm_eps": 1e-6}
BLIP = ENCODER.but(
    fixed={"num_channels": (3,)},
    irrelevant={"is of the whole model": ("projection_dim",)},
    defaults={"image_size": 384, "layer_norm_eps": 1e-5},
)
BLIP_2 = BLIP.but(
    formats.BIAS,
    defaults={
        **formats.sizes(1408, 39, 16, 6144),
        "image_size": 224,
        "patch_size": 14,
        "layer_norm_eps": 1e-6,
    },
)
NORM_TYPES = {"layer_norm": "layer", "rms_norm": "rms"}
POSITIONS: dict[bool, Config] = {False: {"pos_embed": "none"}, True: {}}
POOLS = {False: {"final_norm": True, "pool": "class"}, True: {"final_norm": False, "pool": "mean"}}
INTERNVL = ENCODER.but(
    {
        "attention_bias": (formats.flag("block.qkv_bias"), False),
        "use_qk_norm": (formats.choice({False: False, True: "all_heads"}, "block.qk_norm"), False),
        "norm_type": (formats.choice(NORM_TYPES, "block.norm"), "layer_norm"),
        "layer_scale_init_value": (formats.positive("layer_scale"), 0.1),
        "use_absolute_position_embeddings": (formats.choice(POSITIONS), True),
        "use_mean_pooling": (formats.choice(POOLS), True),
    },
    irrelevant={"acts in training only": ("projection_dropout",)},
    defaults={
        **formats.sizes(1024, 24, 16, 4096),
        "image_size": 448,
        "patch_size": 14,
        "layer_norm_eps": 1e-6,
    },
)
PIXIO = formats.WITH_RATIO.but(
    {"n_cls_tokens": (_class_tokens, 8)},
    applied=SQUARE,
    fixed={"head_dim": (None,)},
    defaults={**HUGE, "image_size": 256},
    network={"pool": "pixio/prefix_mean"},
)
RADIO = formats.WITH_GATE.but(
    {
        "num_cls_tokens": (formats.whole("num_cls_tokens"), 3),
        "num_registers": (formats.whole("num_registers", least=0), 7),
        "max_img_size": (formats.whole("max_img_size"), 2048),
        "summary_idxs": (formats.read_with, [0, 1]),
        "norm_mean": (formats.read_with, [0.48145466, 0.4578275, 0.40821073]),
        "norm_std": (formats.read_with, [0.26862954, 0.26130258, 0.27577711]),
    },
    applied=SQUARE,
    fixed={"head_dim": (None,)},
    irrelevant={
        "follows from other keys": ("patch_dim", "video_patch_dim"),
        "is of videos": ("video_temporal_patch_size",),
    },
    defaults=HUGE,
    network={"final_norm": False},
)
VITPOSE = formats.WITH_RATIO.but(
    fixed={"num_experts": (1,), "head_dim": (None,)},
    irrelevant={"is of the experts": ("part_features",)},
    defaults={"image_size": [256, 192]},
    network={"class_token": False, "pool": "mean", "patch_embed": "vitpose/padded"},
)


def _keymap(layer: Names, **rest: Any) -> KeyMap:
    """Return the names of a network with those of transformers' ViT outside of its blocks."""
    stem = {**formats.TRANSFORMERS_STEM, "embeddings.position_embeddings": "pos_embed"}
    return KeyMap(stem, layer, "encoder.layer.{}.", **rest)


ATTENTION: Names = {
    formats.TRANSFORMERS_QKV: "attn.qkv.",
    "attention.output.dense.": "attn.proj.",
}
NORMS = {"layernorm_before.": "norm1.", "layernorm_after.": "norm2."}
DENSE = {"intermediate.dense.": "mlp.fc1.", "output.dense.": "mlp.fc2."}
MLP = same("mlp.fc1.", "mlp.fc2.")
BICUBIC = {"pos_embed": {"resample": "bicubic"}}  # transformers' `interpolate_pos_encoding`
blip = EncoderFormat(
    "blip/transformers",
    configs={
        **dict.fromkeys(("blip_vision_model", "blip"), BLIP),
        **dict.fromkeys(("blip_2_vision_model", "instructblip_vision_model"), BLIP_2),
    },
    towers=("vision_config",),
    larger=("blip",),
    keymap=KeyMap(
        {
            "embeddings.class_embedding": "cls_token",
            "embeddings.position_embedding": "pos_embed",
            "embeddings.patch_embedding.": "patch_embed.proj.",
            "post_layernorm.": "norm.",
        },
        {
            "layer_norm1.": "norm1.",
            "self_attn.qkv.": "attn.qkv.",
            "self_attn.projection.": "attn.proj.",
            "layer_norm2.": "norm2.",
            **MLP,
        },
        "encoder.layers.{}.",
        prefixes=("vision_model.",),
    ),
    marks=("embeddings.class_embedding", "encoder.layers.0.self_attn.qkv.weight"),
    beside=("text_",),
    ignored=(
        *("text_*", "logit_scale", "itm_head.*"),  # of a whole model
        *("vision_proj.*", "visual_projection.*"),
    ),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-5}, **BICUBIC},
    network={"block.qkv_bias": BOTH},
)
internvl = EncoderFormat(
    "internvit/transformers",
    configs={"internvl_vision": INTERNVL},
    keymap=_keymap(
        {
            **NORMS,
            **MLP,
            ("attention.q_proj.", "attention.k_proj.", "attention.v_proj."): "attn.qkv.",
            "attention.q_norm.": "attn.q_norm.",
            "attention.k_norm.": "attn.k_norm.",
            "attention.projection_layer.": "attn.proj.",
            "lambda_1": "ls1.gamma",
            "lambda_2": "ls2.gamma",
        }
    ),
    marks=("encoder.layer.0.attention.projection_layer.weight", "encoder.layer.0.lambda_1"),
    ignored=("embeddings.mask_token",),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}, **BICUBIC},
    network={
        "block.qkv_bias": BOTH,
        "block.qk_norm": (False, "all_heads"),
        "block.norm": ("layer", "rms"),
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "final_norm": (False, lambda spec: spec.block.norm == "layer"),
        "pos_embed": ("learned", "none"),
        "pool": ("class", "mean"),
    },
)
pixio = EncoderFormat(
    "pixio/transformers",
    configs={"pixio": PIXIO},
    keymap=_keymap({**ATTENTION, **same("norm1.", "norm2."), **DENSE}),
    marks=("encoder.layer.0.norm1.weight", "encoder.layer.0.intermediate.dense.weight"),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}, **BICUBIC},
    network={
        **formats.free("num_registers"),
        "block.qkv_bias": BOTH,
        "pool": ("pixio/prefix_mean",),
    },
)
RADIO_MAP = KeyMap(
    {
        TOKENS: "cls_token",
        "radio_model.model.patch_generator.pos_embed": "pos_embed",
        "radio_model.model.patch_generator.embedder.weight": "patch_embed.proj.weight",
        "radio_model.input_conditioner.norm_mean": "patch_embed.mean",
        "radio_model.input_conditioner.norm_std": "patch_embed.std",
    },
    {
        **same("norm1.", "attn.qkv.", "attn.proj.", "norm2.", "mlp.fc1.", "mlp.fc2."),
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
    },
    "radio_model.model.blocks.{}.",
)
GATED = {"mlp.gate_proj.": "mlp.fc1_g.", "mlp.up_proj.": "mlp.fc1_x.", "mlp.down_proj.": "mlp.fc2."}
RADIO_GATED = replace(RADIO_MAP, layer={**GATED, **RADIO_MAP.layer})
radio = RadioFormat(
    "radio/transformers",
    configs={"radio": RADIO},
    gated="swiglu",
    keymap=RADIO_MAP,
    keymaps={"mlp.gate_proj.": RADIO_GATED, "mlp.fc1_g.": RADIO_GATED},
    marks=(TOKENS, "radio_model.model.blocks.0.attn.qkv.weight"),
    ignored=(SUMMARY, "radio_model.model.patch_generator.video_embedder.*"),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}},
    network={
        **formats.free("num_registers"),
        "block.qkv_bias": BOTH,
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "block.mlp": ("mlp", "swiglu"),
        "final_norm": (False,),
        "patch_embed": ("radio/normalised",),
        "patch_embed.bias": (False,),
        "pos_embed": ("radio/cropped",),
        "pool": ("radio/summary",),
    },
)
vitpose = VitPoseFormat(
    "vitpose/transformers",
    configs=dict.fromkeys(("vitpose_backbone", "vitpose"), VITPOSE),
    keymap=_keymap({**ATTENTION, **NORMS, **MLP}, prefixes=("backbone.",)),
    towers=("backbone_config",),
    larger=("vitpose",),
    marks=(
        *("encoder.layer.0.layernorm_before.weight", "encoder.layer.0.mlp.fc1.weight"),
        "encoder.layer.0.attention.attention.query.weight",
    ),
    ignored=("head.*",),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-12}, "patch_embed": "vitpose/padded"},
    network={
        "block.qkv_bias": BOTH,
        "class_token": (False,),
        "patch_embed": ("vitpose/padded",),
        "patch_embed.padding": (None, 2),
        "pool": ("mean",),
    },
)
