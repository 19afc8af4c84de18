"""Every element of what timm's hybrids compute, and that a flipped fact is seen.

The networks are compared in double precision, to 1e-9 of the largest value: with the scaled
weights the rounding of single precision grows through the ResNet to half of the usual tolerance,
in timm as much as here. The logits are compared in single precision too, with that tolerance.
A network at full depth or of 384 px sees one image, all others two.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from kinds import one_of_each_kind
from vitzoo import convert

pytestmark = pytest.mark.parity

DOUBLE = 1e-9  # times the largest reference value
SMALL = {"depth": 2}
L16 = {"embed_dim": 1024, "num_heads": 16} | SMALL
B32 = {"embed_dim": 768, "num_heads": 12} | SMALL
NETWORKS = {
    "r50_vit_b16 full": ("hybrid/r50_vit_b16", "vit_base_r50_s16_224", {}),
    "r50_vit_b16_384 2 blocks": ("hybrid/r50_vit_b16_384", "vit_base_r50_s16_384", SMALL),
    "r26_vit_s32 full": ("hybrid/r26_vit_s32", "vit_small_r26_s32_224", {}),
    "r26_vit_s32_384 2 blocks": ("hybrid/r26_vit_s32_384", "vit_small_r26_s32_384", SMALL),
    "r_vit_ti16 full": ("hybrid/r_vit_ti16", "vit_tiny_r_s16_p8_224", {}),
    "r_vit_ti16_384 full": ("hybrid/r_vit_ti16_384", "vit_tiny_r_s16_p8_384", {}),
    "r50_vit_l32 2 blocks": ("hybrid/r50_vit_l32", "vit_large_r50_s32_224", SMALL),
    "r50_vit_l32_384 2 blocks": ("hybrid/r50_vit_l32_384", "vit_large_r50_s32_384", SMALL),
    # Not in timm under a name: its own parts at the paper's widths.
    "r50_vit_l16 2 blocks": ("hybrid/r50_vit_l16", "vit_base_r50_s16_224", L16),
    "r50_vit_b32 2 blocks": ("hybrid/r50_vit_b32", "vit_large_r50_s32_224", B32),
}
IN_TIMM = [
    (variant.name, architecture)
    for variant in vitzoo.variants("hybrid/*")
    for library, architecture in variant.known_as
    if library == "timm" and not architecture.endswith("_in21k")
]


def make_twins(parity, name, architecture, weights, *, options=None, arithmetic=None):
    """Return timm's network and ours with the same weights, carried over strictly both ways."""
    import timm

    torch.manual_seed(1)
    with parity.unfilled(weights):
        reference = timm.create_model(architecture, num_classes=1000, **(options or {})).eval()
    parity.fill(reference, weights)
    stem = vitzoo.describe(name).spec.patch_embed.name
    part = {"name": stem, "arithmetic": arithmetic} if arithmetic else stem
    depth = {"depth": options["depth"]} if options else {}
    described = {"variant": name, **depth}
    model = parity.carried(described, reference.state_dict(), patch_embed=part)
    reference.load_state_dict(model.state_dict(), strict=True)
    images = parity.images_for(model, cut=bool(depth))
    return SimpleNamespace(reference=reference, model=model, images=images)


def results(model, images):
    """Return the feature map, the patch tokens, the final tokens and the logits of one pass."""
    found = {}
    parts = {"map": model.patch_embed.backbone, "patch tokens": model.patch_embed}
    hooks = [
        part.register_forward_hook(lambda _, __, output, what=what: found.update({what: output}))
        for what, part in parts.items()
    ]
    tokens = model.forward_features(images)
    for hook in hooks:
        hook.remove()
    return found | {"tokens": tokens, "logits": model.forward_head(tokens)}


def assert_same_in_double(twins):
    """Compare every element of all results."""
    images = twins.images.double()
    expected = results(twins.reference.double(), images)
    actual = results(twins.model.double(), images)
    for what, reference in expected.items():
        atol = DOUBLE * max(1, reference.abs().max().item())
        torch.testing.assert_close(
            actual[what], reference, rtol=0, atol=atol, msg=lambda m, w=what: w + m
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "architecture"), IN_TIMM)
def test_state_dicts_have_the_same_keys_and_shapes(name, architecture, timm):
    with torch.device("meta"):
        reference = timm.create_model(architecture, num_classes=1000)
    model = vitzoo.create(name, device="meta")
    expected = {key: tensor.shape for key, tensor in reference.state_dict().items()}
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == expected


