"""Learning rates and weight decay of every parameter."""

import re

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, refuses
from tables import cases
from vitzoo.errors import InvalidOption

RENAMED = {  # parameters that hold the same as timm's of another name
    "dist_token": "reg_token",
    "head": "head.cls",
    "head_dist": "head.dist",
    "gamma_1": "ls1.gamma",
    "gamma_2": "ls2.gamma",
}
OTHER_RATE = {"rope.freqs": "positions.freqs"}  # timm gives it the rate of the head


def found(model, groups):
    """Return {name: (learning rate, weight decay)}."""
    names = {id(p): name for name, p in model.named_parameters()}
    rows = [(names[id(p)], (g["lr"], g["weight_decay"])) for g in groups for p in g["params"]]
    assert len(dict(rows)) == len(rows)  # no parameter twice
    return dict(rows)


def theirs(model, layer_decay, weight_decay):
    from timm.optim import param_groups_layer_decay

    excluded = model.no_weight_decay()
    groups = param_groups_layer_decay(
        model, weight_decay, layer_decay=layer_decay, no_weight_decay_list=excluded
    )
    return found(model, [group | {"lr": group["lr_scale"]} for group in groups])


def renamed(name, distilled):
    whole, _, leaf = name.rpartition(".")
    if name in OTHER_RATE:
        return OTHER_RATE[name]
    if leaf in RENAMED:
        return f"{whole}.{RENAMED[leaf]}".removeprefix(".")
    return f"{RENAMED[whole]}.{leaf}" if distilled and whole in RENAMED else name


FAMILIES = [
    "vit_ti16",
    "dinov2/vit_s14_reg4",  # registers and layer scale
    "clip/vit_b32",  # a norm before the first block
    "mae/vit_b16",  # a norm after the pool
    "siglip/vit_b16",  # an attention pool
    "deit/deit_ti16_distilled",  # two classifiers
    "hybrid/r26_vit_s32",  # a ResNet as patch embedder
    "rope_vit/vit_s16_mixed",  # learned rotations
    "dinov3/vit_s16",
]


@pytest.mark.slow
@cases("name", FAMILIES)
@cases(("layer_decay", "weight_decay"), [(0.75, 0.05), (0.5, 0.3)])
def test_every_parameter_has_timms_rate_and_weight_decay(name, layer_decay, weight_decay, timm):
    variant = vitzoo.describe(name)
    with torch.device("meta"):
        reference = timm.create_model(dict(variant.known_as)["timm"], num_classes=7)
    model = vitzoo.create(name, num_classes=7, device="meta")
    distilled = name.endswith("distilled")
    expected = {
        renamed(key, distilled): value
        for key, value in theirs(reference, layer_decay, weight_decay).items()
    }
    groups = vitzoo.param_groups(model, 1.0, layer_decay=layer_decay, weight_decay=weight_decay)
    ours = found(model, groups)
    stem = layer_decay ** (variant.spec.depth + 1)
    for own in OTHER_RATE.values():
        if own in expected:
            assert expected.pop(own) == (1.0, 0.0)
            assert ours.pop(own) == pytest.approx((stem, 0.0))
    assert ours.keys() == expected.keys()
    assert ours == {key: pytest.approx(value) for key, value in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "cait_xxs24_224"])
def test_wrapped_networks_of_timm_have_timms_rates(name, timm):
    model = vitzoo.create(f"timm/{name}", device="meta")
    ours = found(model, vitzoo.param_groups(model, 1.0, layer_decay=0.7, weight_decay=0.1))
    expected = theirs(timm.create_model(name), 0.7, 0.1)
    assert ours == {key: pytest.approx(value) for key, value in expected.items()}


