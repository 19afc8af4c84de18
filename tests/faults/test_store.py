"""Disks that are full, read-only or damaged, and what lies in the store's place."""

import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses, says
from internals import state_of, system
from vitzoo.errors import HashMismatch, Offline, PinError, SizeMismatch, StoreError
from vitzoo.store.stamp import Stamp, read_stamp

NOBODY = 65534
REVISION = "0123456789abcdef0123456789abcdef01234567"  # of the registered row
FETCH = "import vitzoo; print(vitzoo.fetch('faulty/net'))"
TOLD = """
import vitzoo
from vitzoo.errors import VitzooError
try:
    print("path", vitzoo.fetch("faulty/net"))
except VitzooError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def warm(net):
    """The network in a store that has been used once."""
    net.assert_right(net.create())
    return net


@pytest.fixture
def hashed(monkeypatch):
    """List of the calls of the function that hashes stored files."""
    import vitzoo.store.store

    calls, real = [], vitzoo.files.access.hash_file
    monkeypatch.setattr(
        vitzoo.store.store, "hash_file", lambda fd, *note: calls.append(fd) or real(fd, *note)
    )
    return calls


@contextmanager
def no_hang(seconds=20):
    """Fail instead of waiting for ever at a pipe."""

    def stop(*_):
        raise AssertionError(f"nothing happened for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_only_in_store(net, *others):
    strangers = [f for f in net.files() if not f.startswith("home/") and f not in others]
    assert strangers == []


def run(net, code, *, prefix=(), **environment):
    """Run code in another process and return (what it printed, its exit code)."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code],
        env=net.environment() | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr, done.returncode


# Full disks.


def test_full_disk_before_the_download_is_an_error(net, hub, monkeypatch):
    real = os.statvfs(net.root)
    monkeypatch.setattr(
        os, "statvfs", lambda _: os.statvfs_result((4096, 4096, real[2], 1, 1, *real[5:]))
    )
    needed = len(net.data)
    with refuses(StoreError, f" {needed} bytes", f" {net.home}", " 4096 ", "VITZOO_HOME"):
        net.create()
    assert hub.file_requests() == []
    assert not net.stored.exists()
    assert [f for f in net.files() if "partial" in f] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_during_the_download_keeps_the_partial_file(net, hub, monkeypatch, code):
    room, real = 30_000, os.pwrite

    def pwrite(fd, data, offset):
        if offset >= room:
            raise OSError(code, os.strerror(code))
        return real(fd, data[: room - offset], offset)

    with monkeypatch.context() as patch:
        patch.setattr(system, "pwrite", pwrite)
        place = str(net.home / "partial")
        amount = (os.strerror(code), " 30000 ", f" {len(net.data)} bytes")
        with refuses(StoreError, place, *amount, "VITZOO_HOME"):
            net.create()
    assert not net.stored.exists()
    assert (net.home / "partial" / net.sha256).read_bytes() == net.data[:room]
    net.assert_right(net.create())
    assert hub.file_requests()[-1][2]["Range"] == f"bytes={room}-"
    assert not (net.home / "partial" / net.sha256).exists()
    assert_only_in_store(net)


def test_full_disk_at_rename_keeps_the_partial_file(net, hub, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(system, "move_new", full)
        with refuses(StoreError, str(net.stored), "No space left on device", "VITZOO_HOME", "kept"):
            net.create()
    assert not net.stored.exists()
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1, "the bytes that were there are not fetched again"
    assert_only_in_store(net)


def test_full_disk_without_a_stamp_hashes_the_file(net, hub, monkeypatch, hashed):
    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    import vitzoo.store.store

    with monkeypatch.context() as patch:
        patch.setattr(vitzoo.store.stamp, "write_atomic", no_space)
        net.assert_right(net.create())
        net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    assert len(hashed) >= 2, "without a stamp the file is hashed"


def test_file_size_limit_of_the_process_is_an_error(net, hub):
    code = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (30000, 30000))\n{TOLD}"
    out, status = run(net, code)
    assert status == 0
    assert out.startswith("StoreError ")
    for word in (str(net.home / "partial"), "File too large", " 30000 ", f" {len(net.data)} bytes"):
        assert word in out
    assert not net.stored.exists()
    net.assert_right(net.create())
    assert hub.file_requests()[-1][2]["Range"] == "bytes=30000-"


