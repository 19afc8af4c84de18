"""timm's files of these families, small: the format of each, and every element of the outputs."""

from __future__ import annotations

import pytest
import timm
import torch

import vitzoo
from helpers import write

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


def make_timm(parity, name, weights, size):
    """Return (our spec, timm's network with two narrow blocks)."""
    variant = vitzoo.describe(name)
    numbers = {"depth": 2, "embed_dim": 128, "num_heads": 2}
    theirs, classes = dict(variant.known_as)["timm"], variant.spec.num_classes
    torch.manual_seed(1)
    with parity.unfilled(weights):
        made = timm.create_model(theirs, num_classes=classes, img_size=size, **numbers)
    reference = made.eval()
    parity.fill(reference, weights)
    spec = {"variant": name, "image_size": size, **numbers}
    spec |= {"mlp_dim": reference.blocks[0].mlp.fc2.in_features}
    if variant.spec.pool.name == "attention":
        spec |= {"pool": {**variant.spec.pool.to_data(), "mlp_dim": 512}}
    return spec, reference


@torch.inference_mode()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_of_timm_is_recognised_and_computes_the_same(parity, tmp_path, weights, name):
    patch = vitzoo.describe(name).spec.patch_size[0]
    size = (4 * patch, 6 * patch)
    spec, reference = make_timm(parity, name, weights, size)
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    model = vitzoo.create(spec, weights=path).eval()
    assert model.load_report.format == NETWORKS[name]
    parity.assert_same_network(reference, model, torch.randn(2, 3, *size))


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["radio/vit_b16_v3", "radio/vit_l16_v3", "radio/vit_h16_v3", "radio/vit_so400m16_v4"]
)
def test_positions_of_radio_are_interpolated_as_timm_loads_them(parity, tmp_path, name):
    spec, reference = make_timm(parity, name, "scaled", (512, 512))
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
