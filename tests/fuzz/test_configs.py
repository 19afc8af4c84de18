"""Generated networks and configs of timm: equal to timm, or refused.

timm builds a network from generated options, draws its weights and writes weights and config.
Then `create` of the folder gives the outputs of that network, every element, or raises an error.
`SEED` draws the same `EXAMPLES` networks in every run.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings, strategies as st

import vitzoo
from vitzoo.errors import VitzooError

pytestmark = pytest.mark.fuzz

SEED = int(os.environ.get("VITZOO_FUZZ_SEED", "1"))
EXAMPLES = int(os.environ.get("VITZOO_FUZZ_CASES", "120"))
ACCEPTED = 0.25  # at least this share of the networks is loaded, so the comparison is not empty
TOLERANCE = 5e-5  # times the largest reference value above 1
GENERATED = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@torch.no_grad()
def noisy(model, number):
    """Give a network weights of which every layer matters."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.add_(torch.empty_like(parameter).normal_(0, 0.3, generator=generator))
    return model.eval()


def compare(output, expected, where):
    """Check that two outputs are equal."""
    assert output.shape == expected.shape, where
    atol = TOLERANCE * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(output, expected, rtol=0, atol=atol, msg=lambda m: f"{where}: {m}")


def outcome(argument, network, where, **options):
    """Create a network and compare it, or return that it was refused."""
    try:
        model = vitzoo.create(argument, **options).eval()
    except VitzooError:
        return "refused"
    images = torch.randn(
        2, model.spec.in_chans, *model.image_size, generator=torch.Generator().manual_seed(4)
    )
    with torch.inference_mode():
        expected = network(images)
        if expected.dim() == 3:
            compare(model.head(model.forward_features(images)), expected, where)  # of every token
        else:
            compare(model(images), expected, where)
    return "loaded"


ARCHITECTURES = (
    *("vit_tiny_patch16_224", "vit_base_patch32_clip_224", "vit_base_patch32_clip_quickgelu_224"),
    *("vit_base_patch16_siglip_224", "vit_base_patch16_siglip_gap_224", "deit3_small_patch16_224"),
    *("deit_tiny_distilled_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch16_dinov3"),
    *("vit_small_patch14_reg4_dinov2", "beit_base_patch16_224", "eva02_tiny_patch14_224"),
)
ARGUMENTS: dict[str, Any] = {
    "num_heads": st.sampled_from([1, 2, 4]),
    "global_pool": st.sampled_from(["token", "avg", "map", "avgmax", "max", ""]),
    "fc_norm": st.sampled_from([None, True, False]),
    "class_token": st.booleans(),
    "no_embed_class": st.booleans(),
    "reg_tokens": st.integers(0, 3),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "init_values": st.sampled_from([None, 1e-5, 0.1]),
    "pre_norm": st.booleans(),
    "final_norm": st.booleans(),
    "mlp_ratio": st.sampled_from([2.0, 2.5, 4.0]),
    "act_layer": st.sampled_from(["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]),
    "norm_layer": st.sampled_from(["layernorm", "rmsnorm"]),
    "proj_bias": st.booleans(),
    "in_chans": st.sampled_from([1, 3, 4]),
    "num_classes": st.sampled_from([0, 3, 5]),
    "drop_rate": st.sampled_from([0.0, 0.2]),
    "pool_include_prefix": st.booleans(),
    "scale_mlp_norm": st.booleans(),
    "scale_attn_norm": st.booleans(),
    "dynamic_img_size": st.booleans(),
    "pos_embed": st.sampled_from(["learn", "none"]),
}


@cache
def patch_size(name):
    """Return the patch size of an architecture in px."""
    import timm

    return timm.create_model(name, depth=1, num_classes=0).patch_embed.patch_size[0]


@st.composite
def arguments(draw):
    """Draw an architecture and up to four arguments."""
    names = draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=4, unique=True))
    found = {name: draw(ARGUMENTS[name]) for name in names}
    name = draw(st.sampled_from(ARCHITECTURES))
    patch = patch_size(name)
    sides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    size = {"img_size": tuple(patch * side for side in sides)}
    return name, {"depth": 2, "embed_dim": 48, "num_heads": 2, **size, **found}


def test_networks_of_timm(tmp_path_factory, timm):
    from timm.models import save_for_hf

    counts = Counter()

    @seed(SEED)
    @GENERATED
    @given(arguments(), st.integers(0, 9))
    def check(drawn, weights):
        name, options = drawn
        torch.manual_seed(weights)
        try:
            network = noisy(timm.create_model(name, **options), weights)
            network(torch.zeros(1, network.pretrained_cfg["input_size"][0], *options["img_size"]))
        except (TypeError, AssertionError, RuntimeError, ValueError):
            counts["timm refuses"] += 1
            return
        folder = tmp_path_factory.mktemp("timm")
        save_for_hf(network, folder, safe_serialization=True)
        counts[outcome(f"{folder}/", network, (name, options))] += 1
        variant = next((v for v in vitzoo.variants() if ("timm", name) in v.known_as), None)
        if variant and not set(options) - {"depth", "embed_dim", "num_heads", "img_size"}:
            spec = {"variant": variant.name, "depth": 2, "embed_dim": 48, "num_heads": 2}
            spec["image_size"] = list(options["img_size"])
            where = (name, options, "by name")
            count = {"num_classes": network.num_classes}
            counts[outcome(spec | count, network, where, weights=folder)] += 1
        remove(folder)

    check()
    assert counts["loaded"] >= ACCEPTED * sum(counts.values()), counts


def remove(folder):
    """Remove the files of a folder at once, because disks are small."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            pathlib.Path(path).unlink()


KEYS = ("num_classes", "global_pool", "model_args", "pretrained_cfg", "architecture", "label_names")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def test_hostile_configs(tmp_path, timm):
    """Any value of a known key: the outputs of the right config, or an error."""
    from timm.models import save_for_hf

    torch.manual_seed(1)
    options = {"depth": 1, "embed_dim": 48, "num_heads": 2, "img_size": 32, "num_classes": 5}
    network = noisy(timm.create_model("vit_tiny_patch16_224", **options), 1)
    save_for_hf(network, tmp_path, safe_serialization=True)
    right = json.loads((tmp_path / "config.json").read_text())
    counts = Counter()

    @seed(SEED)
    @GENERATED
    @given(st.sampled_from(KEYS), st.sampled_from(["", *right["model_args"]]), VALUES)
    def check(key, argument, value):
        inside = key == "model_args" and argument
        changed = right | {key: right["model_args"] | {argument: value} if inside else value}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        counts[outcome(tmp_path, network, (key, argument, value))] += 1

    check()
    assert counts["refused"]
