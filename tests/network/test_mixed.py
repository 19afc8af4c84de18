"""`forward_packed`: images of several sizes in one sequence equal single images."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, randn, refuses
from part_sets import FAMILIES
from tables import cases
from vitzoo.errors import InvalidInput, InvalidOption

GRIDS = [(4, 4), (2, 6), (4, 4), (6, 2), (1, 3), (3, 1), (5, 5), (2, 6)]  # patches of 8x8 px


def make(weights="scaled", **changes):
    """Return a network with its own initial weights, or with weights that all matter."""
    torch.manual_seed(0)
    model = vitzoo.create(SMALL | changes).eval()
    if weights == "scaled":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return model


def images(grids=GRIDS):
    return [randn(3, 8 * h, 8 * w, seed=i) for i, (h, w) in enumerate(grids)]


def alone(model, image):
    """Return logits and tokens of one image, after `set_input_size` of the model."""
    model.set_input_size(tuple(image.shape[1:]))
    return model(image[None])[0], model.forward_features(image[None])[0]


@pytest.mark.slow
@cases("weights", ["own", "scaled"])
@cases("family", FAMILIES)
@torch.no_grad()
def test_packed_images_equal_single_ones(family, weights):
    """In float64, in which only a wrong formula differs by as much."""
    model, batch = make(weights, **FAMILIES[family]).double(), [x.double() for x in images()]
    logits, tokens = model.forward_packed(batch), model.forward_features_packed(batch)
    assert model.image_size == (32, 32)
    for found, sequence, image in zip(logits, tokens, batch, strict=True):
        expected, expected_tokens = alone(model, image)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(sequence, expected_tokens, rtol=0, atol=1e-6)


@torch.no_grad()
def test_float32_differs_by_rounding_alone():
    model, batch = make(), images()
    found = model.forward_packed(batch)
    expected = torch.stack([alone(model, image)[0] for image in batch])
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * expected.abs().max())


@torch.no_grad()
def test_a_model_with_dynamic_gives_the_same():
    model, batch = make(), images()
    expected = model.forward_packed(batch)
    model.dynamic = True
    assert torch.equal(model.forward_packed(batch), expected)
    single = torch.cat([model(image[None]) for image in batch])
    torch.testing.assert_close(expected, single, rtol=0, atol=1e-5)
    several = model.forward_packed(torch.stack([batch[0], batch[2]]))  # a tensor is a sequence
    torch.testing.assert_close(several, single[[0, 2]], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rope_mixed", "mim/relative"])
def test_gradients_are_the_sum_of_those_of_single_images(positions, checkpointing):
    model, batch = make(pos_embed=positions).double().train(), [x.double() for x in images()]
    model.dynamic = True
    sum(model(image[None]).square().sum() for image in batch).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(grad.any() for grad in expected.values())
    model.zero_grad()
    model.set_grad_checkpointing(checkpointing)
    model.forward_packed(batch).square().sum().backward()
    for name, parameter in model.named_parameters():
        largest = expected[name].abs().max()  # tables of positions are interpolated in float32
        torch.testing.assert_close(
            parameter.grad, expected[name], rtol=0, atol=1e-6 * largest, msg=name
        )


@pytest.mark.parametrize("mode", ["mask", "subset"])
@torch.no_grad()
def test_drop_path_draws_for_each_image(mode):
    """Each image keeps or drops the branch of the attention, and that of the MLP, as a whole."""
    drop_path = {"name": "constant", "rate": 0.5, "mode": mode}
    model = make(depth=1, drop_path=drop_path, pos_embed="none")
    batch, block, seen = images(), model.blocks[0], []
    for _ in range(4):
        found = model.train().forward_features_packed(batch)
        model.eval()
        model.dynamic = True
        for tokens, image in zip(found, batch, strict=True):
            x = model.embed(image[None])
            outcomes = []
            for attends, transforms in itertools.product((0, 2), repeat=2):  # 1 / (1 - rate)
                y = x + attends * block.attn(block.norm1(x))
                outcomes.append(model.norm(y + transforms * block.mlp(block.norm2(y)))[0])
            off = torch.stack([(tokens - outcome).abs().max() for outcome in outcomes])
            assert off.min() < 1e-5
            seen.append(off.argmin().item())
    assert {*seen} == {0, 1, 2, 3}


def test_dropout_acts():
    model, batch = make(dropout=0.5).train(), images()
    assert not torch.equal(model.forward_packed(batch), model.forward_packed(batch))


class Counted(nn.Module):
    """A block without the parts of vitzoo's: it adds to each token the number of tokens."""

    def forward(self, x, rotate=None, bias=None, tokens=None):
        return x + x.shape[1]


