"""Weights into models: heads, adaptations, layouts and facts, each by the numbers that come out."""

import hashlib
import json
import logging

import pytest
import safetensors.torch
import timm
import tomlkit
import torch
from timm.layers import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification, ViTModel

import vitzoo
from helpers import SPEC, close, refuses, says
from vitzoo.errors import CheckpointError

PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
PRE_LOGITS = ("head.pre_logits.weight", "head.pre_logits.bias")
CLASSIFIER = ("head.weight", "head.bias")


def fill(model, seed=0):
    """Fan-in scaled normals, gains of 1 +- 0.2: numbers in which every mistake shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1 and "embed" not in name.rpartition(".")[2]:
                values /= parameter[0].numel() ** 0.5
            gain = "norm" in name and name.endswith("weight")
            parameter.copy_(values * 0.2 + gain if parameter.dim() == 1 else values)
    return model.eval()


def differs(actual, expected):
    """Tell whether `close` would see it, with a margin of two."""
    return (actual - expected).abs().max() > 1e-4 * max(1, expected.abs().max())


@pytest.fixture
def zoo(tmp_path, monkeypatch, new_registry):
    """Register a network `small/net` with weights given as files; they are bundled, no Hub."""
    site = tmp_path / "site"
    package, info = site / "small", site / "small-1.0.dist-info"
    (package / "data").mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vitzoo]\nsmall = small:registry.toml\n")
    monkeypatch.syspath_prepend(str(site))

    def register(weights, **spec):
        rows = {}
        for name, (data, row) in weights.items():
            (package / "data" / f"{name}.safetensors").write_bytes(data)
            rows[name] = {
                "file": f"{name}.safetensors",
                "pin": "confirmed",
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "format": "timm",
                "license": "MIT",
                "source": "made by the test",
                "preprocessing": PREPROCESSING,
            } | row
        variant = SPEC | {"summary": "small", "source": "made", "params": 1, "weights": rows} | spec
        text = tomlkit.dumps({"api": 1, "variants": {"net": variant}})
        (package / "registry.toml").write_text(text)
        new_registry()
        return "small/net"

    return register


def pretrained(name, **arguments):
    return vitzoo.create(name, pretrained=True, **arguments).eval()


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def classify(model, *names):
    """Give a fresh classifier numbers, after checking that it is one: all zero."""
    state = model.state_dict()
    assert all(not state[name].any() for name in names)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        weight, bias = (model.get_parameter(name) for name in names)
        weight.copy_(torch.randn(weight.shape, generator=generator))
        bias.copy_(torch.randn(bias.shape, generator=generator))
    return weight, bias


# Heads whose classifier was never published: the table of design section 7.


def config(**changes):
    return ViTConfig(
        **{
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
            "num_labels": 5,
        }
        | changes
    )


@pytest.fixture
def google(zoo, tmp_path):
    """An `_in21k` variant as Google published it: a pooler, no classifier; gives (name, model)."""
    reference = fill(ViTModel(config(), add_pooling_layer=True))
    reference.save_pretrained(tmp_path / "google")
    data = (tmp_path / "google" / "model.safetensors").read_bytes()
    row = {
        "default": True,
        "num_classes": 0,
        "format": "transformers_vit",
        "block": {"norm_eps": 1e-12},
    }
    return zoo({"google": (data, row)}, num_classes=21, head="tanh"), reference


def test_untrained_variant_has_all_its_classes(google, images):
    model = vitzoo.create(google[0])
    assert model(images).shape == (2, 21)
    assert model.head.pre_logits.weight.shape == (32, 32)
    assert model.head.fc.weight.shape == (21, 32)


@pytest.mark.parametrize("arguments", [{}, {"num_classes": 0}, {"head": "tanh"}], ids=str)
def test_headless_weights_give_the_tanh_pre_logits(google, images, caplog, arguments):
    name, reference = google
    model = pretrained(name, **arguments)
    with torch.no_grad():
        close(model(images), reference(images).pooler_output)
        close(model.forward_features(images), reference(images).last_hidden_state)
    (warning,) = warnings_of(caplog)
    says(warning, "small/net", "google", "features", "num_classes=")
    assert model.num_classes == model.spec.num_classes == 0
    report = model.load_report
    assert set(report.kept) == set(model.state_dict())
    assert report.reinitialised == report.dropped == report.resampled == report.assumed == ()


def test_headless_weights_with_a_number_of_classes(google, images, caplog):
    name, reference = google
    model = pretrained(name, num_classes=7)
    weight, bias = classify(model, *CLASSIFIER)
    with torch.no_grad():
        trunk = reference(images).last_hidden_state[:, 0]
        close(model(images), trunk @ weight.T + bias)
    assert warnings_of(caplog) == []
    assert model.load_report.reinitialised == CLASSIFIER
    assert set(model.load_report.dropped) == set(PRE_LOGITS)
    assert model.spec.head == vitzoo.PartSpec("linear")
    assert model.labels == ()


def test_headless_weights_with_the_tanh_head_kept(google, images, caplog):
    name, reference = google
    model = pretrained(name, num_classes=7, head="tanh")
    weight, bias = classify(model, "head.fc.weight", "head.fc.bias")
    with torch.no_grad():
        close(model(images), reference(images).pooler_output @ weight.T + bias)
    assert warnings_of(caplog) == []
    assert model.load_report.reinitialised == ("head.fc.weight", "head.fc.bias")
    assert model.load_report.dropped == ()
    assert set(PRE_LOGITS) <= set(model.load_report.kept)


def test_headless_weights_with_an_mlp_head(google):
    """Its layer has the shape of the tanh layer and another function: it is not taken over."""
    model = pretrained(google[0], num_classes=7, head="mlp")
    report = model.load_report
    assert set(report.dropped) == set(PRE_LOGITS)
    assert set(report.reinitialised) == {*PRE_LOGITS, "head.fc.weight", "head.fc.bias"}


def test_headless_weights_with_no_head(google, images):
    name, reference = google
    model = pretrained(name, head="none", num_classes=0)
    with torch.no_grad():
        close(model(images), reference(images).last_hidden_state[:, 0])
    assert set(model.load_report.dropped) == set(PRE_LOGITS)


def test_headless_weights_from_a_spec(google, images):
    name, reference = google
    model = vitzoo.create({"variant": name, "num_classes": 7}, pretrained=True).eval()
    weight, bias = classify(model, *CLASSIFIER)
    with torch.no_grad():
        trunk = reference(images).last_hidden_state[:, 0]
        close(model(images), trunk @ weight.T + bias)


@pytest.fixture
def trunk(zoo):
    """A plain variant with a file of the trunk alone; gives (name, model without head)."""
    reference = fill(vitzoo.create(SPEC | {"num_classes": 0}))
    data = safetensors.torch.save(reference.state_dict())
    return zoo({"trunk": (data, {"default": True, "num_classes": 0})}), reference


def test_trunk_alone(trunk, images, caplog):
    name, reference = trunk
    model = pretrained(name)
    with torch.no_grad():
        close(model(images), reference(images))
    assert model(images).shape == (2, 32)
    assert len(warnings_of(caplog)) == 1


def test_trunk_alone_with_a_number_of_classes(trunk, images, caplog):
    name, reference = trunk
    model = pretrained(name, num_classes=7)
    weight, bias = classify(model, *CLASSIFIER)
    with torch.no_grad():
        close(model(images), reference(images) @ weight.T + bias)
    assert warnings_of(caplog) == []
    assert model.load_report.reinitialised == CLASSIFIER
    assert model.load_report.dropped == ()


def test_trunk_alone_for_a_tanh_variant_lacks_its_layer(zoo):
    """The pre-logits layer is part of the network; without it the features are others."""
    data = safetensors.torch.save(fill(vitzoo.create(SPEC | {"num_classes": 0})).state_dict())
    name = zoo({"orig": (data, {"default": True, "num_classes": 0})}, num_classes=21, head="tanh")
    with refuses(CheckpointError, f"2 missing: {', '.join(PRE_LOGITS)}"):
        pretrained(name)
    assert pretrained(name, num_classes=7).load_report.reinitialised == CLASSIFIER


# Weights with another number of classes than the variant.


@pytest.fixture
def augreg(zoo):
    """Weights with 5 and with 11 classes; gives (name, models by weights name)."""
    models, rows = {}, {}
    for seed, (weights, classes) in enumerate({"in1k": 5, "in21k": 11}.items()):
        models[weights] = fill(vitzoo.create(SPEC | {"num_classes": classes}), seed)
        data = safetensors.torch.save(models[weights].state_dict())
        labels = [f"{weights}-{i}" for i in range(classes)]
        rows[weights] = (
            data,
            {"num_classes": classes, "default": weights == "in1k", "labels": labels},
        )
    return zoo(rows), models


def test_default_weights(augreg, images):
    name, models = augreg
    model = pretrained(name)
    close(model(images), models["in1k"](images))
    assert set(model.load_report.kept) == set(model.state_dict())
    assert model.load_report.source == "small/net:in1k"
    assert model.labels[0] == "in1k-0"


def test_weights_with_more_classes(augreg, images, caplog):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k").eval()
    close(model(images), models["in21k"](images))
    assert model(images).shape == (2, 11)
    assert model.spec.num_classes == 11
    assert model.labels[10] == "in21k-10"
    assert model.load_report.dropped == model.load_report.reinitialised == ()
    assert warnings_of(caplog) == []


def test_weights_with_their_own_number_of_classes_keep_the_head(augreg, images):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=11).eval()
    close(model(images), models["in21k"](images))


@pytest.mark.parametrize("classes", [5, 7])
def test_weights_with_another_number_of_classes(augreg, images, classes):
    """5 is the variant's own number, and still the head of these weights is another one."""
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=classes).eval()
    weight, bias = classify(model, *CLASSIFIER)
    tokens = models["in21k"].forward_features(images)
    close(model(images), tokens[:, 0] @ weight.T + bias)
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    assert model.load_report.reinitialised == CLASSIFIER
    assert model.labels == ()


