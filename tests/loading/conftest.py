"""Fixtures of the tests of loading: a registered network, and weights files."""

import pytest
from safetensors.torch import save_file

import vitzoo
from registered import augreg as augreg, saved as saved, zoo as zoo


@pytest.fixture
def weights(local_registry, randomise, tmp_path):
    """Change the tensors of `local/net`, write them to a file and return its path."""
    local_registry()

    def write(change=None):
        tensors = dict(randomise(vitzoo.create("local/net")).state_dict())
        if change:
            change(tensors)
        path = tmp_path / "weights.safetensors"
        save_file(tensors, path)
        return path

    return write
