"""The simple feature pyramid equals one written here from the paper, with detectron2's names."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import fill, randn, refuses
from vitzoo.apps.backbone.pyramid import SimpleFeaturePyramid
from vitzoo.errors import InvalidOption, UnknownOption

DIM, CHANNELS = 24, 10
# Names and shapes of detectron2's `SimpleFeaturePyramid` with a network of patch size 16.
NORMED = {"norm.weight": (CHANNELS,), "norm.bias": (CHANNELS,)}


def detectron2(number: int, before: dict[str, tuple[int, ...]], layers: int, dim: int):
    convs = {layers: (CHANNELS, dim, 1, 1), layers + 1: (CHANNELS, CHANNELS, 3, 3)}
    named = {f"{i}.{name}": shape for i in convs for name, shape in NORMED.items()}
    weights = {f"{i}.weight": shape for i, shape in convs.items()}
    return {f"simfp_{number}.{key}": shape for key, shape in (before | weights | named).items()}


DOUBLE = {"0.weight": (DIM, 12, 2, 2), "0.bias": (12,)}
TWICE = {"1.weight": (12,), "1.bias": (12,), "3.weight": (12, 6, 2, 2), "3.bias": (6,)}
DETECTRON2 = {
    **detectron2(2, DOUBLE | TWICE, 4, 6),
    **detectron2(3, DOUBLE, 1, 12),
    **detectron2(4, {}, 0, 24),
    **detectron2(5, {}, 1, 24),
}


def doubled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A transposed convolution of size and stride 2: each position becomes 2 x 2."""
    b, _, h, w = x.shape
    out = torch.einsum("bchw,copq->bohpwq", x, weight).reshape(b, -1, 2 * h, 2 * w)
    return out + bias[:, None, None]


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x = x - x.mean(1, keepdim=True)
    x = x / ((x * x).mean(1, keepdim=True) + 1e-6).sqrt()
    return x * weight[:, None, None] + bias[:, None, None]


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution as one matrix product per position of the kernel."""
    (size, _), (h, w) = weight.shape[2:], x.shape[2:]
    x = F.pad(x, (size // 2,) * 4)
    parts = (
        torch.einsum("bchw,oc->bohw", x[:, :, i : i + h, j : j + w], weight[:, :, i, j])
        for i in range(size)
        for j in range(size)
    )
    return sum(parts)


def reference(x: Tensor, state: dict[str, Tensor]) -> list[Tensor]:
    """The maps of strides 4 to 64, from ViTDet's paper."""

    def of(stage: int, layer: int, name: str = "") -> list[Tensor]:
        keys = [f"simfp_{stage}.{layer}.{name}{kind}" for kind in ("weight", "bias")]
        return [state[key] for key in keys if key in state]

    def ended(stage: int, layer: int, x: Tensor) -> Tensor:
        for i in (layer, layer + 1):
            x = normed(convolved(x, *of(stage, i)), *of(stage, i, "norm."))
        return x

    up = normed(doubled(x, *of(2, 0)), *of(2, 1))
    up = doubled(up * (1 + torch.erf(up / math.sqrt(2))) / 2, *of(2, 3))
    h, w = x.shape[2] // 2, x.shape[3] // 2
    down = x[:, :, : 2 * h, : 2 * w].reshape(*x.shape[:2], h, 2, w, 2).amax((3, 5))
    maps = [ended(2, 4, up), ended(3, 1, doubled(x, *of(3, 0))), ended(4, 0, x), ended(5, 1, down)]
    return [*maps, maps[-1][:, :, ::2, ::2]]


def pyramid(**options):
    return SimpleFeaturePyramid(**{"embed_dim": DIM, "stride": 16, "channels": CHANNELS} | options)


@pytest.mark.parametrize("weights", ["own", "scaled"])
@pytest.mark.parametrize("size", [(6, 8), (5, 7)], ids=["even", "odd"])
def test_every_element_and_gradient_equals_the_paper(weights, size):
    state = fill(pyramid(), weights).state_dict()
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == DETECTRON2
    ours = pyramid(top=True)
    ours.load_state_dict(state)
    state = {key: tensor.double().requires_grad_() for key, tensor in state.items()}
    x = randn(2, DIM, *size)
    expected = reference(x.double(), state)
    maps = ours.double()(x.double())
    assert len(maps) == 5
    torch.testing.assert_close(maps, expected, rtol=0, atol=1e-10)
    factors = [randn(*m.shape, seed=1).double() for m in maps]
    for found in (maps, expected):
        sum((m * f).sum() for m, f in zip(found, factors, strict=True)).backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad.abs().max() > 1e-3, name
        torch.testing.assert_close(parameter.grad, state[name].grad, rtol=1e-8, atol=1e-8)


def test_strides_follow_from_the_patch_and_need_not_be_whole():
    assert pyramid(top=True).strides == [4, 8, 16, 32, 64]
    assert pyramid(stride=14).strides == [3.5, 7, 14, 28]
    assert pyramid(stride=32).strides == [8, 16, 32, 64]
    chosen = pyramid(stride=8, scales=[4, 1])
    assert chosen.strides == [2, 8]
    assert [tuple(m.shape[2:]) for m in chosen(randn(1, DIM, 3, 5))] == [(12, 20), (3, 5)]
    assert {key.partition(".")[0] for key in chosen.state_dict()} == {"simfp_1", "simfp_3"}


def test_without_a_norm_the_convolutions_have_a_bias():
    names = {name for name, _ in pyramid(norm="none", scales=(2,)).named_parameters()}
    layers = [f"simfp_3.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
    assert names == set(layers)


def test_options_that_the_pyramid_has_not_are_refused():
    for scales in ((4, 3), (2, 2), (), ("4",), (1, 2)):
        with refuses(InvalidOption, repr(scales), "4, 2, 1, 0.5", "each once"):
            pyramid(scales=scales)
    for channels in (0, -4, 1.5, True):
        with refuses(InvalidOption, "channels must be a positive whole number", channels):
            pyramid(channels=channels)
    with refuses(InvalidOption, "top must be a boolean, got 2"):
        pyramid(top=2)
    with refuses(InvalidOption, "scales must be a sequence", 4):
        pyramid(scales=4)
    with refuses(UnknownOption, "norm must be one of layer, none", "'layr'"):
        pyramid(norm="layr")
