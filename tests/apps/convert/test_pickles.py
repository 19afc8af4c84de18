"""Which tensors of a pickle are converted, and the options of `convert --from-pickle`."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import vitzoo
from helpers import fill, message, refuses, same, says
from internals import main
from vitzoo.apps.convert.conversion import convert_pickle
from vitzoo.apps.convert.pickle_worker import chosen
from vitzoo.errors import CheckpointError, InvalidOption

TABLE = {"a": torch.ones(2), "b": torch.zeros(1)}
OTHER = {"c": torch.ones(1)}
NESTED = {
    "": TABLE,
    "state_dict": {"state_dict": TABLE, "epoch": 3},
    "model": {"model": TABLE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}},
    "teacher": {"teacher": TABLE, "args": None, "loss": torch.ones(1)},
    "model.module": {"model": {"module": TABLE}},
}


@pytest.mark.parametrize("place", NESTED)
def test_the_tensors_of_a_usual_entry_are_found(place):
    found, entry = chosen(NESTED[place], None)
    assert (found, entry) == (TABLE, place)


def test_a_named_entry_is_taken():
    data = {"student": TABLE, "teacher": {"module": OTHER}, "best": OTHER}
    assert chosen(data, "teacher") == (OTHER, "teacher.module")
    assert chosen(data, "best") == (OTHER, "best")
    assert chosen(data, "teacher.module") == (OTHER, "teacher.module")


REFUSED = {
    "two": ({"student": TABLE, "teacher": OTHER}, None, ["teacher, student", "--key teacher"]),
    "an average": ({"model": TABLE, "model_ema": OTHER}, None, ["model, model_ema", "--key model"]),
    "two inside": ({"model": {"net": TABLE, "ema": OTHER}}, None, ["model.net, model.ema"]),
    "numbers": (
        {"a": torch.ones(1), "epoch": 3},
        None,
        ["epoch (int)", "of 2; expected"],
    ),
    "unusual": ({"weights": TABLE}, None, ["weights (dict)", "--key"]),
    "number keys": ({0: torch.ones(1)}, None, ["0 (no text)", "table of tensors"]),
    "empty": ({}, None, ["none, of 0", "table of tensors"]),
    "a list": ([torch.ones(1)], None, ["found a list", "table of tensors"]),
    "a tensor": (torch.ones(1), None, ["found a Tensor", "table of tensors"]),
    "no such entry": ({"model": TABLE}, "ema", ["no entry 'ema'", "model (dict)"]),
    "below tensors": ({"model": TABLE}, "model.a.b", ["no entry 'model.a.b'", "found a Tensor"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_by_name(case):
    data, key, parts = REFUSED[case]
    says(message(CheckpointError, chosen, data, key), *parts)


def test_a_table_in_itself_is_refused():
    data = {}
    data["model"] = data
    says(message(CheckpointError, chosen, data, None), "model (dict)")


def test_a_model_loads_from_the_converted_file(small, tmp_path, capsys):
    """The refusal names the command, which writes what the next call reads."""
    source = fill(vitzoo.create(small))
    path = tmp_path / "my model.pth"
    torch.save({"model": {f"module.{k}": t for k, t in source.state_dict().items()}}, path)
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    out = tmp_path / "my model.safetensors"
    says(text, path, "a pickle can run code", f"`vitzoo convert '{path}' '{out}' --from-pickle`")
    assert main(["convert", str(path), str(out), "--from-pickle"]) == 0
    shown = capsys.readouterr().err
    says(shown, "the entry model", "32 tensors")
    same(vitzoo.create(small, weights=out).state_dict(), source.state_dict())
    with refuses(InvalidOption, out, "already exists", "--force"):
        convert_pickle(path, out)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.pt", "b.safetensors", "--from-pickle", "--to", "timm"], "without --to"),
        (["a.pt", "b.safetensors", "--from-pickle", "--heads", "2"], "without --heads"),
        (["a.pt", "b.npz", "--from-pickle"], "end in .safetensors"),
        (["a.pt", "b.safetensors", "--to", "timm", "--key", "model"], "--from-pickle"),
        (["a.pt", "b.safetensors"], "--from-pickle"),
    ],
)
def test_options_that_do_not_belong_together(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    says(capsys.readouterr().err, text)


def test_a_missing_file(tmp_path):
    with refuses(CheckpointError, tmp_path / "a.pt", "no such file"):
        convert_pickle(tmp_path / "a.pt", tmp_path / "b.safetensors")


@pytest.mark.parametrize(
    ("data", "looks"), [(b"\x80\x02}q\x00.", True), (b"(dp0\n.", True), (b"ustar", True)]
)
def test_a_pickle_is_recognised_by_its_ending(small, tmp_path, data, looks):
    path = tmp_path / "a.ckpt"
    path.write_bytes(data)
    command = f"`vitzoo convert {path} {tmp_path / 'a.safetensors'} --from-pickle`"
    with refuses(CheckpointError, path, "looks like a pickle file", command):
        vitzoo.create(small, weights=path)
    assert looks


def test_a_pickle_named_as_safetensors_is_written_beside_it(small, tmp_path):
    path = tmp_path / "net.safetensors"
    torch.save(TABLE, path)
    out = tmp_path / "net-tensors.safetensors"
    with refuses(CheckpointError, f"`vitzoo convert {path} {out} --from-pickle`"):
        vitzoo.create(small, weights=path)
    convert_pickle(path, out)
    same(load_file(out), TABLE)
