"""Checkpoints: what Lightning states comes back as it was, without pickle."""

import pytest
import torch

from helpers import refuses
from vitzoo.errors import CheckpointError
from vitzoo_finetune.checkpoints import SafeCheckpoints, same_settings


def test_a_checkpoint_comes_back(tmp_path):
    path = tmp_path / "c.safetensors"
    shared = torch.arange(6.0)
    whole = {
        "state_dict": {"a": shared, "b": shared.view(2, 3).T},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.999)}],
        "loops": {"n": 3, "x": None, "done": True, "name": "é", "rate": 1e-3},
    }
    checkpoints = SafeCheckpoints({"seed": 3})
    checkpoints.save_checkpoint(whole, path)
    found = checkpoints.load_checkpoint(path)
    assert torch.equal(found["state_dict"]["b"], whole["state_dict"]["b"])
    (optimizer,) = found["optimizer_states"]
    assert optimizer["state"][0]["step"] == 3.0
    assert optimizer["betas"] == (0.9, 0.999)
    assert found["loops"] == whole["loops"]
    assert same_settings(path) == {"seed": 3}
    assert [one.name for one in tmp_path.iterdir()] == ["c.safetensors"]


def test_objects_are_refused_and_damage_is_an_error(tmp_path):
    checkpoints = SafeCheckpoints({})
    with pytest.raises(TypeError, match="object"):
        checkpoints.save_checkpoint({"x": object()}, tmp_path / "c")
    (tmp_path / "c").write_bytes(b"\x80\x04 pickle")
    with refuses(CheckpointError, tmp_path / "c", "--force"):
        checkpoints.load_checkpoint(tmp_path / "c")
