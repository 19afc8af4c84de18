"""Every architecture of docs/parity.md, small: the same numbers, and the same verdicts.

Two blocks of two heads on 4x6 patches, or as few as the architecture allows, keep every feature of
it: kinds of tokens, positions, norms, MLPs, pools and heads, and their numbers.
"""

import runpy
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import Library
from kinds import one_of_each_kind
from vitzoo.errors import CheckpointError

pytestmark = pytest.mark.parity

keys, native = Library("vitzoo_timm.keys"), Library("vitzoo_timm.native")
ROOT = Path(__file__).parents[3]
TOOL = runpy.run_path(str(ROOT / "tests" / "parity_table.py"), run_name="parity_table")
ROWS = TOOL["rows_of"]((ROOT / "docs" / "parity.md").read_text())
NATIVE = [name for name, row in ROWS.items() if row.verdict == "native"]
NAMED = {name: TOOL["names"]()[name] for name in NATIVE if name in TOOL["names"]()}
IN_CI = one_of_each_kind(NAMED) + [name for name in NATIVE if name not in NAMED]
AT_LEAST = 246  # native ones; a change that takes one away is seen
HOW = "python tests/parity_table.py --full NAME"
LARGE_PATCH = 32  # px


@cache
def small(name):
    """Return options that make an architecture small and leave its features."""
    import timm

    with torch.device("meta"):
        embed = timm.create_model(name, depth=1).patch_embed
    ratio = getattr(embed, "feature_ratio", (1, 1))
    patch = embed.patch_size[0] * ratio[0]
    size = (4 * patch, 6 * patch) if patch < LARGE_PATCH else (2 * patch, 3 * patch)
    return {"depth": 2, "embed_dim": 128, "num_heads": 2, "img_size": size, "num_classes": 5}


def made(parity, name, weights):
    """Return timm's small network with one of the two sets of weights."""
    import timm

    torch.manual_seed(1)
    model = timm.create_model(name, pretrained=False, **small(name)).eval()
    if weights == "scaled":
        parity.fill(model, weights)
    return model


