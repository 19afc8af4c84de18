"""Files on Windows: the real code of the store and of files, on a fake of NTFS."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import os
import time
import weakref
from pathlib import Path

import pytest

import vitzoo
from helpers import SPEC, refuses, says
from internals import Lock, Pin, Store, system
from other_systems import Windows
from vitzoo.errors import HashMismatch, InvalidOption, StoreError
from vitzoo.files import access
from vitzoo.store.partial_file import Partial

pytestmark = pytest.mark.usefixtures("windows")

DATA = bytes(range(256)) * 5000  # more than a chunk
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def windows(monkeypatch):
    return Windows(monkeypatch)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home")


def put(store: Store, data: bytes = DATA) -> Path:
    sha256 = hashlib.sha256(data).hexdigest()
    with store.receive(sha256, len(data)) as partial:
        partial.write(data)
    return store.path(sha256)


def hashes(monkeypatch) -> list[int]:
    calls, real = [], access.hash_file
    monkeypatch.setattr(
        "vitzoo.store.store.hash_file", lambda fd, *note: calls.append(fd) or real(fd, *note)
    )
    return calls


def opens(store: Store, sha256: str = SHA256) -> None:
    fd = store.open(sha256, None)
    assert fd is not None
    os.close(fd)


def test_a_file_goes_into_the_store_and_is_not_hashed_again(store, monkeypatch):
    path = put(store)
    calls = hashes(monkeypatch)
    opens(store)
    assert calls == []
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o200, "a read-only file could not be removed"
    stamp = next((store.home / "stamps").glob(f"*/{SHA256}.json"))
    path.chmod(0o444)  # as Linux stores it
    assert store.remove(SHA256) > len(DATA)
    assert not path.exists()
    assert not stamp.exists()


def test_a_rewritten_file_whose_times_were_set_back_is_found(store):
    path = put(store)
    before = path.stat()
    time.sleep(0.06)
    path.write_bytes(bytes(len(DATA)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with refuses(HashMismatch, path, "quarantine"):
        store.open(SHA256, None)


@pytest.mark.parametrize("changed", [0, None])
def test_without_a_change_time_a_file_is_hashed_at_each_load(windows, store, monkeypatch, changed):
    windows.changed = lambda _: changed
    put(store)
    calls = hashes(monkeypatch)
    for _ in range(2):
        opens(store)
    assert len(calls) == 2


def test_a_stamp_of_another_machine_is_ignored(store, monkeypatch):
    put(store)
    folder = store.home / "stamps"
    (own,) = folder.glob("*/*.json")
    (folder / own.name).write_bytes(own.read_bytes())  # as Linux writes it
    monkeypatch.setenv("COMPUTERNAME", "ANOTHER")
    calls = hashes(monkeypatch)
    opens(Store(store.home))
    assert len(calls) == 1
    assert len({*folder.glob("*/*.json")}) == 2


def test_a_file_that_another_process_stored_meanwhile_is_kept(store):
    path = put(store)
    reader = store.open(SHA256, None)
    put(store)  # it cannot replace the file
    assert [p.name for p in path.parent.iterdir()] == [SHA256]
    assert [*(store.home / "partial").iterdir()] == []
    assert os.fstat(reader).st_ino == path.stat().st_ino
    os.close(reader)


def test_a_mapped_file_is_neither_removed_nor_replaced(store):
    path = put(store)
    fd = store.open(SHA256, None)
    data = system.mapped(fd)
    os.close(fd)
    with refuses(StoreError, path, "mapped", "end that process"):
        store.remove(SHA256)
    with refuses(StoreError, path, "mapped", "end that process"), access.writing_to(path) as file:
        file.write(b"new")
    assert data[:] == DATA
    data.close()
    assert store.remove(SHA256) > 0
    assert [*path.parent.iterdir()] == []


def test_a_damaged_file_that_is_mapped_goes_to_quarantine(store):
    path = put(store)
    with path.open("r+b") as file:
        file.write(b"damage")
    fd = system.open_file(path)
    data = system.mapped(fd)
    with refuses(HashMismatch, "quarantine"):
        store.open(SHA256, None, always=True)
    assert not path.exists()
    data.close()
    os.close(fd)


def test_a_download_is_continued(store):
    with contextlib.suppress(KeyboardInterrupt), store.receive(SHA256, len(DATA)) as partial:
        partial.write(DATA[:1000])
        raise KeyboardInterrupt
    with store.receive(SHA256, len(DATA)) as partial:
        assert partial.size == 1000
        partial.write(DATA[1000:])
    opens(store)


def test_a_copy_has_all_bytes(tmp_path):
    (tmp_path / "source").write_bytes(DATA)
    source = system.open_file(tmp_path / "source")
    for place in (None, tmp_path / "part"):
        partial = Partial(place, len(DATA))
        partial.write(b"something else")
        partial.copy(source)
        assert system.pread(partial.fd, 2 * len(DATA), 0) == DATA
        assert partial.sha256 == SHA256
        partial.release()
    with access.writing_to(tmp_path / "copy") as file:
        assert access.copy_hashed(source, file) == SHA256
    assert (tmp_path / "copy").read_bytes() == DATA
    os.close(source)


def test_no_part_is_left_if_the_block_fails(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with contextlib.suppress(KeyboardInterrupt), access.writing_to(path) as file:
        file.write(b"after")
        raise KeyboardInterrupt
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"before"]


def test_a_target_that_is_open_for_a_moment_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    reader = path.open("rb")
    monkeypatch.setattr(time, "sleep", lambda _: reader.close())
    access.write_atomic(path, b"after")
    assert path.read_bytes() == b"after"


def test_a_folder_is_replaced(tmp_path):
    folder = tmp_path / "folder"
    for text in (b"1", b"2"):
        with access.writing_folder(folder, ["one"], force=True) as new:
            (new / "one").write_bytes(text)
    assert [p.read_bytes() for p in folder.iterdir()] == [b"2"]
    with (
        (folder / "one").open("rb"),
        refuses(StoreError, folder, "open", "end that process"),
        access.writing_folder(folder, ["one"], force=True) as new,
    ):
        (new / "one").write_bytes(b"3")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    assert [p.read_bytes() for p in folder.iterdir()] == [b"2"]


@pytest.mark.parametrize("name", ["con", "Aux.npz", "lpt1.tar.gz", "a:b", "end.", "end ", "what?"])
def test_names_that_windows_reserves_are_refused(tmp_path, name):
    with refuses(InvalidOption, repr(name), "name another"), access.writing_to(tmp_path / name):
        pass
    assert [*tmp_path.iterdir()] == []


def test_a_store_whose_paths_are_too_long_is_refused(tmp_path):
    store = Store(tmp_path / ("x" * 100) / ("y" * 60))
    with refuses(StoreError, "259 characters", "VITZOO_HOME"):
        put(store)


def test_a_path_that_is_too_long_is_explained():
    failure = OSError(errno.ENOENT, "not found", "C:\\" + 300 * "x")
    failure.winerror = 3
    says(system.reason(failure), 259)
    failure.filename = "C:\\short"
    assert system.reason(failure) == "not found"


def test_links_folders_and_placeholders(windows, tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with refuses(StoreError, "link"):
        access.open_regular(tmp_path / "link")
    fd = access.open_regular(tmp_path / "link", follow=True)
    assert system.pread(fd, 3, 1) == DATA[1:4]
    os.close(fd)
    with refuses(StoreError, tmp_path):
        access.open_regular(tmp_path)
    assert access.open_regular(tmp_path / "none") is None
    with refuses(StoreError, "null"):
        access.open_regular(tmp_path / "a\0b")
    windows.tags[str(tmp_path / "file")] = 0x9000_001A  # of a file in a cloud
    windows.opened.clear()
    os.close(access.open_regular(tmp_path / "file"))
    assert [flags for _, flags in windows.opened] == [0x0020_0000, 0]


def test_a_missing_file_keeps_nothing_of_its_callers(tmp_path):
    """A cycle with the error would keep an open file, and its folder could not be removed."""

    class File:
        pass

    def load():
        file = File()
        assert access.open_regular(tmp_path / "none") is None
        return weakref.ref(file)

    gc.disable()
    try:
        assert load()() is None
    finally:
        gc.enable()


def test_positions_beyond_4_gib_and_the_end(tmp_path):
    path = tmp_path / "file"
    fd = system.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    position = (1 << 32) + 5
    assert system.pwrite(fd, memoryview(b"abc"), position) == 3
    assert path.stat().st_size == position + 3
    target = bytearray(5)
    assert system.preadv(fd, [memoryview(target)], position) == 3
    assert target == b"abc\0\0"
    assert system.pread(fd, 9, position + 3) == b""
    assert system.pread(fd, 0, 0) == b""
    os.close(fd)
    with pytest.raises(OSError, match="error 80"):
        system.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def test_a_network_is_saved_and_loaded(windows, tmp_path, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    model = vitzoo.create(SPEC)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    for mapped in (False, True, False):
        again = vitzoo.create(path, mmap=mapped)
        assert all(
            (a == b).all() for a, b in zip(model.parameters(), again.parameters(), strict=True)
        )
    vitzoo.save(model, path)  # the last network is mapped no more
    windows.memory = 10
    with refuses(vitzoo.CheckpointError, "only 10 bytes of memory"):
        vitzoo.create(path)


def test_a_lock_file_has_the_same_bytes_on_all_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fchmod", lambda *_: None, raising=False)  # filelock is that of Linux
    pin = Pin("a" * 40, 5, "b" * 64, "registry")
    Lock(tmp_path / "windows.lock").add("hf://a/b@main/c/d", pin)
    assert Lock(tmp_path / "windows.lock").pins() == {"hf://a/b@main/c/d": pin}
    monkeypatch.undo()
    Lock(tmp_path / "linux.lock").add("hf://a/b@main/c/d", pin)
    one, two = ((tmp_path / f"{name}.lock").read_bytes() for name in ("windows", "linux"))
    assert one == two
