"""The fix for a name that vitzoo does not have."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from helpers import refuses
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


def test_other_functions_repeat_no_call():
    with pytest.raises(UnknownName) as caught:
        vitzoo.describe(PLAIN)
    assert str(caught.value).endswith("vitzoo.create('vit_b16')")
