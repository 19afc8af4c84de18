"""Which names `pretrained=True` refuses, and what a refusal says."""

import re

import pytest

import vitzoo
from helpers import message, refuses, says
from internals import choose, registry
from tables import cases
from vitzoo import WeightsUnavailable

# No file of these networks was published.
WITHOUT = {
    "vit_g14",
    "vit_gg14",
    *(f"hybrid/r50_vit_{name}" for name in ("b32", "l16", "b16_in21k")),
    *(f"timm/levit_{name}" for name in ("256d", "384_s8", "512", "512_s8", "512d")),
    *(f"timm/levit_conv_{name}" for name in ("256d", "384_s8", "512", "512_s8", "512d")),
    *(f"timm/swinv2_cr_base_{name}" for name in ("224", "384", "ns_224")),
    *(f"timm/swinv2_cr_{size}_{px}" for size in ("giant", "huge", "large") for px in (224, 384)),
    *(f"timm/swinv2_cr_{name}" for name in ("small_384", "small_ns_256", "tiny_224", "tiny_384")),
    *(f"timm/vit_{size}_patch16_18x2_224" for size in ("base", "small")),
    *(f"timm/vit_{name}d_224" for name in ("base_resnet26", "base_resnet50", "small_resnet26")),
    *(f"timm/vit_relpos_base_patch16_{name}" for name in ("cls_224", "plus_240", "rpn_224")),
    *("timm/vit_relpos_small_patch16_rpn_224", "timm/vit_small_resnet50d_s16_224"),
    *("timm/hiera_base_abswin_256", "timm/hieradet_small", "timm/mvitv2_small_cls"),
    *("timm/naflexvit_base_patch16_map", "timm/samvit_base_patch16_224"),
    *(f"timm/naflexvit_so150m2_patch16_reg1_{pool}" for pool in ("gap", "map")),
}
ALL = vitzoo.variants()


def test_only_networks_without_a_published_file_are_refused():
    refused = set()
    for variant in ALL:
        try:
            assert choose(variant, None, registry()).default
        except WeightsUnavailable:
            refused.add(variant.name)
    assert refused == WITHOUT
    assert (len(ALL), len(refused)) == (468, 45)


@cases("name", sorted(WITHOUT))
def test_a_refusal_names_networks_with_weights(name):
    text = message(WeightsUnavailable, vitzoo.create, name, pretrained=True)
    says(text, name, "pretrained=False", "weights='hf://owner/repo@main/model.safetensors'")
    calls = re.findall(r"vitzoo\.create\('([^']+)', pretrained=True\)", text)
    assert len(calls) == 3
    assert all(vitzoo.describe(call).default_weights for call in calls)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("vit_gg14", ("clip/vit_gg14", "vit_h14")),
        ("timm/levit_512", ("timm/levit_384", "timm/levit_256")),
        ("timm/swinv2_cr_tiny_224", ("timm/swinv2_cr_tiny_ns_224",)),
        ("timm/samvit_base_patch16_224", ("timm/samvit_base_patch16",)),
    ],
)
def test_the_networks_are_similar(name, instead):
    says(message(WeightsUnavailable, vitzoo.create, name, pretrained=True), *map(repr, instead))


def test_a_wrong_name_of_weights_lists_all_with_data_size_and_accuracy(run):
    text = message(WeightsUnavailable, vitzoo.create, "vit_b16", weights="nope")
    first, *lines = text.split("\n")
    says(first, "vit_b16", "'nope'")
    rows = {line.split(":")[0].strip(): line for line in lines}
    assert list(rows) == [row.name for row in vitzoo.describe("vit_b16").weights]
    expected = "augreg2_in21k_ft_in1k: ImageNet-21k, 346 MB, top-1 85.11 %, default"
    assert rows["augreg2_in21k_ft_in1k"].strip() == expected
    with refuses(WeightsUnavailable, "did you mean 'augreg_in21k'"):
        vitzoo.create("vit_b16", weights="augreg_in21")
    code, out, err = run("fetch", "vit_b16:nope")
    assert (code, out) == (1, "")
    assert err.splitlines() == [f"vitzoo: {first}", *lines]


def test_several_weights_without_a_default_are_listed():
    rows = tuple(vitzoo.Weights(name, source="us") for name in ("one", "two"))
    variant = vitzoo.Variant("net", "", vitzoo.describe("vit_ti16").spec, 1, weights=rows)
    text = message(WeightsUnavailable, choose, variant, None, registry())
    assert text == "net has no default weights; choose from:\n  one: us\n  two: us"