def test_every_variant_that_timm_has_is_compared():
    assert {name for name, _ in IN_TIMM} <= {name for name, *_ in NETWORKS.values()}
    assert len(IN_TIMM) == 8


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize(
    "network", one_of_each_kind({key: name for key, (name, *_) in NETWORKS.items()})
)
def test_map_tokens_and_logits(parity, network, weights):
    name, architecture, options = NETWORKS[network]
    twins = make_twins(parity, name, architecture, weights, options=options)
    parity.assert_same(twins.model(twins.images), twins.reference(twins.images), what="logits")
    assert_same_in_double(twins)


@torch.inference_mode()
def test_the_stages_of_the_paper(parity, weights):
    twins = make_twins(parity, *NETWORKS["r50_vit_b16 full"][:2], weights)
    stages = twins.model.patch_embed.backbone.stages
    assert [len(stage.blocks) for stage in stages] == [3, 4, 9]
    expected = results(twins.reference, twins.images)
    actual = results(twins.model, twins.images)
    assert actual["map"].shape == expected["map"].shape == (1, 1024, 14, 14)
    assert actual["patch tokens"].shape == expected["patch tokens"].shape == (1, 14 * 14, 768)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("in_chans", [1, 5])
@torch.inference_mode()
def test_other_channels(parity, weights, in_chans, timm):
    torch.manual_seed(1)
    options = {"in_chans": in_chans, "num_classes": 7, "depth": 1}
    reference = timm.create_model("vit_small_r26_s32_224", **options).eval()
    parity.fill(reference, weights)
    spec = {"variant": "hybrid/r26_vit_s32", **options}
    model = vitzoo.create(spec).eval()
    model.load_state_dict(reference.state_dict(), strict=True)
    images = torch.randn(2, in_chans, 224, 224)
    assert_same_in_double(SimpleNamespace(reference=reference, model=model, images=images))


@torch.inference_mode()
def test_a_file_of_timm_is_loaded_as_it_is(parity, tmp_path, timm):
    torch.manual_seed(1)
    reference = timm.create_model("vit_small_r26_s32_224", num_classes=1000).eval()
    parity.fill(reference, "scaled")
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    model = vitzoo.create("hybrid/r26_vit_s32", weights=tmp_path / "model.safetensors").eval()
    assert len(model.load_report.kept) == len(reference.state_dict())
    images = torch.randn(1, 3, 224, 224)
    parity.assert_same(model(images), reference(images), what="logits")


@torch.inference_mode()
def test_a_file_without_a_classifier_takes_a_fresh_one(parity, tmp_path, timm):
    torch.manual_seed(1)
    reference = timm.create_model("vit_small_r26_s32_224", num_classes=0).eval()
    parity.fill(reference, "own")
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    model = vitzoo.create(
        "hybrid/r26_vit_s32", weights=tmp_path / "model.safetensors", num_classes=10
    ).eval()
    assert set(model.load_report.reinitialised) == {"head.weight", "head.bias"}
    images = torch.randn(1, 3, 224, 224)
    features = model.forward_head(model.forward_features(images), pre_logits=True)
    parity.assert_same(features, reference(images), what="features")


@pytest.mark.long
def test_gradients_are_those_of_timm(parity, weights):
    twins = make_twins(
        parity, "hybrid/r26_vit_s32", "vit_small_r26_s32_224", weights, options={"depth": 1}
    )
    images = twins.images.double()
    grads = []
    for model in (twins.reference.double(), twins.model.double()):
        model(images).square().sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in grads[0].items():
        atol = 1e-8 * max(1, expected.abs().max().item())
        torch.testing.assert_close(grads[1][name], expected, rtol=0, atol=atol)


# The suite proves itself


@torch.inference_mode()
def test_googles_arithmetic_is_seen_and_is_as_far_as_reported(parity, weights):
    name, architecture, _ = NETWORKS["r50_vit_b16 full"]
    twins = make_twins(parity, name, architecture, weights, options=SMALL, arithmetic="google")
    expected, actual = twins.reference(twins.images), twins.model(twins.images)
    difference = (actual - expected).abs().max().item()
    assert 3e-5 < difference < 3e-3  # 3e-4 on the published weights
    with pytest.raises(AssertionError):
        assert_same_in_double(twins)


