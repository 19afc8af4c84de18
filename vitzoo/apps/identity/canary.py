"""The canary: vectors of ten fixed images, which show how far two sets of vectors differ.

The digits are from the UCI data set of handwritten digits (CC BY 4.0), which scikit-learn has.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitzoo.apps.predict.arithmetic import matmul_precision
from vitzoo.apps.predict.on_cuda import settings_on
from vitzoo.apps.predict.outputs import POOLED
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.display import brief
from vitzoo.errors import InvalidOption, VitzooError, short_repr
from vitzoo.network.wrappers import network_of

COUNT = 10
MOST_WIDTH = 2**20  # of a vector that is read
DIGITS = (  # 8x8 px of 16 levels
    "00aeb30004fd6e1004f20b7008f00a5008f00e4008f01f1004f1bf0000bfc300",
    "0005ec20007f8e4000623d100001d400001b900008fd000005efb2000006cd30",
    "0009f100004fc00000fe2b3004f94fa009fbdf20009ffe000008f6000009f200",
    "0009fc0000477e0000000d300498ad1004ffff600000e3000009c000000b7000",
    "0077df4000dd6c7000a4ab10008fa00003ef0000088b500004a9800001bf6000",
)
# The largest distance that the numerics alone cause, by the class of the coarser numerics. Each is
# above all distances of docs/identity.md, which docs/generate_identity.py measures.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-1, "int8": 3e-1}
CLASSES = tuple(TOLERANCES)
OF_PRECISION = {  # of matrix products and convolutions in float32
    "high": "float16", "tf32": "float16", "medium": "bfloat16", "bf16": "bfloat16",
}  # fmt: skip
SAME_VECTORS, OTHER_VECTORS = "same vectors", "other vectors"


@cache
def images() -> tuple[NDArray[np.uint8], ...]:
    """Return the ten images, of 8-bit pixels: (h, w, 3), the digits (8, 8)."""
    noise = np.frombuffer(hashlib.shake_256(b"vz1").digest(120 * 160 * 3), np.uint8)
    y, x = np.indices((96, 128))
    ramp = np.stack([2 * x, 2 * y, 255 - x - y], axis=-1)
    y, x = np.indices((64, 64))
    checks = np.stack([(x // 8 + y // 8) % 2 * 255] * 3, axis=-1)
    y, x = np.indices((112, 80))
    rings = np.stack([(x * x + y * y) // n % 256 for n in (8, 16, 32)], axis=-1)
    dark = noise[: 48 * 48 * 3].reshape(48, 48, 3) // 64
    made = [noise.reshape(120, 160, 3), ramp, checks, rings, dark]
    digits = [np.array([int(c, 16) * 17 for c in row]).reshape(8, 8) for row in DIGITS]
    return tuple(image.astype(np.uint8) for image in (*made, *digits))


@dataclass(frozen=True, eq=False)
class Canary:
    """The vectors of the ten images.

    Args:
        vectors: (10, d) float32.
        numerics: class of the numerics: `float32`, `float16`, `bfloat16` or `int8`.
    """

    vectors: NDArray[np.float32]
    numerics: str

    __repr__ = brief

    @classmethod
    def of(cls, predictor: Predictor, output: str = POOLED) -> Canary | None:
        """Return the canary of a network, None if it has none.

        It has none if it takes images of other bands, or its vectors are not finite.
        """
        return canaries(predictor, [output]).get(output)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes of the vectors, little-endian."""
        return hashlib.sha256(self._bytes).hexdigest()

    @property
    def _bytes(self) -> bytes:
        return self.vectors.astype("<f4").tobytes()

    def to_data(self) -> dict[str, str]:
        """Return the canary as plain data, with the bytes of the vectors in base64."""
        return {"numerics": self.numerics, "vectors": base64.b64encode(self._bytes).decode()}

    @classmethod
    def from_data(cls, data: object) -> Canary:
        """Read what `to_data` returned; raise InvalidOption for anything else."""
        table = data if isinstance(data, Mapping) else {}
        numerics, text = table.get("numerics"), table.get("vectors")
        try:
            values = np.frombuffer(base64.b64decode(str(text), validate=True), "<f4")
        except (ValueError, binascii.Error):
            values = np.zeros(0, "<f4")
        width = len(values) // COUNT
        whole = 0 < width <= MOST_WIDTH and width * COUNT == len(values)
        if not whole or numerics not in CLASSES or not np.isfinite(values).all():
            raise InvalidOption(
                f"a canary must have numerics ({', '.join(CLASSES)}) and the vectors of {COUNT} "
                f"images in base64, got {short_repr(data)}; write the vectors again"
            )
        return cls(values.reshape(COUNT, width).astype(np.float32), str(numerics))

    def distance(self, other: Canary) -> float:
        """Return the largest distance of two vectors of an image, each divided by its length.

        It is computed in float64. Vectors of other widths have the largest distance, 2.
        """
        if self.vectors.shape != other.vectors.shape:
            return 2.0
        return largest_distance(self.vectors, other.vectors)

    def compared(self, other: Canary) -> str:
        """Return whether two canaries are of the same vectors, as far as their numerics tell."""
        numerics = max(self.numerics, other.numerics, key=CLASSES.index)
        distance, most = self.distance(other), TOLERANCES[numerics]
        if distance > most:
            return OTHER_VECTORS
        return SAME_VECTORS if numerics == CLASSES[0] else f"not told apart below {most:g}"


