"""Disks that cannot do all that a local disk can: sync folders, map files, lock files."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys

import pytest
import safetensors.torch
import torch
from filelock import FileLock

import vitzoo
from helpers import fill, refuses, same, says
from internals import main, system
from vitzoo.checkpoint.containers import VERIFIED, Reading, SafetensorsFile, open_own
from vitzoo.checkpoint.npz import NpzFile
from vitzoo.checkpoint.writers import write_npz
from vitzoo.errors import PinError, StoreError
from vitzoo.files import access

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, other calls sync and map")


def failing(real, code, when):
    """Return a function that fails with an error of the system for some arguments."""

    def call(*arguments, **options):
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    return call


def is_folder(fd):
    return stat.S_ISDIR(os.fstat(fd).st_mode)


@pytest.fixture(params=["EINVAL", "EOPNOTSUPP", "ENOSYS"])
def unsynced(request, monkeypatch):
    """As SMB, VirtualBox and FUSE."""
    sync = failing(system.sync, getattr(errno, request.param), is_folder)
    monkeypatch.setattr(system, "sync", sync)
    monkeypatch.setattr(access, "_unsynced", [])


@LINUX
@pytest.mark.usefixtures("unsynced")
def test_a_disk_that_syncs_no_folders_is_used_and_said_once(net, tmp_path, caplog):
    net.assert_right(net.create())
    saved = vitzoo.save(net.create(), tmp_path / "own.safetensors")
    for _ in range(2):
        vitzoo.push(saved, "a/b", folder=tmp_path / "out", license="mit", dry_run=True, force=True)
    assert {row.state for row in vitzoo.verify(tmp_path / "out")} == {"ok"}
    notes = [record.message for record in caplog.records if "sync" in record.message]
    assert len(notes) == 1
    says(notes[0], "the disk of", "cannot sync", "power failure", "vitzoo verify")


@LINUX
@pytest.mark.usefixtures("unsynced")
def test_embed_on_a_disk_that_syncs_no_folders(tmp_path, caplog):
    command = ["embed", "vit_digits", "docs/examples/digits", "--out", str(tmp_path / "v")]
    assert main(command) == 0
    assert caplog.text.count("cannot sync") == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_other_errors_of_a_sync_are_errors(monkeypatch, tmp_path, code):
    monkeypatch.setattr(system, "sync", failing(system.sync, code, is_folder))
    path = tmp_path / "out"
    with refuses(StoreError, path), access.writing_folder(path, ["a"], force=False) as new:
        (new / "a").touch()
    assert not path.exists() or list(path.iterdir())


def test_a_file_that_cannot_be_synced_or_get_a_mode_is_written(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(access, "_unsynced", [])
    monkeypatch.setattr(system, "sync", failing(system.sync, errno.EINVAL, lambda _: True))
    monkeypatch.setattr(system, "set_mode", failing(system.set_mode, errno.EPERM, lambda *_: True))
    for text in (b"one", b"two"):
        access.write_atomic(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert caplog.text.count("cannot sync") == 1


@pytest.fixture(params=["ENODEV", "EINVAL", "EACCES"])
def unmapped(request, monkeypatch):
    """As mounts of FUSE with direct I/O, and shared folders of virtual machines."""
    code = getattr(errno, request.param)
    monkeypatch.setattr(mmap, "mmap", failing(mmap.mmap, code, lambda fd, *_: fd != -1))


@pytest.mark.usefixtures("unmapped")
def test_weights_on_a_disk_that_maps_no_files(net, small, tmp_path):
    net.assert_right(net.create())  # of the store
    model = fill(vitzoo.create(small))
    path = vitzoo.save(model, tmp_path / "own.safetensors")
    for _ in range(2):  # with a stamp, too
        same(vitzoo.create(small, weights=path, mmap=True).state_dict(), model.state_dict())
    vitzoo.convert(path, "google", tmp_path / "a.npz", variant=None, num_heads=model.spec.num_heads)
    same(
        vitzoo.create(small, weights=tmp_path / "a.npz", mmap=True).state_dict(),
        model.state_dict(),
    )


READINGS = [
    VERIFIED,
    Reading(mapped=True),
    Reading(mapped=True, verified=True, keys=frozenset({"b"})),
    Reading(mapped=True, keys=frozenset({"b", "c"})),
]


@pytest.mark.parametrize("reading", READINGS)
def test_each_way_to_read_gives_what_a_mapping_gives(monkeypatch, tmp_path, reading):
    tensors = {name: torch.randn(n, 5) for name, n in (("a", 300_000), ("b", 7), ("c", 2))}
    path, npz = tmp_path / "a.safetensors", tmp_path / "a.npz"
    safetensors.torch.save_file(tensors, path)
    with npz.open("wb") as file:
        write_npz(file, tensors)
    for kind, one in ((SafetensorsFile, path), (NpzFile, npz)):
        mapped = kind(open_own(one), str(one)).read(reading)
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", failing(mmap.mmap, errno.ENODEV, lambda fd, *_: fd != -1))
            found = kind(open_own(one), str(one)).read(reading)
        same(found.tensors, mapped.tensors)
        assert found[1:] == mapped[1:]
        found.tensors["b"] += 1  # the buffer is writable, and the file unchanged
        same(kind(open_own(one), str(one)).read(reading).tensors, mapped.tensors)


# Locks.


def lockless(monkeypatch, error):
    def acquire(*_, **__):
        raise error

    monkeypatch.setattr(FileLock, "_acquire", acquire)


ERRORS = {
    "ENOLCK": OSError(errno.ENOLCK, "No locks available"),
    "older filelock": NotImplementedError("FileSystem does not appear to support flock"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_disk_without_locks_is_named(net, monkeypatch, tmp_path, error):
    lockless(monkeypatch, error)
    with refuses(StoreError, "No locks available", "no file locks", "VITZOO_HOME") as caught:
        net.create()
    assert "writable" not in str(caught.value)
    lock = vitzoo.store.lockfile.Lock(tmp_path / "weights.lock")
    with refuses(PinError, lock.path, "no file locks", "VITZOO_LOCK", "local disk") as caught:
        lock.add("hf://a/b@main/c", vitzoo.store.lockfile.UNPINNED)
    assert "writable" not in str(caught.value)


def test_embed_names_a_disk_without_locks(monkeypatch, tmp_path, capsys):
    lockless(monkeypatch, ERRORS["ENOLCK"])
    out = tmp_path / "v"
    assert main(["embed", "vit_digits", "docs/examples/digits", "--out", str(out)]) == 1
    says(capsys.readouterr().err, out, "No locks available", "no file locks", "--out")
