"""The images of a run: read and divided once, then prepared for each step; no draw but by seed."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import vitzoo
from vitzoo.errors import ImageError, InvalidOption
from vitzoo_finetune.settings import CLASS, LABELS, NUMBER, Settings
from vitzoo_finetune.targets import KINDS, Answer, Target

OTHER_LABELS = ("text or whole numbers", "a text or a whole number")  # in errors about labels
MOST_NAMED = 5  # in a message
AGAIN = 2**32
PADDING = -1  # the index of an image that only fills up a batch
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
Pair = tuple[Any, Answer]  # an image of vitzoo.LabelledImages, and its answer


@dataclass(frozen=True)
class Data:
    """A labelled data set, divided; images that cannot be read are in no part.

    Args:
        target: what the network learns, with the names of its outputs.
        train, validation, test: images with their answers.
        drawn: whether the validation images were drawn from the training images.
        broken: name and error of each image that cannot be read.
        conflicts: names of images with the same bytes and different classes, as groups.
        left_out: number of other files by ending.
        sha256: of the hashes, classes and parts of all images.
    """

    target: Target
    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    test: tuple[Pair, ...]
    drawn: bool
    broken: tuple[tuple[str, str], ...]
    conflicts: tuple[tuple[str, ...], ...]
    left_out: Mapping[str, int]
    sha256: str

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the outputs, in their order."""
        return self.target.names

    def to_data(self) -> dict[str, Any]:
        """Return counts, classes and the hash as plain data; no name of a file."""
        return {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
            "validation_drawn": self.drawn,
            "sha256": self.sha256,
            "classes": list(self.classes),
        }


def opened(image: Any) -> Image.Image:
    """Return an image that is not decoded yet; raise ImageError for bytes of no image."""
    try:
        return Image.open(BytesIO(image.read()))
    except UNREADABLE as error:
        raise ImageError(f"{image.name}: {error}") from error


def read_data(
    data: Path, columns: Mapping[str, str | None], prepare: vitzoo.Transform, kind: str = CLASS
) -> Data:
    """Read and divide a data set; every image is decoded once.

    Raises:
        InvalidOption: there is no such data, it has fewer than two classes, a class has no training
            images, or there are no validation images.
    """
    try:
        labelled = vitzoo.read_labelled(data, **columns, target=kind)
    except InvalidOption as error:
        if kind != CLASS or not any(text in str(error) for text in OTHER_LABELS):
            raise
        raise InvalidOption(
            f"{error}; or pass target='labels' (--target labels) for lists of classes, "
            "target='number' (--target number) for numbers"
        ) from error

    def check(image: Any) -> tuple[str, str]:
        try:
            content = image.read()
            prepare(Image.open(BytesIO(content)))
        except (*UNREADABLE, ImageError) as error:
            return "", str(error)
        return hashlib.sha256(content).hexdigest(), ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checked = list(pool.map(check, labelled.images))
    keys = [key for key, _ in checked]
    parts = labelled.divide(keys)
    places = {name: i for i, name in enumerate(labelled.classes)}
    images = labelled.images

    def pairs(indices: Sequence[int]) -> tuple[Pair, ...]:
        return tuple((images[i], _answer(images[i], kind, places)) for i in indices)

    lines = sorted(f"{key} {one.part} {one.label}" for key, one in zip(keys, images, strict=True))
    train = pairs(parts.train)
    _check(labelled.classes, kind, train, parts.validation, data)
    return Data(
        KINDS[kind](labelled.classes, [answer for _, answer in train]),
        train,
        pairs(parts.validation),
        pairs(parts.test),
        parts.drawn,
        tuple((one.name, error) for one, (_, error) in zip(images, checked, strict=True) if error),
        tuple(tuple(images[i].name for i in same) for same in parts.conflicts),
        labelled.left_out,
        hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    )


def _answer(image: Any, kind: str, places: Mapping[str, int]) -> Answer:
    if kind == LABELS:
        return tuple(sorted(places[name] for name in image.labels))
    return image.number if kind == NUMBER else places[image.label]


