"""The helper process that reads Parquet files: what a file does to it harms no other process."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitzoo
from helpers import refuses, says
from limited import run_limited
from vitzoo.apps.embed import parquet_helper, parquet_reader
from vitzoo.apps.embed.parquet_reader import helper_ends, parquet_file
from vitzoo.apps.embed.sources import find_pieces, slices
from vitzoo.apps.probe.labelled import read_labelled
from vitzoo.errors import ImageError, InvalidOption, VitzooError

GROUP, GROUPS = 30, 3  # rows of a row group, of which the second one is hostile
CODE = """
import os, signal, time
from vitzoo.apps.embed import parquet_helper as helper
from vitzoo.apps.embed.parquet_helper import main, unreadable

next_of = helper.File._next

def _next(self):
    group, _, at_once = self.of
    if group == 1:
        {}
    return next_of(self)

helper.File._next = _next
{}
"""


@pytest.fixture(autouse=True)
def _helper_ends():
    with helper_ends():
        yield
    with helper_ends():
        pass


def scan(number):
    file = io.BytesIO()
    Image.new("L", (8, 8), number).save(file, "PNG")
    return file.getvalue()


SCANS = [scan(i) for i in range(GROUP * GROUPS)]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"image": SCANS}), "p.parquet", row_group_size=GROUP)
    return "p.parquet"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Let the helper process do something when it reads the second row group."""

    def patch(code, after=""):
        (tmp_path / "hostile_helper.py").write_text(CODE.format(code, after))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(parquet_reader, "MODULE", "hostile_helper")

    return patch


def read(pieces):
    found = []
    for item in (item for piece in pieces for item in piece.items()):
        try:
            found.append(item.load())
        except ImageError as error:
            found.append(str(error))
    return found


