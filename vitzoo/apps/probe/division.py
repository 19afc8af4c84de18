"""Which images of a labelled data set train, which choose, and which test."""

from __future__ import annotations

import hashlib
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
    labels: Sequence[str], parts: Sequence[str], sha256: Sequence[str], share: float, seed: int
) -> Division:
    """Divide images into parts; images without a hash, which cannot be read, are in no part.

    The data's own parts stay. If it has no validation images, `share` of the training images of
    each class is drawn by their hash and the seed. Images with the same bytes are in the same part.
    A class with different images has at least one on each side; a class with one image trains.
    """
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(sha256):
        groups.setdefault(key, []).append(i)
    groups.pop("", None)
    drawn = "validation" not in parts
    chosen = _drawn(groups, labels, parts, share, seed) if drawn else set[str]()
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
    labels: Sequence[str],
    parts: Sequence[str],
    share: float,
    seed: int,
) -> set[str]:
    """Return the hashes of the training images that become validation images."""
    classes: dict[str, dict[str, int]] = {}  # of each class, the number of images of each hash
    for key, same in groups.items():
        if trained := [i for i in same if parts[i] in ("", "train")]:
            classes.setdefault(labels[trained[0]], {})[key] = len(trained)
    chosen: set[str] = set()
    for counts in classes.values():
        order = sorted(counts, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).digest())
        wanted, taken = max(1, round(share * sum(counts.values()))), 0
        for key in order[:-1]:  # the last one trains
            if taken < wanted:
                chosen.add(key)
                taken += counts[key]
    return chosen
