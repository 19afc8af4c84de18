"""What a `Predictor` computes for one chunk of images, on the device of its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitzoo.apps.predict.chunk import are_alike, explained
from vitzoo.apps.predict.classes import most_probable, named_classes
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.normalise import Normalise
from vitzoo.apps.predict.outputs import LABELS, Outputs, Row
from vitzoo.errors import InvalidOption
from vitzoo.images.transform import NativeTransform, Transform
from vitzoo.network.device import running_on

CPU = "cpu"
INDICES = "labels: indices"  # of the most probable classes, a name of results


@dataclass(frozen=True)
class Labels:
    """How logits become `labels`.

    Args:
        names: of the classes.
        top: number of classes of an image.
        activation: output activation of the model.
    """

    names: Sequence[str] = ()
    top: int = 1
    activation: str = ""


class Computation:
    """Computes chunks of images of one shape; several threads may call this.

    Args:
        network: maps images to results.
        sample: a parameter of the network.
        labels: of the network; no names without the output `labels`.
        transform: of the network.
    """

    def __init__(
        self, network: Outputs, sample: Tensor, labels: Labels, transform: Transform
    ) -> None:
        self.network, self.labels, self._transform = network, labels, transform
        self.device, self.dtype = sample.device, sample.dtype
        self._tried: set[tuple[int, ...]] = set()

    @torch.inference_mode()
    def results(self, images: Tensor) -> dict[str, Tensor]:
        """Return the results for (b, c, h, w) inputs, on the device; of `labels` the logits."""
        with running_on(self.device), explained(len(images), self.device):
            found: dict[str, Tensor] = self.network(images.to(self.device, self.dtype))
        return found

    @torch.inference_mode()
    def with_classes(self, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return results with the most probable classes instead of the logits of `labels`."""
        found = dict(results)
        if LABELS in found:
            best = most_probable(found[LABELS], self.labels.top, self.labels.activation)
            found[LABELS], found[INDICES] = best
        return found

    def classes(self, logits: Tensor) -> list[tuple[tuple[int, str, float], ...]]:
        """Return the (index, name, probability) of the best classes of each image."""
        found = self.with_classes({LABELS: logits})
        return named_classes(found[LABELS], found[INDICES], self.labels.names)

    def rows(
        self, images: Sequence[Decoded], places: Sequence[int], results: Mapping[str, Tensor]
    ) -> list[Row]:
        """Return the rows of images.

        Args:
            images: in order, also those with an error.
            places: of the images without an error in the results.
            results: (n, ...) each, of `with_classes`.
        """
        columns: dict[str, Any] = {}
        for name, tensor in results.items():
            if name == LABELS:
                columns[name] = named_classes(tensor, results[INDICES], self.labels.names)
            elif name != INDICES:
                wide = tensor if tensor.dtype == torch.float64 else tensor.float()
                columns[name] = wide.cpu().numpy()
        remaining = iter(places)
        rows = []
        for image in images:
            outputs: dict[str, Any] = {}
            if image.tensor is not None:
                place = next(remaining)
                for name, column in columns.items():
                    value = column[place]
                    outputs[name] = value if name == LABELS else value.copy()
            rows.append(Row(image.error, image.width, image.height, image.sha256, outputs))
        return rows

    @cached_property
    def normalise(self) -> Normalise:
        """The last step of the preprocessing, on the device."""
        return Normalise(self._transform, self.device)

    def try_grid(self, image: Tensor, chunk: int) -> None:
        """Compute copies of the first image of a grid: the chunk was found with one grid.

        Raises:
            InvalidOption: their results differ.
        """
        shape = chunk, *image.shape
        native = isinstance(self._transform, NativeTransform)
        if native and self.device.type != CPU and shape not in self._tried:
            self.check_alike(self.results(image.expand(shape)), 1)
            self._tried.add(shape)

    def check_alike(self, results: Mapping[str, Tensor], start: int) -> None:
        """Raise InvalidOption unless the results from `start` on are those of the first image."""
        if not are_alike(results, start):
            count = max(map(len, results.values()))
            raise InvalidOption(
                f"the same image has other results at other positions of a chunk of {count} "
                f"images on this machine ({self.device}); pass chunk=1 to Predictor"
            )
