"""The types of transformers with the image tower of CLIP, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitzoo import formats
from vitzoo.formats import Config, ConfigTable

ALONE = ("_vision_model", "_vision")  # at the end of the type of an image tower alone
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
OF_THE_WHOLE = {
    "is of the text tower, or of the whole model": (
        *("text_config", "text_config_dict", "vision_config_dict", "logit_scale_init_value"),
    ),
}


def _angles(value: Any) -> dict[str, Any]:
    """Return the positions of MLCD, of which `rope_parameters` states the temperature."""
    table: Config = {} if value is None else value
    good = isinstance(table, Mapping) and table.get("rope_type", "axial") in ("axial", "default")
    theta = table.get("rope_theta", 1e4) if good else 0
    good = type(theta) in (int, float) and 1 < theta < float("inf")
    expected = "a table with rope_type 'axial' and a number rope_theta above 1"
    formats.check_config(good, "rope_parameters", expected, value)
    return {"pos_embed": {"name": "clip/rope_prefix", "temperature": float(theta)}}


BASE = formats.WITH_MLP.but(
    defaults={"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    network={"pre_norm": True, "patch_embed": {"name": "conv", "bias": False}},
)
TOWER = BASE.but(irrelevant={"is of a projection, which it does not have": ("projection_dim",)})
CLIP = BASE.but(
    irrelevant=OF_THE_WHOLE,
    applied={"projection_dim": formats.read_with},
    defaults={"projection_dim": 512},
)
LARGE = {"num_attention_heads": 16, "patch_size": 14}
KOSMOS = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, **LARGE}
MLCD: dict[str, Any] = {"hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48}
MLCD |= LARGE | {"image_size": 336, "hidden_act": "gelu"}
MLCD["rope_parameters"] = {"rope_type": "axial", "rope_theta": 1e4}
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
        applied={"rope_parameters": _angles},
        fixed={"num_key_value_groups": (1,), "rope_theta": (None, 1e4, 10_000)},
        defaults=MLCD,
    ),
}
