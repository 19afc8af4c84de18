"""The parts of C-RADIO and Pixio: what they refuse, and files that leave something out."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

import vitzoo
from encoders import Encoder, close, write
from helpers import Library, refuses
from tables import cases
from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo_encoders.patches import PaddedPatchEmbed
from vitzoo_encoders.pools import PrefixMeanPool
from vitzoo_encoders.radio import (
    CroppedPositions,
    NormalisedPatchEmbed,
    SummaryHead,
    SummaryPool,
)

tf = Library("transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
RADIO = Encoder(lambda: tf.RadioModel(tf.RadioConfig(**SIZES, patch_size=8, max_img_size=64)))


def test_a_file_without_layer_scale_has_factors_of_one(tmp_path):
    """As the files that NVIDIA published."""
    network = write(RADIO, "own", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: t for k, t in load_file(file).items() if "lambda1" not in k}, file)
    images = RADIO.images()
    with torch.no_grad():
        close(vitzoo.create(tmp_path).eval()(images), network(images).summary)


def test_the_file_names_the_class_tokens(tmp_path):
    network = write(RADIO, "drawn", tmp_path)
    file, key = tmp_path / "model.safetensors", "radio_model.summary_idxs"
    save_file(load_file(file) | {key: torch.tensor([2, 0, 1])}, file)
    images = RADIO.images()
    with torch.no_grad():
        tokens = network(images).last_hidden_state
        close(vitzoo.create(tmp_path).eval()(images), tokens[:, [2, 0, 1]].flatten(1))


@cases(
    ("part", "options", "words"),
    [
        (NormalisedPatchEmbed, {"mean": (1.0, 2.0)}, ("mean", "3", (1.0, 2.0))),
        (NormalisedPatchEmbed, {"std": (0.0,)}, ("std not 0", (0.0,))),
        (PaddedPatchEmbed, {"padding": 4}, ("padding", "half", (8, 8), "got 4")),
        (CroppedPositions, {"side": 0}, ("side", "1 to 1024", "got 0")),
        (SummaryPool, {"indices": ()}, ("indices", "2 prefix tokens", ())),
        (SummaryPool, {"indices": (2,)}, ("indices", "counted from 0", (2,))),
        (SummaryHead, {"tokens": 0}, ("tokens", "1 to 1024", "got 0")),
        (PrefixMeanPool, {"num_prefix_tokens": 0}, ("prefix tokens", "got 0", "pool='mean'")),
    ],
)
def test_an_option_that_is_none(part, options, words):
    numbers = {
        NormalisedPatchEmbed: {"patch_size": (8, 8), "in_chans": 3, "embed_dim": 4},
        PaddedPatchEmbed: {"patch_size": (8, 8), "in_chans": 3, "embed_dim": 4},
        CroppedPositions: {"grid_size": (2, 2), "num_prefix_tokens": 1, "embed_dim": 4},
        SummaryPool: {"num_prefix_tokens": 2},
        SummaryHead: {"in_dim": 4, "num_classes": 0},
        PrefixMeanPool: {},
    }
    with refuses(InvalidOption, *words):
        part(**numbers[part], **options)


def test_a_summary_of_another_number_of_tokens():
    with refuses(InvalidInput, "2 vectors", (1, 4), "radio/summary"):
        SummaryHead(in_dim=4, num_classes=3, tokens=2)(torch.zeros(1, 4))
