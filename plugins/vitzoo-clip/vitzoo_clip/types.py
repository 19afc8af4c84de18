"""The types of transformers with the image tower of CLIP, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitzoo import formats
from vitzoo.formats import Config, ConfigTable

PREFIX = "vision_model."
# Before the keys of the tower, and before keys of other parts.
PREFIXES = (
    PREFIX,
    *("clip.vision_model.", "clip."),  # CLIPSeg with a decoder
    *("owlvit.vision_model.", "owlvit.", "owlv2.vision_model.", "owlv2."),
)
PARTS = ("layer_norm1.", "self_attn.", "layer_norm2.", "mlp.")
ALIASES = {"pre_layernorm.": "pre_layrnorm."} | {  # of OWL-ViT; of AltCLIP's whole model
    f"encoder.layer.{{}}.{part}": f"encoder.layers.{{}}.{part}" for part in PARTS
}
BESIDE = (
    "decoder.*",  # CLIPSeg
    *("class_head.*", "box_*", "objectness_head.*", "layer_norm.*"),  # OWL-ViT
)


def _angles(value: Any) -> dict[str, Any]:
    """Return the positions of MLCD, of which `rope_parameters` states the temperature."""
    table: Config = {} if value is None else value
    good = isinstance(table, Mapping) and table.get("rope_type", "axial") in ("axial", "default")
    theta = table.get("rope_theta", 1e4) if good else 0
    good = type(theta) in (int, float) and 1 < theta < float("inf")
    formats.expect(good, "a table with rope_type 'axial' and a number rope_theta above 1")
    return {"pos_embed": {"name": "clip/rope_prefix", "temperature": float(theta)}}


BASE = formats.WITH_MLP.but(
    defaults={"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    network={"pre_norm": True, "patch_embed": {"name": "conv", "bias": False}},
)
TOWER = BASE.but(irrelevant={"is of a projection, which it does not have": ("projection_dim",)})
CLIP = BASE.but({"projection_dim": (formats.read_with, 512)})
KOSMOS = {**formats.sizes(1024, 24, 16, 4096), "patch_size": 14}
MLCD = {**formats.sizes(1664, 48, 16, 8192), "patch_size": 14, "image_size": 336}
OWL = {"image_size": 768}
OWL2 = OWL | {"patch_size": 16}
TYPES: dict[str, ConfigTable] = {  # by `model_type`
    **dict.fromkeys(("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"), CLIP),
    **dict.fromkeys(("chinese_clip", "chinese_clip_vision_model", "clipseg"), CLIP),
    "clipseg_vision_model": TOWER,
    "altclip": CLIP.but(defaults={"projection_dim": 768}),
    "altclip_vision_model": CLIP,
    "owlvit": CLIP.but(defaults=OWL),
    "owlvit_vision_model": TOWER.but(defaults=OWL),
    "owlv2": CLIP.but(defaults=OWL2),
    "owlv2_vision_model": TOWER.but(defaults=OWL2),
    "git_vision_model": TOWER.but(defaults={"patch_size": 16}),
    "kosmos_2_vision_model": TOWER.but(defaults=KOSMOS),
    "mlcd_vision_model": TOWER.but(
        {"rope_parameters": (_angles, {"rope_type": "axial", "rope_theta": 1e4})},
        fixed={"num_key_value_groups": (1,), "rope_theta": (None, 1e4, 10_000)},
        defaults={**MLCD, "hidden_act": "gelu"},
    ),
}
