"""An image has one value, bit for bit, at every position of a chunk and next to any images."""

import random

import pytest
import torch
from torch import nn

import vitzoo
from helpers import randn, refuses
from internals import are_alike
from vitzoo.errors import InvalidOption, VitzooError

pytestmark = pytest.mark.usefixtures("_one_thread")
DTYPES = [torch.float32, torch.bfloat16]
IN_CI = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)]
ALL = ("labels", "logits", "pooled", "blocks.1")
PREPROCESSING = {n: vitzoo.Preprocessing(mean=(0.5,) * n, std=(0.5,) * n) for n in (1, 3)}


def data_of(outputs):
    """Return the bytes of the outputs of one image."""
    return {n: v if isinstance(v, tuple) else v.tobytes() for n, v in outputs.items()}


def neighbours(count, shape, draw):
    """Return inputs with any numbers, also such as no image has."""
    kinds = (0.0, float("nan"), float("inf"), 1e30, None, None, None)
    for _ in range(count):
        kind = draw.choice(kinds)
        yield randn(*shape, seed=draw.randrange(99)) if kind is None else torch.full(shape, kind)


def check_one_value(predictor, counts):
    """Compute one image next to others, at a random position each time."""
    shape, draw = predictor.fingerprint().chunk[1:], random.Random(0)
    image = randn(*shape, seed=1000)
    (expected,) = predictor.compute([image])
    for count in counts:
        inputs = [*neighbours(count, shape, draw)]
        place = draw.randrange(count + 1)
        inputs.insert(place, image)
        assert data_of(predictor.compute(inputs)[place]) == data_of(expected), (count, place)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_image_has_one_value_at_every_position(dtype):
    predictor = vitzoo.Predictor("vit_digits", outputs=ALL, dtype=dtype)
    assert predictor.chunk == 8
    draw = random.Random(1)
    check_one_value(predictor, [draw.randrange(17) for _ in range(50)])


def networks(count, seed):
    """Yield random specs of small networks, about half of them with odd widths."""
    draw = random.Random(seed)
    for _ in range(count):
        heads, aligned = draw.choice([1, 2, 3, 4, 6]), draw.random() < 0.5
        width = heads * draw.choice([16, 32, 48, 64] if aligned else [2, 4, 5, 7, 8, 20])
        rows, columns = draw.choice([(1, 1), (1, 2), (3, 2), (4, 4), (5, 3), (7, 7)])
        patch = draw.choice([4, 7, 8, 14, 16])
        yield {
            "image_size": [rows * patch, columns * patch],
            "patch_size": patch,
            "in_chans": draw.choice([1, 3]),
            "num_classes": draw.choice([1, 2, 3, 7, 10, 100]),
            "embed_dim": width,
            "depth": draw.choice([1, 2]),
            "num_heads": heads,
            "mlp_dim": draw.choice([width, 4 * width, 16, 112] if aligned else [width, 17, 40]),
            "class_token": draw.choice([True, False]),
            "num_registers": draw.choice([0, 1, 4]),
            "patch_embed": draw.choice(["conv", "unfold"]),
            "pos_embed": draw.choice(
                ["learned", "none", "relative", "decomposed", "rope", "sincos_2d"]
            ),
            "pool": draw.choice(["class", "mean", "attention"]),
            "head": draw.choice(["linear", "tanh"]),
            "block": draw.choice(
                [{}, {"mlp": "swiglu"}, {"qk_norm": True}, {"parallel": True}, {"window": 2}]
            ),
        }


def check_networks(randomise, count, seed, dtype):
    """Check random networks at every position; return how many have each size of a chunk."""
    sizes = {1: 0, 8: 0}
    for spec in networks(count, seed):
        try:
            model = randomise(vitzoo.create(spec))
        except VitzooError:
            continue  # parts that do not fit together
        model.preprocessing = PREPROCESSING[spec["in_chans"]]
        predictor = vitzoo.Predictor(model, outputs=model.feature_names(), dtype=dtype)
        sizes[predictor.chunk] += 1
        inputs = [*neighbours(8, predictor.fingerprint().chunk[1:], random.Random(seed))]
        image = randn(*inputs[0].shape, seed=1000)
        (expected,) = predictor.compute([image])
        for place in range(8):
            found = predictor.compute([*inputs[:place], image, *inputs[place + 1 :]])[place]
            assert data_of(found) == data_of(expected), (spec, place)
    return sizes


@pytest.mark.slow
def test_random_networks_have_one_value(randomise):
    assert min(check_networks(randomise, 10, 0, torch.float32).values()) > 0


