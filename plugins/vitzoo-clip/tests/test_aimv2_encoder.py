"""transformers' AIMv2, by its folders."""

from __future__ import annotations

import json

import pytest

import vitzoo
from encoders import Encoder, numbers, numbers_at_another_size, write
from helpers import Library, refuses
from vitzoo.errors import CheckpointError

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = SIZES | {"vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 2}


def _tower(*, pooled=None, other_size=None, **options):
    return Encoder(
        lambda: tf.Aimv2VisionModel(tf.Aimv2VisionConfig(**SIZES, **options)),
        pooled=pooled or (lambda out: out.pooler_output),
        other_size=other_size,
        run_other=lambda network, images: network(images),
    )


def _whole(network, images):
    out = network.get_image_features(images)
    assert out.pooler_output.shape == (2, 24)
    return out


ENCODERS = {
    "head": _tower(),
    "biases": _tower(qkv_bias=True, mlp_bias=True, rms_norm_eps=1e-4),
    "native": _tower(is_native=True, other_size=(24, 64)),
    "no head": _tower(use_head=False, pooled=lambda out: out.last_hidden_state.mean(1)),
    "whole": Encoder(
        lambda: tf.Aimv2Model(
            tf.Aimv2Config(vision_config=dict(SIZES), text_config=dict(TEXT), projection_dim=24)
        ),
        run=_whole,
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS, stated=True)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


@pytest.mark.parametrize(
    ("name", "stated", "words"),
    [
        ("head", {"hidden_act": "gelu"}, ("hidden_act must be 'silu'", "got 'gelu'")),
        ("whole", {"vision_config": SIZES | {"use_head": False}}, ("use_head must be true",)),
    ],
)
def test_what_a_config_may_not_state(name, stated, words, tmp_path):
    write(ENCODERS[name], "own", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    with refuses(CheckpointError, *words):
        vitzoo.create(tmp_path)
