"""The network that weights were trained as: unpublished classifiers, settings of a config."""

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import SPEC, close, refuses, says
from load_helpers import (
    CLASSIFIER,
    PRE_LOGITS,
    classify,
    config,
    differs,
    fill,
    pretrained,
    warnings_of,
)
from tables import cases
from vitzoo.errors import CheckpointError


@pytest.fixture
def google(zoo, tmp_path, transformers):
    """Register an `_in21k` variant as Google published it, with a pooler and no classifier."""
    reference = fill(transformers.ViTModel(config(), add_pooling_layer=True))
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
    """The layer of the MLP head has the shape of the tanh layer but another function: it is new."""
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
    """Register a variant with a file of the trunk alone; return (name, model without head)."""
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
    """Without the pre-logits layer, the features would be different."""
    data = safetensors.torch.save(fill(vitzoo.create(SPEC | {"num_classes": 0})).state_dict())
    name = zoo({"orig": (data, {"default": True, "num_classes": 0})}, num_classes=21, head="tanh")
    with refuses(CheckpointError, f"2 missing: {', '.join(PRE_LOGITS)}"):
        pretrained(name)
    assert pretrained(name, num_classes=7).load_report.reinitialised == CLASSIFIER


@cases("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"])
@cases("eps", [1e-12, 1e-2])
def test_config_is_honoured(saved, images, act, eps, transformers):
    reference = fill(
        transformers.ViTForImageClassification(config(hidden_act=act, layer_norm_eps=eps))
    )
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


def test_config_that_states_nothing_leaves_all_assumed(saved, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    (path.parent / "config.json").write_text('{"layer_norm_eps": 1e-12}')
    model = vitzoo.create(SPEC, weights=path)
    assert model.load_report.assumed == ("activation = gelu",)


def test_block_argument_comes_before_the_config(saved, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config(layer_norm_eps=1e-2))))
    model = vitzoo.create(SPEC, weights=path, block={"norm_eps": 1e-3})
    assert model.spec.block.norm_eps == 1e-3
    assert model.blocks[0].norm1.eps == model.norm.eps == 1e-3


@cases(
    ("changes", "parts"),
    [
        ({"hidden_act": "relu6"}, ["hidden_act", "'relu6'", "gelu, gelu_new"]),
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
def test_config_that_the_model_cannot_follow(saved, changes, parts, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    stated = json.loads((path.parent / "config.json").read_text()) | changes
    (path.parent / "config.json").write_text(json.dumps(stated))
    with refuses(CheckpointError, "config.json", *parts):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 10_000, "\xff", '{"a": NaN}'])
def test_config_that_cannot_be_read_is_named(saved, text, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    (path.parent / "config.json").write_bytes(text.encode("latin-1"))
    model = vitzoo.create(SPEC, weights=path)
    assert len(model.load_report.assumed) == 3
    assert "config.json" in model.load_report.assumed[2]


def test_query_bias_of_the_config(saved, images, transformers):
    reference = fill(transformers.ViTForImageClassification(config(qkv_bias=False)))
    model = vitzoo.create(SPEC, weights=saved(reference)).eval()
    with torch.no_grad():
        close(model(images), reference(images).logits)
    assert model.spec.block.qkv_bias is False