def test_the_rates_are_multiples_of_the_given_one():
    model = vitzoo.create(SMALL | {"depth": 3, "num_classes": 5})
    groups = vitzoo.param_groups(model, 2e-3, layer_decay=0.5)
    rates = found(model, groups)
    assert rates["head.weight"] == (2e-3, 0.05)
    assert rates["norm.weight"] == rates["blocks.2.norm1.bias"] == (1e-3, 0.0)
    assert rates["blocks.0.mlp.fc1.weight"] == (2e-3 / 8, 0.05)
    assert rates["patch_embed.proj.weight"] == (2e-3 / 16, 0.05)
    assert rates["pos_embed"] == (2e-3 / 16, 0.0)
    assert [group["layer"] for group in groups] == sorted(2 * [*range(5)])
    torch.optim.AdamW(groups)


def test_without_layer_decay_there_are_two_groups():
    model = vitzoo.create(SMALL)
    groups = vitzoo.param_groups(model, 1e-3, weight_decay=0.1)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-3, 0), (1e-3, 0.1)]
    assert found(model, groups).keys() == dict(model.named_parameters()).keys()
    (group,) = vitzoo.param_groups(nn.Linear(3, 2, bias=False), 1e-3)
    assert group["weight_decay"] == 0.05


def test_frozen_parameters_are_left_out_and_change_no_rate():
    model = vitzoo.create(SMALL)
    before = found(model, vitzoo.param_groups(model, 1.0, layer_decay=0.5))
    frozen = set(vitzoo.freeze(model, until=1))
    after = found(model, vitzoo.param_groups(model, 1.0, layer_decay=0.5))
    assert after == {name: value for name, value in before.items() if name not in frozen}


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.network = inner
        self.group_matcher, self.no_weight_decay = inner.group_matcher, inner.no_weight_decay


@pytest.mark.slow
def test_wrappers_are_looked_through_or_refused():
    model = vitzoo.create(SMALL)
    expected = found(model, vitzoo.param_groups(model, 1.0, layer_decay=0.5))
    inside = nn.DataParallel(torch.compile(model))
    assert found(model, vitzoo.param_groups(inside, 1.0, layer_decay=0.5)) == expected
    with refuses(InvalidOption, "Wrapped", "network.cls_token", "the model itself"):
        vitzoo.param_groups(Wrapped(model), 1.0, layer_decay=0.5)


class ByFunction(nn.Sequential):
    def group_matcher(self, coarse=False):
        return lambda name: int(re.match(r"\d+", name)[0])


def test_a_matcher_may_be_a_function():
    model = ByFunction(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    rates = found(model, vitzoo.param_groups(model, 1.0, layer_decay=0.1, weight_decay=0))
    assert [rates[f"{i}.weight"][0] for i in range(3)] == pytest.approx([0.01, 0.1, 1])


@cases(
    ("options", "says"),
    [
        ({"lr": 0}, ("lr", "above 0", "0")),
        ({"lr": float("nan")}, ("lr", "finite", "nan")),
        ({"lr": "fast"}, ("lr", "a finite number", "'fast'")),
        ({"lr": True}, ("lr", "a finite number", "True")),
        ({"layer_decay": 0.0}, ("layer_decay", "(0, 1]", "0.0")),
        ({"layer_decay": 1.5}, ("layer_decay", "(0, 1]", "1.5")),
        ({"layer_decay": None}, ("layer_decay", "0.75", "None")),
        ({"weight_decay": -1}, ("weight_decay", "0 or above", "-1")),
    ],
)
def test_impossible_numbers(options, says):
    with refuses(InvalidOption, *says):
        vitzoo.param_groups(vitzoo.create(SMALL), **({"lr": 1e-3} | options))


def test_models_without_layers_or_trainable_parameters():
    with refuses(InvalidOption, "Linear", "group_matcher()", "layer_decay=1"):
        vitzoo.param_groups(nn.Linear(2, 2), 1e-3, layer_decay=0.9)
    model = vitzoo.create(SMALL).requires_grad_(False)
    with refuses(InvalidOption, "requires_grad_(True)"):
        vitzoo.param_groups(model, 1e-3)