CRASHES = {
    "ends": "os.abort()",
    "lacks memory for a codec": "return unreadable(OSError('ZSTD: not enough memory'))",
    "takes memory": "b'1' * (2**30 + 2**28)",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", CRASHES.values(), ids=CRASHES)
def test_the_rows_of_a_row_group_that_ends_the_helper_have_one_text(path, hostile, code):
    hostile(code)
    pieces = find_pieces(path)
    found = read(pieces)
    assert found[:GROUP] == SCANS[:GROUP]
    assert found[2 * GROUP :] == SCANS[2 * GROUP :]
    (text,) = {*found[GROUP : 2 * GROUP]}
    says(text, "row group 1 of p.parquet", "1 GiB of memory", "write smaller row groups")


@pytest.mark.slow
def test_parts_that_begin_in_such_a_row_group_have_the_same_rows(path, hostile):
    """The helper ends at row 50; row 30 has the same text, though pyarrow can read it."""
    hostile("if self.stop + at_once > 50: os.abort()")
    pieces = find_pieces(path)
    found = read(pieces)
    assert [row == own for row, own in zip(found, SCANS, strict=True)] == [
        not 30 <= i < 60 for i in range(90)
    ]
    for start in (29, 30, 49, 50, 59):
        with helper_ends():
            assert read(next(slices(pieces, [(start, start + 2)]))) == found[start : start + 2]


def test_rows_that_are_too_many_at_once_are_read_one_by_one(path, hostile):
    hostile("if at_once > 1: os.abort()")
    assert read(find_pieces(path)) == SCANS


OTHERS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", 300, "SIGKILL"),
    "exits": ("os._exit(1)", 300, "exit code 1"),
    "slow": ("time.sleep(1000)", 1.0, "takes more than 1 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "seconds", "text"), OTHERS.values(), ids=OTHERS)
def test_what_another_machine_might_not_do_ends_the_run_and_writes_no_row(
    path, hostile, monkeypatch, code, seconds, text
):
    hostile(code)
    monkeypatch.setattr(parquet_reader, "SECONDS", seconds)
    with refuses(VitzooError, text) as caught:
        vitzoo.embed("vit_digits", path, "out", workers=1)
    assert caught.value.exit_code == 1
    assert not isinstance(caught.value, ImageError)
    assert not list(Path("out").glob("*.parquet"))


@pytest.mark.slow
def test_parts_of_a_file_that_ends_the_helper_are_the_same_bytes_again(path, hostile):
    hostile("os.abort()")
    done = vitzoo.embed("vit_digits", path, "out", workers=1)
    assert (done.inputs, done.errors) == (90, GROUP)
    parts = sorted(Path("out").glob("part-*.parquet"))
    before = [part.read_bytes() for part in parts]
    assert len(parts) > 1
    parts[-1].unlink()
    vitzoo.embed("vit_digits", path, "out", workers=1)
    for shard in ((1, 2), (0, 2)):
        with helper_ends():
            vitzoo.embed("vit_digits", path, "other", workers=1, shard=shard)
    for folder in ("out", "other"):
        assert [part.read_bytes() for part in sorted(Path(folder).glob("part-*"))] == before


def helper_process():
    return parquet_reader._own.helper._process


@pytest.mark.slow
def test_no_helper_is_left_after_a_call(path):
    vitzoo.embed("vit_digits", path, "out", workers=1)
    assert helper_process().popen.poll() is not None
    pq.write_table(pa.table({"image": SCANS, "label": [0, 1] * 45}), "labelled.parquet")
    vitzoo.probe("vit_digits", "labelled.parquet")
    assert helper_process().popen.poll() is not None


def test_the_helper_answers_again_after_an_interrupt(path, monkeypatch):
    rows = parquet_file(path).rows("cells", ["image"], range(9), 16, 2**20)
    first = helper_process().popen
    with monkeypatch.context() as patch:
        patch.setattr(type(helper_process()), "receive", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(rows)
    assert first.poll() is not None
    assert read(find_pieces(path)) == SCANS


STARTS = """
import sys, time
from vitzoo.apps.embed import parquet_reader
parquet_reader.parquet_file(sys.argv[1])
assert "pyarrow" not in sys.modules
print(parquet_reader._own.helper._process.popen.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_helper_ends_with_the_process_that_started_it(path):
    """A file is opened without pyarrow in the process that asks."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, path], stdout=subprocess.PIPE, text=True
    ) as child:
        pid = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and b") Z" not in status.read_bytes():
        time.sleep(0.01)  # the time limit of the test ends a helper that stays


def with_footer(path, footer):
    """Replace the footer of a Parquet file."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    new = footer(data[start:-8])
    path.write_bytes(data[:start] + new + len(new).to_bytes(4, "little") + b"PAR1")


def bomb(path, rows=3):
    """Write three cells of 256 MiB in some KB."""
    table = pa.table({"image": [b"1"], "label": ["a"]})
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False) as file:
        file.write_table(table)
        file.write_table(pa.table({"image": [bytes(2**28)] * rows, "label": ["a"] * rows}))
    return path


def unknown_lists(footer):
    """Add a field that no reader knows: 24 lists of a million empty structs each."""
    inner = b"\xfc\xc0\x84\x3d" + bytes(1_000_000)
    return footer[:-1] + b"\x09\x80\x02\xf9\x18" + inner * 24 + b"\0"


READS = """
from pathlib import Path
from vitzoo.apps.embed.sources import find_pieces
from vitzoo.apps.probe.labelled import read_labelled
from vitzoo.errors import ImageError

def load(item):
    try:
        return len(item.load())
    except ImageError as error:
        return str(error)

def read(path):
    found = [load(item) for piece in find_pieces(path, "image") for item in piece.items()]
    return found, len(read_labelled(Path(path)).images)
"""


@pytest.mark.faults
@pytest.mark.long
def test_what_a_footer_states_costs_this_process_nothing(tmp_path):
    """The column of the first file is found by its place, as pyarrow does, not by its path."""
    path = bomb(tmp_path / "path.parquet")
    with_footer(path, lambda footer: footer[::-1].replace(b"image"[::-1], b"imagf"[::-1], 2)[::-1])
    assert pq.read_metadata(path).row_group(1).column(0).path_in_schema == "imagf"
    lists = tmp_path / "list.parquet"
    pq.write_table(pa.table({"image": [b"1"], "label": ["a"]}), lists)
    with_footer(lists, unknown_lists)
    found = run_limited(READS, [str(path), str(lists)], memory=2**27, seconds=60)
    assert [outcome.kind for outcome in found] == ["value"] * 2
    says(found[0].text, "row group 1 of", "1 GiB")
    assert found[0].text.startswith("([1, 'cannot read")
    assert found[1].text == "([1], 1)"


@pytest.mark.faults
def test_many_columns_are_searched_once(tmp_path):
    """47 s at first, when each name was searched among all of them."""
    columns = {f"c{i}": ["a"] for i in range(16_000)} | {"image": [b"1"], "label": [1]}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    (found,) = run_limited(READS, [str(tmp_path / "p.parquet")], seconds=30)
    assert found.text == "([1], 1)"


def test_names_of_columns_have_a_limit(tmp_path, hostile):
    pq.write_table(pa.table({"image": [b"1"], "x" * 100: ["a"]}), tmp_path / "p.parquet")
    hostile("pass", "helper.MAX_TEXT = 100")
    with refuses(ImageError, "105 characters", "the most is 100"):
        find_pieces(tmp_path / "p.parquet")


def test_probe_refuses_a_file_that_ends_the_helper(tmp_path, hostile):
    table = pa.table({"image": SCANS, "label": ["a", "b"] * 45})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=GROUP)
    hostile("os.abort()")
    with refuses(InvalidOption, "p.parquet", "pyarrow ends"):
        read_labelled(tmp_path / "p.parquet")
    assert parquet_helper.MEMORY == 2**30


def test_a_helper_that_cannot_start_is_no_error_of_the_file(path, monkeypatch):
    monkeypatch.setattr(parquet_reader, "MODULE", "no_such_module")
    with refuses(VitzooError, "cannot start", "exit code 1", "ulimit") as caught:
        find_pieces(path)
    assert not isinstance(caught.value, ImageError)


@pytest.mark.parametrize("where", ["relative", "absolute"])
def test_a_file_is_found_after_the_working_directory_changed(path, tmp_path, monkeypatch, where):
    (tmp_path / "below").mkdir()
    find_pieces(path)
    monkeypatch.chdir(tmp_path / "below")
    pieces = find_pieces(f"../{path}" if where == "relative" else tmp_path / path)
    assert read(pieces) == SCANS