def in_a_mount(net, mount, code):
    """Run code where `mount` was run before, in a mount namespace of its own."""
    script = f'{mount} || exit 77; exec "$@"'
    out, status = run(net, code, prefix=("unshare", "-m", "sh", "-c", script, "sh"))
    if status in (1, 77) and ("unshare" in out or "mount" in out):
        pytest.skip(
            "no real disk was filled or made read-only, for lack of the right to mount; the "
            f"injected faults ran: {out[-200:]}"
        )
    return out, status


def test_small_mounted_disk_is_an_error(net, hub):
    net.home.mkdir()
    out, status = in_a_mount(net, f"mount -t tmpfs -o size=64k tmpfs {net.home}", TOLD)
    assert status == 0
    assert out.startswith("StoreError faulty/net:main: acme/net/model.safetensors: ")
    assert f" {len(net.data)} bytes" in out
    assert f" {net.home}" in out
    assert hub.requests == []


# Folders that cannot be written, files that cannot be read.


@pytest.fixture
def read_only(net, monkeypatch):
    """Make the store refuse every write, as a read-only mount does."""

    def refused(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    real_open, real_mkdir, real_path_open = os.open, os.mkdir, Path.open
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def inside(path):
        return str(path).startswith(str(net.home))

    def open_(path, flags, *rest, **more):
        if inside(path) and flags & writing:
            refused()
        return real_open(path, flags, *rest, **more)

    def mkdir(path, *rest, **more):
        if inside(path) and not Path(path).exists():
            refused()
        return real_mkdir(path, *rest, **more)

    def path_open(self, mode="r", *rest, **more):
        if inside(self) and set(mode) & set("wxa+"):
            refused()
        return real_path_open(self, mode, *rest, **more)

    def switch():
        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "mkdir", mkdir)
        monkeypatch.setattr(Path, "open", path_open)
        monkeypatch.setattr(Path, "replace", refused)
        monkeypatch.setattr(system, "replace", refused)
        monkeypatch.setattr(system, "move_new", refused)
        monkeypatch.setattr(os, "access", lambda path, mode: not (inside(path) and mode & os.W_OK))

    return switch


@pytest.mark.parametrize("stamped", [True, False])
def test_read_only_store_with_the_file_is_used(warm, hub, read_only, hashed, stamped):
    if not stamped:
        shutil.rmtree(warm.home / "stamps")
    read_only()
    warm.assert_right(warm.create())
    assert bool(hashed) != stamped
    assert len(hub.file_requests()) == 1


def test_read_only_store_without_the_file_is_an_error(net, hub, read_only, monkeypatch):
    read_only()
    place = f" {net.home / 'locks'}"
    with refuses(StoreError, place, "Read-only file system", "VITZOO_HOME=:memory:"):
        net.create()
    assert hub.requests == []
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    net.assert_right(net.create())
    assert net.files() == []


def test_read_only_store_with_a_damaged_file_is_an_error(warm, hub, read_only):
    flip(warm.stored)
    read_only()
    place = f" {warm.home / 'locks'}"
    with refuses(StoreError, place, "permission", "read-only", "VITZOO_HOME=:memory:"):
        warm.create()
    assert len(hub.file_requests()) == 1


def test_read_only_mount(warm, hub):
    mount = f"mount --bind {warm.home} {warm.home} && mount -o remount,ro,bind {warm.home}"
    out, status = in_a_mount(warm, mount, TOLD)
    assert (out, status) == (f"path {warm.stored}\n", 0)
    warm.stored.unlink()
    out, status = in_a_mount(warm, mount, TOLD)
    assert status == 0
    assert out.startswith("StoreError ")
    assert f" {warm.home}" in out
    assert "read-only" in out.lower()
    assert len(hub.file_requests()) == 1


