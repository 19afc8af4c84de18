"""The beginning of a file: how it is copied, continued and given back."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from helpers import refuses
from internals import system
from tables import cases
from vitzoo.errors import StoreError
from vitzoo.store.partial_file import Partial, leftovers

DATA = bytes(range(256)) * 20_000  # 5 MB


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(DATA)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def contents(partial: Partial) -> bytes:
    assert partial.size == os.fstat(partial.fd).st_size
    data = os.pread(partial.fd, partial.size, 0)
    assert partial.sha256 == hashlib.sha256(data).hexdigest()
    return data


@cases("memory", [False, True])
@cases("kernel", ["copies", "cannot", "stops", "copies nothing", "bit by bit"])
def test_a_copy_is_whole_whatever_the_kernel_can(tmp_path, source, monkeypatch, kernel, memory):
    real, calls = os.copy_file_range, []

    def copy(src: int, dst: int, count: int, start: int, to: int) -> int:
        calls.append(count)
        if kernel == "cannot" or (kernel == "stops" and start):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        if kernel == "copies nothing":
            return 0
        return real(src, dst, count if kernel == "copies" else min(count, 1_000_001), start, to)

    monkeypatch.setattr(system, "copy_file_range", copy)
    partial = Partial(None if memory else tmp_path / "part", len(DATA))
    partial.write(b"something else")
    partial.copy(source)
    assert contents(partial) == DATA
    assert calls[0] == len(DATA)
    partial.release()


@pytest.mark.parametrize("kernel", [True, False])
def test_a_copy_has_at_most_the_bytes_of_its_bound(tmp_path, source, monkeypatch, kernel):
    if not kernel:
        monkeypatch.setattr(system, "copy_file_range", lambda *_: 0)
    partial = Partial(tmp_path / "part", 1_000_003)
    partial.copy(source)
    assert contents(partial) == DATA[:1_000_003]


def test_a_copy_to_a_full_disk_says_so(tmp_path, source, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(system, "copy_file_range", full)
    monkeypatch.setattr(system, "pwrite", full)
    partial = Partial(tmp_path / "part", len(DATA))
    with refuses(StoreError, os.strerror(errno.ENOSPC), len(DATA), "make room"):
        partial.copy(source)


def test_every_writer_has_a_file_of_its_own(tmp_path):
    common = tmp_path / "part"
    one, other = Partial(common, 9), Partial(common, 9)
    assert one.path != other.path
    one.write(b"one")
    other.write(b"other")
    assert (contents(one), contents(other)) == (b"one", b"other")
    one.release()
    assert leftovers(common) == [common]
    os.utime(common, (1, 1))  # an hour later, no other process continues the file that one does
    again = Partial(common, 9)
    assert contents(again) == b"one"
    assert leftovers(common) == []
    again.release()
    other.release()
    assert common.read_bytes() == b"other"


def test_a_file_that_was_moved_is_not_given_back(tmp_path):
    common = tmp_path / "part"
    common.write_bytes(b"left")
    Path(f"{common}.0123").write_bytes(b"young")
    partial = Partial(common, 9)
    partial.move(tmp_path / "whole")
    partial.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.0123", "whole"]
    assert (tmp_path / "whole").read_bytes() == b"left"
