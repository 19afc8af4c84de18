"""How busy the apps keep a GPU whose chunks, and whose decoding of images, are replaced by sleeps.

    gpu_pipeline.py ROW [IMAGES]

prints as JSON: images per second; the ideal, which decoding in 16 threads and the GPU allow; what
they allowed in this run, in which a sleep takes longer if cores are busy (of `embed`, which notes
it); the share of time in which the GPU computes; and the CPU's time in this process for an image.
Everything else is real: files, threads, rows, Parquet. It also runs with the code of ee1f85a9
(PYTHONPATH), whose internal functions have other names.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

import vitzoo
import vitzoo.apps.predict.outputs as outputs_module
import vitzoo.apps.predict.predictor as predictor_module
from vitzoo import Predictor

THREADS, CHUNK = 16, 256
OLD = hasattr(outputs_module, "Started")
ROWS = {  # seconds of decoding an image, of a chunk on the GPU, and the outputs
    "embed": (0.004, 0.06, "pooled"),
    "embed of one part": (0.004, 0.06, "pooled"),
    "embed of tokens": (0.004, 0.06, "blocks.0"),
    "labels": (0.003, 0.06, "labels"),
    "pooled": (0.003, 0.06, "pooled"),
    "predict": (0.003, 0.06, "labels"),
    "probe": (0.003, 0.06, "pooled"),
    "ray, a chunk a call": (0.003, 0.06, "pooled"),
    "host": (0.0, 0.0, "pooled"),
}


class Gpu:
    """Computes one chunk after the other, each in a number of seconds."""

    def __init__(self, seconds):
        self.seconds, self.free_at, self.busy, self.spent = seconds, 0.0, [], 0.0
        self.lock = threading.Lock()

    def start(self):
        """Queue a chunk; return what waits for it."""
        with self.lock:
            begin = max(time.perf_counter(), self.free_at)
            self.free_at = end = begin + self.seconds
            self.spent = self.spent if self.busy else os.times().user
            self.busy.append((begin, end))
        return lambda: time.sleep(max(0.0, end - time.perf_counter()))


def image_sources(folder, count):
    """Write a folder of images, which are links to one file."""
    (folder / "in").mkdir()
    one = folder / "one.png"
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(one)
    for i in range(count):
        os.link(one, folder / "in" / f"{i:06}.png")
    return folder / "in", one


def zeros(predictor):
    """What the network would give for a chunk."""
    shapes = predictor.shapes
    return {n: torch.zeros(CHUNK, *(shapes.get(n) or (10,))) for n in predictor.outputs}


class Copies:
    """Copies to and from a `Gpu`."""

    gpu: Gpu

    def __init__(self, device):
        self.device = device

    def enter_thread(self):
        """Do nothing."""

    def buffer(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def to_device(self, buffer):
        return buffer

    def from_device(self, results):
        return results, self.gpu.start()


def fake_results(real):
    """Return a function that computes one image for each network, and repeats its results."""
    made = {}

    def results(self, images):
        if len(images) < CHUNK:
            return real(self, images)
        if id(self) not in made:
            found = real(self, torch.zeros(1, *images.shape[1:]))
            made[id(self)] = {n: x.expand(CHUNK, *x.shape[1:]).clone() for n, x in found.items()}
        return made[id(self)]

    return results


def replace_new(gpu, decode):
    from gpu_pipeline_child import slow

    from vitzoo.apps.embed import decode_processes, embed
    from vitzoo.apps.predict import computation, stream
    from vitzoo.ray import embedder

    Copies.gpu = gpu
    stream.DeviceCopies = Copies
    Predictor.asynchronous, Predictor.chunk = True, CHUNK
    computation.Computation.results = fake_results(computation.Computation.results)
    embed._on_cpu = lambda _: False
    for module in (stream, embed):
        module.cores_of_process = lambda: THREADS
    embedder.cores = lambda: THREADS
    os.environ["GPU_PIPELINE_DECODE"] = str(decode)
    decode_processes.MODULE = "gpu_pipeline_child"
    stream.decoded = slow(stream.decoded)


def replace_old(gpu, decode):
    from dataclasses import replace

    from vitzoo.apps.embed import pipeline, workers

    started = outputs_module.Started
    kept, real = {}, Predictor.decode

    def fixed(predictor, data):
        if "image" not in kept:
            kept["image"] = real(predictor, data)
        return kept["image"]

    def decode_item(predictor, item):
        data = item.load()
        time.sleep(decode) if decode else None
        return fixed(predictor, data), pipeline.Work(decode=decode)

    pipeline._decode = decode_item
    Predictor.decode = lambda self, image, *_: (
        time.sleep(decode) if decode else None,
        fixed(self, image),
    )[1]

    def start(self, images):
        used = [image.tensor for image in images if image.tensor is not None]
        torch.stack([*used, *[used[0]] * (CHUNK - len(used))])
        if not hasattr(self, "_made"):
            self._made = zeros(self)
        return started(images, len(used), self._made, SimpleNamespace(synchronize=gpu.start()))

    Predictor._start = start
    finish = Predictor._finish

    def finish_labels(self, one):
        if "labels" in self.outputs:  # they are computed on the device, after what is queued
            time.sleep(max(0.0, gpu.free_at - time.perf_counter()))
        return finish(self, one)

    Predictor._finish = finish_labels
    Predictor.asynchronous = property(lambda _: True)
    Predictor.chunk = CHUNK
    predictor_module.cores = lambda: THREADS
    original = workers.Pipeline

    class Pipeline(original):
        def __init__(self, job):
            super().__init__(replace(job, threads=THREADS, read_ahead=2 * CHUNK))

    workers.Pipeline = Pipeline


def run(row, count):
    import vitzoo.apps.embed.folder as folder_module

    decode, seconds, outputs = ROWS[row]
    pa.array([0])  # the first one imports pandas, where it is installed: 0.3 s in each process
    if row == "embed of one part":
        folder_module.MIN_ROWS = folder_module.MAX_ROWS = count
    if row == "embed of tokens":
        folder_module.MIN_ROWS = folder_module.MAX_ROWS = CHUNK
    predictor = Predictor("vit_digits", outputs=outputs, chunk=CHUNK)
    gpu, decoding = Gpu(seconds), 0.0
    (replace_old if OLD else replace_new)(gpu, decode)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, one = image_sources(folder, count)
        if row.startswith(("embed", "host")):
            done = vitzoo.embed(predictor, images, folder / "out", workers=1)
            decoding = done.work.read + done.work.decode
        elif row == "predict":
            found = vitzoo.predict(predictor.model, [one] * count, batch_size=CHUNK)
            assert len(found) == count
        elif row == "probe":
            from vitzoo.apps.probe.embeddings import embed_images

            assert len(embed_images(predictor, [one] * count, {}, lambda *_: None)) == count
        elif row.startswith("ray"):
            from vitzoo.ray import Embedder

            embedder = Embedder(predictor)
            paths = np.array([str(one)] * CHUNK)
            batches = [{"path": paths, "key": np.arange(CHUNK)}] * (count // CHUNK)
            with ThreadPoolExecutor(1 if OLD else 3) as pool:
                assert sum(len(table) for table in pool.map(embedder, batches)) == count
        else:
            assert sum(1 for _ in predictor.rows(itertools.repeat(str(one), count))) == count
        ended, spent = time.perf_counter(), os.times().user - gpu.spent
    begin = gpu.busy[0][0]
    end = gpu.busy[-1][1] if seconds else ended
    ideal = min(THREADS / decode if decode else 2e4, CHUNK / seconds if seconds else 2e4)
    rate = count / (end - begin)
    busy = sum(b - a for a, b in gpu.busy) / (end - begin)
    allowed = min(ideal, THREADS * count / decoding) if decoding and decode else ideal
    figures = {"rate": rate, "ideal": ideal, "allowed": allowed}
    rounded = {name: round(figure) for name, figure in figures.items()}
    return {**rounded, "busy": round(busy, 3), "cpu_ms": round(spent / count * 1e3, 4)}


if __name__ == "__main__":
    row, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8192
    print(json.dumps({"row": row, **run(row, count)}))
    os._exit(0)