def test_store_in_memory_writes_nothing_to_disk(net, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    net.assert_right(net.create())
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 2
    assert net.files() == []
    with pytest.raises(StoreError, match="VITZOO_HOME is ':memory:'"):
        vitzoo.fetch(net.name)
    hub.files.clear()
    with pytest.raises(vitzoo.errors.EntryNotFound):
        net.create()


def test_store_in_memory_refuses_wrong_bytes(net, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    for key in hub.files:
        hub.files[key] = net.data[:-1] + bytes([net.data[-1] ^ 1])
    with refuses(HashMismatch, net.sha256, "registry"):
        net.create()
    assert net.files() == []


def test_unwritable_folder_is_an_error_before_any_request(net, hub, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    place = f" {net.home / 'locks'}"
    with refuses(StoreError, place, "permission", "read-only", "VITZOO_HOME=:memory:"):
        net.create()
    assert hub.requests == []
    assert net.files() == []


def test_store_path_that_is_a_file_is_an_error(net, hub):
    net.home.write_text("mine")
    with pytest.raises(StoreError, match=rf" {net.home}/sha256/.*Not a directory"):
        net.create()
    assert hub.requests == []
    assert net.home.read_text() == "mine"


def test_unreadable_stored_file_is_an_error(warm, hub, monkeypatch):
    real = os.open

    def denied(path, *rest, **more):
        if Path(path) == warm.stored:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StoreError, match=f" {warm.stored}.*Permission denied"):
        warm.create()
    assert len(hub.file_requests()) == 1


def test_read_error_while_hashing_is_an_error(warm, monkeypatch):
    real = os.pread

    def pread(fd, count, offset):
        if count > 64:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, count, offset)

    monkeypatch.setenv("VITZOO_VERIFY", "always")
    monkeypatch.setattr(system, "pread", pread)
    with pytest.raises(StoreError, match=r"byte 0\b.*Input/output error"):
        warm.create()


@pytest.fixture
def public(warm):
    """A copy of store and plugin where another user can read them."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    for name in ("home", "site"):
        shutil.copytree(warm.root / name, folder / name)
    yield folder
    shutil.rmtree(folder)


def as_nobody(net, folder, code=TOLD):
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    path = f"{folder / 'site'}:{Path(__file__).parents[2]}"
    environment = {"VITZOO_HOME": str(folder / "home"), "PYTHONPATH": path, "HOME": str(folder)}
    return run(net, code, prefix=prefix, **environment)


def test_store_of_another_user(warm, hub, public):
    if as_nobody(warm, public, "from vitzoo import fetch; from vitzoo.errors import StoreError")[1]:
        pytest.skip("no other user can run this installation; the injected faults ran")
    blob = public / "home" / warm.stored.relative_to(warm.home)
    assert as_nobody(warm, public) == (f"path {blob}\n", 0), "readable is enough"
    blob.chmod(0o000)
    out, status = as_nobody(warm, public)
    assert status == 0
    assert re.match(f"StoreError .*{blob}.*Permission denied\n$", out)
    blob.unlink()
    out, status = as_nobody(warm, public)
    assert status == 0
    assert re.match(f"StoreError .* {public}/home/locks.*permission", out)
    assert len(hub.file_requests()) == 1


# Damage.


def flip(path):
    """Flip one bit in the middle, in place."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.chmod(0o644)
    path.write_bytes(data)


def flip_and_restore_times(path):
    before = path.stat()
    flip(path)
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def grow(path):
    os.truncate(path, path.stat().st_size + 1)


def empty(path):
    os.truncate(path, 0)


def replace_by_other_weights(path):
    """Put another valid file of the same size in its place."""
    data = path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(data[:-4] + data[-8:-4])
    other.replace(path)


DAMAGES = {
    "bit-flip": (flip, HashMismatch),
    "other-file": (replace_by_other_weights, HashMismatch),
    "truncated": (truncate, SizeMismatch),
    "grown": (grow, SizeMismatch),
    "emptied": (empty, SizeMismatch),
    "mtime-restored": (flip_and_restore_times, HashMismatch),
}


@pytest.mark.parametrize("damage", [d for d, _ in DAMAGES.values()], ids=DAMAGES)
def test_damaged_stored_file_is_fetched_again(warm, hub, damage):
    damage(warm.stored)
    damaged = warm.stored.read_bytes()
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 2
    assert warm.stored.read_bytes() == warm.data
    assert stat.S_IMODE(warm.stored.stat().st_mode) == 0o444
    kept = list((warm.home / "quarantine").iterdir())
    assert [path.read_bytes() for path in kept] == [damaged]
    assert kept[0].name.startswith(f"{warm.sha256}.")
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 2
    assert_only_in_store(warm)


@pytest.mark.parametrize(("damage", "error"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_stored_file_offline_is_an_error(warm, hub, damage, error, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    damage(warm.stored)
    with pytest.raises(error, match=rf"{warm.stored} .*{warm.sha256}.*{warm.home}/quarantine"):
        warm.create()
    assert not warm.stored.exists()
    with pytest.raises(Offline, match="offline"):
        warm.create()
    assert len(hub.file_requests()) == 1


@pytest.mark.parametrize("mode", ["stamp", "always"])
@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("more", [1, -1])
def test_an_entry_with_a_wrong_size_costs_no_healthy_file(
    warm, hub, monkeypatch, more, offline, mode
):
    """The sha256 fits, so the entry is wrong, and other entries go on using the file."""
    size = len(warm.data)
    monkeypatch.setenv("VITZOO_OFFLINE", offline)
    monkeypatch.setenv("VITZOO_VERIFY", mode)
    warm.register(size=size + more)
    with pytest.raises(PinError) as caught:
        warm.create()
    says(str(caught.value), warm.sha256, f"has {size} bytes", f"states {size + more}", "correct")
    (row,) = vitzoo.verify(warm.name)
    assert row.state == "conflict"
    says(row.detail, size, size + more, "correct")
    assert warm.stored.read_bytes() == warm.data
    warm.register()
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 1
    assert_only_in_store(warm)


def test_stored_file_damaged_twice_is_quarantined_twice(warm):
    for _ in range(2):
        flip(warm.stored)
        warm.assert_right(warm.create())
    assert len(list((warm.home / "quarantine").iterdir())) == 2


def test_file_changed_during_the_check_gets_no_stamp(warm, monkeypatch):
    """Bytes that change after they were hashed never get a stamp that vouches for them."""
    import vitzoo.loading.load

    real = vitzoo.loading.load._check_values

    def change_first(tensors, checkpoint):
        time.sleep(0.06)
        flip(warm.stored)
        time.sleep(0.06)
        real(tensors, checkpoint)

    shutil.rmtree(warm.home / "stamps")
    with monkeypatch.context() as patch:
        patch.setattr(vitzoo.loading.load, "_check_values", change_first)
        warm.create()  # mapped, so what it holds is not asked here: see VITZOO_VERIFY=tensors
    warm.assert_right(warm.create())


def test_file_changed_while_it_is_hashed_gets_no_stamp(warm, monkeypatch):
    import vitzoo.store.store

    real = vitzoo.files.access.hash_file

    def change_after(fd, *note):
        sha256 = real(fd, *note)
        flip(warm.stored)
        time.sleep(0.1)
        return sha256

    shutil.rmtree(warm.home / "stamps")
    with monkeypatch.context() as patch:
        patch.setattr(vitzoo.store.store, "hash_file", change_after)
        vitzoo.fetch(warm.name)
    warm.assert_right(warm.create())


def test_truncated_file_of_unknown_size_is_fetched_again(warm, hub):
    warm.register(pin="reported", size=None, predicted_size=len(warm.data) - 100)
    truncate(warm.stored)
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 2


# Not a file.


def link_to(target):
    def place(path):
        path.symlink_to(target)

    return place


def fifo(path):
    os.mkfifo(path)


def loop(path):
    path.symlink_to(path)


def link_to_right_bytes(path):
    copy = path.parent / "copy"
    copy.write_bytes(path.with_name("right").read_bytes())
    path.symlink_to(copy)


STRANGE = {
    "link-to-etc": (link_to("/etc/passwd"), "is a symbolic link.*remove"),
    "link-to-right-bytes": (link_to_right_bytes, "is a symbolic link"),
    "link-to-folder": (link_to("/etc"), "is a symbolic link"),
    "dangling": (link_to("/nowhere/at/all"), "is a symbolic link"),
    "loop": (loop, "is a symbolic link"),
    "fifo": (fifo, "is not a regular file.*remove"),
    "folder": (Path.mkdir, "is not a regular file.*remove"),
}


@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize(("place", "text"), STRANGE.values(), ids=STRANGE)
def test_link_pipe_or_folder_in_place_of_a_stored_file_is_refused(
    warm, hub, place, text, offline, monkeypatch
):
    monkeypatch.setenv("VITZOO_OFFLINE", offline)
    warm.stored.rename(warm.stored.with_name("right"))
    place(warm.stored)
    passwd = Path("/etc/passwd").stat()
    with no_hang(), pytest.raises(StoreError, match=text):
        warm.create()
    with no_hang(), pytest.raises(StoreError, match=text):
        vitzoo.fetch(warm.name)
    with no_hang():
        assert [v.state for v in vitzoo.verify(warm.name)] == ["damaged"]
    assert len(hub.file_requests()) == 1
    assert Path("/etc/passwd").stat().st_mtime_ns == passwd.st_mtime_ns
    assert_only_in_store(warm)


@pytest.mark.parametrize("kind", ["link", "hard-link", "fifo", "folder", "wrong", "longer"])
def test_link_pipe_folder_or_wrong_bytes_as_partial_file(net, hub, kind):
    victim = net.root / "victim"
    victim.write_text("precious")
    part = net.home / "partial" / net.sha256
    part.parent.mkdir(parents=True)
    match kind:
        case "link":
            part.symlink_to(victim)
        case "hard-link":
            os.link(victim, part)
        case "fifo":
            os.mkfifo(part)
        case "folder":
            part.mkdir()
        case "wrong":
            part.write_bytes(b"wrong" * 100)
        case "longer":
            part.write_bytes(net.data + b"more")
    with no_hang():
        net.assert_right(net.create())
    assert victim.read_text() == "precious"
    assert net.stored.read_bytes() == net.data
    assert net.stored.stat().st_nlink == 1
    ranges = [headers.get("Range") for _, _, headers in hub.file_requests()]
    assert ranges == (["bytes=500-", None] if kind == "wrong" else [None])
    assert_only_in_store(net, "victim")


@pytest.mark.parametrize(
    ("module", "when"),
    [
        ("checkpoint.containers", "read_header"),
        ("loading.load", "format_of"),
        ("loading.load", "check"),
    ],
)
def test_file_swapped_between_check_and_load(warm, hub, module, when, monkeypatch):
    place = importlib.import_module(f"vitzoo.{module}")
    real = getattr(place, when)
    evil = warm.data[:-4] + warm.data[-8:-4]
    assert evil != warm.data

    def swap_first(*arguments):
        other = warm.stored.with_name("evil")
        other.write_bytes(evil)
        other.replace(warm.stored)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, when, swap_first)
        model = warm.create()
    assert warm.stored.read_bytes() == evil
    warm.assert_right(model)
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 2


# Stamps and clocks.


def test_stamped_file_is_not_hashed_again(warm, hub, hashed, monkeypatch):
    def no_hashing(*_, **__):
        raise AssertionError("a stamped file was hashed")

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", no_hashing)
        warm.assert_right(warm.create())
    assert hashed == []
    assert len(hub.requests) == 1


@pytest.mark.parametrize("mode", ["always", "tensors"])
def test_verify_modes_that_hash_at_each_load(warm, hashed, mode, monkeypatch):
    monkeypatch.setenv("VITZOO_VERIFY", mode)
    for count in (1, 2):
        warm.assert_right(warm.create())
        assert len(hashed) == count


def test_unknown_verify_mode_is_refused(warm, monkeypatch):
    monkeypatch.setenv("VITZOO_VERIFY", "sometimes")
    words = ("stamp", "always", "tensors", "'sometimes'")
    with refuses(vitzoo.InvalidOption, "VITZOO_VERIFY", *words):
        warm.create()


@pytest.mark.parametrize("year", [1970, 2100])
def test_wrong_clock_from_the_start(net, hub, year, monkeypatch):
    now = (year - 1970) * 31_556_952 * 10**9 + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr(time, "time", lambda: now / 1e9)
    for _ in range(2):
        net.assert_right(net.create())
    assert len(hub.file_requests()) == 1


def test_clock_set_back_rehashes_the_file(warm, hashed, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 10**9)
    for count in (1, 2):
        warm.assert_right(warm.create())
        assert len(hashed) == count, "a stamp of the future says nothing"


def test_stamp_from_the_future_is_ignored(warm, hashed, monkeypatch):
    shutil.rmtree(warm.home / "stamps")
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 4_102_444_800 * 10**9)
        warm.assert_right(warm.create())
    assert len(hashed) == 1
    warm.assert_right(warm.create())
    assert len(hashed) == 2


def test_file_from_the_future_is_always_hashed(warm, hashed):
    future = time.time() + 365 * 86_400
    os.utime(warm.stored, (future, future))
    for count in (1, 2):
        warm.assert_right(warm.create())
        assert len(hashed) == count, "such a file is never trusted by its times"


def test_recently_changed_file_is_hashed_again(warm, hashed):
    """A file that changed just before it was hashed might change again within the clock's grain."""
    copy = warm.stored.with_name("copy")
    copy.write_bytes(warm.data)
    copy.replace(warm.stored)
    warm.assert_right(warm.create())
    assert len(hashed) == 1
    time.sleep(0.1)
    warm.assert_right(warm.create())
    hashed.clear()
    warm.assert_right(warm.create())
    assert hashed == []


@pytest.fixture
def forged(warm):
    """A damaged file with a stamp that fits it perfectly; gives the stamp's path."""
    flip(warm.stored)
    time.sleep(0.1)
    path = warm.home / "stamps" / f"{warm.sha256}.json"
    stamp = Stamp.of(state_of(warm.stored), warm.sha256, time.time_ns())
    path.write_text(json.dumps(asdict(stamp) | {"finite": True}))
    return path


def test_matching_stamp_is_trusted(warm, forged, hub):
    """Without this the next tests would prove nothing."""
    assert read_stamp(forged) is not None
    model = warm.create()
    with pytest.raises(AssertionError):
        warm.assert_right(model)
    assert len(hub.file_requests()) == 1


def other_uid(path):
    os.chown(path, NOBODY, NOBODY)


def behind_link(path):
    target = path.with_name("elsewhere.json")
    path.rename(target)
    path.symlink_to(target)


def edit(**changes):
    def change(path):
        stamp = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in stamp.items() if v is not None}))

    return change


