"""timm's files of these families, small: the format of each, and every element of the outputs."""

from __future__ import annotations

import pytest

from small_timm import assert_file_is_read

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


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_of_timm_is_recognised_and_computes_the_same(parity, tmp_path, weights, name):
    assert_file_is_read(parity, tmp_path, weights, name, NETWORKS[name])
