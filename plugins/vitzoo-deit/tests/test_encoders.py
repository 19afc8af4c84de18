"""The image encoders of transformers that this plugin reads, by their folders."""

from encoders import Encoder, numbers, numbers_at_another_size
from helpers import Library

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


def deit(**options):
    return tf.DeiTConfig(**SIZES, **options)


def first(out):
    return out.last_hidden_state[:, 0]


def logits(out):
    return out.logits


ENCODERS = {
    "deit": Encoder(lambda: tf.DeiTModel(deit()), other_size=(48, 64)),
    "deit without pooler or classes": Encoder(
        lambda: tf.DeiTModel(deit(), add_pooling_layer=False),
        pooled=first,
        arguments=(("num_classes", 0),),
    ),
    "deit, masked": Encoder(
        lambda: tf.DeiTForMaskedImageModeling(deit(encoder_stride=8)),
        pooled=first,
        run=lambda network, images: network.deit(images),
    ),
    "deit, classes": Encoder(
        lambda: tf.DeiTForImageClassification(deit(num_labels=5)), tokens=None, pooled=logits
    ),
    "deit, two classifiers": Encoder(
        lambda: tf.DeiTForImageClassificationWithTeacher(deit(qkv_bias=False)),
        tokens=None,
        pooled=logits,
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)
