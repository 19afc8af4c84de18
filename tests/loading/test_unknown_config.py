"""A config of an unknown model type beside a file: a warning, or an error for other sizes."""

import json

import pytest
import torch

import vitzoo
from create_helpers import refused
from helpers import SPEC, close, fill, says
from load_helpers import warnings_of
from tables import cases, check_all
from vitzoo.errors import CheckpointError

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
NETWORK = SPEC | {"num_classes": 0}
AGREES = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True, "num_channels": 3}


@pytest.fixture
def folder(tmp_path, transformers):
    """Write the weights of a transformers ViT, with another config; return the folder."""
    config = transformers.ViTConfig(**SIZES)
    fill(transformers.ViTModel(config, add_pooling_layer=False)).save_pretrained(tmp_path)

    def write(**config):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit_new", **config}))
        return tmp_path

    return write


@pytest.mark.parametrize("weights", ["own", "scaled"])
@torch.inference_mode()
def test_the_settings_of_an_unknown_type(tmp_path, caplog, images, weights, transformers):
    config = transformers.ViTMSNConfig(**SIZES, layer_norm_eps=1e-3, hidden_act="gelu_new")
    reference = fill(transformers.ViTMSNModel(config), weights)
    reference.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "vit_new"}))
    model = vitzoo.create(NETWORK, weights=tmp_path).eval()
    text = warnings_of(caplog)[-1]  # after one of transformers
    says(text, "vit_new", "layer_norm_eps = 0.001, the model has norm_eps = 1e-12")
    says(text, "hidden_act = 'gelu_new', the model has activation = 'gelu'")
    fix = {"activation": "gelu_tanh", "norm_eps": 1e-3}
    says(text, f"block={fix}")
    assert any("layer_norm_eps = 0.001" in line for line in model.load_report.assumed)
    caplog.clear()
    model = vitzoo.create(NETWORK, weights=tmp_path, block=fix).eval()
    assert not warnings_of(caplog)
    close(model(images), reference(images).last_hidden_state[:, 0])


@cases("config", [{}, AGREES, AGREES | SIZES, {"vision_config": AGREES | SIZES}])
@cases("given", [{}, {"in_chans": 1}, {"image_size": 64}], ids=str)
def test_what_agrees_is_no_warning(folder, caplog, config, given):
    report = vitzoo.create(NETWORK, weights=folder(**config), **given).load_report
    assert not warnings_of(caplog)
    notes = [line for line in report.assumed if "config.json" in line]
    assert notes == ["config.json is not used: model_type vit_new is not known"]


OTHER = {
    "hidden_size": (64, "embed_dim = 64", "embed_dim = 32"),
    "num_hidden_layers": (3, "depth = 3", "depth = 2"),
    "num_attention_heads": (4, "4", "2"),
    "intermediate_size": (65, "mlp_dim = 65", "mlp_dim = 64"),
    "patch_size": (16, "patch_size = (16, 16)", "patch_size = (8, 8)"),
    "num_channels": (1, "in_chans = 1", "in_chans=3"),
}


@cases("nested", [False, True])
@cases("key", OTHER)
def test_other_sizes_are_refused(folder, key, nested):
    value, stated, built = OTHER[key]
    config = SIZES | {"num_channels": 3, key: value}
    place = folder(**({"vision_config": config, "hidden_size": 7} if nested else config))
    message = refused(CheckpointError, NETWORK, weights=place)
    fix = "pass in_chans=" if key == "num_channels" else "Name the right variant"
    says(message, stated, built, fix)
    assert "alone" not in message  # such a folder does not describe its network


def test_another_image_size_is_refused(tmp_path, transformers):
    config = transformers.ViTMSNConfig(**SIZES | {"image_size": 64, "patch_size": 16})
    transformers.ViTMSNModel(config).save_pretrained(tmp_path)
    name = {k: NETWORK[k] for k in ("embed_dim", "depth", "num_heads", "mlp_dim", "num_classes")}
    name |= {"variant": "vit_b16"}
    message = refused(CheckpointError, name, weights=tmp_path)
    says(message, "image_size = (64, 64)", "the model has (224, 224)", "pass image_size=64")
    report = vitzoo.create(name, weights=tmp_path, image_size=224).load_report
    assert report.resampled == ("pos_embed",)


def test_an_argument_decides_between_image_sizes(folder):
    place = folder(**SIZES | {"image_size": 64})
    with pytest.raises(CheckpointError):
        vitzoo.create(NETWORK, weights=place, image_size=(64, 64))  # the table is that of 32 px


ODD = {
    "hidden_act": [["gelu"], {"a": 1}, 3, None, "relu6", "\x1b[31m"],
    "layer_norm_eps": ["1e-6", [], -1, 0, 2, float("nan"), float("inf"), 10**400, True],
    "qkv_bias": ["no", 1, None, []],
    "hidden_size": [[64, 128], "32", -1, 1e9, 10**30, None],
    "num_attention_heads": [[2, 4], 0],
    "image_size": [{"height": 32}, [32, 32, 32], "32", [0, 0]],
    "patch_size": [[2, 8, 8], None],
}


def test_malformed_values_are_named(folder, caplog):
    cases = {f"{k} = {str(v)[:20]!a}": {k: v} for k, values in ODD.items() for v in values}

    def check(config):
        caplog.clear()
        vitzoo.create(NETWORK, weights=folder(**config))
        (text,) = warnings_of(caplog)
        says(text, f"{next(iter(config))} = ")
        assert text.isprintable()
        assert len(text) < 500

    check_all(cases, check)


UNKNOWN_KEYS = [{"vision_config": [1]}, {"vision_config": None}, {"mlp_ratio": 8, "\x1b[31m": 1}]


@pytest.mark.parametrize("config", UNKNOWN_KEYS)
def test_keys_that_are_not_known_are_named(folder, caplog, config):
    report = str(vitzoo.create(NETWORK, weights=folder(**config)).load_report)
    (text,) = warnings_of(caplog)
    for said in (report, text):
        says(said, "vit_new", "keys that vitzoo does not know", next(iter(config)))
        assert "\x1b" not in said


def test_a_config_without_model_type(tmp_path, caplog):
    """Beside a file of timm, whose format reads no config without one."""
    vitzoo.save(vitzoo.create(NETWORK), tmp_path / "own.safetensors")
    vitzoo.convert(tmp_path / "own.safetensors", "torchvision", tmp_path / "net.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"layer_norm_eps": 1e-3}))
    vitzoo.create(NETWORK, weights=tmp_path / "net.safetensors")
    (text,) = warnings_of(caplog)
    says(text, "states no model_type", "layer_norm_eps = 0.001", "norm_eps = 1e-06")


def test_a_config_of_open_clip_without_its_plugin(tmp_path, switch):
    switch(off="clip")
    vitzoo.save(vitzoo.create(NETWORK), tmp_path / "own.safetensors")
    vitzoo.convert(tmp_path / "own.safetensors", "torchvision", tmp_path / "net.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"embed_dim": 5}}))
    report = vitzoo.create(NETWORK, weights=tmp_path / "net.safetensors").load_report
    says(str(report), "open_clip_config.json is read by the plugin clip", "pip install ./plugins")
