"""The record of a registered weights file."""

from dataclasses import replace

import pytest

from internals import HubFile


@pytest.mark.parametrize(
    ("predicted", "most"),
    [(1, 4097), (204_800, 208_896), (204_850, 208_947), (10**9, 1_020_000_000)],
)
def test_a_file_of_unknown_size_may_be_4_kib_or_2_percent_larger(predicted, most):
    file = HubFile.at("hf://acme/net/model.safetensors")
    file = replace(file, entry=replace(file.entry, predicted_size=predicted))
    assert file.bound == most
    assert replace(file, pin=replace(file.pin, size=77)).bound == 77