def test_weights_without_their_head(augreg, images):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=0).eval()
    close(model(images), models["in21k"].forward_features(images)[:, 0])
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    assert model.load_report.reinitialised == ()


def test_weights_under_another_head(augreg, images):
    name, models = augreg
    model = pretrained(name, head="mlp")
    assert not model(images).any()
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    close(model.forward_features(images), models["in1k"].forward_features(images))


# Adaptations.


@pytest.mark.parametrize("chans", [1, 2, 4, 6, 7])
def test_in_chans(augreg, chans):
    name, models = augreg
    model = pretrained(name, in_chans=chans)
    expected = adapt_input_conv(chans, models["in1k"].patch_embed.proj.weight.detach())
    close(model.patch_embed.proj.weight.detach(), expected)
    x = torch.randn(2, chans, 32, 32)
    bias = models["in1k"].patch_embed.proj.bias
    tokens = F.conv2d(x, expected, bias, stride=8).flatten(2).transpose(1, 2)
    close(model.patch_embed(x), tokens)
    assert model(x).shape == (2, 5)
    assert model.load_report.converted == ("patch_embed.proj.weight",)
    assert "patch_embed.proj.weight" not in model.load_report.kept
    assert len(model.load_report.kept) == len(model.state_dict()) - 1


def test_one_channel_is_the_sum_of_three(augreg, images):
    """A grey image gives the numbers of its three equal channels."""
    name, models = augreg
    grey = images[:, :1]
    close(pretrained(name, in_chans=1)(grey), models["in1k"](grey.expand(-1, 3, -1, -1)))


