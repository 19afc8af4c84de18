"""TIPSv2 of transformers, by its folder."""

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from encoders import Encoder, numbers, numbers_at_another_size, write
from helpers import Library, refuses
from vitzoo.errors import CheckpointError
from vitzoo_encoders.tipsv2 import transformers_tipsv2

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "mlp_ratio": 1.7,
}
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 9}
TEXT |= {"num_attention_heads": 2}


def alone(**keys):
    return lambda: tf.Tipsv2VisionModel(tf.Tipsv2VisionConfig(**SIZES, **keys))


def whole(**keys):
    return lambda: tf.Tipsv2Model(tf.Tipsv2Config(vision_config=SIZES | keys, text_config=TEXT))


def tower(network, images):
    return network.vision_model(pixel_values=images)


def at_any_size(network, images):
    return getattr(network, "vision_model", network)(pixel_values=images)


OTHER = {"other_size": (24, 48), "run_other": at_any_size}
ENCODERS = {
    "tipsv2_vision_model": Encoder(alone(), **OTHER),
    "other keys": Encoder(
        alone(hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-4, qkv_bias=False), **OTHER
    ),
    "no registers": Encoder(alone(num_register_tokens=0), **OTHER),
    "three registers, SwiGLU": Encoder(alone(num_register_tokens=3, use_swiglu_ffn=True), **OTHER),
    "tipsv2": Encoder(whole(), run=tower, **OTHER),
    "tipsv2, SwiGLU": Encoder(whole(use_swiglu_ffn=True), run=tower, **OTHER),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


def test_a_tower_is_written_for_transformers(tmp_path, transformers):
    network = write(ENCODERS["tipsv2_vision_model"], "drawn", tmp_path)
    file = safetensors.torch.load_file(tmp_path / "model.safetensors")
    model = vitzoo.create(tmp_path)
    assert (model.load_report.format, model.load_report.dropped) == (
        "tipsv2/transformers",
        ("mask_token",),
    )
    written = transformers_tipsv2.from_model(model.state_dict())
    assert {k: t.shape for k, t in written.items()} == {k: t.shape for k, t in file.items()}
    safetensors.torch.save_file(written, tmp_path / "model.safetensors", {"format": "pt"})
    again = transformers.Tipsv2VisionModel.from_pretrained(tmp_path)
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = network(images).pooler_output
        torch.testing.assert_close(again(images).pooler_output, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"num_register_tokens": -1}, ("num_register_tokens", -1)),
        ({"head_dim": 16}, ("head_dim", "None", 16)),
        ({"mlp_ratio": "x"}, ("mlp_ratio", "positive", "'x'")),
        ({"use_swiglu_ffn": 1}, ("use_swiglu_ffn", "true or false", 1)),
        ({"layerscale_value": None}, ("layerscale_value", "positive", "None")),
    ],
)
def test_configs_that_are_refused(tmp_path, keys, parts):
    write(ENCODERS["tipsv2"], "own", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"].update(keys)
    path.write_text(json.dumps(config))
    with refuses(CheckpointError, *parts):
        vitzoo.create(tmp_path)
