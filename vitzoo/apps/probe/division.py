"""Which images of a labelled data set train, which choose, and which test."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Division:
    """The images of each part, as ascending indices.

    Args:
        train, validation, test: indices of images.
        drawn: whether the validation images were drawn from the training images.
        conflicts: images with the same bytes and different classes, as groups of indices.
    """

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    drawn: bool
    conflicts: tuple[tuple[int, ...], ...] = ()


def divide(
    labels: Sequence[str],
    parts: Sequence[str],
    sha256: Sequence[str],
    share: float,
    seed: int,
    classes: Sequence[tuple[str, ...]] | None = None,
) -> Division:
    """Divide images into parts; images without a hash, which cannot be read, are in no part.

    The data's own parts stay. If it has no validation images, `share` of the training images of
    each class is drawn by their hash and the seed. Images with the same bytes are in the same part.
    A class with different images has at least one on each side; a class with one image trains.

    Args:
        labels: of each image, as text; equal bytes with different ones are a conflict.
        parts: `train`, `validation`, `test`, or empty.
        sha256: of each image.
        share: of the training images.
        seed: of the choice.
        classes: of each image, perhaps none or several. None: its label.
    """
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(sha256):
        groups.setdefault(key, []).append(i)
    groups.pop("", None)
    drawn = "validation" not in parts
    every = [(label,) for label in labels] if classes is None else classes
    chosen = _drawn(groups, every, parts, share, seed) if drawn else set[str]()
    found: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for i, (key, part) in enumerate(zip(sha256, parts, strict=True)):
        if key:
            stated = part or "train"
            found["validation" if stated == "train" and key in chosen else stated].append(i)
    conflicts = tuple(tuple(same) for same in groups.values() if len({labels[i] for i in same}) > 1)
    train, validation, test = map(tuple, found.values())
    return Division(train, validation, test, drawn, conflicts)


def _drawn(
    groups: dict[str, list[int]],
    classes: Sequence[tuple[str, ...]],
    parts: Sequence[str],
    share: float,
    seed: int,
) -> set[str]:
    """Return the hashes of the training images that become validation images."""
    found: dict[str, tuple[tuple[str, ...], int]] = {}  # the classes of a hash, and its images
    images, left = Counter[str](), Counter[str]()  # of each class: images, and hashes that train
    for key, same in groups.items():
        if trained := [i for i in same if parts[i] in ("", "train")]:
            found[key] = classes[trained[0]] or ("",), len(trained)
            images.update(found[key][0] * len(trained))
            left.update(found[key][0])
    missing = {name: max(1, round(share * count)) for name, count in images.items()}
    chosen: set[str] = set()
    for key in sorted(found, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).digest()):
        names, count = found[key]
        if any(missing[name] > 0 for name in names) and all(left[name] > 1 for name in names):
            chosen.add(key)
            left.subtract(names)
            for name in names:
                missing[name] -= count
    return chosen
