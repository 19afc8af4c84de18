"""Native sizes in a `Predictor`: chunks of one grid, rows in order, and few images in memory."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitzoo
from helpers import fill, randn, refuses
from internals import in_order
from tables import cases
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.outputs import Row
from vitzoo.errors import InvalidInput, InvalidOption

pytestmark = pytest.mark.usefixtures("_one_thread")
SIZES = [(40, 40), (60, 30), (30, 61), (7, 90), (33, 41)]  # of 4 grids, the last as the first


@pytest.fixture
def model(small):
    return fill(vitzoo.create(small))


def pictures(count):
    """Return images of a few sizes."""
    draw = np.random.default_rng(count)
    shapes = (SIZES[i % len(SIZES)] for i in range(count))
    return [Image.fromarray(draw.integers(0, 256, (*shape, 3), np.uint8)) for shape in shapes]


def test_outputs_are_those_of_the_network_for_each_size(model):
    predictor = vitzoo.Predictor(model, outputs=("pooled", "blocks.1"), native_size=16)
    transform = vitzoo.transform(model, native_size=16)
    rows = predictor(pictures(11))
    model.dynamic = True
    for image, row in zip(pictures(11), rows, strict=True):
        pixels = transform(image)[None]
        with torch.no_grad():
            found = model.features(pixels, ["pool", "blocks.1"])
        for name, of in (("pooled", "pool"), ("blocks.1", "blocks.1")):
            torch.testing.assert_close(torch.from_numpy(row.outputs[name]), found[of][0])


def test_every_chunk_has_one_grid_and_is_full(model):
    predictor, seen = vitzoo.Predictor(model, native_size=16, chunk=4), []
    hook = model.patch_embed.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
    predictor(pictures(21))
    hook.remove()
    assert {shape[0] for shape in seen} == {4}
    assert len(seen) == len(set(seen)) + 2 == 6  # 9 images of one grid, 4 of each other one
    assert not model.dynamic


@pytest.mark.parametrize(
    ("given", "patches"), [(True, 16), (20, 20), (1, 1), (None, None), (False, None)]
)
def test_the_largest_number_of_patches(model, given, patches):
    predictor = vitzoo.Predictor(model, native_size=given)
    assert predictor.native_size == patches
    fingerprint = predictor.fingerprint()
    assert fingerprint.chunk == ((8, 3) if patches else (8, 3, 32, 32))
    assert fingerprint.to_data().get("native_size") == patches
    (row,) = predictor([np.zeros((9, 9, 3), np.uint8)])
    assert row.outputs["pooled"].shape == predictor.shapes["pooled"]


@pytest.mark.parametrize("value", [0, -1, 2.0, "256", 2**20])
def test_an_impossible_number_of_patches_is_an_error_before_a_download(value):
    with refuses(InvalidOption, "native_size", "from 1 to", str(value)):
        vitzoo.Predictor("vit_b16", native_size=value)


def test_a_network_without_stated_patches_is_an_error_before_a_download():
    with refuses(InvalidOption, "native", "timm/cait_s24_224", "patches"):
        vitzoo.Predictor("timm/cait_s24_224", native_size=True)


def test_classes_and_pickles_have_native_sizes(model):
    model.spec = vitzoo.create(model.spec).spec
    predictor = vitzoo.Predictor(model, native_size=20, chunk=2)
    again = pickle.loads(pickle.dumps(predictor))
    assert again.native_size == 20
    assert again.fingerprint() == predictor.fingerprint()
    (image, *_) = images = pictures(3)
    one, other = (p(images)[1].outputs["pooled"].tobytes() for p in (predictor, again))
    assert one == other
    (best,) = predictor.predict(image)
    (row,) = vitzoo.Predictor(model, outputs="labels", native_size=20, chunk=2)([image])
    assert best.classes == row.outputs["labels"]


@pytest.mark.parametrize(
    "shape", [(3, 8, 12), (3, 8, 8 * 17), (1, 8, 8), (3, 0, 8), (8, 8), (1, 3, 8, 8)]
)
def test_inputs_of_another_shape_are_refused(model, shape):
    predictor = vitzoo.Predictor(model, native_size=16)
    assert len(predictor.compute([randn(3, 8, 8 * 16), randn(3, 24, 40)])) == 2
    with refuses(
        InvalidInput, str(shape), "(3, h, w)", "whole patches of 8x8 px, at most 16", "decode"
    ):
        predictor.compute([randn(3, 8, 8), torch.zeros(shape)])


def test_outputs_with_a_shape_for_each_grid_have_no_shape(model):
    predictor = vitzoo.Predictor(model, outputs=("pooled", "blocks.1"), native_size=16)
    with refuses(InvalidOption, "'blocks.1'", "(2, 32) to (17, 32)", "'pooled'", "--native-size"):
        _ = predictor.shapes
    one_patch = vitzoo.Predictor(model, outputs="blocks.1", native_size=1)
    assert one_patch.shapes == {"blocks.1": (2, 32)}


class Other(nn.Module):
    """A network of another builder."""

    def __init__(self):
        super().__init__()
        self.num_classes, self.labels, self.scale = 4, (), nn.Parameter(torch.ones(1))
        self.spec = vitzoo.describe("vit_digits").spec


def test_a_network_of_one_size_is_refused():
    with refuses(InvalidOption, "native_size", "Other", "one size only", "leave native_size"):
        vitzoo.Predictor(Other(), outputs="logits", native_size=True)


@pytest.mark.parametrize("grid", [(4, 4), (2, 3)])
def test_each_grid_is_tried_on_a_gpu(model, grid, monkeypatch):
    """A chunk without padding, which no other check sees."""

    def forward(_, inputs, tokens):
        by = 1e-3 * torch.arange(len(tokens))[:, None, None]
        return tokens + by if inputs[0].shape[-2:] == (16, 24) else tokens

    model.patch_embed.register_forward_hook(forward)
    monkeypatch.setattr("vitzoo.apps.predict.predictor.CPU", "another device")
    monkeypatch.setattr("vitzoo.apps.predict.computation.CPU", "another device")
    predictor = vitzoo.Predictor(model, native_size=16, chunk=2)
    images = [randn(3, 8 * grid[0], 8 * grid[1], seed=seed) for seed in range(2)]
    if grid == (4, 4):
        assert len(predictor.compute(images)) == 2
    else:
        with refuses(InvalidOption, "other positions", "chunk of 2", "chunk=1"):
            predictor.compute(images)


@cases("seed", range(20))
def test_rows_are_in_order_and_few_images_wait(seed):
    draw = random.Random(seed)
    chunk, held, grids = draw.choice([1, 2, 8]), draw.choice([1, 5, 40]), draw.choice([1, 3, 30])
    taken, groups, rows, waiting = 0, [], [], 0

    def images():
        nonlocal taken
        for number in range(200):
            taken += 1
            shape = (1, 1, draw.randrange(grids) + 1)
            yield Decoded(torch.zeros(shape) if draw.random() < 0.9 else None, sha256=str(number))

    def compute(every):
        for group in every:
            groups.append({x.tensor.shape for x in group if x.tensor is not None})
            assert len(group) <= chunk
            assert len(groups[-1]) == any(x.tensor is not None for x in group)
            yield [Row(x.error, 0, 0, x.sha256, {}) for x in group]

    for some in in_order(images(), chunk, held, compute):
        waiting = max(waiting, taken - len(rows))
        rows += some
    assert [row.sha256 for row in rows] == [str(number) for number in range(200)]
    assert waiting <= held + 1


def test_a_chunk_on_a_gpu_is_small_because_the_last_one_of_each_grid_is_padded(model, monkeypatch):
    monkeypatch.setattr("vitzoo.apps.predict.predictor.CPU", "another device")
    monkeypatch.setattr("vitzoo.apps.predict.computation.CPU", "another device")
    monkeypatch.setattr("vitzoo.apps.predict.predictor.largest_chunk", lambda *_: 256)
    assert vitzoo.Predictor(model).chunk == 256
    assert vitzoo.Predictor(model, native_size=16).chunk == 32
    assert vitzoo.Predictor(model, native_size=16, chunk=64).chunk == 64
