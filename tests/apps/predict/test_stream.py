"""`Stream`: on a GPU the rows of every image are those of the network alone, in order."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from fake_gpu import FakeCopies, use_fake_gpu
from helpers import SPEC, fill, refuses, says
from tables import cases
from vitzoo import Predictor, predict
from vitzoo.apps.predict import stream as module
from vitzoo.apps.predict.normalise import Normalise
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images.decode import UNNAMED_BYTES

pytestmark = pytest.mark.usefixtures("_one_thread")
OUTPUTS = ("labels", "pooled", "blocks.0")
PREPROCESSINGS = {
    "usual": {},
    "rescale_factor": {"rescale_factor": 1 / 255},
    "bgr": {"channel_order": "bgr"},
    "squash": {"crop_mode": "squash", "crop_pct": 1.0},
    "scale": {"scale": 200.0},  # not of 8 bits
    "bands": {"bands": (2, 0, 1)},
}


def network(**preprocessing):
    model = fill(vitzoo.create(SPEC)).eval()
    stated = {"mean": (0.41, 0.52, 0.63), "std": (0.21, 0.22, 0.24), "crop_pct": 0.9}
    model.preprocessing = vitzoo.Preprocessing(**stated | preprocessing)
    return model


def scans(count, size=40):
    draw = np.random.default_rng(count)
    return [draw.integers(0, 256, (size + i % 5, size, 3), np.uint8) for i in range(count)]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        names = ("error", "width", "height", "sha256")
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert one.outputs.keys() == other.outputs.keys()
        for name, value in other.outputs.items():
            if name == "labels":
                assert one.outputs[name] == value
            else:
                assert one.outputs[name].tobytes() == value.tobytes(), name


# The pixels


@pytest.mark.parametrize("change", PREPROCESSINGS.values(), ids=PREPROCESSINGS)
def test_the_device_normalises_to_the_bytes_of_the_transform(change):
    transform = vitzoo.transform(network(**change))
    normalise = Normalise(transform, torch.device("cpu"))
    assert normalise.dtype == (torch.uint8 if transform.resize.of_8_bits else torch.float32)
    assert transform.resize.of_8_bits == (change.keys().isdisjoint({"scale", "bands"}))
    images = [transform.resize.pixels(scan) for scan in scans(4)]
    staged = torch.stack([torch.from_numpy(normalise.stage(image)) for image in images])
    assert staged.shape[1:] == normalise.shape
    assert staged.dtype == normalise.dtype
    found = normalise(staged)
    for one, image in zip(found, images, strict=True):
        assert one.numpy().tobytes() == transform.prepare(image).numpy().tobytes()


def test_every_value_of_a_grey_image_is_normalised_as_on_the_cpu():
    model = vitzoo.create("vit_digits", pretrained=True)
    transform = vitzoo.transform(model)
    values = np.arange(784, dtype=np.int64).astype(np.uint8).reshape(28, 28)  # every value
    normalise = Normalise(transform, torch.device("cpu"))
    pixels = torch.from_numpy(transform.resize.resized(Image.fromarray(values)))
    assert len(pixels.unique()) == 256
    expected = transform.prepare(Image.fromarray(values))
    assert normalise(pixels[None]).numpy().tobytes() == expected[None].numpy().tobytes()


# The rows


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 8, 50])
def test_rows_are_those_of_the_cpu(monkeypatch, chunk, count):
    predictor = Predictor(network(), outputs=OUTPUTS, chunk=chunk)
    images = scans(count)
    expected = predictor(images)
    use_fake_gpu(monkeypatch)
    same(predictor(images), expected)


@pytest.mark.parametrize("broken", [{0}, {0, 1, 2, 3}, {3, 4, 9}, set(range(10))], ids=str)
def test_broken_images_keep_their_places(monkeypatch, broken):
    predictor = Predictor(network(), outputs=OUTPUTS, chunk=4)
    images = [b"no image" if i in broken else scan for i, scan in enumerate(scans(10))]
    expected = predictor(images)
    assert [bool(row.error) for row in expected] == [i in broken for i in range(10)]
    use_fake_gpu(monkeypatch)
    same(predictor(images), expected)


def test_images_of_native_sizes(monkeypatch):
    predictor = Predictor(network(), outputs=("labels", "pooled"), chunk=4, native_size=9)
    draw = np.random.default_rng(0)
    sizes = [(16, 16), (40, 16), (16, 40), (33, 35)] * 9
    images = [draw.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    images[5] = b"no image"
    expected = predictor(images)
    use_fake_gpu(monkeypatch)
    same(predictor(images), expected)


@pytest.mark.parametrize("change", PREPROCESSINGS.values(), ids=PREPROCESSINGS)
def test_rows_of_every_kind_of_preprocessing(monkeypatch, change):
    predictor = Predictor(network(**change), outputs=OUTPUTS, chunk=4)
    expected = predictor(scans(6))
    use_fake_gpu(monkeypatch)
    same(predictor(scans(6)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rows_of_other_types(monkeypatch, dtype):
    predictor = Predictor(network(), outputs=("pooled", "labels"), chunk=4, dtype=dtype)
    expected = predictor(scans(6))
    use_fake_gpu(monkeypatch)
    same(predictor(scans(6)), expected)


def test_the_padding_checks_the_promise(monkeypatch):
    predictor = Predictor(network(), chunk=4)
    use_fake_gpu(monkeypatch)
    results = predictor.computation.results

    def uneven(images):
        found = results(images)
        return {name: x + torch.arange(len(x))[:, None] for name, x in found.items()}

    monkeypatch.setattr(predictor.computation, "results", uneven)
    assert len(predictor(scans(4))) == 4  # no padding, nothing to compare
    with refuses(InvalidOption, "other positions of a chunk of 4", "chunk=1"):
        predictor(scans(5))


# Threads


def test_the_next_chunk_is_computed_and_decoded_before_results_are_read(monkeypatch):
    started, read, decoded = threading.Semaphore(0), [], []

    class Noted(FakeCopies):
        def from_device(self, results):
            started.release()
            found, wait = super().from_device(results)

            def second():
                if len(read) < 5:  # of the last chunk there is no next one
                    assert started.acquire(timeout=60)
                read.append(len(decoded))
                wait()

            return found, second

    use_fake_gpu(monkeypatch, Noted)
    predictor = Predictor(network(), chunk=2)
    real = module.decoded

    def decode(*args):
        decoded.append(1)
        return real(*args)

    monkeypatch.setattr(module, "decoded", decode)
    monkeypatch.setattr(module, "cores_of_process", lambda: 1)
    assert started.acquire(blocking=False) is False
    started.release()
    started.acquire()
    rows = predictor(scans(12))
    assert len(rows) == 12
    assert len(read) == 6
    assert read[0] >= 4  # the first two chunks


def test_few_images_are_taken_ahead_of_the_network(monkeypatch):
    """The source of images may be endless, and each image large."""
    use_fake_gpu(monkeypatch)
    monkeypatch.setattr(module, "cores_of_process", lambda: 2)
    predictor, taken = Predictor(network(), chunk=4), []
    scan = scans(1)[0]

    def endless():
        while True:
            taken.append(1)
            yield scan

    rows = predictor.rows(endless())
    next(rows)
    # 32 images for two threads of tasks of 4: 16, and two chunks more that are computed
    assert len(taken) <= 4 * (4 + 1 + 1)
    rows.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith(("vitzoo-decode", "vitzoo-compute")) for name in names)


def test_machines_with_many_cores_have_a_limited_number_of_threads(monkeypatch):
    use_fake_gpu(monkeypatch)
    monkeypatch.setattr(module, "cores_of_process", lambda: 200)
    predictor = Predictor(network(), chunk=4)
    with module.Stream(predictor, module.one_by_one(module.staging(predictor))) as stream:
        assert stream._pool._max_workers == 64


def test_bytes_of_files_that_wait_are_limited(monkeypatch):
    """Those of decoded images do not count."""
    use_fake_gpu(monkeypatch)
    monkeypatch.setattr(module, "MAX_AHEAD", 1000)
    monkeypatch.setattr(module, "FILE_BYTES", 300)
    monkeypatch.setattr(module, "cores_of_process", lambda: 2)
    predictor, held, most = Predictor(network(), chunk=64), [], []
    scan, staged = scans(1)[0], module.staging(predictor)

    def decode(_):
        time.sleep(0.002)
        held.pop()
        return staged(scan)

    def items():
        for _ in range(100):
            held.append(1)
            most.append(len(held))
            yield 100  # bytes

    with module.Stream(predictor, module.one_by_one(decode)) as stream:
        assert sum(map(len, stream.rows(items(), lambda size: size))) == 100
    assert 3 <= max(most) <= 14  # 1,000 bytes, and a task of 300


def test_an_error_of_the_source_is_raised_and_ends_the_threads(monkeypatch):
    use_fake_gpu(monkeypatch)

    def broken():
        yield from scans(9)
        raise RuntimeError("the source")

    with pytest.raises(RuntimeError, match="the source"):
        Predictor(network(), chunk=2)(broken())
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("vitzoo-") for name in names)


def test_the_settings_of_the_caller_have_no_effect(monkeypatch):
    predictor = Predictor(network(), outputs=OUTPUTS, chunk=4)
    expected = predictor(scans(6))
    use_fake_gpu(monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        found = predictor(scans(6))
    same(found, expected)


def test_several_threads_may_call_one_stream(monkeypatch):
    predictor = Predictor(network(), outputs=OUTPUTS, chunk=4)
    images = [scans(count) for count in (1, 7, 12)]
    expected = [predictor(some) for some in images]
    use_fake_gpu(monkeypatch)
    found = [None] * 3
    with module.Stream(predictor, module.one_by_one(module.staging(predictor))) as stream:

        def call(place):
            found[place] = [row for rows in stream.rows(images[place]) for row in rows]

        threads = [threading.Thread(target=call, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@cases(("free", "message"), [(True, "CUDA error: out of memory"), (False, "another error")])
def test_page_locked_memory_that_is_refused_is_explained(monkeypatch, free, message):
    from vitzoo.apps.predict.device_copies import DeviceCopies

    def refuse(*_, **__):
        raise RuntimeError(message)

    copies = object.__new__(DeviceCopies)
    copies.device = None
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises((RuntimeError, InvalidOption)) as caught:
        copies.buffer((64, 8, 8, 3), torch.uint8)
    if free:
        assert isinstance(caught.value, InvalidOption)
        says(str(caught.value), "64 images", "page-locked memory", "smaller --chunk")
    else:
        assert str(caught.value) == message


# The apps


def test_predict_uses_the_stream(monkeypatch, tmp_path):
    model = network()
    for i, scan in enumerate(scans(20)):
        Image.fromarray(scan).save(tmp_path / f"{i:02}.png")
    (tmp_path / "07.png").write_bytes(b"no image")
    errors = []
    expected = predict(model, tmp_path, top=3, batch_size=4, on_error=errors.append)
    use_fake_gpu(monkeypatch)
    monkeypatch.setattr("vitzoo.apps.predict.predict._classes_of", None)
    again = []
    found = predict(model, tmp_path, top=3, batch_size=4, on_error=again.append)
    assert [one.image for one in found] == [one.image for one in expected]
    assert [str(one) for one in again] == [str(one) for one in errors]
    for one, other in zip(found, expected, strict=True):
        assert one.error == other.error
        assert [c[:2] for c in one.classes] == [c[:2] for c in other.classes]
        assert np.allclose([c[2] for c in one.classes], [c[2] for c in other.classes], atol=1e-6)


@cases(("batch_size", "expected"), [(None, 8), (3, 3), (1000, 8)])
def test_the_batch_of_predict_is_at_most_what_a_predictor_chooses(
    monkeypatch, batch_size, expected
):
    sizes = []

    class Noted(FakeCopies):
        def buffer(self, shape, dtype):
            sizes.append(shape[0])
            return super().buffer(shape, dtype)

    use_fake_gpu(monkeypatch, Noted)
    predict(network(), scans(2), batch_size=batch_size)
    assert sizes == [expected]


def test_a_missing_file_keeps_its_message(monkeypatch, tmp_path):
    use_fake_gpu(monkeypatch)
    with refuses(ImageError, "nothing.png"):
        predict(network(), [tmp_path / "nothing.png", scans(1)[0]])
    (row,) = Predictor(network())(b"no image")
    says(row.error, UNNAMED_BYTES)