def largest_distance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the largest distance of the rows of two arrays (n, d), each divided by its length."""
    units = [array.astype(np.float64) for array in (first, second)]
    one, two = (u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300) for u in units)
    return float(np.linalg.norm(one - two, axis=1).max())


def numerics_of(predictor: Predictor) -> str:
    """Return the class of the numerics of a Predictor."""
    settings = settings_on(predictor.device, predictor.computation.network).values()
    stated = [matmul_precision(predictor.device), *map(str, settings)]
    names = [str(predictor.computation.dtype).removeprefix("torch.")]
    tensors = network_of(predictor.model).state_dict().values()
    names += ["int8"] if any(type(tensor) is not Tensor for tensor in tensors) else []
    names += [OF_PRECISION[value] for value in stated if value in OF_PRECISION]
    return max((name for name in names if name in CLASSES), key=CLASSES.index, default=CLASSES[0])


def distance_of(run: Callable[[Tensor], Tensor], predictor: Predictor, canary: Canary) -> float:
    """Return the largest distance of the vectors of an exported file to a canary.

    Args:
        run: maps (b, c, h, w) prepared images to vectors (b, d).
        predictor: of the network, which prepares the images.
        canary: of the network.
    """
    inputs = [predictor.decode(image).tensor for image in images()]
    found = run(torch.stack([one for one in inputs if one is not None]))
    return largest_distance(found.detach().flatten(1).float().numpy(), canary.vectors)


def vector_outputs(predictor: Predictor, outputs: Iterable[str]) -> list[str]:
    """Return those of the outputs that are one vector for each image."""
    return [name for name in outputs if len(predictor.shapes.get(name, ())) == 1]


def canaries(predictor: Predictor, outputs: Iterable[str]) -> dict[str, Canary]:
    """Return the canary of each output that is a vector.

    There is none if the network takes images of other bands, or gives no finite vectors.

    Args:
        predictor: of the network.
        outputs: names of outputs that it has.
    """
    wanted = vector_outputs(predictor, outputs)
    try:
        rows = predictor(list(images())) if wanted else []
    except VitzooError:
        return {}
    if any(row.error for row in rows):
        return {}
    numerics = numerics_of(predictor) if wanted else ""
    found = {name: np.stack([row.outputs[name] for row in rows]) for name in wanted}
    return {
        name: Canary(vectors.astype(np.float32), numerics)
        for name, vectors in found.items()
        if np.isfinite(vectors).all()
    }
