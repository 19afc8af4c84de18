# ruff: noqa: PLR1714, PT018, ARG005
"""Each ported format against its class of before, which is in `before`."""

import importlib

import pytest
import torch

import vitzoo
from helpers import fill
from vitzoo.errors import CheckpointError
from vitzoo.registry.registry import registry

SMALL = {"image_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SMALL |= {"mlp_dim": 64, "num_classes": 5}
V3 = {"variant": "dinov3/vit_s16"}
CASES = {
    "timm": ("timm:timm", [{}, {"head": "tanh"}]),
    "torchvision": ("torchvision:torchvision", [{}, {"head": "tanh"}]),
    "transformers_vit": ("transformers:transformers_vit", [{}, {"head": "none", "num_classes": 0}]),
    "google": ("google:google", [{}, {"head": "tanh"},
        {"variant": "hybrid/r26_vit_s32", "patch_size": 32, "image_size": 64}]),
    "big_vision": ("google:big_vision", [{"class_token": False, "pool": "mean"}]),
    "dino/meta": ("dino:meta", [{"num_classes": 0}]),
    "dinov2/meta": ("dinov2:meta", [
        {"variant": "dinov2/vit_s14", "num_classes": 0, "patch_size": 8},
        {"variant": "dinov2/vit_s14_reg4", "num_classes": 0, "patch_size": 8},
        {"variant": "dinov2/vit_g14", "num_classes": 0, "patch_size": 8},
    ]),
    "dinov2/transformers": ("dinov2:transformers", [
        {"variant": "dinov2/vit_s14", "patch_size": 8, "pool": "class_mean",
         "head": "dinov2/class_and_mean"},
        {"variant": "dinov2/vit_s14_reg4", "patch_size": 8, "num_classes": 0},
        {"variant": "dinov2/vit_g14", "num_classes": 0, "patch_size": 8},
    ]),
    "dinov3/timm": ("dinov3:timm_eva", [V3, {"variant": "dinov3/vit_s16_qkvb"},
                                        {"variant": "dinov3/vit_7b16"}]),
    "dinov3/transformers": ("dinov3:transformers", [
        V3 | {"num_classes": 0}, {"variant": "dinov3/vit_s16_qkvb", "num_classes": 0},
        {"variant": "dinov3/vit_7b16", "num_classes": 0},
        V3 | {"num_classes": 0, "block": {"qkv_bias": True}},
    ]),
    "dinov3/meta": ("dinov3_meta:meta", [
        V3 | {"num_classes": 0}, {"variant": "dinov3/vit_s16_qkvb", "num_classes": 0},
        {"variant": "dinov3/vit_7b16", "num_classes": 0},
    ]),
    "clip/open_clip": ("open_clip:open_clip", [{"variant": "clip/vit_b16"}]),
    "clip/transformers": ("clip_transformers:transformers_clip", [{"variant": "clip/vit_b16"}]),
    "siglip/transformers": ("clip_transformers:transformers_siglip", [
        {"variant": "siglip/vit_b16", "num_classes": 0}]),
    "deit/timm_distilled": ("deit:timm_distilled", [{"variant": "deit/deit_ti16_distilled"}]),
    "deit/transformers": ("deit:transformers_deit", [
        {"variant": "deit/deit_ti16_distilled"},
        {"variant": "deit/deit_ti16_distilled", "pool": "class", "head": "linear"}]),
    "beit/timm": ("beit:timm_beit", [{"variant": "beit/beit_b16"},
        {"variant": "beit/beit_b16", "pos_embed": {"name": "mim/relative", "shared": True}}]),
    "beit/transformers": ("beit:transformers_beit", [{"variant": "beit/beit_b16"},
        {"variant": "beit/beit_b16", "pos_embed": {"name": "mim/relative", "shared": True}}]),
    "eva02/timm": ("eva02:timm_eva", [{"variant": "eva02/vit_b14", "patch_size": 8}]),
}  # fmt: skip

PORTED = [name for name in CASES if "/" in name]


def pair(name):
    module, attribute = CASES[name][0].split(":")
    old = getattr(importlib.import_module(f"before.{module}"), attribute)
    old = old.for_heads(2) if hasattr(old, "for_heads") else old
    return old, registry().part("checkpoint format", name).with_heads(2)


def states(name):
    for changes in CASES[name][1]:
        head = {} if "num_classes" in changes else {"num_classes": 5}
        for weights in ("own", "scaled"):
            model = fill(vitzoo.create(SMALL | changes | head), weights)
            state = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
            if name == "big_vision" and "cls_token" in state:
                state["pos_embed"][:, 0] = 0
            if name == "clip/open_clip" or name == "clip/transformers":
                state["head.bias"].zero_()
            yield state


def outcome(call, *arguments):
    try:
        found = call(*arguments)
    except CheckpointError as error:
        return "error", str(error)
    except (RuntimeError, IndexError) as error:
        return "crash", str(error)
    return "fine", found


def agree(one, other, what=""):
    if one[0] == "crash":
        return
    assert one[0] == other[0], (
        what,
        one if one[0] == "error" else "",
        other if other[0] == "error" else "",
    )
    if one[0] == "error":
        assert one[1] == other[1] or "number of attention heads" in other[1], what
        return
    a, b = one[1], other[1]
    assert a.keys() == b.keys(), (what, sorted(a.keys() ^ b.keys())[:6])
    for key in a:
        assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, (what, key)
        assert torch.equal(a[key], b[key]), (what, key)


@pytest.mark.parametrize("name", PORTED)
def test_same_keys_equal_tensors_and_equal_round_trip(name):
    old, new = pair(name)
    count = 0
    for state in states(name):
        first, second = old.inverse(state), new.from_model(state)
        agree(("fine", first), ("fine", second))
        agree(("fine", old.canonical(first)), ("fine", new.to_model(first)))
        agree(("fine", state), ("fine", new.to_model(second)))
        for stray in ("strange.key", "norm.gamma", "blocks.0.norm1", "blocks.x.norm1.weight",
                      "head.fc.weight", "dist_token", "blocks.0.gamma_1"):  # fmt: skip
            odd = state | {stray: torch.ones(2, 3)}
            agree(outcome(old.inverse, odd), outcome(new.from_model, odd), stray)
            odd = first | {stray: torch.ones(2, 3)}
            agree(outcome(old.canonical, odd), outcome(new.to_model, odd), stray)
        count += 1
    assert count >= 2


@pytest.mark.parametrize("name", PORTED)
@pytest.mark.parametrize("shape", [None, (), (0,), (3,), (6, 2), (3, 5), (2,) * 6])
def test_the_same_for_each_tensor_missing_or_of_another_shape(name, shape):
    old, new = pair(name)
    for state in [s for s in list(states(name))[::2] if len(s) < 100]:
        file = old.inverse(state)
        for key in state:
            if name in ("google", "big_vision") and "norm" in key and shape and len(shape) == 2:
                continue  # a gain is no matrix; before it was written transposed and read as it is
            odd = {k: t for k, t in state.items() if k != key}
            odd |= {} if shape is None else {key: torch.ones(shape)}
            one, other = outcome(old.inverse, odd), outcome(new.from_model, odd)
            if one[0] == "crash" or (".qkv." in key and name.endswith("transformers")):
                continue  # before, a matrix that is no three was written under a name of its own
            assert one[0] == other[0], (key, one, other)
            if one[0] == "error":
                assert (key in one[1]) == (key in other[1]), (one, other)
            else:
                agree(one, other, key)
        for key in file:
            odd = {k: t for k, t in file.items() if k != key}
            odd |= {} if shape is None else {key: torch.ones(shape)}
            if key.endswith(("head.probe", "bias_table")):
                continue  # a table that cannot be stacked has timm's name
            agree(outcome(old.canonical, odd), outcome(new.to_model, odd), key)


@pytest.fixture(scope="module")
def files():
    return {
        name: [list(pair(name)[0].inverse(s)) for s in list(states(name))[::2]] for name in CASES
    }


@pytest.mark.parametrize("name", PORTED)
def test_the_same_files_match(name, files):
    old, new = pair(name)
    for theirs, found in files.items():
        for keys in found:
            assert old.claims(keys) == new.matches(keys), theirs
            for prefix in ("vit.", "teacher.backbone.", "params/", "model.", "opt/target/"):
                keyed = [prefix + key for key in keys]
                if theirs.startswith(("dinov2/", "deit/")) and prefix == "vit.":
                    continue  # taken for a ViT before, as only bare keys were excluded
                assert bool(old.claims(keyed)) == new.matches(keyed), (theirs, prefix)
            if theirs == name:
                for key in keys:
                    rest = [k for k in keys if k != key]
                    assert old.claims(rest) == new.matches(rest), key
            strays = ["mask_token", "embeddings.mask_token", "decoder.mask_token", "decoder.0.x",
                      "lm_head.weight", "text_model.x.weight", "logit_scale", "student.x.weight",
                      "dino_head.x.weight", "embeddings.position_ids", "text.x.bias"]  # fmt: skip
            left = getattr(old, "left_out", lambda keys: [])
            both = [*dict.fromkeys([*keys, *strays])]
            assert theirs != name or sorted(left(both)) == sorted(new.ignored_keys(both))
            assert old.facts({}, keys) == new.overrides({}, keys)
    assert old.facts({}, ()) == new.overrides({}, ())
    assert not new.matches([])


CONFIGS = [
    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-4, "qkv_bias": False},
    {"hidden_act": "quick_gelu", "num_attention_heads": 4},
    {"hidden_act": "x"},
    {"layer_norm_eps": 2},
    {"layer_norm_eps": True},
    {"image_size": [32, 16]},
    {"use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 10},
    {"use_gated_mlp": True},
    {"rope_theta": "x"},
    {"architecture": "vit_base"},
    {"model_type": "siglip2"},
    {"model_type": "clip", "vision_config": {"layer_norm_eps": 0.5}},
    {"model_type": "siglip"},
    {"vision_config": []},
    {"vision_config": {}},
    {"model_cfg": {"vision_cfg": {"width": 128, "pool_type": "avg"}, "quick_gelu": True}},
    {"model_cfg": {"vision_cfg": {"norm_kwargs": {"eps": 3}}}},
    {"model_cfg": {"vision_cfg": {"pool_type": "x"}}},
    {"odd": [1]},
]


@pytest.mark.parametrize("name", PORTED)
def test_the_same_configs_and_networks(name, files):
    old, new = pair(name)
    for config in CONFIGS:
        for keys in ((), *files[name]):
            assert outcome(old.facts, config, keys) == outcome(new.overrides, config, keys), config
        for state in states(name):
            file = old.inverse(state)
            heads = outcome(new.num_heads, config, file)
            if hasattr(old, "num_heads"):
                assert outcome(old.num_heads, config, file) == heads
            else:
                assert heads == ("fine", None)
    specs = [row.spec for row in registry().variants.values()]
    assert len(specs) > 300
    for spec in specs:
        assert sorted(old.expresses(spec)) == sorted(new.unsupported(spec)), spec
