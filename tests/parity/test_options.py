"""Every element again, for options that change what Ti/16 computes or how it looks."""

from functools import partial
from types import FunctionType

import pytest
import torch
from torch import nn

from helpers import Library

pytestmark = pytest.mark.parity

timm = Library("timm")
DEPTH = 4  # an option is the same in every block; test_timm.py compares all 12
MEAN_THEN_NORM = {"pool": {"name": "mean", "norm_first": False}}
NORM_THEN_MEAN = {"pool": {"name": "mean", "norm_first": True}}
PRE_NORM = {"spec": {"pre_norm": True}, "patch_embed": {"name": "conv", "bias": False}}
PATCHES_ONLY = {"name": "learned", "prefix": False}
# A lambda returns a class of timm, which is imported when a test runs.
SWIGLU = {"mlp_layer": lambda: timm.layers.SwiGLU, "act_layer": "silu"}
PACKED = {"mlp_layer": lambda: timm.layers.SwiGLUPacked, "act_layer": "silu", "mlp_ratio": 8}
RMS = {"norm_layer": lambda: timm.layers.RmsNorm}

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
    "no_biases_after_attention_and_mlp": (
        {"proj_bias": False},
        {"block": {"proj_bias": False, "mlp_bias": False}},
    ),
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
    "registers": ({"reg_tokens": 4}, {"spec": {"num_registers": 4}}),
    "no_prefix_positions": ({"no_embed_class": True}, {"pos_embed": PATCHES_ONLY}),
    "registers_without_positions": (
        {"reg_tokens": 4, "no_embed_class": True},
        {"spec": {"num_registers": 4}, "pos_embed": PATCHES_ONLY},
    ),
    "registers_without_class_token": (
        {"reg_tokens": 3, "class_token": False, "global_pool": "avg"},
        MEAN_THEN_NORM | {"spec": {"num_registers": 3, "class_token": False}},
    ),
    "layer_scale": ({"init_values": 0.1}, {"block": {"layer_scale": 0.1}}),
    "qk_norm": ({"qk_norm": True}, {"block": {"qk_norm": True}}),
    "pre_norm": ({"pre_norm": True}, PRE_NORM),
    "swiglu": (SWIGLU, {"block": {"mlp": "swiglu"}}),
    "swiglu_packed": (PACKED, {"block": {"mlp": "swiglu_packed"}}),
    "swiglu_with_norm": (
        SWIGLU | {"scale_mlp_norm": True},
        {"block": {"mlp": "swiglu", "mlp_norm": True}},
    ),
    "swiglu_packed_with_norm": (
        PACKED | {"scale_mlp_norm": True},
        {"block": {"mlp": "swiglu_packed", "mlp_norm": True}},
    ),
    "swiglu_without_biases": (
        SWIGLU | {"proj_bias": False},
        {"block": {"mlp": "swiglu", "proj_bias": False, "mlp_bias": False}},
    ),
    "swiglu_packed_without_biases": (
        PACKED | {"proj_bias": False},
        {"block": {"mlp": "swiglu_packed", "proj_bias": False, "mlp_bias": False}},
    ),
    "norm_of_patches": (
        {"embed_norm_layer": partial(nn.LayerNorm, eps=1e-3)},
        {"patch_embed": {"name": "conv", "norm": "layer", "norm_eps": 1e-3}},
    ),
    "rms_norm_of_patches": (
        {"embed_norm_layer": lambda: partial(timm.layers.RmsNorm, eps=1e-3)},
        {"patch_embed": {"name": "unfold", "norm": "rms", "norm_eps": 1e-3}},
    ),
    "mlp_norm": ({"scale_mlp_norm": True}, {"block": {"mlp_norm": True}}),
    "attn_norm": ({"scale_attn_norm": True}, {"block": {"attn_norm": True}}),
    "rms_norm": (
        RMS | {"qk_norm": True, "scale_attn_norm": True, "scale_mlp_norm": True},
        {"block": {"norm": "rms", "qk_norm": True, "attn_norm": True, "mlp_norm": True}},
    ),
    "post_norm": (
        {"block_fn": lambda: timm.models.vision_transformer.ResPostBlock},
        {"block": {"post_norm": True}},
    ),
    "no_final_norm": ({"final_norm": False}, {"spec": {"final_norm": False}}),
    "no_final_norm_mean": (
        {"final_norm": False, "global_pool": "avg", "fc_norm": False},
        NORM_THEN_MEAN | {"spec": {"final_norm": False}},
    ),
    "attention_pool": ({"global_pool": "map"}, {"pool": "attention"}),
    "attention_pool_tanh_gelu": (
        {"global_pool": "map", "act_layer": "gelu_tanh"},
        {"pool": "attention", "block": {"activation": "gelu_tanh"}},
    ),
    "all_at_once": (
        {
            "reg_tokens": 2, "init_values": 0.1, "qk_norm": True, "pre_norm": True,
            "global_pool": "map",
        },
        {
            "spec": {"num_registers": 2, "pre_norm": True},
            "patch_embed": {"name": "conv", "bias": False}, "pool": "attention",
            "block": {"layer_scale": 0.1, "qk_norm": True},
        },
    ),
}  # fmt: skip  # theirs and ours side by side


def option_twins(parity, weights, timm_options, options):
    timm_options = {k: v() if isinstance(v, FunctionType) else v for k, v in timm_options.items()}
    options = dict(options)
    spec = options.pop("spec", None)
    return parity.make_twins(
        "vit_ti16",
        weights,
        timm_options=timm_options,
        vitzoo_options=options,
        spec=spec,
        depth=DEPTH,
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
    twins = option_twins(parity, weights, {}, {"block": {"qk_scale": 0.2}})
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