@torch.inference_mode()
@pytest.mark.parametrize("fact", ["norm_eps", "standardise"])
def test_half_of_an_arithmetic_is_seen(parity, weights, fact, monkeypatch):
    from vitzoo_hybrid import resnet

    mixed = {
        "norm_eps": resnet.Arithmetic(resnet.by_variance, norm_eps=1e-6),
        "standardise": resnet.Arithmetic(resnet.by_deviation, norm_eps=1e-5),
    }
    monkeypatch.setitem(resnet.ARITHMETICS, "timm", mixed[fact])
    name, architecture, _ = NETWORKS["r26_vit_s32 full"]
    options = {"depth": 1}
    twins = make_twins(parity, name, architecture, weights, options=options)
    with pytest.raises(AssertionError):
        assert_same_in_double(twins)


@torch.inference_mode()
def test_symmetric_padding_is_seen(parity, weights, monkeypatch):
    name, architecture, _ = NETWORKS["r_vit_ti16 full"]
    twins = make_twins(parity, name, architecture, weights)
    monkeypatch.setattr(twins.model.patch_embed.backbone.conv, "uneven", (3, 2, 3, 2))
    with pytest.raises(AssertionError):
        assert_same_in_double(twins)


FORMULAS = runpy.run_path(str(Path(__file__).parents[3] / "tests" / "google_reference.py"))
B16 = {"width": 768, "depth": 12, "heads": 12, "mlp": 3072, "patch": 16, "size": 224}
OF_GOOGLE = {"variant": "hybrid/r50_vit_b16", "depth": 2}


def write_google(folder, weights, **changes):
    """Return (the arrays, the path) of a new file of R50+B/16 in Google's format."""
    shapes = FORMULAS["hybrid_shapes"]((3, 4, 9), **B16 | changes, classes=1000)
    arrays = FORMULAS["draw_all"](shapes, weights)
    path = folder / "R50_ViT-B_16.npz"
    np.savez(path, **{key: array.numpy() for key, array in arrays.items()})
    return arrays, path


@pytest.fixture(scope="module", params=[pytest.param("own", marks=pytest.mark.long), "scaled"])
def google_file(tmp_path_factory, request):
    """A file with two blocks."""
    return write_google(tmp_path_factory.mktemp("google"), request.param, depth=2)


@torch.inference_mode()
def test_a_file_of_googles_follows_googles_arithmetic(parity, google_file):
    """The whole ResNet, against the formulas; fp64 too, where only a wrong formula differs."""
    arrays, path = google_file
    model = vitzoo.create(OF_GOOGLE, weights=path).eval()
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(4))
    _, _, logits = FORMULAS["forward"](arrays, images)
    parity.assert_same(model(images), logits, what="logits")
    model.double()
    double = {key: array.double() for key, array in arrays.items()}
    tokens, _, logits = FORMULAS["forward"](double, images.double())
    for network, expected in ((model.forward_features, tokens), (model, logits)):
        torch.testing.assert_close(network(images.double()), expected, rtol=0, atol=1e-8)


@torch.inference_mode()
def test_either_arithmetic_can_be_asked_for(google_file):
    _, path = google_file
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(4)).double()
    part = {"name": "hybrid/resnet50", "arithmetic": "timm"}
    logits = []
    for options in ({}, {"patch_embed": part}, {"block": {"activation": "gelu"}}):
        model = vitzoo.create(OF_GOOGLE, weights=path, **options).eval().double()
        logits.append(model(images))
    google, stem, block = logits
    assert 1e-5 < (google - stem).abs().max() < 1e-2
    assert (google - block).abs().max() > 1e-4


@pytest.mark.long
def test_a_file_of_googles_comes_back_bit_by_bit(tmp_path):
    arrays, path = write_google(tmp_path, "scaled")
    there, back = tmp_path / "there.safetensors", tmp_path / "back.npz"
    convert(path, "timm", there)
    convert(there, "google", back, variant="hybrid/r50_vit_b16")
    with np.load(back, allow_pickle=False) as file:
        assert set(file.files) == set(arrays)
        assert all(np.array_equal(file[key], array.numpy()) for key, array in arrays.items())
