"""An empty name, as an unset shell variable leaves one, never loads what lies in the folder."""

from __future__ import annotations

import pytest

import vitzoo
from internals import main
from vitzoo.errors import InvalidOption, UnknownName, VitzooError, WeightsUnavailable


@pytest.fixture(autouse=True)
def folder(net, tmp_path, monkeypatch):
    """The current folder holds exactly one weights file, which fits."""
    folder = tmp_path / "work"
    (folder / "only.safetensors").write_bytes(net.data)
    monkeypatch.chdir(folder)
    return folder


def test_empty_weights_are_refused(net):
    net.assert_right(vitzoo.create(net.name, weights="."))  # the folder itself is meant here
    with pytest.raises(InvalidOption) as caught:
        vitzoo.create(net.name, weights="")
    assert all(text in str(caught.value) for text in ("weights", "''", "hf://", "pretrained=True"))


def test_empty_weights_of_a_spec_are_refused(net):
    with pytest.raises(InvalidOption, match="weights is ''"):
        vitzoo.create(net.spec, weights="")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: vitzoo.create(""), InvalidOption),
        (lambda: vitzoo.fetch(""), InvalidOption),
        (lambda: vitzoo.fetch("vit_digits", ""), WeightsUnavailable),
        (lambda: vitzoo.fetch("vit_digits:"), WeightsUnavailable),
        (lambda: vitzoo.verify(""), InvalidOption),
        (lambda: vitzoo.describe(""), UnknownName),
        (lambda: vitzoo.transform(""), VitzooError),
        (lambda: vitzoo.labels(""), VitzooError),
    ],
)
def test_other_empty_names_are_refused(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert "''" in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "vit_digits", "only.safetensors", "--weights", ""],
        ["predict", "", "only.safetensors"],
        ["convert", "", "new.safetensors", "--to", "timm"],
        ["fetch", ""],
        ["rm", ""],
        ["verify", ""],
        ["show", ""],
    ],
    ids=lambda command: command[0],
)
def test_commands_refuse_empty_names(command, folder, capsys):
    before = sorted(folder.iterdir())
    assert main(command) in (1, 2)
    assert "''" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
