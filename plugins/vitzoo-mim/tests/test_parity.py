"""Every element of what timm's and transformers' networks compute, and that flips are seen.

The networks of B size and below are compared at full depth, those above, and all where a test's
name says so, with two blocks.
"""

from types import SimpleNamespace

import pytest
import torch

import vitzoo
from helpers import write
from kinds import one_of_each_kind
from vitzoo.errors import CheckpointError
from vitzoo.testing import checkpoint_formats, stand_in

pytestmark = pytest.mark.parity

LARGE = 1e8  # parameters
VARIANTS = [  # plugins/vitzoo-timm/tests/test_parity_table.py compares BEiT-3
    variant
    for space in ("mae", "beit", "eva02")
    for variant in vitzoo.variants(namespace=space)
    if variant.default_weights and "beit3" not in variant.name
]


def is_cut(variant):
    """Tell whether a network is cut: a large one, or one of more px beside the same of 224 px."""
    return variant.params > LARGE or variant.spec.image_size > (224, 224)


NETWORKS = {
    f"{variant.name} {'2 blocks' if is_cut(variant) else 'full'}": variant for variant in VARIANTS
}
IN_CI = one_of_each_kind({key: variant.name for key, variant in NETWORKS.items()})
BEIT, EVA, CLIP = "beit/beit_b16 full", "eva02/vit_s14 full", "eva02/clip_vit_b16 full"


def layout_of(variant):
    return checkpoint_formats()[variant.default_weights.format]


def make_timm(parity, network, weights, *, cut=False, **options):
    """Return (variant's name with its changes, timm's network); `cut` to two blocks."""
    import timm

    variant = NETWORKS[network]
    changes = {"depth": 2} if cut or is_cut(variant) else {}
    if variant.name.startswith(("beit/", "eva02/")):
        options["head_init_scale"] = 1.0  # its own start gives logits that show nothing
    torch.manual_seed(1)
    theirs, classes = dict(variant.known_as)["timm"], variant.spec.num_classes
    with parity.unfilled(weights):
        reference = timm.create_model(theirs, num_classes=classes, **changes, **options).eval()
    parity.fill(reference, weights)
    return {"variant": variant.name, **changes}, reference


def make_twins(parity, network, weights, *, cut=True, **options):
    """Return timm's network and ours with the same weights, carried over strictly both ways."""
    described, reference = make_timm(parity, network, weights, cut=cut)
    layout = layout_of(NETWORKS[network])
    model = parity.carried(described, layout.to_model(reference.state_dict()), **options)
    reference.load_state_dict(layout.from_model(model.state_dict()), strict=True)
    images = parity.images_for(model, cut=cut)
    return SimpleNamespace(reference=reference, model=model, images=images)


