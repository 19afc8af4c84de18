"""The image encoders of transformers that this plugin reads, by their folders."""

import pytest

from create_helpers import refused
from encoders import Encoder, compare, numbers, numbers_at_another_size
from helpers import Library, says
from vitzoo.errors import CheckpointError

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-9,  # 1e-12, the default, is no part of `small`
}
LARGE = (48, 64)
OWN = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
CLASS = {"use_mean_pooling": False}


def beit(**options):
    return tf.BeitConfig(**SIZES | options)


def data2vec(**options):
    return tf.Data2VecVisionConfig(**SIZES | options)


def first(out):
    return out.last_hidden_state[:, 0]


def logits(out):
    return out.logits


ENCODERS = {
    "beit": Encoder(lambda: tf.BeitModel(beit(**OWN)), other_size=LARGE),
    "beit, shared, class": Encoder(
        lambda: tf.BeitModel(beit(**SHARED | CLASS, layer_scale_init_value=0.0)), other_size=LARGE
    ),
    "beit, classes": Encoder(
        lambda: tf.BeitForImageClassification(beit(**OWN, num_labels=5)),
        tokens=None,
        pooled=logits,
    ),
    "beit, masked": Encoder(
        lambda: tf.BeitForMaskedImageModeling(beit(**SHARED)),
        tokens=lambda tokens: tokens,
        pooled=None,
        run=lambda network, x: network.layernorm(network.beit(x).last_hidden_state),
    ),
    "data2vec-vision": Encoder(
        lambda: tf.Data2VecVisionModel(data2vec(**OWN), add_pooling_layer=True), other_size=LARGE
    ),
    "data2vec-vision, shared, class": Encoder(
        lambda: tf.Data2VecVisionModel(data2vec(**SHARED | CLASS)), pooled=first, other_size=LARGE
    ),
    "data2vec-vision, classes": Encoder(
        lambda: tf.Data2VecVisionForImageClassification(data2vec(**OWN, hidden_act="gelu_new")),
        tokens=None,
        pooled=logits,
    ),
}
WITHOUT_NORM = {  # a mean without pooler
    "beit, no pooler": Encoder(
        lambda: tf.BeitModel(beit(**OWN), add_pooling_layer=False), pooled=None
    ),
    "data2vec-vision, no pooler": Encoder(
        lambda: tf.Data2VecVisionModel(data2vec(**SHARED)), pooled=None
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)


@pytest.mark.parametrize("name", WITHOUT_NORM)
def test_an_encoder_without_final_norm(name, tmp_path):
    assert not compare(WITHOUT_NORM[name], "drawn", tmp_path).spec.final_norm


test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


REFUSED = {
    "absolute": (OWN | {"use_absolute_position_embeddings": True}, ("False", "True")),
    "no positions": ({}, ("one true and one false", "(False, False)")),
    "both": (OWN | SHARED, ("one true and one false", "(True, True)")),
    "not square": (OWN | {"image_size": [16, 32]}, ("square", "[16, 32]")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_data2vec_with_other_positions(name, tmp_path):
    options, words = REFUSED[name]
    tf.Data2VecVisionModel(data2vec(**options)).save_pretrained(tmp_path)
    says(refused(CheckpointError, tmp_path), *words)
