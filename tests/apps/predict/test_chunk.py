"""How many images a forward pass has: found once, stored, and used by every later process."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo import Predictor
from vitzoo.apps.embed.folder import rows_of_part
from vitzoo.apps.predict import chunk as module
from vitzoo.apps.predict.chunk import CHUNK, SIZES, explained, largest_chunk, peak_memory
from vitzoo.errors import InvalidOption

pytestmark = pytest.mark.usefixtures("_one_thread")
DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"
GPU = torch.device("cuda:0")
MIB = 2**20
IMAGE = torch.zeros(1, 3, 8, 8)


@pytest.fixture
def passes(monkeypatch):
    """The numbers of images in the forward passes, without padding."""
    sizes, start = [], Predictor._compute

    def counted(self, images):
        sizes.append(sum(not image.error for image in images))
        return start(self, images)

    monkeypatch.setattr(Predictor, "_compute", counted)
    return sizes


@pytest.fixture
def on_gpu(monkeypatch):
    """A Predictor takes the CPU for a GPU of 100 MiB; an image needs 1 MiB in a forward pass."""
    monkeypatch.setattr("vitzoo.apps.predict.predictor.CPU", "another device")
    monkeypatch.setattr("vitzoo.apps.predict.computation.CPU", "another device")
    monkeypatch.setattr(module, "total_memory", lambda _: 100 * MIB)
    monkeypatch.setattr(module, "peak_memory", lambda run, _: len(run()["pooled"]) * MIB)


# Images are read as many at a time as a chunk holds.


def test_a_layer_whose_equal_rows_differ_makes_chunks_of_one_image(monkeypatch):
    def uneven(x, weight, bias):
        return linear(x, weight, bias) + torch.arange(len(x))[:, None] * (len(weight) == 2)

    linear = torch.nn.functional.linear
    monkeypatch.setattr(module, "F", SimpleNamespace(linear=uneven))
    for classes, chunk in ((10, 8), (2, 1)):
        assert Predictor(vitzoo.create("vit_digits", num_classes=classes)).chunk == chunk


def test_rows_fill_a_chunk(passes):
    predictor = vitzoo.Predictor("vit_digits", chunk=64)
    scans = [np.full((28, 28), i, np.uint8) for i in range(130)]
    rows = predictor(scans)
    assert passes == [64, 64, 2]
    one = vitzoo.Predictor("vit_digits")(scans[-1:])[0].outputs["pooled"]
    assert np.allclose(rows[-1].outputs["pooled"], one, atol=1e-5)


def test_images_are_taken_one_chunk_at_a_time():
    taken = []
    scans = (taken.append(i) or np.full((28, 28), i, np.uint8) for i in range(100))
    rows = vitzoo.Predictor("vit_digits", chunk=20).rows(scans)
    next(rows)
    assert len(taken) == 20
    assert next(rows).error == ""
    assert len(taken) == 20


@pytest.mark.parametrize("broken", [{0}, {0, 1, 2, 3}, {3, 4, 9}], ids=str)
def test_broken_images_keep_their_places(broken, passes):
    images = [b"no image" if i in broken else np.full((28, 28), i, np.uint8) for i in range(10)]
    rows = vitzoo.Predictor("vit_digits", chunk=4)(images)
    assert [bool(row.error) for row in rows] == [i in broken for i in range(10)]
    assert sum(passes) == 10 - len(broken)


# The trial


def copies(alike_to):
    """Return a function whose results of copies differ in chunks larger than `alike_to`."""

    def compute(images):
        places = torch.arange(len(images))[:, None] * (len(images) > alike_to)
        return {"pooled": images.flatten(1)[:, :1] + places}

    return compute


@cases(
    ("memory", "each", "alike_to", "expected"),
    [
        (10**12, MIB, 10**9, 256),
        (600 * MIB, MIB, 10**9, 256),
        (500 * MIB, MIB, 10**9, 128),
        (200 * MIB, MIB, 10**9, 64),
        (20 * MIB, MIB, 10**9, 8),
        (1, MIB, 10**9, 8),  # the smallest is tried, and raises if it does not fit
        (10**12, MIB, 100, 64),
        (10**12, MIB, 8, 8),
        (10**12, MIB, 0, 1),
        (0, MIB, 10**9, 8),  # a device whose memory is not known
    ],
)
def test_a_trial_finds_the_largest_chunk(memory, each, alike_to, expected, monkeypatch):
    monkeypatch.setattr(module, "total_memory", lambda _: memory)
    monkeypatch.setattr(module, "peak_memory", lambda run, _: len(run()["pooled"]) * each)
    model = torch.nn.Linear(10, 10)
    assert largest_chunk(copies(alike_to), IMAGE, model) == expected
    assert largest_chunk(copies(alike_to), IMAGE, model) == expected


def test_the_weights_count(monkeypatch):
    monkeypatch.setattr(module, "total_memory", lambda _: 600 * MIB)
    monkeypatch.setattr(module, "peak_memory", lambda *_: 8 * MIB)
    with torch.device("meta"):
        large = torch.nn.Linear(MIB, 25, bias=False)  # 100 MiB
    assert largest_chunk(copies(10**9), IMAGE, large) == 128


class Cuda:
    """The functions of torch.cuda that tell of memory; what is free is none of their business."""

    def __init__(self, before):
        self.now = self.peak = before
        self.passes = 0

    def install(self, monkeypatch):
        found = SimpleNamespace(total_memory=80 * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("free memory"))

    def reset(self, _):
        self.peak = self.now

    def run(self):
        if not self.passes:
            self.now += 32 * MIB  # a workspace that stays
        self.passes += 1
        self.peak = max(self.peak, self.now + 5 * MIB)


@pytest.mark.parametrize("before", [0, 2**30])
def test_the_peak_is_that_of_one_forward_pass(before, monkeypatch):
    cuda = Cuda(before)
    cuda.install(monkeypatch)
    assert peak_memory(cuda.run, GPU) == 5 * MIB
    assert module.total_memory(GPU) == 80 * 2**30


def test_a_chunk_on_mps_is_one_image():
    model = SimpleNamespace(
        parameters=lambda: [SimpleNamespace(device=torch.device("mps"), nbytes=8)],
        buffers=list,
    )
    assert largest_chunk(lambda _: pytest.fail("a trial"), IMAGE, model) == 1


def test_a_chunk_without_free_memory_is_named():
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    for error in (full, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")):
        with refuses(InvalidOption, "a chunk of 64 images", "cuda:0", "--chunk (chunk=)"):  # noqa: SIM117
            with explained(64, GPU):
                raise error
    for error, device in ((RuntimeError("another"), GPU), (RuntimeError("out of memory"), "cpu")):
        with pytest.raises(RuntimeError) as raised, explained(64, torch.device(device)):
            raise error
        assert raised.value is error


# Its result stays.


@pytest.mark.usefixtures("on_gpu")
def test_a_pickle_has_the_chunk_of_the_trial(monkeypatch):
    data = pickle.dumps(vitzoo.Predictor("vit_digits"))
    monkeypatch.setattr(module, "total_memory", lambda _: pytest.fail("a second trial"))
    assert pickle.loads(data).chunk == 32


@pytest.mark.usefixtures("on_gpu")
def test_a_folder_has_the_chunk_of_the_trial_and_keeps_it(tmp_path, monkeypatch):
    out = tmp_path / "out"
    vitzoo.embed("vit_digits", DIGITS, out, workers=1)
    stated = json.loads((out / "_manifest.json").read_text())
    assert stated["fingerprint"]["chunk"] == [32, 1, 28, 28]
    before = {path.name: path.read_bytes() for path in out.glob("part-*")}
    monkeypatch.setattr(module, "total_memory", lambda _: pytest.fail("a second trial"))
    for path in out.glob("part-*"):
        path.unlink()
    for model in ("vit_digits", vitzoo.Predictor("vit_digits")):
        vitzoo.embed(model, DIGITS, out, workers=1)
        assert {path.name: path.read_bytes() for path in out.glob("part-*")} == before
    sources = [DIGITS, *sorted(DIGITS.parent.glob("*.png"))]
    assert vitzoo.embed("vit_digits", sources, out, workers=1, extend=True).missing == 0
    with refuses(InvalidOption, "chunk is [32, 1, 28, 28] in it", "[8, 1, 28, 28] now"):
        vitzoo.embed("vit_digits", DIGITS, out, workers=1, chunk=8)


@pytest.mark.usefixtures("on_gpu")
def test_a_folder_with_chunks_of_8_keeps_them_on_a_gpu(tmp_path, monkeypatch):
    vitzoo.embed("vit_digits", DIGITS, tmp_path / "out", workers=1, chunk=8)
    monkeypatch.setattr(module, "total_memory", lambda _: pytest.fail("a trial"))
    (tmp_path / "out" / "part-000000.parquet").unlink()
    done = vitzoo.embed("vit_digits", DIGITS, tmp_path / "out", workers=1)
    assert (done.computed, done.missing) == (10, 0)


def test_the_cpu_has_chunks_of_8_unless_others_are_named(tmp_path, passes):
    vitzoo.embed("vit_digits", DIGITS, tmp_path / "8", workers=1)
    vitzoo.embed("vit_digits", DIGITS, tmp_path / "10", workers=1, chunk=10)
    assert passes == [8, 2, 8, 2, 10, 10]  # of the canary, then of the scans
    eight, ten = (np.stack(pq.read_table(tmp_path / n)["pooled"].to_pylist()) for n in ("8", "10"))
    assert np.allclose(eight, ten, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[], [0, 1], ["8"], [2**60, 1], 8, None])
def test_a_manifest_without_a_chunk_is_refused(shape, tmp_path):
    vitzoo.embed("vit_digits", DIGITS, tmp_path, workers=1)
    manifest = json.loads((tmp_path / "_manifest.json").read_text())
    manifest["fingerprint"]["chunk"] = shape
    (tmp_path / "_manifest.json").write_text(json.dumps(manifest))
    with refuses(InvalidOption, "fingerprint.chunk is", "[8, 1, 28, 28] now", "another --out"):
        vitzoo.embed("vit_digits", DIGITS, tmp_path, workers=1)


def test_a_predictor_has_its_own_chunk(tmp_path):
    with refuses(InvalidOption, "a Predictor", "chunk", "pass them to it"):
        vitzoo.embed(vitzoo.Predictor("vit_digits"), DIGITS, tmp_path / "out", chunk=4)
    given = vitzoo.Predictor("vit_digits", chunk=4)
    assert given.with_chunk(32) is given
    other = vitzoo.Predictor("vit_digits")
    assert (other.with_chunk(32).chunk, other.chunk) == (32, CHUNK)
    assert other.with_chunk(32).model is other.model


@pytest.mark.parametrize(
    ("count", "chunk", "expected"),
    [(10, 8, 64), (10**6, 8, 1024), (10, 256, 256), (10**6, 256, 1024), (3000, 64, 128)],
)
def test_parts_hold_whole_chunks(count, chunk, expected):
    assert rows_of_part(count, 256, chunk) == expected
    assert rows_of_part(count, 2**26, chunk) == 8  # the size of a part is limited
    assert expected % chunk == 0
    assert chunk in (CHUNK, *SIZES)