def test_in_chans_in_a_spec(augreg):
    model = vitzoo.create({"variant": augreg[0], "in_chans": 1}, pretrained=True)
    assert model.load_report.converted == ("patch_embed.proj.weight",)


@pytest.mark.parametrize("size", [64, 16, (32, 64), (24, 40), (64, 32), (16, 16)], ids=str)
def test_image_size(augreg, size):
    name, models = augreg
    model = pretrained(name, image_size=size)
    height, width = (size, size) if isinstance(size, int) else size
    table = models["in1k"].pos_embed.detach()
    grid = [height // 8, width // 8]
    expected = resample_abs_pos_embed(table, grid, [4, 4], num_prefix_tokens=1)
    close(model.pos_embed.detach(), expected)
    x = torch.randn(2, 3, height, width)
    tokens = models["in1k"].patch_embed.proj(x).flatten(2).transpose(1, 2)
    class_token = models["in1k"].cls_token.expand(2, -1, -1)
    close(model.embed(x), torch.cat((class_token, tokens), 1) + expected)
    assert model(x).shape == (2, 5)
    assert model.load_report.resampled == ("pos_embed",)
    assert len(model.load_report.kept) == len(model.state_dict()) - 1
    assert model.spec.image_size == (height, width)


def test_the_same_image_size_is_not_resampled(augreg):
    name, models = augreg
    model = pretrained(name, image_size=(32, 32))
    assert torch.equal(model.pos_embed, models["in1k"].pos_embed)
    assert model.load_report.resampled == ()


def test_all_adaptations_at_once(augreg):
    name, models = augreg
    model = pretrained(name, in_chans=1, image_size=(32, 64), num_classes=7, dtype=torch.bfloat16)
    report = model.load_report
    assert report.resampled == ("pos_embed",)
    assert report.converted[0] == "patch_embed.proj.weight"
    assert len(report.converted) == len(models["in1k"].state_dict()) - 2
    assert report.reinitialised == CLASSIFIER
    assert set(report.dropped) == set(CLASSIFIER)
    assert model(torch.randn(1, 1, 32, 64, dtype=torch.bfloat16)).shape == (1, 7)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    text = str(report)
    assert text.startswith(f"small/net:in1k (sha256 {report.sha256[:12]})\n")
    assert "  resampled 1: pos_embed\n" in text
    assert "  reinitialised 2: head.weight, head.bias\n" in text


def test_another_patch_embedder_with_the_same_kernel(augreg, images):
    name, models = augreg
    close(pretrained(name, patch_embed="unfold")(images), models["in1k"](images))


def test_an_adaptation_nobody_asked_for_is_an_error(augreg, tmp_path):
    """A file for other images, channels or classes fits only if the caller says so."""
    for key, value, tensor in (
        ("image_size", 64, "pos_embed"),
        ("in_chans", 1, "patch_embed.proj.weight"),
        ("num_classes", 9, "head.weight"),
    ):
        path = tmp_path / "other.safetensors"
        safetensors.torch.save_file(fill(vitzoo.create(SPEC | {key: value})).state_dict(), path)
        with refuses(CheckpointError, path, "another shape", tensor):
            vitzoo.create(augreg[0], weights=path)


# transformers.


@pytest.fixture
def saved(tmp_path):
    """Save a transformers model; gives the path of its weights file."""

    def save(model, *, with_config=True):
        folder = tmp_path / "saved"
        model.save_pretrained(folder)
        if not with_config:
            (folder / "config.json").unlink()
        return folder / "model.safetensors"

    return save


@pytest.mark.parametrize("with_config", [True, False])
def test_transformers_classifier(saved, images, with_config):
    reference = fill(ViTForImageClassification(config()))
    model = vitzoo.create(SPEC, weights=saved(reference, with_config=with_config)).eval()
    with torch.no_grad():
        out = reference(images, output_hidden_states=True)
        close(model(images), out.logits)
        close(model.forward_features(images), reference.vit(images).last_hidden_state)
    assert model.spec.block.norm_eps == 1e-12
    assumed = () if with_config else ("norm_eps = 1e-12", "activation = gelu")
    assert model.load_report.assumed == assumed
    assert set(model.load_report.kept) == set(model.state_dict())


@pytest.mark.parametrize("with_config", [True, False])
def test_transformers_backbone(saved, images, with_config):
    reference = fill(ViTModel(config(), add_pooling_layer=True))
    path = saved(reference, with_config=with_config)
    model = vitzoo.create(SPEC | {"head": "tanh", "num_classes": 0}, weights=path).eval()
    with torch.no_grad():
        out = reference(images)
        close(model.forward_features(images), out.last_hidden_state)
        close(model(images), out.pooler_output)
    assert bool(model.load_report.assumed) != with_config


def test_transformers_backbone_without_its_pooler(saved, images):
    reference = fill(ViTModel(config(), add_pooling_layer=True))
    path = saved(reference)
    with refuses(CheckpointError, "2 missing: head.", "2 unexpected: head.pre_logits."):
        vitzoo.create(SPEC, weights=path)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    with torch.no_grad():
        close(model(images), reference(images).last_hidden_state[:, 0])
    assert set(model.load_report.dropped) == set(PRE_LOGITS)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"])
@pytest.mark.parametrize("eps", [1e-12, 1e-2])
def test_config_is_honoured(saved, images, act, eps):
    reference = fill(ViTForImageClassification(config(hidden_act=act, layer_norm_eps=eps)))
    path = saved(reference)
    stated = vitzoo.create(SPEC, weights=path).eval()
    with torch.no_grad():
        expected = reference(images).logits
        close(stated(images), expected)
    assert stated.load_report.assumed == ()
    (path.parent / "config.json").unlink()
    assumed = vitzoo.create(SPEC, weights=path).eval()
    assert assumed.load_report.assumed == ("norm_eps = 1e-12", "activation = gelu")
    if (act, eps) != ("gelu", 1e-12):
        with torch.no_grad():
            assert differs(assumed(images), expected), "the flip shows in the numbers"


def test_config_that_states_nothing_leaves_all_assumed(saved):
    path = saved(fill(ViTForImageClassification(config())))
    (path.parent / "config.json").write_text('{"model_type": "vit", "layer_norm_eps": 1e-12}')
    model = vitzoo.create(SPEC, weights=path)
    assert model.load_report.assumed == ("activation = gelu",)


def test_block_argument_comes_before_the_config(saved):
    path = saved(fill(ViTForImageClassification(config(layer_norm_eps=1e-2))))
    model = vitzoo.create(SPEC, weights=path, block={"norm_eps": 1e-3})
    assert model.spec.block.norm_eps == 1e-3
    assert model.blocks[0].norm1.eps == model.norm.eps == 1e-3


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_act": "relu"}, ["hidden_act", "'relu'", "gelu, gelu_new"]),
        ({"hidden_act": None}, ["hidden_act", "None", "gelu, gelu_new"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act", "['gelu']", "gelu, gelu_new"]),
        ({"layer_norm_eps": 0}, ["layer_norm_eps", 0, 1, "got 0"]),
        ({"layer_norm_eps": -1e-6}, ["layer_norm_eps", 0, 1, "-1e-06"]),
        ({"layer_norm_eps": float("nan")}, ["layer_norm_eps", 0, 1, "nan"]),
        ({"layer_norm_eps": True}, ["layer_norm_eps", 0, 1, "True"]),
        ({"layer_norm_eps": "1e-6"}, ["layer_norm_eps", 0, 1, "'1e-6'"]),
    ],
    ids=str,
)
def test_config_that_the_model_cannot_follow(saved, changes, parts):
    path = saved(fill(ViTForImageClassification(config())))
    stated = json.loads((path.parent / "config.json").read_text()) | changes
    (path.parent / "config.json").write_text(json.dumps(stated))
    with refuses(CheckpointError, "config.json", *parts):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 10_000, "\xff", '{"a": NaN}'])
