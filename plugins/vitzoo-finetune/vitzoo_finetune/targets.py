"""What a network learns of an image, its target: one class, several classes, or a number."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo_finetune.settings import CLASS, LABELS, NUMBER

Answer = int | float | tuple[int, ...]  # index of a class, a number, or indices of classes
Answers = npt.NDArray[np.float64]  # (n, c)
SHORT = 24  # characters of a name in a figure


class Target(ABC):
    """A kind of target.

    Args:
        names: of the outputs of the network.
        answers: of the training images.
    """

    activation: ClassVar[str]  # of the network, see docs/predicting.md#probabilities
    metric: ClassVar[str]  # chooses the epoch
    title: ClassVar[str]
    factor: ClassVar[float] = 1.0  # of the metric in figures
    sign: ClassVar[int] = 1  # -1 if a lower metric is better

    def __init__(self, names: Sequence[str], answers: Sequence[Answer]) -> None:
        self.names = tuple(names)

    @abstractmethod
    def encode(self, answer: Any) -> Any:
        """Return an answer as the loss takes it."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the (b,) losses of (b, k) outputs; targets may be mixed ones, (b, k)."""

    @abstractmethod
    def answers(self, outputs: Tensor) -> Tensor:
        """Return (b, c) answers of the network: the class, probabilities, or the number."""

    @abstractmethod
    def score(self, found: Answers, true: Sequence[Any]) -> float:
        """Return the metric of (n, c) answers."""

    @abstractmethod
    def wrong(self, found: Answers, true: Any) -> str:
        """Return what is wrong with the (c,) answer for one image, in two short lines, or ""."""

    def weights(self, answers: Sequence[Any]) -> list[float]:
        """Return how often each training image is drawn: 1/frequency of a class, if it has one."""
        return [1.0] * len(answers)

    def shown(self, score: float) -> str:
        """Return the metric as text."""
        return f"{self.metric} {score:.2%}"

    def __str__(self) -> str:
        return f"{len(self.names)} classes"


class Classes(Target):
    """One class for each image: cross-entropy, accuracy."""

    activation, metric, title, factor = "softmax", "accuracy", "accuracy (%)", 100.0

    def encode(self, answer: int) -> int:
        return answer

    def losses(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction="none")

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1, keepdim=True)

    def score(self, found: Answers, true: Sequence[int]) -> float:
        return float(np.mean(found[:, 0] == np.array(true)))

    def wrong(self, found: Answers, true: int) -> str:
        guess = int(found[0])
        return (
            "" if guess == true else f"{_short(self.names[true])}\nas {_short(self.names[guess])}"
        )

    def weights(self, answers: Sequence[int]) -> list[float]:
        counts = Counter(answers)
        return [1 / counts[one] for one in answers]

    def confusion(self, found: Answers, true: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return numbers of images by true class (line) and predicted class (column)."""
        table = np.zeros((len(self.names), len(self.names)), dtype=np.int64)
        np.add.at(table, (np.array(true), found[:, 0].astype(int)), 1)
        return table


class Labels(Target):
    """Any number of classes for each image: binary cross-entropy, mean average precision."""

    activation, metric, title, factor = "sigmoid", "mAP", "mAP (%)", 100.0

    def encode(self, answer: tuple[int, ...]) -> Tensor:
        made = torch.zeros(len(self.names))
        made[list(answer)] = 1
        return made

    def losses(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return losses.mean(dim=1)

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def score(self, found: Answers, true: Sequence[tuple[int, ...]]) -> float:
        from torchmetrics.functional.classification import binary_average_precision

        shares, wanted = torch.from_numpy(found), torch.stack([self.encode(x) for x in true]).long()
        occur = wanted.any(dim=0).nonzero()[:, 0]  # a class without images here has no precision
        each = [float(binary_average_precision(shares[:, i], wanted[:, i])) for i in occur]
        return statistics.fmean(each) if each else 0.0

    def wrong(self, found: Answers, true: tuple[int, ...]) -> str:
        guess = {int(i) for i in np.flatnonzero(found > 0.5)}
        kinds = (("without", sorted({*true} - guess)), ("with", sorted(guess - {*true})))
        return "\n".join(
            f"{kind} {_short(', '.join(self.names[i] for i in every))}"
            for kind, every in kinds
            if every
        )

    def weights(self, answers: Sequence[tuple[int, ...]]) -> list[float]:
        counts = Counter(i for one in answers for i in one)
        empty = max(sum(not one for one in answers), 1)
        return [max((1 / counts[i] for i in one), default=1 / empty) for one in answers]


class Number(Target):
    """A number for each image: mean squared error, mean absolute error.

    The network learns numbers with mean 0 and standard deviation 1 in the training images, and
    `networks.finish` changes its last layer to return numbers of the data.
    """

    activation, metric, title, sign = "identity", "MAE", "mean absolute error", -1

    def __init__(self, names: Sequence[str], answers: Sequence[float]) -> None:
        super().__init__(names, answers)
        self.mean = statistics.fmean(answers)
        self.deviation = statistics.pstdev(answers, self.mean)
        if not self.deviation:
            raise InvalidOption(
                f"all training images have the number {self.mean:g}; expected different numbers"
            )

    def encode(self, answer: float) -> Tensor:
        return torch.tensor((answer - self.mean) / self.deviation, dtype=torch.float32)

    def losses(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.mse_loss(outputs[:, 0], targets, reduction="none")

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.deviation + self.mean

    def score(self, found: Answers, true: Sequence[float]) -> float:
        return float(np.abs(found[:, 0] - np.array(true)).mean())

    def wrong(self, found: Answers, true: float) -> str:
        return f"{true:.4g}\nas {found[0]:.4g}"

    def shown(self, score: float) -> str:
        return f"{self.metric} {score:.4g}"

    def __str__(self) -> str:
        return f"numbers of {self.names[0]!r}"


KINDS: dict[str, type[Target]] = {CLASS: Classes, LABELS: Labels, NUMBER: Number}


def _short(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"
