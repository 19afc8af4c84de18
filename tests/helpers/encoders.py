"""Small image encoders of other libraries, against what vitzoo reads from their folders.

A test module has a table of `Encoder`, a row for each type, and the tests that `numbers` and
`numbers_at_another_size` return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitzoo

WEIGHTS = ("drawn", "own", "small")  # small: activations of which epsilon is a part
FIRST, *OTHERS = WEIGHTS
TOLERANCE = 1e-6  # of the largest element
SMALLER = 2e-3
Outputs = Callable[[nn.Module, Tensor], Any]


def _call(network: nn.Module, images: Tensor) -> Any:
    return network(pixel_values=images)


@dataclass(frozen=True)
class Encoder:
    """A type of image encoder, as a small network.

    Args:
        network: returns the network of the library, with any weights.
        tokens: returns what `forward_features` must be, of what `run` returned.
        pooled: returns what `model(images)` must be, None if the library has none.
        run: runs the network of the library on images.
        size: of the images in px.
        other_size: at which the library runs, too, with `run_other`; None if it does not.
        run_other: as `run`.
        arguments: further arguments of `vitzoo.create`.
    """

    network: Callable[[], nn.Module]
    tokens: Callable[[Any], Tensor] | None = lambda out: out.last_hidden_state
    pooled: Callable[[Any], Tensor] | None = lambda out: out.pooler_output
    run: Outputs = _call
    size: tuple[int, int] = (32, 32)
    other_size: tuple[int, int] | None = None
    run_other: Outputs = lambda network, images: network(
        pixel_values=images, interpolate_pos_encoding=True
    )
    arguments: tuple[tuple[str, Any], ...] = ()

    def filled(self, weights: str) -> nn.Module:
        """Return the network with one of the sets of weights."""
        torch.manual_seed(5)
        return draw(self.network(), weights)

    def images(self, size: tuple[int, int] | None = None) -> Tensor:
        """Return two images, the same ones at each call."""
        return torch.randn(2, 3, *(size or self.size), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def draw(network: nn.Module, weights: str) -> nn.Module:
    """Fill a network; nothing is left at zero, norms included."""
    for name, tensor in network.named_parameters():
        if weights != "own":
            norm = "norm" in name.lower() and name.endswith("weight")
            gain = tensor.dim() == 1 and (norm or "lambda" in name)
            std = 0.2 if gain else 0.1 if tensor.dim() < 2 else 0.08
            tensor.normal_(float(gain), std)
            if weights == "small" and not gain:
                tensor.mul_(SMALLER)
        elif not tensor.any():
            tensor.normal_(0, 0.02)
    return network.eval()


def write(encoder: Encoder, weights: str, folder: Path) -> nn.Module:
    """Write the network with `save_pretrained`, and return it."""
    network = encoder.filled(weights)
    network.save_pretrained(folder)  # type: ignore[operator]
    return network


@torch.no_grad()
def compare(encoder: Encoder, weights: str, folder: Path) -> Any:
    """Compare tokens and pooled output of the folder with those of the library; return the model.

    Of small activations, other values of epsilon must give other numbers.
    """
    network = write(encoder, weights, folder)
    model = vitzoo.create(folder, **dict(encoder.arguments)).eval()
    _equal(encoder, network, model, encoder.images(), encoder.run)
    if weights == "small":
        twin = vitzoo.create(model.spec, block={"norm_eps": 10 * model.spec.block.norm_eps}).eval()
        twin.load_state_dict(model.state_dict())
        images = encoder.images()
        pairs = [(net.forward_features(images), net(images)) for net in (model, twin)]
        changes = [(b - a).abs().max() / a.abs().max() for a, b in zip(*pairs, strict=True)]
        assert max(changes) > 20 * TOLERANCE, "the weights are not small enough to show epsilon"
    return model


@torch.no_grad()
def compare_size(encoder: Encoder, weights: str, folder: Path) -> None:
    """Compare at another size of the images."""
    network, size = write(encoder, weights, folder), encoder.other_size
    assert size, "the library runs at one size"
    model = vitzoo.create(folder, image_size=size, **dict(encoder.arguments)).eval()
    _equal(encoder, network, model, encoder.images(size), encoder.run_other)


def numbers(encoders: Mapping[str, Encoder], *, stated: bool = False) -> Callable[..., None]:
    """Return the test of a table that a folder gives the numbers of the library.

    With `stated`, the load report must have no assumed value: the configs state them all.
    """

    @pytest.mark.parametrize(
        "weights",
        [
            FIRST,
            pytest.param(OTHERS[0], marks=pytest.mark.slow),
            *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS[1:]),
        ],
    )
    @pytest.mark.parametrize("name", encoders)
    def test(name: str, weights: str, tmp_path: Path) -> None:
        report = compare(encoders[name], weights, tmp_path).load_report
        assert not stated or report.assumed == ()

    return test


def numbers_at_another_size(encoders: Mapping[str, Encoder]) -> Callable[..., None]:
    """Return the test of a table at the other size of the images, where a row has one."""

    @pytest.mark.parametrize("name", [name for name, row in encoders.items() if row.other_size])
    def test(name: str, tmp_path: Path) -> None:
        compare_size(encoders[name], "drawn", tmp_path)

    return test


def _equal(encoder: Encoder, network: nn.Module, model: Any, images: Tensor, run: Outputs) -> None:
    out = run(network, images)
    if encoder.tokens:
        close(model.forward_features(images), encoder.tokens(out))
    if encoder.pooled:
        close(model(images), encoder.pooled(out))


def close(actual: Tensor, expected: Tensor) -> None:
    """Compare every element with a tolerance that is a part of the largest one."""
    assert actual.shape == expected.shape, (tuple(actual.shape), tuple(expected.shape))
    largest = expected.abs().max().item()
    assert largest > 0
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * largest)
