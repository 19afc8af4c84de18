"""On a GPU: the stream of images gives the rows of single chunks, and waits for nothing else."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import fill
from vitzoo import Predictor
from vitzoo.apps.embed import embed as embed_module
from vitzoo.apps.predict.device_copies import DeviceCopies
from vitzoo.apps.predict.normalise import Normalise

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

OUTPUTS = ("labels", "pooled", "blocks.1")
PREPROCESSINGS = {
    "usual": {},
    "rescale_factor": {"rescale_factor": 1 / 255},
    "bgr": {"channel_order": "bgr"},
    "bands": {"bands": (2, 0, 1)},
}


@pytest.fixture(autouse=True, scope="module")
def gpu():
    assert torch.cuda.is_available(), "these tests need a GPU of NVIDIA: run them on such a machine"


def network(**change):
    spec = {"image_size": 64, "patch_size": 8, "num_classes": 11, "embed_dim": 384, "depth": 3}
    model = fill(vitzoo.create({**spec, "num_heads": 6, "mlp_dim": 1536})).eval()
    stated = {"mean": (0.41, 0.52, 0.63), "std": (0.21, 0.22, 0.24)}
    model.preprocessing = vitzoo.Preprocessing(**stated | change)
    return model


def scans(count, size=64):
    draw = np.random.default_rng(count)
    return [draw.integers(0, 256, (size + i % 7, size, 3), np.uint8) for i in range(count)]


def rows_of_chunks(predictor, images):
    """The outputs of images without the stream: inputs that the CPU normalised, chunk by chunk."""
    return predictor.compute([predictor.decode(image).tensor for image in images])


def same(rows, expected):
    for row, outputs in zip(rows, expected, strict=True):
        for name, value in outputs.items():
            found = row.outputs[name]
            if name == "labels":
                assert found == value
            else:
                assert found.tobytes() == value.tobytes(), name


@pytest.mark.parametrize("change", PREPROCESSINGS.values(), ids=PREPROCESSINGS)
def test_the_gpu_normalises_to_the_bytes_of_the_cpu(change):
    transform = vitzoo.transform(network(**change))
    normalise = Normalise(transform, torch.device("cuda"))
    images = [transform.resize.pixels(scan) for scan in scans(8)]
    staged = torch.stack([torch.from_numpy(normalise.stage(image)) for image in images])
    found = normalise(staged.cuda()).cpu()
    expected = torch.stack([transform.prepare(image) for image in images])
    assert found.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 64, 300])
def test_rows_of_the_stream_are_those_of_single_chunks(dtype, count):
    predictor = Predictor(network().cuda(), outputs=OUTPUTS, dtype=dtype, chunk=64)
    images = scans(count)
    same(predictor(images), rows_of_chunks(predictor, images))


def test_broken_images_and_native_sizes():
    images = scans(40)
    for place in (0, 7, 39):
        images[place] = b"no image"
    good = [image for image in images if not isinstance(image, bytes)]
    for options in ({}, {"native_size": 64}):
        predictor = Predictor(network().cuda(), outputs="pooled", chunk=16, **options)
        rows = predictor(images)
        assert [bool(row.error) for row in rows] == [isinstance(i, bytes) for i in images]
        same([row for row in rows if not row.error], rows_of_chunks(predictor, good))


def test_predict_has_the_classes_of_the_cpu():
    model = network()
    expected = vitzoo.predict(model, scans(20), top=1)
    found = vitzoo.predict(model.cuda(), scans(20), top=1)
    assert [one.classes[0][:2] for one in found] == [one.classes[0][:2] for one in expected]


def test_copies_do_not_wait_for_the_network():
    """A copy to the GPU ends while kernels of the computing thread still run."""
    copies, device = DeviceCopies(torch.device("cuda")), torch.device("cuda")
    busy = torch.randn(4096, 4096, device=device)
    buffer = copies.buffer((64, 224, 224, 3), torch.uint8)
    assert buffer.is_pinned()
    torch.cuda.synchronize()
    for _ in range(50):
        busy = (busy @ busy).clamp(-1, 1)
    working = torch.cuda.Event()
    working.record()
    copy = copies.to_device(buffer)
    copied = torch.cuda.Event()
    copied.record(copies._stream)
    copied.synchronize()
    assert not working.query()
    results, wait = copies.from_device({"sum": copy.sum()})
    assert results["sum"].is_pinned()
    wait()
    assert working.query()
    assert int(results["sum"]) == int(buffer.sum())


def test_several_threads_share_the_gpu():
    predictor = Predictor(network().cuda(), outputs="pooled", chunk=16)
    images = [scans(count) for count in (20, 40, 60)]
    expected = [rows_of_chunks(predictor, some) for some in images]
    found = [None] * 3

    def call(place):
        found[place] = predictor(images[place])

    threads = [threading.Thread(target=call, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows, outputs in zip(found, expected, strict=True):
        same(rows, outputs)


@pytest.mark.parametrize("few", [0, 10**9], ids=["processes", "threads"])
def test_embed_writes_the_vectors_of_the_predictor(tmp_path, monkeypatch, few):
    monkeypatch.setattr(embed_module, "FEW", few)
    (tmp_path / "in").mkdir()
    images = scans(150)
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "in" / f"{i:03}.png", compress_level=1)
    predictor = Predictor(network().cuda(), outputs=("pooled",), chunk=32)
    done = vitzoo.embed(predictor, tmp_path / "in", tmp_path / "out")
    assert (done.computed, done.errors) == (150, 0)
    assert done.device.startswith("cuda")
    vectors = np.stack(pq.read_table(tmp_path / "out")["pooled"].to_pylist()).astype(np.float32)
    for vector, expected in zip(vectors, rows_of_chunks(predictor, images), strict=True):
        assert vector.tobytes() == expected["pooled"].tobytes()
