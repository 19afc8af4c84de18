"""What the registry states about timm's architectures is what timm builds."""

from dataclasses import replace
from fnmatch import fnmatch

import pytest
import torch

import vitzoo
from internals import CORE_BUILDER, timm_spec

pytestmark = [pytest.mark.parity, pytest.mark.long]  # builds all of them on `meta`


@pytest.mark.parametrize("family", ["vit_*", "[!v]*"])
def test_timms_settings_of_a_variant_are_those_of_timms_network(parity, family, timm):
    from vitzoo_timm.native import spec_of

    compared = 0
    for variant in vitzoo.variants():
        name = dict(variant.known_as).get("timm", "").partition(".")[0]
        if variant.builder != CORE_BUILDER or not fnmatch(name, family) or name.endswith("_in21k"):
            continue
        with torch.device("meta"), parity.unfilled():
            network = timm.create_model(name)
        theirs = vitzoo.create(spec_of(network), device="meta").spec
        ours = timm_spec(variant)
        same = replace(ours.block, layer_scale=theirs.block.layer_scale)
        assert (same, ours.pre_norm) == (theirs.block, theirs.pre_norm), variant.name
        assert ours.pool.name == theirs.pool.name, variant.name
        compared += 1
    assert compared > 30
