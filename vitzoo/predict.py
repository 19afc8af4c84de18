"""Images to labelled answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitzoo.create import transform
from vitzoo.errors import InvalidOption
from vitzoo.images import find_images
from vitzoo.registry import registry


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Args:
        image: path of the file.
        classes: (index, label, probability), the most probable first.
    """

    image: Path
    classes: tuple[tuple[int, str, float], ...]


def predict(
    model: nn.Module, images: list[Path], *, top: int = 5, batch_size: int = 16
) -> Iterator[Prediction]:
    """Classify image files, or folders of them, batch by batch.

    Args:
        model: from `create`; it is put into evaluation mode.
        images: files and folders.
        top: how many classes to give.
        batch_size: images at a time.

    Raises:
        InvalidOption: the model has no classifier.
        ImageError: a file is no readable image.
    """
    zoo_model: Any = model  # num_classes and labels are set by create, on foreign modules too
    classes: int = zoo_model.num_classes
    if not classes:
        raise InvalidOption(f"the model has no classifier, only features{_with_classifier(model)}")
    for name, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise InvalidOption(f"{name} must be at least 1, got {value}")
    names = zoo_model.labels or tuple(f"class {i}" for i in range(classes))
    prepare = transform(model)
    place = next(model.parameters())
    model.eval()
    files = find_images(images)
    for start in range(0, len(files), batch_size):
        chunk = files[start : start + batch_size]
        inputs = torch.stack([prepare(file) for file in chunk]).to(place.device, place.dtype)
        with torch.inference_mode():
            best = model(inputs).float().softmax(dim=-1).topk(min(top, classes))
        for file, values, indices in zip(chunk, *map(torch.Tensor.tolist, best), strict=True):
            rows = tuple((i, names[i], v) for i, v in zip(indices, values, strict=True))
            yield Prediction(file, rows)


def _with_classifier(model: nn.Module) -> str:
    """Name the weights of the same architecture that have a classifier."""
    spec: Any = getattr(model, "spec", None)
    zoo = registry()
    own = zoo.variants.get(spec.variant or "") if spec else None
    if own is None:
        return "; pass num_classes= and train one"
    trunk = (own.spec.embed_dim, own.spec.depth, own.spec.patch_size, own.spec.image_size)
    found = [
        f"create({variant.name!r}, weights={row.name!r})"
        for variant in zoo.variants.values()
        for row in variant.weights
        if row.num_classes
        and trunk == (
            variant.spec.embed_dim, variant.spec.depth,
            variant.spec.patch_size, variant.spec.image_size,
        )
    ]  # fmt: skip
    return f"; these weights have one: {', '.join(found)}" if found else ""
