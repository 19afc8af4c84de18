"""The arguments of `create` with which a file of another size fits, for messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from vitzoo.formats.timm import HEADS
from vitzoo.network.model import VisionTransformer
from vitzoo.text import px

KERNEL = "patch_embed.proj.weight"
FIRST = re.compile(r"blocks\.\d+\.mlp\.fc1\.(weight|bias)")  # gate and values in one matrix
GATED = "an MLP with a gate, whose activation no config states (in vitzoo it is SiLU)"


def needed(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    unfit: Iterable[str],
    model: nn.Module,
) -> tuple[str, dict[str, Any]]:
    """Return what a file is made for, in words and as arguments of `create`.

    Args:
        tensors, expected: of the file and of the model.
        unfit: names of the tensors of another shape.
        model: the network that does not fit.

    Returns:
        Nothing if arguments do not explain every other shape.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in unfit:
        shape, own = tuple(tensors[name].shape), tuple(expected[name].shape)
        if len(shape) != len(own):
            return "", {}
        if name.startswith(HEADS) and own == (getattr(model, "num_classes", 0), *shape[1:]):
            found["num_classes"] = f"{shape[0]} classes", shape[0]
        elif name == KERNEL and (shape[0], *shape[2:]) == (own[0], *own[2:]):
            found["in_chans"] = f"{shape[1]}-channel images", shape[1]
        elif FIRST.fullmatch(name) and shape == (2 * own[0], *own[1:]):
            found["block"] = GATED, {"mlp": "swiglu_packed"}
        elif name == "pos_embed" and (size := _image_size(shape, own, model)):
            found["image_size"] = f"images of {px(size)} px", size
        else:
            return "", {}
    names = ("block", "image_size", "in_chans", "num_classes")
    pairs = {name: found[name] for name in names if name in found}
    words = " and ".join(what for what, _ in pairs.values())
    return words, {name: value for name, (_, value) in pairs.items()}


def _image_size(
    shape: tuple[int, ...], own: tuple[int, ...], model: nn.Module
) -> tuple[int, int] | None:
    """Return the (h, w) px of a square grid that a (1, p + n, d) table of positions is for."""
    if not isinstance(model, VisionTransformer) or len(own) != 3 or shape[2:] != own[2:]:
        return None
    (rows, columns), (height, width) = model.grid_size, model.image_size
    patches = shape[1] - (own[1] - rows * columns)
    side = math.isqrt(max(0, patches))
    if not side or side * side != patches or own[1] < rows * columns:
        return None
    return side * (height // rows), side * (width // columns)