def test_every_variant_is_compared_and_only_the_large_ones_are_cut():
    assert len(NETWORKS) == 22
    cut = {network.split()[0] for network in NETWORKS if network.endswith("2 blocks")}
    assert cut == {v.name for v in VARIANTS if "l16" in v.name or "l14" in v.name} | {
        "mae/vit_h14",
        "eva02/clip_vit_e14",
        "beit/beit_b16_384",
        "eva02/vit_ti14_336",
        "eva02/vit_s14_336",
        "eva02/vit_b14_448",
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("network", IN_CI)
def test_timms_names_mean_these_networks(network, timm):
    variant = NETWORKS[network]
    with torch.device("meta"):
        theirs = dict(variant.known_as)["timm"]
        reference = timm.create_model(theirs, num_classes=variant.spec.num_classes)
    model = vitzoo.create(variant.name, device="meta")
    expected = layout_of(variant).to_model(reference.state_dict())
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == {
        key: tensor.shape for key, tensor in expected.items()
    }
    assert model.image_size == reference.patch_embed.img_size
    assert sum(p.numel() for p in reference.parameters()) == variant.params


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("network", IN_CI)
def test_tokens_pre_logits_and_logits(parity, network, weights):
    twins = make_twins(parity, network, weights, cut=False)
    parity.assert_same_network(twins.reference, twins.model, twins.images)


@pytest.mark.one_in(5)
@torch.inference_mode()
@pytest.mark.filterwarnings("ignore:torch.searchsorted.*", "ignore:Using a non-tuple sequence.*")
@pytest.mark.parametrize("network", [BEIT, EVA, CLIP, "mae/vit_b16 full"])
@pytest.mark.parametrize("size", [(12, 18), (20, 16), (24, 24)], ids=str)
def test_other_image_sizes_as_timm_resamples_2_blocks(parity, tmp_path, network, weights, size):
    described, reference = make_timm(parity, network, weights, cut=True)
    model = vitzoo.create(described)
    pixels = tuple(patches * model.spec.patch_size[0] for patches in size)
    path = write(
        tmp_path / "model.safetensors",
        layout_of(NETWORKS[network]).from_model(_state(reference, network)),
    )
    reference.set_input_size(img_size=pixels)
    images = torch.randn(1, 3, *pixels)
    loaded = vitzoo.create(described, weights=path, image_size=pixels).eval()
    assert loaded.load_report.resampled == ("pos_embed",)
    parity.assert_same_network(reference, loaded, images)
    moved = vitzoo.create(described, weights=path).eval()
    moved.set_input_size(pixels)
    parity.assert_same_network(reference, moved, images)


def _state(reference, network):
    return layout_of(NETWORKS[network]).to_model(reference.state_dict())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("network", [BEIT, EVA, CLIP])
def test_gradients_are_those_of_timm_2_blocks(parity, weights, network):
    twins = make_twins(parity, network, weights)
    for model in (twins.reference, twins.model):
        model.train()(twins.images).square().mean().backward()
    grads = {name: p.grad for name, p in twins.reference.named_parameters()}
    theirs = layout_of(NETWORKS[network]).to_model(grads)
    for name, parameter in twins.model.named_parameters():
        parity.assert_same(parameter.grad, theirs[name], what=name)


# transformers


def make_transformers(parity, folder, kind, weights, **options):
    """Return (transformers' network of B size with two blocks, path of its file)."""
    import transformers

    config = {transformers.ViTMAEModel: transformers.ViTMAEConfig}
    torch.manual_seed(1)
    network = kind(config.get(kind, transformers.BeitConfig)(**options)).eval()
    parity.fill(network, weights)
    network.save_pretrained(folder)
    return network, folder / "model.safetensors"


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("size", [(224, 224), (160, 256), (288, 224)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_beit_of_transformers_2_blocks(parity, tmp_path, weights, shared, size, transformers):
    tables = {"use_relative_position_bias": not shared, "use_shared_relative_position_bias": shared}
    kind = transformers.BeitForImageClassification
    network, path = make_transformers(
        parity, tmp_path, kind, weights, num_hidden_layers=2, num_labels=1000, **tables
    )
    described = {"variant": "beit/beit_b16", "depth": 2}
    model = vitzoo.create(described, weights=path, image_size=size).eval()
    images = torch.randn(1, 3, *size)
    parity.assert_same(model(images), network(images).logits, what="logits")
    tokens = network.beit(images).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")


@torch.inference_mode()
@pytest.mark.parametrize("size", [(224, 224), (160, 256)], ids=str)
def test_mae_of_transformers_2_blocks(parity, tmp_path, weights, size, transformers):
    options = {"num_hidden_layers": 2, "mask_ratio": 0.0}
    network, path = make_transformers(
        parity, tmp_path, transformers.ViTMAEModel, weights, **options
    )
    described = {"variant": "mae/vit_b16", "depth": 2}
    model = vitzoo.create(described, weights=path, image_size=size).eval()
    images, count = torch.randn(1, 3, *size), size[0] * size[1] // 256
    noise = torch.arange(float(count)).expand(1, -1)  # which keeps the patches in their order
    tokens = network(images, noise=noise, interpolate_pos_encoding=True).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")


@torch.inference_mode()
def test_registered_weights_are_read_as_their_row_says(parity, tmp_path, caplog, transformers):
    kind = transformers.BeitForMaskedImageModeling
    options = {"use_shared_relative_position_bias": True, "use_mask_token": True}
    network, path = make_transformers(parity, tmp_path, kind, "scaled", **options)
    (tmp_path / "config.json").unlink()
    with stand_in("beit/beit_b16", "microsoft_in22k", path):
        model = vitzoo.create("beit/beit_b16", weights="microsoft_in22k", num_classes=0).eval()
    assert "was never published" in caplog.text
    assert set(model.load_report.kept) == set(model.state_dict())
    assert len(model.load_report.dropped) == 3
    assert model.spec.block.norm_eps == 1e-12
    assert dict(model.spec.pos_embed.options) == {"shared": True, "resample": "bilinear"}
    images = torch.randn(1, 3, 224, 224)
    tokens = network.layernorm(network.beit(images).last_hidden_state)
    parity.assert_same(model.forward_features(images), tokens, what="tokens")
    parity.assert_same(model(images), tokens[:, 1:].mean(1), what="features")


# The suite proves itself

FLIPS = {
    "eps": {"block": {"norm_eps": 1e-5}},
    "GELU": {"block": {"activation": "gelu_tanh"}},
    "rope base": {"pos_embed": {"temperature": 100.0}},
    "rope reference": {"pos_embed": {"reference_grid": 14}},
    "rope layout": {"pos_embed": {"layout": "half"}},
}


def flipped(name, described):
    """Return an option of `create` with one fact changed."""
    ((field, options),) = FLIPS[name].items()
    if field == "block":
        return {field: options}
    part = vitzoo.describe(described).spec.pos_embed
    return {field: {"name": part.name, **dict(part.options), **options}}


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize(
    ("network", "flip"),
    [
        (BEIT, "eps"),
        (BEIT, "GELU"),
        ("mae/vit_b16 full", "eps"),
        ("mae/vit_b16 full", "GELU"),
        (EVA, "eps"),
        (EVA, "rope base"),
        (EVA, "rope layout"),
        ("eva02/vit_s14_336 2 blocks", "rope reference"),
        (CLIP, "rope base"),
    ],
)
def test_a_flipped_fact_is_seen_2_blocks(parity, network, flip):
    seen = 0
    for weights in ("own", "scaled"):
        options = flipped(flip, NETWORKS[network].name)
        twins = make_twins(parity, network, weights, **options)
        try:
            parity.assert_same_network(twins.reference, twins.model, twins.images)
        except AssertionError:
            seen += 1
    assert seen >= 1


@torch.inference_mode()
@pytest.mark.parametrize(
    "name",
    ["blocks.1.ls2.gamma", "blocks.0.attn.q_bias", "blocks.0.attn.v_bias", "pos_embed"],
)
def test_a_tensor_that_does_not_act_is_seen_2_blocks(parity, name):
    twins = make_twins(parity, BEIT, "scaled")
    twins.model.state_dict()[name].zero_()
    with pytest.raises(AssertionError):
        parity.assert_same_network(twins.reference, twins.model, twins.images)


@torch.inference_mode()
@pytest.mark.parametrize("network", [BEIT, EVA])
def test_other_biases_of_queries_are_seen_2_blocks(parity, network):
    twins = make_twins(parity, network, "scaled")
    for block in twins.model.blocks:
        block.attn.q_bias.data = block.attn.q_bias.roll(1)
    with pytest.raises(AssertionError):
        parity.assert_same_network(twins.reference, twins.model, twins.images)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("network", "pool", "text"),
    [
        (BEIT, "class", r"2 missing: norm\.weight, norm\.bias; 2 unexpected: fc_norm\."),
        (BEIT, "mean", r"2 missing: norm\.weight, norm\.bias; 2 unexpected: fc_norm\."),
        ("mae/vit_b16 full", {"name": "mean", "norm_first": False}, r"2 missing: fc_norm"),
    ],
)
def test_another_pooling_is_refused_2_blocks(parity, tmp_path, network, pool, text):
    described, reference = make_timm(parity, network, "own", cut=True)
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(described, weights=path, pool=pool)


@torch.inference_mode()
def test_a_class_token_for_the_mean_is_seen_2_blocks(parity):
    twins = make_twins(parity, CLIP, "scaled", pool="mean")
    with pytest.raises(AssertionError, match="pre-logits"):
        parity.assert_same_network(twins.reference, twins.model, twins.images)


@torch.inference_mode()
def test_the_resampling_of_another_library_is_seen_2_blocks(parity, tmp_path):
    described, reference = make_timm(parity, BEIT, "scaled", cut=True)
    part = {"name": "mim/relative", "resample": "bilinear"}
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    model = vitzoo.create(described, weights=path, image_size=320, pos_embed=part).eval()
    images = torch.randn(1, 3, 320, 320)
    usual = vitzoo.create(described, weights=path, image_size=320).eval()
    with pytest.raises(AssertionError):
        parity.assert_same(model(images), usual(images))
