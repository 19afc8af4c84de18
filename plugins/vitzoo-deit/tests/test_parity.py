"""Every element of what timm's and transformers' DeiT compute, and that a flipped fact is seen.

The networks of B size and below are compared at full depth, those above with two blocks on two
images.
"""

from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

import vitzoo
from kinds import one_of_each_kind
from vitzoo.errors import CheckpointError
from vitzoo_deit.formats import timm_distilled

pytestmark = pytest.mark.parity

SMALL = {"depth": 2}


def cut(variant):
    """Large networks, and those of 384 px beside the same one of 224 px, are cut to two blocks."""
    return variant.params > 1e8 or variant.spec.image_size > (224, 224)


NETWORKS = {
    f"{variant.name.removeprefix('deit/')} {'2 blocks' if cut(variant) else 'full'}": (
        variant.name,
        dict(variant.known_as)["timm"],
        SMALL if cut(variant) else {},
    )
    for variant in vitzoo.variants("deit/*")
}
IN_CI = one_of_each_kind({key: name for key, (name, *_) in NETWORKS.items()})
DISTILLED = [network for network in NETWORKS if "distilled" in network]
CLASSES = {
    "two classifiers": "DeiTForImageClassificationWithTeacher",
    "one classifier": "DeiTForImageClassification",
    "backbone": "DeiTModel",
}


def make_timm(parity, network, weights, **options):
    """Return (variant's name with its changes, timm's network)."""
    import timm

    name, theirs, changes = NETWORKS[network]
    torch.manual_seed(1)
    with parity.unfilled(weights):
        reference = timm.create_model(theirs, num_classes=1000, **changes, **options).eval()
    parity.fill(reference, weights)
    return {"variant": name, **changes}, reference


def make_twins(parity, network, weights, spec=None):
    """Return timm's network and ours with the same weights, carried over strictly both ways."""
    described, reference = make_timm(parity, network, weights)
    there, back = dict, dict
    if network in DISTILLED:
        there, back = timm_distilled.to_model, timm_distilled.from_model
    model = parity.carried(described | (spec or {}), there(reference.state_dict()))
    reference.load_state_dict(back(model.state_dict()), strict=True)
    images = parity.images_for(model, cut="depth" in described)
    return SimpleNamespace(reference=reference, model=model, images=images)


def write(folder, tensors):
    path = folder / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


def assert_same_pair(parity, twins):
    """Compare both outputs of training, each with its own."""
    twins.reference.set_distilled_training()
    theirs, ours = twins.reference.train()(twins.images), twins.model.train()(twins.images)
    parity.assert_same(ours[0], theirs[0], what="by label")
    parity.assert_same(ours[1], theirs[1], what="by teacher")
    twins.reference.eval()
    twins.model.eval()


# timm


def test_every_variant_is_compared_and_only_the_large_ones_are_cut():
    assert len(NETWORKS) == 16
    short = {network.split()[0] for network in NETWORKS if network.endswith("2 blocks")}
    assert {name for name in short if not name.endswith("_384")} == {"deit3_l16", "deit3_h14"}
    whole = {network.split()[0] for network in NETWORKS} - short
    assert {name.removesuffix("_384") for name in short} <= whole | {"deit3_l16", "deit3_h14"}
    assert len(DISTILLED) == 4


@pytest.mark.parametrize("network", IN_CI)
def test_timms_names_mean_these_networks(network, timm):
    name, theirs, _ = NETWORKS[network]
    with torch.device("meta"):
        reference = timm.create_model(theirs, num_classes=1000)
    model = vitzoo.create(name, device="meta")
    state = reference.state_dict()
    expected = timm_distilled.to_model(state) if network in DISTILLED else state
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == {
        key: tensor.shape for key, tensor in expected.items()
    }
    assert model.image_size == reference.patch_embed.img_size


