"""`vitzoo convert --from-pickle` with hostile pickles: nothing in them runs, limits hold."""

import argparse
import io
import os
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitzoo
from helpers import refuses, same
from internals import main
from vitzoo.apps.convert import pickles
from vitzoo.apps.convert.conversion import convert_pickle
from vitzoo.errors import CheckpointError
from vitzoo.plugin import limited

MB = 1024 * 1024


@pytest.fixture
def refused(tmp_path):
    """Return a function that converts a hostile file, which must be refused without a trace."""

    def call(path, *parts):
        before = sorted(tmp_path.iterdir())
        with refuses(CheckpointError, f"{path} is not converted", *parts) as caught:
            convert_pickle(path, tmp_path / "out.safetensors")
        assert "weights_only" not in str(caught.value)  # torch's advice to read it without
        assert sorted(tmp_path.iterdir()) == before

    return call


def archive(path, data, *, storages=(), level=None):
    """Write the zip of `torch.save` around the bytes of a pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as file:
        file.writestr(zipfile.ZipInfo("archive/data.pkl"), data)
        file.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
        file.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
        for name, chunk, count in storages:
            info = zipfile.ZipInfo(f"archive/data/{name}")
            info.compress_type = zipfile.ZIP_DEFLATED
            with file.open(info, "w", force_zip64=True) as stream:
                for _ in range(count):
                    stream.write(chunk)
    return path


class Code:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def calls(tmp_path):
    """Return pickles that would make the file `ran`, by what they name."""
    ran = f"{tmp_path}/ran"
    text = f"open({ran!r}, 'w').close()"
    return {
        "posix.system": Code(os.system, f"touch {ran}"),
        "exec": Code(exec, text),
        "torch.serialization.load": Code(torch.load, ran),
    }


@pytest.mark.parametrize("name", calls(""))
def test_what_a_pickle_names_is_refused_and_does_not_run(tmp_path, name):
    code = calls(tmp_path)[name]
    path = tmp_path / "evil.pt"
    torch.save({"a": torch.ones(2), "evil": code}, path)
    with refuses(CheckpointError, f"{path} is not converted: it names {name}", "state_dict()"):
        convert_pickle(path, tmp_path / "out.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["evil.pt"]


def test_a_pickle_is_read_with_the_weights_only_loader_alone(tmp_path, monkeypatch, capsys):
    """Not even an environment variable of torch changes that."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("read in this process"))
    real = limited.subprocess.Popen
    seen = []

    def popen(arguments, **options):
        seen.append(options)
        return real(arguments, **options)

    monkeypatch.setattr(limited.subprocess, "Popen", popen)
    monkeypatch.setenv("HF_TOKEN", "secret")
    path, out = tmp_path / "a b.bin", tmp_path / "out.safetensors"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b.c": torch.ones(2, dtype=torch.bfloat16)}
    torch.save({"model": OrderedDict(tensors), "args": argparse.Namespace(lr=0.1)}, path)
    assert main(["convert", str(path), str(out), "--from-pickle"]) == 0
    assert "the tensors are those of the entry model" in capsys.readouterr().err
    same(load_file(out), tensors)
    (options,) = seen
    assert set(options["env"]).isdisjoint({"HF_TOKEN", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"})


def expanded(path):
    torch.save({"a": torch.zeros(1).expand(2**33)}, path)


def deflated(path):
    """A storage of 1 GiB in 1 MB of zip."""
    torch.save({"a": torch.zeros(1)}, path)
    with zipfile.ZipFile(path) as file:
        data = next(file.read(n) for n in file.namelist() if n.endswith("data.pkl"))
    big = data.replace(b"K\x01", b"J" + struct.pack("<i", 2**28))
    assert big != data
    archive(path, big, storages=[("0", bytes(MB), 1024)], level=1)


BOMBS = {
    "views": (expanded, "34359738368 bytes"),
    "deflated": (deflated, "memory"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_its_memory(tmp_path, refused, bomb):
    import resource

    make, text = BOMBS[bomb]
    path = tmp_path / "bomb.pt"
    make(path)
    assert path.stat().st_size < 16 * MB
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    refused(path, text)
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    plain = 600 * MB  # of Python with torch
    assert after <= max(before, plain + pickles.Limits.of(path.stat().st_size).memory)


def test_an_endless_stream_of_opcodes_is_stopped(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(pickles, "SECONDS", 3)
    path = tmp_path / "long.pt"
    archive(path, b"\x80\x02}" + b"K\x00K\x00s" * (8 * MB) + b".", level=1)  # d[0] = 0, again
    refused(path, f"more than {pickles.Limits.of(path.stat().st_size).seconds} s of processor time")


def test_a_reader_that_waits_is_killed(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(limited, "START", "import time; time.sleep(600)")
    monkeypatch.setattr(pickles, "SECONDS", 1)
    monkeypatch.setattr(limited, "WAITING", 1)
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(1)}, path)
    refused(path, "1 s of processor time")


def test_an_output_that_grows_is_stopped_where_the_system_does_not(tmp_path, refused, monkeypatch):
    """As on Windows, which limits no file: this reader has not limited itself."""
    text = "import sys, time; sys.stdout.write('x' * 10**5); sys.stdout.flush(); time.sleep(600)"
    monkeypatch.setattr(limited, "START", text)
    monkeypatch.setattr(pickles, "OUTPUT_SLACK", 100)
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(1)}, path)
    refused(path, f"it writes more than {pickles.Limits.of(path.stat().st_size).output} bytes")


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("import os; os.abort()", "killed by SIGABRT"),
        ("import sys; sys.stderr.write('{')", "ended with exit code 0"),
        ("import sys; sys.stderr.write('[1]')", "ended with exit code 0"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        (
            r"import sys; sys.stderr.write('Warning\n{\"error\": \"\\u001b[31mred\"}')",
            r"is not converted: \x1b[31mred",
        ),
    ],
)
def test_what_the_reader_answers_is_not_trusted(tmp_path, refused, monkeypatch, start, text):
    monkeypatch.setattr(limited, "START", start)
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(1)}, path)
    refused(path, text)


def damaged():
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(64)}, buffer)
    return buffer.getvalue()[:-200]


OTHERS = {
    "empty": b"",
    "damaged": damaged(),
    "deep": b"\x80\x02" + b"(" * 200_000 + b"l" * 200_000 + b".",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused(tmp_path, refused, kind):
    path = tmp_path / "a.pt"
    path.write_bytes(OTHERS[kind])
    refused(path, "torch's weights-only loader cannot read it")


def test_torchscript_is_refused(tmp_path, refused):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net/data.pkl", b"\x80\x02}.")
        file.writestr("net/constants.pkl", b"\x80\x02).")
        file.writestr("net/version", b"3\n")
    refused(path, "a TorchScript archive, which is code", "safetensors.torch.save_file")


def test_nothing_else_reads_a_pickle():
    """The sources call no loader of pickles besides the one in the limited process."""
    root = Path(vitzoo.__file__).parent
    loaders = ("torch.load(", "pickle.load", "Unpickler", "allow_pickle=True")
    found = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text("utf-8") for word in loaders)
    ]
    own = (
        "apps/bench/ways.py",  # the network that `bench` writes for the processes that it starts
        "apps/embed/processes.py",  # between vitzoo and the processes that it starts
        "apps/embed/workers.py",  # whether an error can be sent, from its own pickle
        "testing/checks/modules.py",  # copies the modules of plugins
    )
    assert sorted(found) == sorted(["apps/convert/pickle_worker.py", *own])
