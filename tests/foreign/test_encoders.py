"""The image encoders of transformers that the core reads, by their folders."""

import pytest
from transformers import ViTConfig, ViTModel

from encoders import WEIGHTS, Encoder, compare, compare_size

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
ENCODERS = {
    "vit": Encoder(lambda: ViTModel(ViTConfig(**SIZES)), other_size=(48, 64)),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ENCODERS)
def test_the_folder_gives_the_numbers_of_the_library(name, weights, tmp_path):
    compare(ENCODERS[name], weights, tmp_path)


@pytest.mark.parametrize("name", [name for name, row in ENCODERS.items() if row.other_size])
def test_the_numbers_at_another_size(name, tmp_path):
    compare_size(ENCODERS[name], "drawn", tmp_path)
