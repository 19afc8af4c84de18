"""`embed` on a GPU: one stream over all parts writes the bytes of the CPU, also after an end."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from PIL import Image

import vitzoo
from fake_gpu import FakeCopies, use_fake_gpu
from helpers import SPEC, fill, refuses
from tables import cases
from vitzoo import Predictor, embed
from vitzoo.apps.embed import (
    decode_processes,
    embed as embed_module,
    folder as folder_module,
    part_file,
    stream_pipeline as module,
)
from vitzoo.apps.embed.items import Item, read_file
from vitzoo.apps.embed.part_file import claim
from vitzoo.errors import StoreError, VitzooError

COUNT, PART = 150, 16
OUTPUTS = ("pooled", "labels", "blocks.0")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """150 images, three of them broken, two at the ends of parts."""
    folder = tmp_path_factory.mktemp("stream") / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        pixels = draw.integers(0, 256, (33 + i % 5, 34, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.png", compress_level=1)
    for i in (7, 15, 16):
        (folder / f"{i:03}.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    model = fill(vitzoo.create(SPEC))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    return vitzoo.save(model, tmp_path_factory.mktemp("net") / "net.safetensors")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(folder_module, "MIN_ROWS", PART)
    monkeypatch.setattr(folder_module, "MAX_ROWS", PART)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("vitzoo-") for name in names), names


@pytest.fixture
def on_cpu(photos, net, tmp_path):
    embed(net, photos, tmp_path / "cpu", outputs=OUTPUTS, workers=1)
    return tmp_path / "cpu"


@pytest.fixture
def gpu(monkeypatch, on_cpu):  # noqa: ARG001
    """A fake GPU, after the CPU has computed what to compare with."""
    use_fake_gpu(monkeypatch)


def bytes_of(folder):
    """The files that are no locks."""
    files = [path for path in Path(folder).iterdir() if not path.name.endswith(".lock")]
    return {path.name: path.read_bytes() for path in files}


def same(out, on_cpu):
    found, expected = bytes_of(out), bytes_of(on_cpu)
    assert len(expected) == -(-COUNT // PART) + 1  # the manifest
    assert found == expected


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_the_files_are_those_of_the_cpu(photos, net, on_cpu, tmp_path, workers, batch_size):
    """The other worker is on the CPU here, and asks for its parts, too."""
    notes = []
    done = embed(
        net, photos, tmp_path / "out", outputs=OUTPUTS, workers=workers, batch_size=batch_size,
        on_progress=lambda *note: notes.append(note),
    )  # fmt: skip
    assert (done.computed, done.errors, done.missing) == (COUNT, 3, 0)
    same(tmp_path / "out", on_cpu)
    assert [note[0] for note in notes] == sorted(note[0] for note in notes)
    assert notes[-1][:2] == (COUNT, COUNT)
    work = done.work
    assert min(work.read, work.decode, work.model) > 0


@pytest.mark.usefixtures("gpu")
def test_shards_write_the_same_files(photos, net, on_cpu, tmp_path):
    for index in (1, 0):
        embed(net, photos, tmp_path / "out", outputs=OUTPUTS, shard=(index, 2), workers=1)
    same(tmp_path / "out", on_cpu)


def test_a_chunk_goes_over_the_end_of_a_part(photos, net, tmp_path, monkeypatch):
    sizes = []

    class Noted(FakeCopies):
        def to_device(self, buffer):
            sizes.append(len(buffer))
            return super().to_device(buffer)

    use_fake_gpu(monkeypatch, Noted)
    monkeypatch.setattr("vitzoo.apps.embed.embed.canaries", lambda *_: {})  # other images
    embed(net, photos, tmp_path / "out", chunk=12, workers=1)
    assert set(sizes) == {12}
    assert -(-(COUNT - 3) // 12) <= len(sizes) <= -(-COUNT // 12)
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 2


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("after", [1, 2, 5, 11, 18])
def test_an_interrupted_call_is_completed_with_the_same_bytes(photos, net, on_cpu, tmp_path, after):
    calls = itertools.count(1)

    def interrupt(*_):
        if next(calls) == after:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        embed(net, photos, out, outputs=OUTPUTS, on_progress=interrupt, workers=1)
    left = sorted(bytes_of(out))
    assert all(name.startswith(("part-", "_manifest")) for name in left), left
    whole = len(list(out.glob("*.parquet")))
    assert max(0, 8 * (after - 4) // PART - 1) <= whole <= 8 * after // PART
    done = embed(net, photos, out, outputs=OUTPUTS, workers=1)
    assert done.computed == COUNT - whole * PART
    same(out, on_cpu)


@pytest.mark.usefixtures("gpu")
def test_a_part_that_another_process_writes_is_left_out(photos, net, on_cpu, tmp_path):
    out = tmp_path / "out"
    embed(net, photos, out, outputs=OUTPUTS, workers=1)
    for number in (2, 3):
        (out / f"part-{number:06}.parquet").unlink()
    with claim(out / "part-000002.parquet") as free:
        assert free
        done = embed(net, photos, out, outputs=OUTPUTS, workers=1)
    assert (done.computed, done.missing) == (PART, 1)
    embed(net, photos, out, outputs=OUTPUTS, workers=1)
    same(out, on_cpu)


@pytest.mark.usefixtures("gpu")
@cases("at", [0, 1, 4])
def test_a_part_that_cannot_be_written_ends_the_call(
    photos, net, on_cpu, tmp_path_factory, monkeypatch, at
):
    out, written = tmp_path_factory.mktemp("full") / "out", itertools.count()
    write = part_file.write_part

    def full(path, form, rows):
        if next(written) == at:
            next(rows)
            raise StoreError("the disk is full")
        write(path, form, rows)

    monkeypatch.setattr(module, "write_part", full)
    with refuses(StoreError, "the disk is full"):
        embed(net, photos, out, outputs=OUTPUTS, workers=1)
    assert len(list(out.glob("*.parquet"))) == at
    monkeypatch.setattr(module, "write_part", write)
    done = embed(net, photos, out, outputs=OUTPUTS, workers=1)  # no part is locked
    assert done.missing == 0
    same(out, on_cpu)


@pytest.mark.usefixtures("gpu")
def test_an_error_of_the_network_keeps_the_parts_before_it(photos, net, on_cpu, tmp_path):
    predictor, calls = Predictor(net, outputs=OUTPUTS), itertools.count()
    results = predictor.computation.results

    def fail(images):
        if next(calls) == 9:
            raise VitzooError("the network fails")
        return results(images)

    predictor.computation.results = fail
    out = tmp_path / "out"
    with refuses(VitzooError, "the network fails"):
        embed(predictor, photos, out, workers=1)
    assert 2 <= len(list(out.glob("*.parquet"))) <= 4
    embed(net, photos, out, outputs=OUTPUTS, workers=1)
    same(out, on_cpu)


@pytest.mark.usefixtures("gpu")
def test_images_of_native_sizes(photos, net, tmp_path, monkeypatch):
    embed(net, photos, tmp_path / "gpu", native_size=9, workers=1)
    monkeypatch.undo()
    monkeypatch.setattr(folder_module, "MIN_ROWS", PART)
    monkeypatch.setattr(folder_module, "MAX_ROWS", PART)
    embed(net, photos, tmp_path / "cpu9", native_size=9, workers=1)
    assert bytes_of(tmp_path / "gpu") == bytes_of(tmp_path / "cpu9")
    assert pq.read_table(tmp_path / "gpu").num_rows == COUNT


@pytest.mark.usefixtures("gpu")
def test_the_thread_that_writes_holds_few_rows(photos, net, on_cpu, tmp_path, monkeypatch):
    """A slow disk slows the network down, and fills no memory."""
    gate, write, notes = threading.Event(), part_file.write_part, []

    def slow(path, form, rows):
        gate.wait(60)
        write(path, form, rows)

    def note(done, *_):
        notes.append(done)
        if len(notes) == module.WAITING + 1:
            threading.Timer(0.5, gate.set).start()
            threading.Timer(0.4, lambda: notes.append("open")).start()

    monkeypatch.setattr(module, "write_part", slow)
    embed(net, photos, tmp_path / "out", outputs=OUTPUTS, on_progress=note, workers=1)
    assert notes.index("open") == module.WAITING + 1
    same(tmp_path / "out", on_cpu)


# Processes that decode


@pytest.fixture
def processes(monkeypatch):
    """Let other processes decode; return those that were started."""
    started, start = [], decode_processes.Process

    def noted(*args, **kwargs):
        started.append(start(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(embed_module, "FEW", 0)
    monkeypatch.setattr(embed_module, "_on_cpu", lambda _: False)
    monkeypatch.setattr(embed_module, "cores_of_process", lambda: 2)
    monkeypatch.setattr(decode_processes, "Process", noted)
    yield started
    assert all(one.popen.poll() is not None for one in started)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("native_size", [None, pytest.param(9, marks=pytest.mark.slow)])
def test_other_processes_decode_to_the_same_bytes(
    photos, net, tmp_path, monkeypatch, processes, native_size
):
    sources = tmp_path / "photos"
    shutil.copytree(photos, sources)
    (sources / "030.png").unlink()
    os.mkfifo(sources / "030.png")  # an error when it is read
    large = Image.fromarray(np.zeros((60, 70), np.uint8))
    large.save(sources / "031.png")
    with tarfile.open(tmp_path / "more.tar", "w") as tar:
        tar.add(sources / "000.png", "a.png")
        tar.add(sources / "007.png", "b.png")
    cells = [(sources / "001.png").read_bytes(), None, b"no image"]
    pq.write_table(pa.table({"image": pa.array(cells, pa.binary())}), tmp_path / "more.parquet")
    every = [sources, tmp_path / "more.tar", tmp_path / "more.parquet"]
    done = embed(net, every, tmp_path / "found", native_size=native_size, workers=1)
    assert len(processes) == 2
    assert min(done.work.read, done.work.decode) > 0
    monkeypatch.setattr(embed_module, "FEW", 10**9)
    embed(net, every, tmp_path / "expected", native_size=native_size, workers=1)
    assert len(processes) == 2
    assert bytes_of(tmp_path / "found") == bytes_of(tmp_path / "expected")
    assert done.errors == 7


@pytest.mark.usefixtures("gpu", "processes")
def test_bands_are_prepared_in_this_process(photos, net, tmp_path, processes):
    model = vitzoo.create(net)
    model.preprocessing = dataclasses.replace(model.preprocessing, bands=(2, 1, 0))
    vitzoo.save(model, tmp_path / "net.safetensors")
    done = embed(tmp_path / "net.safetensors", photos, tmp_path / "out", workers=1)
    assert (done.errors, processes) == (3, [])


@pytest.mark.usefixtures("gpu")
def test_a_killed_process_ends_the_call_and_keeps_parts(photos, net, on_cpu, tmp_path, processes):
    calls = itertools.count(1)

    def kill(*_):
        if next(calls) == 6:
            for one in processes:
                one.popen.kill()

    out = tmp_path / "out"
    with refuses(VitzooError, "decodes images", "SIGKILL", "run the command again"):
        embed(net, photos, out, outputs=OUTPUTS, workers=1, on_progress=kill)
    assert len(list(out.glob("*.parquet"))) >= 1
    embed(net, photos, out, outputs=OUTPUTS, workers=1)
    same(out, on_cpu)


@pytest.mark.usefixtures("gpu", "processes")
def test_a_process_that_does_not_start_is_an_error(photos, net, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(decode_processes, "Process", refuse)
    with refuses(VitzooError, "cannot start", "Resource temporarily", "ulimit -u"):
        embed(net, photos, tmp_path / "out", workers=1)


def test_the_processes_import_no_torch():
    code = (
        f"import sys, {decode_processes.MODULE}; print({{'torch', 'pyarrow'}} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_error_of_a_process_is_raised():
    """Such as that of a package which an earlier version of Pillow does not have."""
    resize = vitzoo.transform("vit_digits").resize
    with decode_processes.DecodeProcesses(resize, deque()) as decode:
        with refuses(VitzooError, "ZeroDivisionError"):
            decode([Item("", partial(divmod, 1, 0))], None)
        path = str(next(Path("docs/examples/digits").iterdir()).resolve())
        (image,) = decode([Item("", partial(read_file, path))], None)  # it still runs
        assert image.tensor.shape == (28, 28, 1)


def test_one_large_image_is_decoded_at_a_time(tmp_path):
    """In all processes together: they hold one lock file."""
    resize, file = vitzoo.transform("vit_digits").resize, tmp_path / "large.png"
    Image.new("L", (4100, 4100)).save(file)
    with decode_processes.DecodeProcesses(resize, deque()) as decode:
        task = [Item("", partial(read_file, str(file)))]
        lock = Path(decode._folder.name) / "large.lock"
        with ThreadPoolExecutor(1) as pool:
            with FileLock(lock):
                done = pool.submit(decode, task, None)
                time.sleep(1.5)
                assert not done.done()
            assert done.result()[0].width == 4100
