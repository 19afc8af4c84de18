"""timm's files of these families, small: the format of each, and every element of the outputs."""

from __future__ import annotations

import pytest
import timm
import torch

import vitzoo
from helpers import write

pytestmark = pytest.mark.parity

NETWORKS = {
    "sbb/vit_b16_rpn": "timm",
    "sbb/vit_m16_256": "timm",
    "sbb/vit_wee16_reg1_256": "timm",
    "sbb/vit_pwee16_reg1_256": "sbb/timm_parallel",
    "sbb/vit_so150m16_reg4_256": "timm",
    "sbb/vit_so150m16_v2_reg1_256": "timm",
    "sbb/vit_md16_rope_reg1_256": "sbb/timm",
    "sbb/vit_betwixt16_rope_reg4_256": "sbb/timm",
    "rope_vit/vit_s16_axial": "rope_vit/timm",
    "rope_vit/vit_s16_axial_ape": "deit/meta",  # the keys are those of DeiT III
    "rope_vit/vit_s16_mixed": "rope_vit/timm",
    "rope_vit/vit_s16_mixed_ape": "rope_vit/timm",
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
    ratio = variant.spec.mlp_dim / variant.spec.embed_dim
    spec |= {"mlp_dim": int(ratio * numbers["embed_dim"])}
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