def check_grids(randomise, count, seed, dtype):
    """Check images of several grids, alone and mixed; return how many networks were checked."""
    checked, draw = 0, random.Random(seed)
    for spec in networks(count, seed):
        try:
            model = randomise(vitzoo.create(spec))
            model.preprocessing = PREPROCESSING[spec["in_chans"]]
            most = draw.choice([4, 12, 25])
            outputs = model.feature_names()
            predictor = vitzoo.Predictor(model, outputs=outputs, dtype=dtype, native_size=most)
        except VitzooError:
            continue  # parts that do not fit together
        checked += 1
        grids = [(1, 1), (draw.randrange(1, most + 1), 1), (2, draw.randrange(1, most // 2 + 1))]
        images = [
            randn(spec["in_chans"], *(n * spec["patch_size"] for n in grid), seed=seed)
            for seed, grid in enumerate(draw.choices(grids, k=20))
        ]
        alone = [predictor.compute([image])[0] for image in images]
        places = draw.sample(range(20), 20)
        found = predictor.compute([images[place] for place in places])
        for place, outputs in zip(places, found, strict=True):
            assert data_of(outputs) == data_of(alone[place]), (spec, images[place].shape)
    return checked


@pytest.mark.slow
def test_images_of_several_grids_have_one_value(randomise):
    assert check_grids(randomise, 8, 2, torch.float32) > 5


@pytest.mark.workflows
@pytest.mark.parametrize("dtype", IN_CI, ids=str)
def test_many_images_of_several_grids_have_one_value(randomise, dtype):
    assert check_grids(randomise, 30, 3, dtype) > 15


@pytest.mark.workflows
@pytest.mark.parametrize("dtype", IN_CI, ids=str)
def test_many_random_networks_have_one_value(randomise, dtype):
    assert min(check_networks(randomise, 50, 1, dtype).values()) > 9


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize("dtype", IN_CI, ids=str)
@pytest.mark.parametrize(
    ("spec", "chunk"),
    [
        ({"variant": "vit_b16", "depth": 1}, 8),
        ({"variant": "dinov3/vit_ti16_qkvb", "depth": 2}, 8),
        ({"variant": "eva02/vit_ti14", "depth": 2}, 8),
        ({"variant": "pe/vit_ti16_core_384", "depth": 2}, 8),
        ("timm/crossvit_tiny_240", 1),  # differs between positions of a chunk in fp32
    ],
    ids=str,
)
def test_networks_of_families_have_one_value(randomise, spec, chunk, dtype):
    model = randomise(vitzoo.create(spec))
    predictor = vitzoo.Predictor(model, dtype=dtype)
    assert predictor.chunk == chunk
    check_one_value(predictor, [7, 9, 3])


@pytest.mark.parametrize(
    ("changes", "chunk"),
    [
        ({}, 8),
        ({"embed_dim": 40}, 1),  # heads of 20
        ({"embed_dim": 96, "num_heads": 4}, 1),  # heads of 24, all other widths are aligned
        ({"mlp_dim": 60}, 1),
        ({"head": {"name": "mlp", "hidden_dim": 10}}, 1),
        ({"patch_embed": "unfold", "image_size": 28, "patch_size": 7}, 1),  # 147 numbers a patch
        ({"patch_embed": "unfold"}, 8),
    ],
    ids=str,
)
def test_networks_with_odd_widths_run_on_single_images(small, changes, chunk):
    model = vitzoo.create(small | changes)
    predictor = vitzoo.Predictor(model)
    assert (predictor.chunk, predictor.fingerprint().chunk[0]) == (chunk, chunk)


def test_networks_with_parts_of_others_run_on_single_images(small):
    class Pool(vitzoo.parts.MeanPool):
        """A part that vitzoo does not know."""

    model = vitzoo.create(small, pool=Pool())
    assert vitzoo.Predictor(model).chunk == 1
    assert vitzoo.Predictor(model, chunk=4).fingerprint().chunk == (4, 3, 32, 32)
    with refuses(InvalidOption, "chunk", "from 1", 0):
        vitzoo.Predictor(model, chunk=0)


class Placed(nn.Module):
    """A network whose results depend on the position in the batch."""

    def __init__(self, by):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))
        self.num_classes, self.labels = 4, ()
        self.spec = vitzoo.describe("vit_digits").spec
        self.preprocessing = PREPROCESSING[1]

    def forward(self, images):
        return images.flatten(1)[:, :4] + self.by * torch.arange(len(images))[:, None]


def test_results_that_depend_on_the_position_are_refused():
    """The padding has copies of the first image of the chunk."""
    predictor = vitzoo.Predictor(Placed(1.0), outputs="logits", chunk=8)
    with refuses(InvalidOption, "other positions", "chunk of 8", "cpu", "pass chunk=1"):
        predictor.compute([randn(1, 28, 28)] * 9)
    assert len(vitzoo.Predictor(Placed(1.0), outputs="logits").compute([randn(1, 28, 28)])) == 1


@pytest.mark.parametrize(("by", "chunk"), [(0.0, 8), (1e-7, 8), (1e-3, 1)])
def test_a_trial_finds_the_largest_chunk(by, chunk, monkeypatch):
    monkeypatch.setattr("vitzoo.apps.predict.predictor.CPU", "another device")
    predictor = vitzoo.Predictor(Placed(by), outputs="logits")
    if by == 1e-7:  # lost in rounding
        monkeypatch.setattr(torch, "randn", lambda *shape, **_: torch.full(shape, 1e3))
    assert predictor.chunk == chunk


def test_equal_numbers_with_other_bytes_are_not_alike():
    results = {"a": torch.tensor([[0.0], [1.0], [0.0]]), "b": torch.zeros(3)}
    assert are_alike(results, 2)
    assert not are_alike(results, 1)
    assert not are_alike({"a": torch.tensor([[0.0], [-0.0]])}, 1)
    assert are_alike({"a": torch.full((2, 1), float("nan"), dtype=torch.bfloat16)}, 1)
