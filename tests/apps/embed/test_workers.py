"""Worker processes of `embed`: an error has its cause, and leaves no process and no pipe."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vitzoo
from helpers import SPEC, fill, refuses, says
from vitzoo import Predictor, embed
from vitzoo.apps.embed import processes, workers
from vitzoo.errors import CheckpointError, IntegrityError, InvalidOption, VitzooError

IN_SCRIPT = """
import vitzoo

class Mine(vitzoo.Predictor):
    pass

for workers in (1, 2):
    try:
        print(vitzoo.embed(Mine("vit_digits"), "images", f"out{workers}", workers=workers).errors)
    except vitzoo.VitzooError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of images for two parts."""
    folder = tmp_path_factory.mktemp("data") / "images"
    folder.mkdir()
    for i in range(70):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def net(tmp_path):
    """Write the file of a model, and then another one."""

    def write(**change):
        model = fill(vitzoo.create(SPEC | change))
        model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
        (tmp_path / "net.safetensors").unlink(missing_ok=True)
        return vitzoo.save(model, tmp_path / "net.safetensors")

    return write


@pytest.fixture
def nothing_stays():
    """After the test there are the children and the pipes of before."""
    before = children(), pipes()
    yield
    assert (children(), pipes()) == before


def children():
    tasks = Path("/proc/self/task").glob("*/children")
    return sorted(" ".join(path.read_text() for path in tasks).split())


def pipes():
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder itself
            found.append(str(path.readlink()))
    return sorted(name for name in found if name.startswith(("pipe:", "socket:")))


@pytest.mark.slow
def test_a_class_of_the_script_is_named(images):
    done = subprocess.run(
        [sys.executable, "-c", IN_SCRIPT], cwd=images.parent, capture_output=True, text=True
    )
    one, two = done.stdout.splitlines()
    assert one == "0"
    says(two, "InvalidOption", "Mine", "__main__", "do not import", "module", "workers=1")


@pytest.mark.slow
def test_a_class_that_a_worker_cannot_import_is_an_error_with_its_cause(
    images, tmp_path, monkeypatch
):
    """As one beside a notebook, whose folder is on the path as `''`."""
    module = ModuleType("beside")
    exec("import vitzoo\nclass Mine(vitzoo.Predictor): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "beside", module)
    with refuses(
        VitzooError, "No module named 'beside'", "worker process", "PYTHONPATH", "workers=1"
    ):
        embed(module.Mine("vit_digits"), images, tmp_path / "out", workers=2)


def test_a_worker_names_all_that_differs_in_its_fingerprint():
    predictor = Predictor("vit_digits")
    found = predictor.fingerprint()
    expected = replace(found, versions={**found.versions, "cublas": "1"}, native_size=4)
    job = SimpleNamespace(predictor=predictor, fingerprint=expected)
    with refuses(VitzooError, "another fingerprint: native_size, versions differ", "workers=1"):
        workers._pipeline(pickle.dumps(job))


@pytest.mark.usefixtures("nothing_stays")
def test_a_model_that_cannot_be_pickled_is_an_error_before_any_process(
    images, tmp_path, monkeypatch
):
    class Local(Predictor):
        pass

    monkeypatch.setattr(subprocess, "Popen", None)
    with refuses(InvalidOption, "Local", "worker processes", "workers=1"):
        embed(Local("vit_digits"), images, tmp_path / "out", workers=2)
    assert embed(Local("vit_digits"), images, tmp_path / "out", workers=1).errors == 0


@pytest.mark.usefixtures("nothing_stays")
def test_a_process_that_cannot_be_started_leaves_nothing(images, tmp_path, monkeypatch):
    started, popen = [], subprocess.Popen

    def second_fails(*args, **kwargs):
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(processes.subprocess, "Popen", second_fails)
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(map(str, list(images.iterdir()) * 3)))
    with refuses(VitzooError, "2 of 2", "temporarily unavailable", "fewer --workers", "ulimit"):
        embed("vit_digits", listed, tmp_path / "out", workers=3)
    assert started[0].returncode is not None
    for pipe in (started[0].stdin, started[0].stdout):
        assert pipe.closed


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["other", "cut"])
def test_weights_that_change_before_a_worker_starts(images, tmp_path, net, damage):
    path = net()
    predictor = Predictor(path)
    if damage == "other":
        net(depth=1)
        with refuses(IntegrityError, "net.safetensors", "the same file"):
            embed(predictor, images, tmp_path / "out", workers=2)
    else:
        path.write_bytes(path.read_bytes()[:-50])
        with refuses(CheckpointError, "net.safetensors"):
            embed(predictor, images, tmp_path / "out", workers=2)


@pytest.mark.slow
def test_a_worker_with_another_model_is_refused(images, tmp_path, monkeypatch):
    """As one whose plugin was updated in the meantime: here, this process names other weights."""
    fingerprint = Predictor.fingerprint
    monkeypatch.setattr(Predictor, "fingerprint", lambda p: replace(fingerprint(p), weights="0"))
    with refuses(VitzooError, "worker process", "fingerprint: weights differ", "run", "again"):
        embed("vit_digits", images, tmp_path / "out", workers=2)


ECHO = """
from vitzoo.apps.embed.processes import channel

def main():
    receive, send = channel()
    for value in iter(receive, None):
        send(value)
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A process that sends back what it receives, until None."""
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    process = processes.Process("echo", {})
    yield process
    process.end()


@pytest.mark.usefixtures("nothing_stays")
def test_a_worker_leaves_ctrl_c_to_the_first_process(echo):
    """The terminal sends it to both; the first process ends the other, without a traceback."""
    for number in range(3):
        echo.send(number)
        assert echo.receive() == number
        echo.popen.send_signal(signal.SIGINT)


@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM", None])  # none is ignored
def test_how_a_process_ended_is_named(echo, number):
    number = number and getattr(signal, number)
    echo.send(number)
    if number:
        assert echo.receive() == number
        echo.popen.send_signal(number)
    with refuses(processes.ProcessEnded, f"signal {number.name}" if number else "exit code 0"):
        echo.receive()


# Numbers of torchrun


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_numbers_of_torchrun_with_too_many_digits_are_an_error(images, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "9" * 5000)
    with refuses(InvalidOption, name, f"'{'9' * 56}...", "at most 9 digits", "unset it"):
        embed("vit_digits", images, tmp_path / "out", device="cuda")
    assert not (tmp_path / "out").exists()