def test_config_that_cannot_be_read_is_none(saved, text):
    path = saved(fill(ViTForImageClassification(config())))
    (path.parent / "config.json").write_bytes(text.encode("latin-1"))
    model = vitzoo.create(SPEC, weights=path)
    assert len(model.load_report.assumed) == 2


def test_query_bias_of_the_config(saved, images):
    reference = fill(ViTForImageClassification(config(qkv_bias=False)))
    model = vitzoo.create(SPEC, weights=saved(reference)).eval()
    with torch.no_grad():
        close(model(images), reference(images).logits)
    assert model.spec.block.qkv_bias is False


def test_transformers_file_of_a_registered_variant_at_another_size(zoo, saved):
    """Mapping and adapting in one go, with q, k and v stacked, resampled as the library does."""
    reference = fill(ViTForImageClassification(config()))
    name = zoo({})
    model = vitzoo.create(name, weights=saved(reference), image_size=64, num_classes=7)
    embeddings = reference.vit.embeddings
    tokens = torch.zeros(1, 65, 32)
    close(model.pos_embed.detach(), embeddings.interpolate_pos_encoding(tokens, 64, 64).detach())
    assert model.load_report.resampled == ("pos_embed",)
    assert model.load_report.assumed == ("pos_embed.resample = bicubic",)
    assert set(model.load_report.dropped) == set(CLASSIFIER)