@torch.no_grad()
def test_a_block_of_another_class_gets_the_images_of_each_size():
    model = make()
    model.blocks = nn.Sequential(model.blocks[0], Counted())
    expected = torch.stack([alone(model, image)[0] for image in images()])
    found = model.forward_packed(images())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_model_is_not_changed():
    model = make()
    before, blocks = repr(model), [*model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.forward_packed(images())
    assert repr(model) == before
    assert all(a is b for a, b in zip(model.modules(), blocks, strict=True))
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


class Fixed(vitzoo.parts.NoPositions):
    def resample(self, table, old, new):
        if old != new:
            raise InvalidOption(f"positions of the {old} grid only")


def test_positions_that_cannot_move():
    model = vitzoo.create(SMALL, pos_embed=Fixed())
    with refuses(InvalidOption, "forward_packed", "'Fixed'", (4, 4), "images of the model's size"):
        model.forward_packed(images())
    assert model.forward_packed(images([(4, 4)])).shape == (1, 7)


@cases(
    ("batch", "parts"),
    [
        ([], ["at least one image", "list"]),
        ([torch.zeros(1, 8, 8)], ["(3, h, w)", "image 0", "(1, 8, 8)", "native_size=True"]),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 8, 8).int()], ["image 1", "torch.int32"]),
        ([torch.zeros(2, 3, 8, 8)], ["(2, 3, 8, 8)"]),
        (["photo.jpg"], ["image 0", "'photo.jpg'"]),
        (
            [torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)],
            [
                "forward_packed: image 1",
                "9x8",
                "8x8 patches",
                "are: 8x8 and 16x8",
                "native_size=True",
            ],
        ),
        ([torch.zeros(3, 5, 16)], ["image 0", "5x16", "the nearest that is: 8x16;"]),
        ({"input_ids": 1}, ["pixel_values", "spatial_shapes", "input_ids", "return_tensors"]),
        (
            {"pixel_values": torch.zeros(1, 4, 192), "spatial_shapes": torch.tensor([[3, 2]])},
            ["(1, 4, 192)", "[[3, 2]]"],
        ),
    ],
    ids=str,
)
def test_images_are_checked(batch, parts):
    with refuses(InvalidInput, *parts):
        make().forward_packed(batch)


@torch.no_grad()
def test_images_may_come_one_after_the_other():
    model, batch = make(), images()
    expected = model.forward_packed(batch)
    for several in (
        iter(batch),
        (image for image in batch),
        tuple(batch),
        dict(enumerate(batch)).values(),
    ):
        assert torch.equal(model.forward_packed(several), expected)
    tokens = model.forward_features_packed(batch)
    assert all(map(torch.equal, model.forward_features_packed(iter(batch)), tokens))
    with refuses(InvalidInput, "forward_packed", "3", "pass a list"):
        model.forward_packed(3)


@torch.no_grad()
def test_blocks_are_called_with_their_hooks():
    model, seen = make(), []
    for module in (model.blocks[0], model.blocks[1].attn, model.blocks[2].mlp):
        module.register_forward_hook(lambda module, *_: seen.append(module))
    model.forward_packed(images())
    assert seen == [model.blocks[0], model.blocks[1].attn, model.blocks[2].mlp]


def test_merged_tokens_are_refused():
    with refuses(InvalidOption, "forward_packed", "merge=0"):
        make(block={"merge": 2}).forward_packed(images())


def test_forward_names_forward_packed():
    with refuses(InvalidInput, "list of 8 items", "forward_packed(images)"):
        make()(images())