@torch.inference_mode()
@pytest.mark.parametrize("network", IN_CI)
def test_tokens_pre_logits_and_logits(parity, network, weights):
    twins = make_twins(parity, network, weights)
    parity.assert_same_network(twins.reference, twins.model, twins.images)
    if network in DISTILLED:
        assert_same_pair(parity, twins)


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("network", ["deit_s16_distilled full", "deit3_s16 full", "deit_s16 full"])
@pytest.mark.parametrize("size", [(160, 256), (288, 224)])
def test_other_image_sizes_as_timm_resamples(parity, tmp_path, network, weights, size):
    described, reference = make_timm(parity, network, weights, dynamic_img_size=True)
    path = write(tmp_path, reference.state_dict())
    images = torch.randn(1, 3, *size)
    model = vitzoo.create(described, weights=path, image_size=size).eval()
    assert model.load_report.resampled == ("pos_embed",)
    parity.assert_same_network(reference, model, images)
    moved = vitzoo.create(described, weights=path).eval()
    moved.set_input_size(size)
    parity.assert_same_network(reference, moved, images)


def test_gradients_are_those_of_timm(parity, weights):
    twins = make_twins(parity, "deit_s16_distilled full", weights)
    twins.reference.set_distilled_training()
    for model in (twins.reference, twins.model):
        by_label, by_teacher = model.train()(twins.images)
        (by_label.square().mean() + 2 * by_teacher.square().mean()).backward()
    grads = {name: p.grad for name, p in twins.reference.named_parameters()}
    theirs = timm_distilled.to_model(grads)
    for name, parameter in twins.model.named_parameters():
        parity.assert_same(parameter.grad, theirs[name], what=name)


# transformers


def make_transformers(parity, folder, kind, weights, size="s", **options):
    """Return (transformers' network, path of the file that its `save_pretrained` writes)."""
    import transformers

    numbers = vitzoo.describe(f"deit/deit_{size}16_distilled").spec
    config = transformers.DeiTConfig(
        hidden_size=numbers.embed_dim,
        num_attention_heads=numbers.num_heads,
        intermediate_size=numbers.mlp_dim,
        num_labels=1000,
        **options,
    )
    torch.manual_seed(1)
    network = getattr(transformers, CLASSES[kind])(config).eval()
    parity.fill(network, weights)
    network.save_pretrained(folder)
    return network, folder / "model.safetensors"


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("size", ["ti", "s", "b"])
def test_two_classifiers_of_transformers(parity, tmp_path, weights, size):
    network, path = make_transformers(parity, tmp_path, "two classifiers", weights, size)
    model = vitzoo.create(f"deit/deit_{size}16_distilled", weights=path)
    (line,) = model.load_report.assumed  # no preprocessor_config.json beside it
    assert line.startswith(f"preprocessing = that of deit/deit_{size}16_distilled: ")
    images = torch.randn(1, 3, 224, 224)
    expected = network(images, output_hidden_states=True)
    by_label, by_teacher = model(images)
    parity.assert_same(by_label, expected.cls_logits, what="by label")
    parity.assert_same(by_teacher, expected.distillation_logits, what="by teacher")
    parity.assert_same(model.eval()(images), expected.logits, what="logits")
    tokens = network.deit(images).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")
    blocks = model.forward_intermediates(
        images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    for i, (patches, prefix) in enumerate(blocks[:-1]):
        theirs = expected.hidden_states[i + 1]
        parity.assert_same(torch.cat((prefix, patches), 1), theirs, what=f"block {i}")


@torch.inference_mode()
def test_one_classifier_of_transformers(parity, tmp_path, weights):
    network, path = make_transformers(parity, tmp_path, "one classifier", weights, "b")
    model = vitzoo.create("deit/deit_b16_distilled", weights=path).eval()
    images = torch.randn(1, 3, 224, 224)
    parity.assert_same(model(images), network(images).logits, what="logits")
    tokens = network.deit(images).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")


@torch.inference_mode()
def test_the_backbone_of_transformers(parity, tmp_path, weights):
    network, path = make_transformers(parity, tmp_path, "backbone", weights)
    options = {"pool": "class", "head": "tanh", "num_classes": 0}
    model = vitzoo.create("deit/deit_s16_distilled", weights=path, **options).eval()
    images = torch.randn(1, 3, 224, 224)
    expected = network(images)
    tokens = expected.last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")
    parity.assert_same(model(images), expected.pooler_output, what="pooled")
    model = vitzoo.create("deit/deit_s16_distilled", weights=path, num_classes=0).eval()
    parity.assert_same(model(images), tokens[:, :2].mean(1), what="mean of the tokens")


@pytest.mark.one_in(3)
@torch.inference_mode()
@pytest.mark.parametrize("size", [(160, 256), (288, 224), (384, 384)])
def test_other_image_sizes_as_transformers_resamples(parity, tmp_path, weights, size):
    network, path = make_transformers(parity, tmp_path, "two classifiers", weights)
    with torch.no_grad():
        network.deit.embeddings.position_embeddings.normal_(0, 0.1)  # its own start as zeros
    network.save_pretrained(tmp_path)
    model = vitzoo.create("deit/deit_s16_distilled", weights=path, image_size=size).eval()
    images = torch.randn(1, 3, *size)
    expected = network(images, interpolate_pos_encoding=True)
    parity.assert_same(model(images), expected.logits, what="logits")
    tokens = network.deit(images, interpolate_pos_encoding=True).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")


@torch.inference_mode()
def test_a_plain_network_of_transformers(parity, tmp_path, weights, transformers):
    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    torch.manual_seed(1)
    network = transformers.ViTForImageClassification(config).eval()
    parity.fill(network, weights)
    network.save_pretrained(tmp_path)
    model = vitzoo.create("deit/deit_s16", weights=tmp_path / "model.safetensors").eval()
    assert model.load_report.format == "transformers_vit"
    images = torch.randn(1, 3, 224, 224)
    parity.assert_same(model(images), network(images).logits, what="logits")


# The suite proves itself

FLIPS = {
    "eps": {"block": {"norm_eps": 1e-5}},
    "eps of transformers": {"block": {"norm_eps": 1e-12}},
    "GELU": {"block": {"activation": "gelu_tanh"}},
}


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("network", ["deit_s16_distilled full", "deit3_s16 full"])
def test_a_flipped_fact_is_seen(parity, network, flip):
    seen = 0
    for weights in ("own", "scaled"):
        twins = make_twins(parity, network, weights, spec=FLIPS[flip])
        try:
            parity.assert_same_network(twins.reference, twins.model, twins.images)
        except AssertionError:
            seen += 1
    assert seen >= 1


@torch.inference_mode()
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"block": {"layer_scale": None}}, r"24 unexpected: blocks\.\{0-11\}\.ls1\.gamma"),
        ({"pos_embed": "learned"}, r"pos_embed is \(1, 196, 384\), the model has \(1, 197, 384\)"),
    ],
    ids=["layer scale", "positions of prefix tokens"],
)
def test_a_flipped_fact_of_deit3_is_refused(parity, tmp_path, spec, text):
    described, reference = make_timm(parity, "deit3_s16 full", "own")
    path = write(tmp_path, reference.state_dict())
    base = vitzoo.describe("deit/deit3_s16").spec.to_data()
    del base["variant"]
    if "block" in spec:
        spec = {"block": {k: v for k, v in base["block"].items() if k != "layer_scale"}}
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(base | spec, weights=path)
    assert vitzoo.create(described, weights=path)