def test_the_suite_sees_swapped_queries_and_keys(saved, images):
    """Proof that the comparison above can fail."""
    reference = fill(ViTForImageClassification(config()))
    path = saved(reference)
    tensors = safetensors.torch.load_file(path)
    prefix = "vit.encoder.layer.0.attention.attention"
    for kind in ("weight", "bias"):
        query, value = f"{prefix}.query.{kind}", f"{prefix}.value.{kind}"
        tensors[query], tensors[value] = tensors[value], tensors[query]
    safetensors.torch.save_file(tensors, path)
    model = vitzoo.create(SPEC, weights=path).eval()
    with torch.no_grad(), pytest.raises(AssertionError):
        close(model(images), reference(images).logits)


@pytest.mark.parametrize("lost", ["query", "key", "value"])
def test_transformers_file_without_a_projection(saved, lost):
    path = saved(fill(ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    del tensors[f"vit.encoder.layer.1.attention.attention.{lost}.weight"]
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "1 missing: blocks.1.attn.qkv.weight", "2 unexpected"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("stray", ["query", "key"])
def test_transformers_file_with_a_stray_projection(saved, stray):
    path = saved(fill(ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    tensors[f"vit.encoder.layer.9.attention.attention.{stray}.weight"] = torch.ones(32, 32)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "1 unexpected: encoder.layer.9.", f".{stray}.weight"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize(
    ("twice", "name"),
    [("layernorm.weight", "layernorm.weight"), ("vit.norm.weight", "norm.weight")],
)
def test_two_tensors_for_one(saved, twice, name):
    path = saved(fill(ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    tensors[twice] = torch.ones(32)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "two tensors", name):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("shape", [(), (1,), (32, 16)])
def test_projections_of_odd_shapes(saved, shape):
    path = saved(fill(ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    for part in ("query", "key", "value"):
        tensors[f"vit.encoder.layer.0.attention.attention.{part}.bias"] = torch.ones(shape)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "blocks.0.attn.qkv.bias"):
        vitzoo.create(SPEC, weights=path)


# timm.


def test_timm_file(tmp_path, images):
    reference = fill(
        timm.create_model(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=32,
            depth=2,
            num_heads=2,
            num_classes=5,
            mlp_ratio=2,
        )
    )
    path = tmp_path / "timm.safetensors"
    safetensors.torch.save_model(reference, str(path))
    model = vitzoo.create(SPEC, weights=path).eval()
    with torch.no_grad():
        close(model(images), reference(images))
        close(model.forward_features(images), reference.forward_features(images))
    assert model.load_report.assumed == ("norm_eps = 1e-06", "activation = gelu")
    (tmp_path / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    model = vitzoo.create(SPEC, weights=path).eval()
    assert model.load_report.assumed == ("norm_eps = 1e-06", "activation = gelu")


def test_timm_file_of_another_mlp_width_is_refused(tmp_path):
    path = tmp_path / "timm.safetensors"
    other = fill(vitzoo.create(SPEC | {"mlp_dim": 128}))
    safetensors.torch.save_file(other.state_dict(), path)
    shapes = ("blocks.{0-1}.mlp.fc1.weight", "(128, 32)", "(64, 32)")
    with refuses(CheckpointError, path, "6 with another shape", *shapes):
        vitzoo.create(SPEC, weights=path)


# Facts of a row.


@pytest.mark.parametrize(
    "block",
    [{"norm_eps": 1e-2}, {"activation": "gelu_tanh"}, {"activation": "quick_gelu"}],
    ids=str,
)
def test_facts_of_a_row(zoo, images, block):
    reference = fill(vitzoo.create(SPEC, block=block))
    plain = fill(vitzoo.create(SPEC))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": block, "default": True}), "plain": (data, {})})
    close(pretrained(name)(images), reference(images))
    close(vitzoo.create(name, weights="plain").eval()(images), plain(images))
    assert not torch.allclose(plain(images), reference(images), rtol=0, atol=1e-5)
    assert pretrained(name).load_report.assumed == ()


def test_query_bias_of_a_row(zoo, images):
    reference = fill(vitzoo.create(SPEC, block={"qkv_bias": False}))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": {"qkv_bias": False}, "default": True})})
    model = pretrained(name)
    close(model(images), reference(images))
    assert model.blocks[0].attn.qkv.bias is None
    assert vitzoo.create(name).blocks[0].attn.qkv.bias is not None


def test_block_argument_comes_before_a_row(zoo, images):
    reference = fill(vitzoo.create(SPEC, block={"norm_eps": 1e-2}))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": {"norm_eps": 1e-3}, "default": True})})
    close(pretrained(name, block={"norm_eps": 1e-2})(images), reference(images))


FACTS = {  # the row's fact, the network that was trained, the variant
    "pool": ({"pool": "mean"}, {"pool": "mean"}, {}),
    "option of the pool": (
        {"pool": {"norm_first": False}},
        {"pool": {"name": "mean", "norm_first": False}},
        {"pool": "mean"},
    ),
    "head": ({"head": "tanh"}, {"head": "tanh"}, {"head": "mlp"}),
    "positions": (
        {"pos_embed": {"temperature": 100.0}},
        {"pos_embed": {"name": "sincos_2d", "temperature": 100.0}},
        {"pos_embed": "sincos_2d"},
    ),
    "pre-norm": ({"pre_norm": True}, {"pre_norm": True}, {}),
}


@pytest.mark.parametrize(("fact", "trained", "variant"), FACTS.values(), ids=FACTS)
def test_facts_of_a_row_beside_the_block(zoo, images, fact, trained, variant):
    """The row's fact gives the numbers, and without it they are others or do not load."""
    reference = fill(vitzoo.create(SPEC | trained))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, fact | {"default": True}), "plain": (data, {})}, **variant)
    model = pretrained(name)
    close(model(images), reference(images))
    assert model.load_report.assumed == ()
    assert set(model.load_report.kept) == set(model.state_dict())
    try:
        plain = vitzoo.create(name, weights="plain").eval()(images)
    except CheckpointError as error:
        assert "norm" in str(error)  # noqa: PT017  # a norm elsewhere has tensors of its own
        assert fact in ({"pre_norm": True}, {"pool": {"norm_first": False}})
    else:
        assert differs(plain, reference(images))


def test_the_part_of_the_caller_comes_before_a_row(zoo, images):
    def positions(temperature):
        return {"pos_embed": {"name": "sincos_2d", "temperature": temperature}}

    reference = fill(vitzoo.create(SPEC | positions(50.0)))
    data = safetensors.torch.save(reference.state_dict())
    row = {"pos_embed": {"temperature": 100.0}, "default": True}
    name = zoo({"facts": (data, row)}, **positions(200.0))
    for model in (
        pretrained(name, **positions(50.0)),
        pretrained({"variant": name} | positions(50.0)),
        pretrained({"variant": name} | positions(20.0), **positions(50.0)),
    ):
        close(model(images), reference(images))
        own, asked = ({"name": "sincos_2d", "temperature": t} for t in (100.0, 50.0))
        (line,) = model.load_report.assumed
        says(line, f"pos_embed = {asked}", own)
    repeated = pretrained({"variant": name} | positions(200.0))  # what the variant says anyway
    assert repeated.spec.pos_embed.to_data()["temperature"] == 100.0


def test_a_row_takes_the_facts_of_its_format_where_it_is_silent(zoo, saved, images):
    reference = fill(ViTForImageClassification(config(layer_norm_eps=1e-2)))
    data = saved(reference).read_bytes()
    row = {"format": "transformers_vit"}
    name = zoo({"silent": (data, row), "says": (data, row | {"block": {"norm_eps": 1e-2}})})
    assert vitzoo.create(name, weights="silent").spec.block.norm_eps == 1e-12
    stated = vitzoo.create(name, weights="says").eval()
    with torch.no_grad():
        close(stated(images), reference(images).logits)
    assert stated.load_report.assumed == ()
    asked = vitzoo.create(name, weights="silent", block={"norm_eps": 1e-2}).eval()
    with torch.no_grad():
        close(asked(images), reference(images).logits)
    (line,) = asked.load_report.assumed
    says(line, "block.norm_eps = 0.01", "1e-12")


# What comes out.


def test_the_report_names_the_format(augreg, saved, tmp_path):
    report = pretrained(augreg[0]).load_report
    assert report.format == "timm"
    count = len(report.kept)
    sha256 = report.sha256[:12]
    says(report.summary(), "small/net:in1k", f"sha256 {sha256}", "timm", f"{count} kept")
    assert str(report).splitlines()[1:] == ["  format timm", *str(report).splitlines()[2:]]
    path = saved(fill(ViTForImageClassification(config())))
    assert vitzoo.create(SPEC, weights=path).load_report.format == "transformers_vit"
    vitzoo.save(vitzoo.create(SPEC), tmp_path / "own.safetensors")
    assert vitzoo.create(tmp_path / "own.safetensors").load_report.format == "timm"
    fresh = vitzoo.create(SPEC).load_report
    assert fresh.format == ""
    assert "timm" not in fresh.summary()


def test_nothing_stays_on_meta(augreg):
    for arguments in ({}, {"num_classes": 7}, {"in_chans": 1, "image_size": 64}):
        model = pretrained(augreg[0], **arguments)
        tensors = [*model.parameters(), *model.buffers()]
        assert not any(tensor.is_meta for tensor in tensors)
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_no_two_tensors_share_memory(augreg):
    pointers = [p.data_ptr() for p in pretrained(augreg[0], num_classes=7).parameters()]
    assert len(set(pointers)) == len(pointers)


def test_bundled_file_that_was_changed(augreg, tmp_path):
    path = tmp_path / "site" / "small" / "data" / "in1k.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with refuses(vitzoo.IntegrityError, path, "reinstall"):
        pretrained(augreg[0])
    path.unlink()
    with refuses(vitzoo.WeightsUnavailable, "in1k.safetensors", "missing", "package"):
        pretrained(augreg[0])


def test_arguments_are_checked_before_anything_is_fetched(monkeypatch):
    from vitzoo.store import obtain

    def fetched(*_):
        raise AssertionError("fetched before the arguments were checked")

    monkeypatch.setattr(obtain, "obtain", fetched)
    with refuses(vitzoo.InvalidOption, "225x225", "16x16"):
        vitzoo.create("vit_b16", pretrained=True, image_size=225)
    with refuses(vitzoo.UnknownName, "head", "'liner'"):
        vitzoo.create("vit_b16", pretrained=True, head="liner")


def test_the_report_names_what_no_tensor_shows():
    model = vitzoo.create("vit_digits", pretrained=True, pool="mean", block={"norm_eps": 1e-5})
    pool, epsilon = model.load_report.assumed
    says(pool, "pool = mean", "class")
    says(epsilon, "block.norm_eps = 1e-05", "1e-06")
    assert vitzoo.create("vit_digits", pretrained=True).load_report.assumed == ()