def loaded(model, folder, change=None):
    """Return the vitzoo network that a timm network describes, from a file of its tensors."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in keys.tensors_of(model).items()}
    safetensors.torch.save_file(tensors, path)
    ours = vitzoo.create({**native.spec_of(model), **(change or {})}, weights=path).eval()
    path.unlink()
    return ours


@torch.inference_mode()
def compare(parity, model, ours):
    """Compare every element of tokens and logits."""
    images = torch.randn(2, 3, *ours.image_size, generator=torch.Generator().manual_seed(3))
    theirs, tokens = model.forward_features(images), ours.forward_features(images)
    parity.assert_same(tokens, theirs, what="tokens")
    logits = model.forward_head(theirs)
    parity.assert_same(ours.forward_head(tokens), logits, what="logits")
    parity.assert_same(ours(images), logits, what="logits at once")


@pytest.mark.parametrize("weights", [pytest.param("own", marks=pytest.mark.long), "scaled"])
@pytest.mark.parametrize("name", IN_CI)
def test_two_small_blocks(parity, tmp_path, name, weights):
    model = made(parity, name, weights)
    compare(parity, model, loaded(model, tmp_path))


def test_the_page_has_every_architecture():
    assert list(ROWS) == TOOL["architectures"]()
    assert len(NATIVE) >= AT_LEAST
    assert not [name for name, row in ROWS.items() if row.verdict == "no"]


def test_all_numbers_of_the_page_are_within_the_tolerance():
    for name in NATIVE:
        assert len(ROWS[name].differences) == 4, name
        assert max(ROWS[name].differences) <= TOOL["TOLERANCE"], name


def test_the_page_is_written_from_its_rows():
    page = (ROOT / "docs" / "parity.md").read_text()
    assert page == TOOL["written"](list(ROWS.values()))


def test_a_row_of_the_page_names_the_variant():
    assert ROWS["vit_base_patch16_224"].ours() == "`vit_b16`"
    assert ROWS["beit_base_patch16_224"].ours() == "`beit/beit_b16`"
    assert ROWS["vit_small_patch16_36x1_224"].ours() == "`carry_over`"
    assert ROWS["vit_relpos_small_patch16_224"].ours() == "`timm/vit_relpos_small_patch16_224`"


@pytest.mark.long  # builds all of them
@pytest.mark.parametrize("family", ["vit_[a-h]*", "vit_[i-r]*", "vit_[s-z]*", "[!v]*"])
def test_verdicts_are_those_of_the_page(family):
    compared = [name for name in ROWS if fnmatch(name, family)]
    assert compared
    for name in compared:
        row = TOOL["verdict"](name)
        assert (row.verdict, row.keys) == (ROWS[name].verdict, ROWS[name].keys), HOW
        assert row.why == ROWS[name].why, HOW


def flipped(spec, **block):
    return {"block": {**spec["block"], **block}}


FLIPS = {
    "activation": ("vit_tiny_patch16_224", lambda s: flipped(s, activation="gelu_tanh")),
    "quick activation": ("vit_tiny_patch16_224", lambda s: flipped(s, activation="quick_gelu")),
    "norm_eps": ("vit_tiny_patch16_224", lambda s: flipped(s, norm_eps=1e-5)),
    "eps of CLIP": ("vit_base_patch32_clip_224", lambda s: flipped(s, norm_eps=1e-6)),
    "pooling": ("vit_base_patch16_siglip_gap_224", lambda _: {"pool": POOLED_FIRST}),
    "class token": ("vit_tiny_patch16_224", lambda _: {"pool": "mean"}),
    "pool of prefix": (
        "vit_pe_core_tiny_patch16_384",
        lambda s: {"pool": {**s["pool"], "prefix": False}},
    ),
    "eps of the pool": (
        "vit_base_patch16_siglip_224",
        lambda s: {"pool": {**s["pool"], "norm_eps": 0.1}},
    ),
    "registers": ("vit_medium_patch16_reg4_gap_256", lambda _: {"num_registers": 0}),
    "another register": ("vit_medium_patch16_reg4_gap_256", lambda _: {"num_registers": 5}),
    "registers with positions": (
        "vit_base_patch14_reg4_dinov2",
        lambda _: {"pos_embed": "learned"},
    ),
    "LayerScale": ("vit_small_patch14_dinov2", lambda s: flipped(s) | {"block": NO_SCALE}),
    "rope temperature": (
        "vit_small_patch16_dinov3",
        lambda s: {"pos_embed": {**s["pos_embed"], "temperature": 99.0}},
    ),
    "rope layout": (
        "vit_small_patch16_dinov3",
        lambda s: {"pos_embed": {**s["pos_embed"], "layout": "interleaved"}},
    ),
    "rope reference": (
        "eva02_base_patch14_448",
        lambda s: {"pos_embed": {**s["pos_embed"], "reference_grid": [32, 32]}},
    ),
    "rope offset": (
        "vit_pe_core_tiny_patch16_384",
        lambda s: {"pos_embed": {k: v for k, v in s["pos_embed"].items() if k != "offset"}},
    ),
    "rope indexing": (
        "vit_pe_core_tiny_patch16_384",
        lambda s: {"pos_embed": {k: v for k, v in s["pos_embed"].items() if k != "indexing"}},
    ),
    "norm after": ("vit_base_patch16_rpn_224", lambda s: flipped(s, post_norm=False)),
    "final norm": ("vit_base_patch16_radio_v3", lambda _: {"final_norm": True}),
    "norm of patches": (
        "aimv2_large_patch14_224",
        lambda s: {"patch_embed": {**s["patch_embed"], "norm_eps": 0.1}},
    ),
    "q and k norm": ("vit_base_patch16_xp_224", lambda s: flipped(s, qk_norm=False)),
}
POOLED_FIRST = {"name": "mean", "norm_first": False}
NO_SCALE = {"norm_eps": 1e-6, "activation": "gelu"}


@pytest.mark.parametrize("flip", FLIPS)
def test_a_flipped_fact_is_seen(parity, tmp_path, flip):
    """In numbers under one of the two sets of weights at least, or because tensors do not fit."""
    name, change = FLIPS[flip]
    seen = []
    for weights in ("own", "scaled"):
        model = made(parity, name, weights)
        changes = change(native.spec_of(model))
        assert changes != {key: native.spec_of(model).get(key) for key in changes}
        try:
            compare(parity, model, loaded(model, tmp_path, changes))
        except (AssertionError, CheckpointError) as error:
            seen.append(error)
    assert seen
