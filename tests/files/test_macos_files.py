"""Files on macOS: the real code of the store, on a fake of what only macOS has."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os

import pytest

from internals import Store, system
from other_systems import darwin
from vitzoo.files import access
from vitzoo.store.partial_file import Partial

DATA = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(DATA).hexdigest()


def put(store: Store) -> None:
    with store.receive(SHA256, len(DATA)) as partial:
        partial.write(DATA)


def hashed(store: Store, monkeypatch) -> bool:
    """Open the file in the store; tell whether it was hashed."""
    calls, real = [], access.hash_file
    monkeypatch.setattr(
        "vitzoo.store.store.hash_file", lambda *given: calls.append(given) or real(*given)
    )
    os.close(store.open(SHA256, None))
    return bool(calls)


@pytest.mark.parametrize("refused", [False, True])
def test_macos_syncs_to_the_disk(tmp_path, monkeypatch, refused):
    sent, synced = [], []
    darwin(monkeypatch, sent, refuses=refused)
    monkeypatch.setattr(os, "fsync", synced.append)
    put(Store(tmp_path / "home"))
    assert {what for _, what in sent} == {fcntl.F_FULLFSYNC}
    assert len(sent) >= 3  # the file, its folder, the stamp
    assert len(synced) == (len(sent) if refused else 0)


def test_macos_copies_and_keeps_files_without_a_name(tmp_path, monkeypatch):
    darwin(monkeypatch, [])
    (tmp_path / "source").write_bytes(DATA)
    source = system.open_file(tmp_path / "source")
    partial = Partial(None, len(DATA))
    partial.copy(source)
    assert os.fstat(partial.fd).st_nlink == 0
    assert mmap.mmap(partial.fd, 0, access=mmap.ACCESS_COPY)[:] == DATA
    partial.release()
    os.close(source)


def test_macos_has_stamps_of_its_own(tmp_path, monkeypatch):
    darwin(monkeypatch, [])
    store = Store(tmp_path / "home")
    put(store)
    assert not hashed(store, monkeypatch)
    monkeypatch.undo()
    assert hashed(Store(store.home), monkeypatch)  # Linux reads its own stamps only
