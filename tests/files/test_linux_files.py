"""Files on Linux, with a Python that was built for an old glibc, as those of conda can be."""

from __future__ import annotations

import fcntl
import os

from internals import system
from other_systems import load
from vitzoo.apps.embed.part_file import claim
from vitzoo.store.partial_file import Partial

DATA = bytes(range(256)) * 5000


def test_an_old_python_lacks_calls_of_linux(tmp_path, monkeypatch):
    for name in ("copy_file_range", "memfd_create", "MFD_CLOEXEC"):
        monkeypatch.delattr(os, name)
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    load(monkeypatch, "linux")
    (tmp_path / "source").write_bytes(DATA)
    source = system.open_file(tmp_path / "source")
    partial = Partial(None, len(DATA))
    partial.copy(source)
    assert os.fstat(partial.fd).st_nlink == 0
    assert os.pread(partial.fd, len(DATA) + 1, 0) == DATA
    partial.release()
    os.close(source)
    part = tmp_path / "part-000003.parquet"
    with claim(part) as first, claim(part) as second:
        assert (first, second) == (True, False)
