"""Every element again, for options that change what Ti/16 computes or how it looks."""

from functools import partial

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.parity

MEAN_THEN_NORM = {"pool": {"name": "mean", "norm_first": False}}
NORM_THEN_MEAN = {"pool": {"name": "mean", "norm_first": True}}

OPTIONS = {
    "norm_after_mean": ({"global_pool": "avg"}, MEAN_THEN_NORM),
    "norm_before_mean": ({"global_pool": "avg", "fc_norm": False}, NORM_THEN_MEAN),
    "no_class_token_norm_after_mean": (
        {"global_pool": "avg", "class_token": False},
        MEAN_THEN_NORM | {"spec": {"class_token": False}},
    ),
    "no_class_token_norm_before_mean": (
        {"global_pool": "avg", "fc_norm": False, "class_token": False},
        NORM_THEN_MEAN | {"spec": {"class_token": False}},
    ),
    "no_qkv_bias": ({"qkv_bias": False}, {"block": {"qkv_bias": False}}),
    "norm_eps": ({"norm_layer": partial(nn.LayerNorm, eps=1e-5)}, {"block": {"norm_eps": 1e-5}}),
    "tanh_gelu": (
        {"act_layer": partial(nn.GELU, approximate="tanh")},
        {"block": {"activation": "gelu_tanh"}},
    ),
    "quick_gelu": ({"act_layer": "quick_gelu"}, {"block": {"activation": "quick_gelu"}}),
    "grey": ({"in_chans": 1}, {"in_chans": 1}),
    "five_channels": ({"in_chans": 5}, {"in_chans": 5}),
    "not_square": ({"img_size": (224, 160)}, {"image_size": (224, 160)}),
    "patches_not_square": ({"patch_size": (16, 32)}, {"spec": {"patch_size": [16, 32]}}),
    "ten_classes": ({"num_classes": 10}, {"num_classes": 10}),
    "no_classes": ({"num_classes": 0}, {"num_classes": 0}),
    "unfold": ({}, {"patch_embed": "unfold"}),
    "no_positions": ({"pos_embed": "none"}, {"pos_embed": "none"}),
}


def option_twins(parity, weights, timm_options, options):
    options = dict(options)
    spec = options.pop("spec", None)
    return parity.make_twins(
        "vit_ti16", weights, timm_options=timm_options, vitzoo_options=options, spec=spec
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_option(parity, weights, option):
    twins = option_twins(parity, weights, *OPTIONS[option])
    assert twins.model.state_dict().keys() == twins.reference.state_dict().keys()
    parity.assert_same_network(twins.reference, twins.model, twins.images)


@pytest.mark.parametrize("option", ["not_square", "patches_not_square", "norm_after_mean"])
@torch.inference_mode()
def test_option_keeps_maps(parity, weights, option):
    twins = option_twins(parity, weights, *OPTIONS[option])
    expected = twins.reference.forward_intermediates(twins.images, 3, intermediates_only=True)
    results = twins.model.forward_intermediates(twins.images, 3, intermediates_only=True)
    for ours, theirs in zip(results, expected, strict=True):
        parity.assert_same(ours, theirs, what="map")


def test_qk_scale(parity, weights):
    twins = parity.make_twins("vit_ti16", weights, vitzoo_options={"block": {"qk_scale": 0.2}})
    for block in twins.reference.blocks:
        block.attn.fused_attn = False  # timm's fused attention ignores `scale`
        block.attn.scale = 0.2
    parity.assert_same_network(twins.reference, twins.model, twins.images)


RANDOM = {
    "dropout": (
        {"pos_drop_rate": 0.2, "proj_drop_rate": 0.2},
        {"dropout": 0.2},
    ),
    "attention_dropout": ({"attn_drop_rate": 0.2}, {"block": {"attention_dropout": 0.2}}),
    "drop_path": ({"drop_path_rate": 0.4}, {"drop_path": 0.4}),
    "all": (
        {"pos_drop_rate": 0.1, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.3},
        {"dropout": 0.1, "block": {"attention_dropout": 0.1}, "drop_path": 0.3},
    ),
}


@pytest.mark.parametrize("option", RANDOM)
@torch.no_grad()
def test_training_draws_the_same_random_numbers(parity, weights, option):
    twins = option_twins(parity, weights, *RANDOM[option])
    results = []
    for network in (twins.reference.train(), twins.model.train()):
        torch.manual_seed(3)
        results.append(network(twins.images))
    parity.assert_same(results[1], results[0], what="logits in training")
    assert not torch.equal(results[1], twins.model.eval()(twins.images))