def _check(
    classes: Sequence[str],
    kind: str,
    train: Sequence[Pair],
    validation: Sequence[int],
    data: Path,
) -> None:
    if (len(classes) < 2 and kind == CLASS) or not classes:
        names = ", ".join(classes) or "no entries"
        raise InvalidOption(
            f"{data} has {len(classes)} classes, {names}; expected at least two classes"
        )
    answers = [answer if isinstance(answer, tuple) else (answer,) for _, answer in train]
    counts = Counter(label for answer in answers for label in answer)
    empty = [name for i, name in enumerate(classes) if not counts[i]]
    if not train:
        raise InvalidOption(f"{data} has no training images that can be read; add images to train")
    if empty and kind != NUMBER:
        more = f" and {len(empty) - MOST_NAMED} more" if len(empty) > MOST_NAMED else ""
        raise InvalidOption(
            f"{data}: no training image of {', '.join(map(repr, empty[:MOST_NAMED]))}{more} can be "
            "read; add images to train, or remove the class"
        )
    if not validation:
        raise InvalidOption(
            f"{data} has no validation images that can be read, which choose the best epoch; add "
            "images to val, or a second image to a class"
        )


def draw(*numbers: int) -> int:
    """Seed Python, numpy and torch on the CPU by some numbers, such as seed and step.

    Returns:
        The seed of torch. `torch.manual_seed` would take a millisecond for each image.
    """
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    random.seed(digest)
    np.random.seed(int.from_bytes(digest[:4], "little"))  # timm draws from it
    seed = int.from_bytes(digest[:7], "little")
    torch.default_generator.manual_seed(seed)
    return seed


class Images(Dataset[tuple[Tensor, Any, int]]):
    """Inputs, targets and indices of images; the key (index, epoch) seeds the augmentation.

    The epoch of an image that is drawn again in an epoch has a multiple of `AGAIN` in addition. The
    epoch is -1 for an image as `vitzoo.predict` prepares it, and -2 for one that fills up.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        target: Target,
        prepare: Callable[[Image.Image], Tensor],
        seed: int,
    ) -> None:
        self.pairs, self.target, self.prepare, self.seed = pairs, target, prepare, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Any, int]:
        """Return the input (c, h, w), the target and the index of an image."""
        index, epoch = key
        image, answer = self.pairs[index]
        draw(self.seed, max(epoch, 0), index)
        inputs = self.prepare(opened(image))
        return inputs, self.target.encode(answer), PADDING if epoch == -2 else index


class Batches:
    """The keys of the images of each part of a step, for one process.

    The order depends on seed and epoch alone. A step has `size` images in all processes together,
    in `parts` parts; images that do not fill a step are left out in this epoch.

    Args:
        count: of the images.
        settings: of the run.
        rank, world: of the process.
        weights: how often each image is drawn, in proportion; None: once.
    """

    def __init__(
        self,
        count: int,
        settings: Settings,
        rank: int,
        world: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        self.count, self.size, self.seed = count, settings.batch_size, settings.seed
        self.parts, self.rank, self.world = settings.accumulate, rank, world
        self.epoch, self.start = 0, (0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // self.size * self.parts

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.epoch
        done = self.start[1] if self.start[0] == epoch else 0
        draw(self.seed, epoch)
        order = self._order()
        for batch in range(done, len(self)):
            step, part = divmod(batch, self.parts)
            chosen = order[step * self.size : (step + 1) * self.size]
            mine = chosen[part * self.world + self.rank :: self.parts * self.world]
            yield [(index, epoch + AGAIN * again) for index, again in mine]

    def _order(self) -> list[tuple[int, int]]:
        """Return the images of an epoch, and how often each was drawn before."""
        if self.weights is None:
            return [(index, 0) for index in torch.randperm(self.count).tolist()]
        drawn, before = torch.multinomial(self.weights, self.count, True).tolist(), Counter[int]()
        order = []
        for index in drawn:
            order.append((index, before[index]))
            before[index] += 1
        return order


class Every:
    """The keys of all images in order, for one process; the last batch of all is filled up."""

    def __init__(self, count: int, size: int, rank: int, world: int) -> None:
        self.count, self.size, self.rank, self.world = count, size, rank, world

    def __len__(self) -> int:
        return math.ceil(self.count / (self.size * self.world))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(len(self)):
            first = (step * self.world + self.rank) * self.size
            keys = [(i, -1) if i < self.count else (0, -2) for i in range(first, first + self.size)]
            real = [key for key in keys if key[1] == -1]
            yield real or keys[:1]


class Loader(DataLoader[Any]):
    """A loader with a state: the epoch, and the parts of steps that are done in it."""

    position: Callable[[], tuple[int, int]]

    def state_dict(self) -> dict[str, int]:
        """Return the state; batches that workers read ahead do not count."""
        epoch, done = self.position()
        return {"epoch": epoch, "done": done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after a state."""
        batches: Any = self.batch_sampler
        epoch, done = state["epoch"], state["done"]
        batches.start = (epoch, done) if done < len(batches) else (epoch + 1, 0)
        batches.epoch = batches.start[0]
