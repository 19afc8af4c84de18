"""What many test files need and no fixture is: `from helpers import close`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from vitzoo.errors import CheckpointError

# The spec of a small network with heads of 16 channels.
SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 7,
}
# The spec of the fixture `small`, for what is no test: fixtures of modules and functions.
SPEC: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
# A package that no listing may import, and a plugin of hooks.
UNTOUCHABLE = {"acme/__init__.py": "raise ImportError('nobody may import me')"}
LAZY_MODULE = """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    yield vitzoo.DropPathPolicy("late", late, "the rate in the last block only")

@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.Variant("net", "a network", vitzoo.describe("vit_ti16").spec, 5717416)

def late(*, depth, rate):
    return [0.0] * (depth - 1) + [rate]
"""
TABLES = ("_token", "pos_embed", "pos_embedding", "position_embeddings", "embeddings")


class Library:
    """A library, or a module of it, that is imported when a name of it is first read.

    A table of a test module reads the names in functions that tests call: the import takes seconds,
    and pytest reads every module to collect its tests.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every object of a test module for such names
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


@functools.cache
def photographs() -> tuple[Image.Image, Image.Image]:
    """Return the photographs of scikit-learn, china.jpg and flower.jpg: 640x427 px.

    They are `load_sample_images().images`, as a test asserts; sklearn is not imported.
    """
    package = importlib.util.find_spec("sklearn")
    assert package, "scikit-learn is not installed"
    assert package.origin
    folder = Path(package.origin).parent / "datasets" / "images"
    china, flower = (np.asarray(Image.open(folder / f"{n}.jpg")) for n in ("china", "flower"))
    return Image.fromarray(china), Image.fromarray(flower)


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Return the same normal numbers every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def message(error: type[Exception], call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """Return what an error says that a call must raise."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def says(text: str, *parts: object) -> None:
    """Check that a message contains each part as whole words: its value, its expectation, its fix.

    The order and the words between are free, so a message can be reworded.
    """
    assert parts
    missing = [part for part in map(str, parts) if not re.search(_whole(part), text)]
    assert not missing, f"{missing} not in {text!r}"


def _whole(part: str) -> str:
    """Return a pattern that finds no part of a longer word, number or dotted name."""
    before = r"(?<![\w-])" if re.match(r"[\w-]", part) else ""
    after = r"(?!\.?\w)" if re.search(r"\w$", part) else ""
    return before + re.escape(part) + after


@contextlib.contextmanager
def refuses(error: type[Exception], *parts: object) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose message says every part."""
    with pytest.raises(error) as caught:
        yield caught
    says(str(caught.value), *parts)


@torch.no_grad()
def fill(network: Any, weights: str = "scaled") -> Any:
    """Give a network its own initialisation, or fan-in scaled normals with gains of 1 +- 0.2.

    Tokens, tables and biases are normals of 0.1. Nothing is left at zero.
    """
    torch.manual_seed(2)
    if weights == "own":
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.02)
        return network.eval()
    norms = (m for m in network.modules() if isinstance(m, nn.LayerNorm | nn.GroupNorm))
    gains = {id(norm.weight) for norm in norms}
    for name, parameter in network.named_parameters():
        if id(parameter) in gains:
            parameter.normal_(1, 0.2)
        elif parameter.dim() <= 1 or name.endswith(TABLES):
            parameter.normal_(0, 0.1)
        else:
            parameter.normal_(0, parameter[0].numel() ** -0.5)
    return network.eval()


def close(actual: Tensor, expected: Tensor) -> None:
    """Compare every element; the expected numbers must not be trivial."""
    assert actual.shape == expected.shape
    assert expected.abs().max() > 0.01
    tolerance = 5e-5 * max(1, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare the tensors of two files bit by bit."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors by their keys; the container does not matter to a layout."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, path)
    return path


def check_odd_shapes(layout: Any, state: Mapping[str, Tensor], shape: tuple[int, ...]) -> Any:
    """Give a layout each tensor once in another shape, both ways, and return the right file.

    What it cannot read stays under the file's own name; what it cannot write is a CheckpointError
    that names the tensor, and what it writes comes back with every element.
    """
    file = layout.from_model(state)
    for key in file:
        odd = {k: torch.empty_like(t, device="meta") for k, t in file.items()}
        odd[key] = torch.empty(shape, device="meta")
        assert len(layout.to_model(odd)) >= len(state)
    for key in state:
        comes_back(layout, state, key, shape)
    return file


def comes_back(layout: Any, state: Mapping[str, Tensor], key: str, shape: tuple[int, ...]) -> bool:
    """Write a tensor in another shape and read it; False where the layout refuses it by name."""
    odd = torch.arange(float(math.prod(shape))).reshape(shape)
    try:
        written = layout.from_model({**state, key: odd})
    except CheckpointError as error:
        says(str(error), key)
        return False
    back = layout.to_model(written)
    assert back.keys() >= state.keys() - {key}
    parts = [back[name].flatten() for name in back if name == key or name not in state]
    assert torch.equal(torch.cat(parts).sort()[0], odd.flatten()), key
    return True
