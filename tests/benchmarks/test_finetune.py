"""Training steps of `vitzoo finetune` beside a loop of timm's parts

Seconds of a step, with reading and cropping of its images, of the second epoch. Both sides have one
process, the same images and the same network, of 5.6 million parameters.
"""

import itertools
import os
import statistics
import time

import numpy as np
import pytest
from PIL import Image

import vitzoo

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
STEPS, BATCH, SIZE = (12 if FULL else 4), 16, 96
OPTIONS = {"epochs": 2, "batch_size": BATCH, "image_size": SIZE, "lr": 1e-4, "drop_path": 0.0}
OPTIONS |= {"label_smoothing": 0.1, "progress": False, "workers": 0}


@pytest.fixture
def photos(tmp_path):
    """Images of noise, in two classes."""
    draw = np.random.default_rng(0)
    for part, count in (("train", STEPS * BATCH), ("val", 2)):
        for i in range(count):
            path = tmp_path / "photos" / part / "ab"[i % 2] / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (160, 200, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def of_a_step(times):
    """Return the median seconds of a step in the second epoch."""
    return statistics.median(b - a for a, b in itertools.pairwise(times[STEPS:]))


def test_a_step_takes_the_time_of_timm(compare, photos, tmp_path, monkeypatch):
    import timm_loop
    from vitzoo_finetune import finetune
    from vitzoo_finetune.training import Training

    step, times, made = Training.training_step, [], []

    def timed(self, batch, batch_idx):
        times.append(time.perf_counter())
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Training, "training_step", timed)
    start = vitzoo.save(vitzoo.create("vit_ti16", num_classes=2), tmp_path / "start.safetensors")
    row = vitzoo.transform("vit_ti16").preprocessing
    paths = sorted(photos.glob("train/*/*.jpg"))
    labels = ["ab".index(path.parent.name) for path in paths]

    def of_vitzoo():
        times.clear()
        made.append(finetune(start, photos, tmp_path / f"run{len(made)}", **OPTIONS))
        return of_a_step(times)

    def of_timm():
        settings, found = made[-1].settings, []
        model = vitzoo.create("vit_ti16", num_classes=2, image_size=SIZE)
        batches = timm_loop.batches_of(paths, labels, row, settings, SIZE)
        noted = lambda _step: found.append(time.perf_counter())  # noqa: E731
        timm_loop.train(
            timm_loop.network_like(model), batches, settings, 2 * STEPS, seed_step=noted
        )
        return of_a_step(found)

    ratios = [of_vitzoo() / of_timm() for _ in range(5 if FULL else 2)]
    assert sum(p.numel() for p in vitzoo.create("vit_ti16", num_classes=2).parameters()) > 5e6
    value = statistics.median(ratios) if FULL else min(ratios)
    compare.record(
        f"a step of `vitzoo finetune`, vit_ti16 at {SIZE} px, {BATCH} images",
        "a loop of timm's parts",
        value,
        at_most=1.05,
    )
