"""The classes of every label set are timm's: their ids, their order and all their names."""

import runpy
from pathlib import Path

import pytest

from internals import SETS
from vitzoo import synsets

pytestmark = pytest.mark.parity

THEIRS = {"imagenet-21k": "imagenet-21k-goog"}
SCRIPT = Path(__file__).parents[1] / "update_labels.py"


@pytest.mark.parametrize("label_set", SETS)
def test_every_class_is_timms(label_set):
    from timm.data import ImageNetInfo

    theirs = ImageNetInfo(THEIRS.get(label_set, label_set))
    ours = synsets(label_set)
    assert len(ours) == theirs.num_classes()
    for index, (wnid, lemmas) in enumerate(ours):
        assert wnid == theirs.index_to_label_name(index)
        assert ", ".join(lemmas) == theirs.index_to_description(index)


def test_the_files_are_what_the_command_writes(capsys):
    assert runpy.run_path(str(SCRIPT))["main"]("--check") == 0
    assert capsys.readouterr().out == "changed: nothing\n"


def test_the_check_sees_a_change(monkeypatch, tmp_path, capsys):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["main"].__globals__, "DATA", tmp_path)
    assert script["main"]("--check") == 1
    assert not list(tmp_path.iterdir())
    assert script["main"]() == 0
    assert script["main"]("--check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "changed: nothing"
