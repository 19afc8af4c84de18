"""Files that are no regular files, or have no end, where a user names a file of vitzoo."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import registry
from vitzoo.errors import CheckpointError, InvalidOption, PinError, RegistryError

NOT_REGULAR = "is not a regular file"


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def process_memory(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def endless(path: Path) -> None:
    """A regular file of 1 TiB, without blocks on disk."""
    with path.open("wb") as file:
        file.truncate(2**40)


def listening(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 characters
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


KINDS = {
    "pipe": (lambda path: os.mkfifo(path, 0o600), (NOT_REGULAR, "named pipe")),
    "device": (device, (NOT_REGULAR, "device")),
    "folder": (Path.mkdir, (NOT_REGULAR, "folder")),
    "socket": (listening, ("cannot read", "No such device")),
    "memory": (process_memory, ("cannot read", "Input/output error")),
}
READ_WHOLE = KINDS | {"endless": (endless, ("bytes",))}


@pytest.fixture(autouse=True)
def _at_once():
    """End a test that waits for a pipe, and refuse the memory of an endless file."""
    import resource

    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, before[1]))

    def late(*_):
        raise TimeoutError("it waits")

    earlier = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(("make", "words"), READ_WHOLE.values(), ids=READ_WHOLE)
def test_special_file_as_lock_is_refused(net, hub, monkeypatch, make, words):
    path = net.root / "vitzoo.lock"
    make(path)
    monkeypatch.setenv("VITZOO_LOCK", str(path))
    with refuses(PinError, str(path), *words):
        net.create()
    assert hub.requests == []


@pytest.mark.parametrize(("make", "words"), READ_WHOLE.values(), ids=READ_WHOLE)
def test_special_file_as_registry_is_refused(net, monkeypatch, make, words):
    path = net.root / "own.toml"
    make(path)
    monkeypatch.setenv("VITZOO_REGISTRY", str(path))
    with refuses(RegistryError, "VITZOO_REGISTRY", str(path), *words):
        registry()


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize(("make", "words"), READ_WHOLE.values(), ids=READ_WHOLE)
def test_special_file_as_spec_is_refused(net, make, words, suffix):
    path = net.root / f"spec{suffix}"
    make(path)
    with refuses(InvalidOption, str(path), *words):
        vitzoo.create(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "memory"])
def test_special_file_as_weights_is_refused(net, run, kind):
    make, words = KINDS[kind]
    path = net.root / "own.safetensors"
    make(path)
    with refuses(CheckpointError, str(path), *words):
        vitzoo.create(net.name, weights=path)
    with refuses(CheckpointError, str(path), *words):
        vitzoo.create(path)
    code, out, err = run("convert", path, "--to", "timm", net.root / "out.safetensors")
    assert (code, out) == (1, "")
    assert str(path) in err
    assert words[0] in err


@pytest.mark.parametrize("command", ["import", "verify", "registry check", "registry pin"])
@pytest.mark.parametrize("kind", ["pipe", "device", "memory"])
def test_commands_refuse_special_files(net, run, kind, command):
    make, words = KINDS[kind]
    path = net.root / ("own.toml" if "registry" in command else "own.safetensors")
    make(path)
    code, out, err = run(*command.split(), path)
    assert code in (1, 3)
    assert words[-1] in out + err
    assert "Traceback" not in err