@torch.inference_mode()
def test_layer_scale_that_does_not_act_is_seen(parity):
    twins = make_twins(parity, "deit3_s16 full", "scaled")
    for block in twins.model.blocks:
        block.ls2.gamma.fill_(1)
    with pytest.raises(AssertionError):
        parity.assert_same_network(twins.reference, twins.model, twins.images)


@torch.inference_mode()
def test_swapped_classifiers_are_seen(parity, weights):
    twins = make_twins(parity, "deit_ti16_distilled full", weights)
    head = twins.model.head
    head.cls, head.dist = head.dist, head.cls
    with pytest.raises(AssertionError, match="logits"):
        parity.assert_same_network(twins.reference, twins.model, twins.images)
    with pytest.raises(AssertionError, match="by label"):
        assert_same_pair(parity, twins)


@torch.inference_mode()
def test_the_resampling_of_the_other_library_is_seen(parity, tmp_path):
    network, path = make_transformers(parity, tmp_path, "two classifiers", "scaled")
    size, images = (160, 256), torch.randn(1, 3, 160, 256)
    part = {"name": "learned", "resample": "bicubic_antialias"}
    model = vitzoo.create("deit/deit_s16_distilled", weights=path, image_size=size, pos_embed=part)
    expected = network(images, interpolate_pos_encoding=True).logits
    with pytest.raises(AssertionError):
        parity.assert_same(model.eval()(images), expected, what="logits")
