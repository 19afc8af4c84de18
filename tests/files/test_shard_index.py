"""Folders without weights: which path has them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import fill, refuses
from vitzoo.errors import CheckpointError
from vitzoo.files.shard_index import weights_in


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_the_checkpoints_of_a_trainer_are_named_the_newest_first(small, tmp_path):
    out = tmp_path / "out"
    for step in (9, 10):
        (out / f"checkpoint-{step}").mkdir(parents=True)
        vitzoo.save(fill(vitzoo.create(small)), out / f"checkpoint-{step}" / "model.safetensors")
    touch(out, "trainer_state.json", "runs/events.out")
    first, second = out / "checkpoint-10", out / "checkpoint-9"
    with refuses(CheckpointError, out, f"{first}, {second}; pass one of them"):
        vitzoo.create(f"{out}/")
    vitzoo.create(f"{first}/")


def test_a_run_that_has_not_ended_is_named_with_its_command(small, tmp_path):
    state = {"a": torch.zeros(1)}
    folder = tmp_path / "run"
    folder.mkdir()
    save_file(state, folder / "checkpoint.safetensors", {"vitzoo_unfinished": "vitzoo train"})
    parts = (folder, "no model.safetensors", "not ended", "`vitzoo train` again")
    with refuses(CheckpointError, *parts):
        vitzoo.create(f"{folder}/")
    save_file({"b": torch.zeros(1)}, folder / "best-1.safetensors")
    with refuses(CheckpointError, *parts):
        vitzoo.create(f"{folder}/")
    vitzoo.save(fill(vitzoo.create(small)), folder / "model.safetensors")
    with refuses(CheckpointError, "several weights files", "model.safetensors"):
        vitzoo.create(f"{folder}/")


def test_another_text_of_a_checkpoint_is_not_shown_as_a_command(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "a-1.safetensors", {"vitzoo_unfinished": "rm -r ~"})
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(f"{tmp_path}/")
    assert "rm -r" not in str(caught.value)


@pytest.mark.parametrize(
    "root", ["", "hub", "hub/models--acme--net", "hub/models--acme--net/snapshots"]
)
def test_in_a_hub_cache_the_snapshot_is_named(tmp_path, root):
    snapshot = f"hub/models--acme--net/snapshots/{'a' * 40}"
    touch(
        tmp_path,
        f"{snapshot}/model.safetensors",
        "hub/models--acme--net/blobs/x",
        "hub/version.txt",
    )
    with refuses(CheckpointError, tmp_path / root, tmp_path / snapshot, "pass"):
        weights_in(tmp_path / root)
    assert weights_in(tmp_path / snapshot) == tmp_path / snapshot / "model.safetensors"


@pytest.mark.parametrize("names", [("pytorch_model.bin",), ("checkpoint-5/pytorch_model.bin",)])
def test_pickles_of_a_trainer_are_named_without_those_of_its_optimizer(tmp_path, names):
    beside = ("optimizer.pt", "rng_state.pth", "scheduler.pt", "training_args.bin")
    for name in names:
        touch(tmp_path, name, *(f"{name.rpartition('/')[0]}/{one}".lstrip("/") for one in beside))
    with refuses(CheckpointError, f"`vitzoo convert {tmp_path / names[0]}", "--from-pickle"):
        weights_in(tmp_path)


def test_the_search_is_bounded(tmp_path, monkeypatch):
    touch(tmp_path, "a/b/c/d/e/model.safetensors")  # too deep
    for i in range(5):
        touch(tmp_path, f"x{i}/model.safetensors")
    monkeypatch.setattr("vitzoo.files.shard_index.MOST_FOLDERS", 4)
    (tmp_path / "loop").symlink_to(tmp_path)
    with refuses(CheckpointError, "without weights") as caught:
        weights_in(tmp_path)
    assert "model" not in str(caught.value)


def test_a_folder_with_nothing_is_an_error_without_advice(tmp_path):
    touch(tmp_path, "README.md", "data/a.png")
    with refuses(CheckpointError, tmp_path) as caught:
        weights_in(tmp_path)
    assert "pass" not in str(caught.value)