def write(text):
    return lambda path: path.write_bytes(text)


def stamp_pipe(path):
    path.unlink()
    os.mkfifo(path)


STAMPS = {
    "garbage": write(os.urandom(100)),
    "empty": write(b""),
    "list": write(b"[]"),
    "writable": lambda path: path.chmod(0o666),
    "link": behind_link,
    "pipe": stamp_pipe,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "stale-key": edit(birth_ns=1),
    "missing-key": edit(inode=None),
    "other-sha256": edit(sha256="0" * 64),
    "other-inode": edit(inode=1),
    "other-device": edit(device=0),
    "other-ctime": edit(ctime_ns=5),
    "text-times": edit(hashed_ns="9"),
    "true-times": edit(hashed_ns=True),
    "young": edit(hashed_ns=1),
    "of-the-future": edit(hashed_ns=2**62),
    "finite-text": edit(finite="yes"),
}


@pytest.mark.parametrize("spoil", STAMPS.values(), ids=STAMPS)
def test_malformed_or_stale_stamp_is_ignored(warm, forged, hub, hashed, spoil):
    spoil(forged)
    with no_hang():
        warm.assert_right(warm.create())
    assert len(hashed) >= 1
    assert len(hub.file_requests()) == 2
    assert_only_in_store(warm)


