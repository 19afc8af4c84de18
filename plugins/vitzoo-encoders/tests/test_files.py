"""timm's files of these families, small: the format of each, and every element of the outputs."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from helpers import write
from small_timm import assert_file_is_read, make_small

pytestmark = pytest.mark.parity

NETWORKS = {
    "pe/vit_s16_core_384": "timm",
    "pe/vit_l14_lang_448": "pe/timm",
    "pe/vit_gg14_lang_448": "pe/timm",
    "pe/vit_b16_spatial_512": "timm",
    "pe/vit_gg14_spatial_448": "pe/timm",
    "tipsv2/vit_g14": "timm",
    "radio/vit_b16_v3": "timm",
    "radio/vit_h16_v4": "timm",
    "internvit/vit_l14_448": "timm",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_of_timm_is_recognised_and_computes_the_same(parity, tmp_path, weights, name):
    assert_file_is_read(parity, tmp_path, weights, name, NETWORKS[name])


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["radio/vit_b16_v3", "radio/vit_l16_v3", "radio/vit_h16_v3", "radio/vit_so400m16_v4"]
)
def test_positions_of_radio_are_interpolated_as_timm_loads_them(parity, tmp_path, name, timm):
    spec, reference = make_small(parity, name, "scaled", (512, 512))
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    del spec["image_size"]
    size = (96, 96)
    overlay = {"file": str(path), "num_classes": 0}
    architecture = dict(vitzoo.describe(name).known_as)["timm"]
    numbers = {key: spec[key] for key in ("depth", "embed_dim", "num_heads")}
    other = timm.create_model(
        architecture, pretrained=True, pretrained_cfg_overlay=overlay, img_size=size, **numbers
    )
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    parity.assert_same(model.pos_embed, other.pos_embed, what="positions")
    parity.assert_same_network(other.eval(), model, torch.randn(1, 3, *size))
