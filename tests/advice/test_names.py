"""The fix for a name that vitzoo does not have."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from helpers import refuses
from plugin_files import UNTOUCHABLE
from tables import cases
from vitzoo.errors import UnknownName

PLAIN = "vit_base_patch16_224"


@cases(
    ("name", "arguments", "expected"),
    [
        (PLAIN, {}, "vitzoo.create('vit_b16')"),
        (PLAIN, {"pretrained": True}, "vitzoo.create('vit_b16', pretrained=True)"),
        ("vit_b_16", {"pretrained": True}, "vitzoo.create('vit_b16', pretrained=True)"),
        (
            PLAIN,
            {"pretrained": True, "num_classes": 10, "device": "cpu"},
            "vitzoo.create('vit_b16', pretrained=True, num_classes=10)",
        ),
        (PLAIN, {"weights": "augreg_in21k"}, "vitzoo.create('vit_b16', weights='augreg_in21k')"),
        # The name selects weights.
        (
            f"{PLAIN}.augreg_in21k",
            {"pretrained": True, "num_classes": 10},
            "vitzoo.create('vit_b16', weights='augreg_in21k', num_classes=10)",
        ),
        ("vit_giant_patch14_224", {"pretrained": True}, "vitzoo.create('vit_g14')"),  # no weights
        # What cannot be written or is no option stays out.
        (PLAIN, {"pretrained": True, "block": 5}, "vitzoo.create('vit_b16', pretrained=True)"),
        (
            PLAIN,
            {"pretrained": True, "num_classes": torch.ones(1)},
            "vitzoo.create('vit_b16', pretrained=True)",
        ),
        (PLAIN, {"weights": "x" * 400}, "vitzoo.create('vit_b16')"),
    ],
)
def test_the_fix_is_the_whole_call(name, arguments, expected):
    with refuses(UnknownName, f"'{name}'", expected) as caught:
        vitzoo.create(name, **arguments)
    assert str(caught.value).endswith(expected)


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch14_dinov2", "vitzoo.create('dinov2/vit_b14', pretrained=True)"),
        ("levit_256d", "vitzoo.create('timm/levit_256d')"),  # no weights
    ],
)
def test_the_fix_loads_the_weights_that_a_network_of_a_plugin_has(name, expected):
    with refuses(UnknownName, f"'{name}'", f"{expected}, which needs the plugin"):
        vitzoo.create(name, pretrained=True)


def test_other_functions_repeat_no_call():
    with pytest.raises(UnknownName) as caught:
        vitzoo.describe(PLAIN)
    assert str(caught.value).endswith("vitzoo.create('vit_b16')")


# Names of families


@cases(
    ("name", "expected"),
    [
        ("dinov2", ("8 networks", "'dinov2/vit_s14'", "and 5 more", "`vitzoo list dinov2`")),
        ("vit", ("'vit_ti16'", "`vitzoo list vit`")),
        ("encoders", ("'pe/vit_ti16_core_384'", "`vitzoo list encoders`")),  # a plugin
        ("timm", ("'timm/cait_m36_384'", "`vitzoo list timm`")),  # a format, too
        ("mim", ("without networks", "1 part", "`vitzoo show mim`")),
    ],
)
def test_the_name_of_a_family_is_answered_with_its_networks(name, expected):
    for function in (vitzoo.create, vitzoo.describe):
        with refuses(UnknownName, f"'{name}'", "family", *expected):
            function(name)


@pytest.mark.usefixtures("core_alone")
def test_a_family_that_is_not_installed_comes_with_its_plugin():
    with refuses(UnknownName, "'dinov2/vit_s14'", "vitzoo-dino", "pip install"):
        vitzoo.create("dinov2")


def test_a_family_that_cannot_be_used_comes_with_the_cause(install):
    files = UNTOUCHABLE | {"acme/registry.toml": "api = 1\nvariants = 5\n"}
    install("acme-parts", "acme = acme:registry.toml", files)
    with refuses(UnknownName, "'acme'", "acme-parts", "variants must be a table"):
        vitzoo.create("acme")