def test_stamp_of_another_user_is_ignored(warm, forged, hub, monkeypatch):
    if os.geteuid() == 0:
        other_uid(forged)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1)
    warm.assert_right(warm.create())
    assert len(hub.file_requests()) == 2


# The user's Hub cache.


@pytest.fixture
def hub_cache(net, monkeypatch):
    """The folder of the repository in a Hub cache of its own."""
    from huggingface_hub import constants

    folder = net.root / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder / "models--acme--net"


@pytest.mark.parametrize("links", [True, False])
def test_hub_cache_with_and_without_links_is_used(net, hub, hub_cache, links):
    snapshot = hub_cache / "snapshots" / REVISION / "model.safetensors"
    snapshot.parent.mkdir(parents=True)
    held = snapshot
    if links:
        held = hub_cache / "blobs" / net.sha256
        held.parent.mkdir()
        snapshot.symlink_to(held)
    held.write_bytes(net.data)
    before = held.stat()
    net.assert_right(net.create())
    assert hub.file_requests() == []
    after = held.stat()
    assert (after.st_mtime_ns, after.st_nlink) == (before.st_mtime_ns, 1)
    assert after.st_ino != net.stored.stat().st_ino, "copied, never linked"


@pytest.mark.parametrize("spoil", [flip, truncate, grow])
def test_damaged_hub_cache_is_left_alone(net, hub, hub_cache, spoil):
    blob = hub_cache / "blobs" / net.sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(net.data)
    spoil(blob)
    damaged = blob.read_bytes()
    net.assert_right(net.create())
    assert len(hub.file_requests()) == 1
    assert blob.read_bytes() == damaged
