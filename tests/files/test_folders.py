"""Folders that replace others: after any kill the former or the new one is whole."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from helpers import refuses, says
from vitzoo.errors import InvalidOption
from vitzoo.files import access
from vitzoo.files.folder_manifest import MANIFEST, write_manifest, writing_own

FILES = ("a", "b", "c")
FORMER, NEW = ({name: f"{text} {name}" for name in FILES} for text in ("former", "new"))
ENDS = 40  # more calls that change the disk than one replacement has

REPLACE = """\
import os, sys
from pathlib import Path
from vitzoo.files import access
path, step, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
calls = 0
def end(event, arguments):
    global calls
    if event in CHANGES and str(path.parent) in str(arguments):
        calls += 1
        if calls == step:
            if how == "kill":
                os._exit(9)
            raise KeyboardInterrupt
sys.addaudithook(end)
with access.writing_folder(path, ["a", "b", "c"], force=True) as new:
    for name in "abc":
        (new / name).write_text(f"new {name}")
"""


def written(path, texts=FORMER):
    path.mkdir()
    for name, text in texts.items():
        (path / name).write_text(text)
    return path


def read(path):
    return {entry.name: entry.read_text() for entry in path.iterdir()}


def fail(path):
    """Call `writing_folder` again, with a block that fails."""
    with pytest.raises(ZeroDivisionError), access.writing_folder(path, FILES, force=True):
        raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_after_an_end_at_each_step_the_next_call_has_a_whole_folder(tmp_path, how):
    """As after SIGKILL, or Ctrl-C, before each call that changes a folder."""
    found = []
    for step in range(1, ENDS):
        path = (
            written(tmp_path / str(step) / "out") if (tmp_path / str(step)).mkdir() is None else 0
        )
        arguments = [sys.executable, "-c", REPLACE, str(path), str(step), how]
        code = subprocess.run(arguments, capture_output=True, timeout=60, check=False).returncode
        fail(path)  # a later call that fails deletes nothing
        assert read(path) in (FORMER, NEW), step
        assert not list(path.parent.glob(f"*{access.OLD}")), step
        with refuses(InvalidOption, path):
            access.check_folder(path, FILES, force=False)
        found.append(read(path)["a"])
        if code == 0:
            break
    assert code == 0
    assert step > 5  # mkdir, two renames, and the files of the former folder
    assert found == sorted(found)  # the former one up to a step, then the new one
    assert {*found} == {"former a", "new a"}


def moved(path, *, waits=True, pid=77):
    """Leave what a kill between the two renames leaves, or one after both."""
    new = path.with_name(f".{path.name}.{pid}.{10**18}")
    old = path.rename(f"{new}{access.OLD}")
    if waits:
        written(new, NEW)
    return old


def test_a_folder_made_meanwhile(tmp_path, caplog):
    path = written(tmp_path / "out")
    moved(path)
    path.mkdir()  # as a script does before it calls the command again
    fail(path)
    assert read(path) == FORMER
    old = moved(path, pid=78)
    written(path, {"a": "other"})
    fail(path)
    assert (read(path), read(old)) == ({"a": "other"}, FORMER)
    says(caplog.text, path, old)


def test_a_former_folder_that_cannot_be_restored_stays(tmp_path):
    """Also after the hour in which another process may still write the new one."""
    path = written(tmp_path / "out")
    old = moved(path)
    hours_ago = time.time() - 2 * access.LEFT
    os.utime(old.with_suffix(""), (hours_ago, hours_ago))
    written(path, {"a": "other"})
    for _ in range(3):
        fail(path)
        with access.writing_folder(path, FILES, force=True) as new:
            (new / "a").write_text("new a")
    assert (read(path), read(old)) == ({"a": "new a"}, FORMER)


def test_a_file_in_what_is_left_of_a_replaced_folder_is_kept(tmp_path):
    path = written(tmp_path / "out")
    old = moved(path, waits=False)
    (old / "mine").write_text("mine")
    written(path, NEW)
    fail(path)
    assert (read(path), read(old)) == (NEW, {"mine": "mine"})


def test_long_names_that_begin_alike_are_not_confused(tmp_path):
    one, other = (tmp_path / f"{'x' * 60}{end}" for end in "ab")
    written(one)
    with access.writing_folder(one, FILES, force=True) as new:
        begin = new.name.rpartition(".")[0].rpartition(".")[0]
        one.rename(new.with_name(f"{new.name}{access.OLD}"))
        fail(other)
        assert not other.exists()
    assert len(begin) < 100
    assert not list(one.iterdir())


@pytest.mark.parametrize("end", ["", access.OLD])
def test_a_file_is_no_reason_to_remove_a_folder(tmp_path, end):
    left = written(tmp_path / f".out.77.{10**18}{end}")
    os.utime(left, (1, 1))
    access.write_atomic(tmp_path / "out", b"file")
    assert read(left) == FORMER


# Folders with a manifest.


def replace(path, names=FILES):
    with writing_own(path, {*names, MANIFEST}, force=True) as new:
        for name in names:
            (new / name).write_text(f"new {name}")
        write_manifest(new, {})


def test_only_unchanged_files_are_replaced(tmp_path):
    path = tmp_path / "out"
    for _ in range(2):
        replace(path)
    (path / "b").write_text("new B")  # of the same size
    before = read(path)
    with refuses(InvalidOption, path / "b", "changed", "kept"):
        replace(path)
    (path / "b").unlink()
    (path / "b").symlink_to(path / "a")
    with refuses(InvalidOption, path / "b", "changed"):
        replace(path)
    (path / "b").unlink()
    replace(path)
    (path / "b").write_text(before["b"])
    with refuses(InvalidOption, path / "b", "changed"):
        replace(path)
    assert read(path) == before


def test_a_file_that_is_changed_meanwhile_is_kept(tmp_path):
    path = tmp_path / "out"
    replace(path)
    with (
        refuses(InvalidOption, path / "a", "changed"),
        writing_own(path, {*FILES, MANIFEST}, force=True),
    ):
        (path / "a").write_text("edited")
    assert read(path)["a"] == "edited"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def plant(path, name, text, **entry):
    """Write a file and a manifest that names it."""
    path.mkdir(exist_ok=True)
    (path / name).write_text(text)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    table = {name: {"size": len(text), "sha256": sha256} | entry}
    (path / MANIFEST).write_text(json.dumps({"api": 1, "files": table}))


@pytest.mark.parametrize(
    ("name", "entry", "parts"),
    [
        ("thesis.txt", {}, ["other files", "thesis.txt"]),
        ("a", {"size": 1}, ["a was changed"]),
        ("a", {"sha256": "0" * 64}, ["a was changed"]),
        ("a", {"size": "1"}, [MANIFEST, "size and sha256"]),
        ("a", None, ["a: the folder has no", MANIFEST, "may be another's"]),
    ],
)
def test_a_planted_manifest_deletes_no_file(tmp_path, name, entry, parts):
    path = tmp_path / "out"
    plant(path, name, "mine", **(entry or {}))
    if entry is None:
        (path / MANIFEST).unlink()
    with refuses(InvalidOption, path, *parts):
        replace(path)
    assert read(path)[name] == "mine"
