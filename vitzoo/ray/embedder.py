"""`Embedder`: what `map_batches` of Ray Data calls with batches of images."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from vitzoo.apps.embed.table import schema_of, table_of
from vitzoo.apps.predict.cores import cores
from vitzoo.apps.predict.outputs import POOLED
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.apps.predict.stream import Stream, one_by_one, staging
from vitzoo.errors import InvalidOption, short_repr
from vitzoo.plugin.requirements import check_extra
from vitzoo.schema.spec import Spec

IMAGES = ("image", "bytes", "path")  # columns of images, the first that a batch has
CHUNK = 64  # images in a forward pass on CUDA
KEYS = ("key", "path", "__key__")  # columns of keys, likewise


class Embedder:
    """Maps batches of images to rows: key, error, width, height, sha256, a column for each output.

    Pass the class, not an object, to `map_batches`: each worker of Ray then creates its network
    once, see docs/embedding.md#ray-data. The rows are those of `Predictor`, byte for byte; a row
    with NaN or infinity becomes an error.

    Args:
        model, weights, outputs, top, dtype, device: as in `Predictor`. A `Predictor` as the model
            has them already; its workers check that they find the same weights.
        chunk: as in `Predictor`. None: 64 on CUDA, so that workers on different GPUs use the same.
        column: the column with images: paths, bytes of image files, or uint8 arrays. None: the
            first of `image`, `bytes` and `path` that there is.
        key: the column with the keys of the rows. None: the first of `key`, `path` and `__key__`.

    Raises:
        MissingDependency: Ray Data or pyarrow is not installed.
        InvalidOption: a value is not possible.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module | Predictor,
        *,
        weights: str | os.PathLike[str] | None = None,
        outputs: str | Iterable[str] = (POOLED,),
        top: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        chunk: int | None = None,
        column: str | None = None,
        key: str | None = None,
    ) -> None:
        check_extra("ray", "vitzoo.ray.Embedder")
        if not isinstance(model, Predictor):
            model = Predictor(
                model,
                weights=weights,
                outputs=outputs,
                top=top,
                dtype=dtype,
                device=device,
                chunk=chunk,
            )
            if model.asynchronous:
                model = model.with_chunk(CHUNK)
        elif (weights, outputs, top, dtype, device, chunk) != (None, (POOLED,), *[None] * 4):
            raise InvalidOption(
                f"{model!r} has weights, outputs, top, dtype, device and chunk; pass them to "
                "Predictor"
            )
        self.predictor = model
        self._column, self._key = column, key
        self._schema = schema_of(model.outputs, model.shapes)
        # Calls of several threads share it, so that the device computes while images are decoded.
        self._stream: Stream[Any] | None = None
        if model.asynchronous:
            threads = max(1, int(share_of_worker() * cores()))
            self._stream = Stream(model, one_by_one(staging(model)), threads=threads)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Any:
        """Return the rows of a batch as a table of pyarrow.

        Raises:
            InvalidOption: the batch does not have the columns, or is no mapping of arrays.
        """
        if not isinstance(batch, Mapping):
            raise InvalidOption(
                f"a batch is a {type(batch).__name__}, expected a mapping of numpy arrays; pass "
                "batch_format='numpy' to map_batches"
            )
        images = _plain(_chosen(batch, self._column, IMAGES, "column"))
        keys = [str(key) for key in _chosen(batch, self._key, KEYS, "key")]
        if self._stream is None:
            rows = self.predictor(images)
        else:
            rows = [row for found in self._stream.rows(images) for row in found]
        return table_of(keys, rows, self._schema)


def share_of_worker() -> float:
    """Return the share of this worker of Ray in its machine: that of its GPUs, 1 without Ray."""
    ray: Any = sys.modules.get("ray")  # a worker has imported it
    if ray is None or not ray.is_initialized():
        return 1.0
    context = ray.get_runtime_context()
    own = context.get_assigned_resources().get("GPU", 0)
    node = context.get_node_id()
    every: dict[str, float] = next(
        (one["Resources"] for one in ray.nodes() if one["NodeID"] == node), {}
    )
    return min(1.0, own / every["GPU"]) if own and every.get("GPU") else 1.0


def _chosen(
    batch: Mapping[str, np.ndarray], name: str | None, known: Sequence[str], argument: str
) -> np.ndarray:
    """Return the column of a batch with a name, or the first that is known."""
    for each in known if name is None else (name,):
        if each in batch:
            return batch[each]
    raise InvalidOption(
        f"the batch has the columns {', '.join(map(short_repr, batch)) or 'none'}, not "
        f"{' or '.join(map(repr, known)) if name is None else repr(name)}; name one of them: "
        f"{argument}='...'"
    )


def _plain(images: Iterable[Any]) -> Iterator[Any]:
    """Yield images without the containers of numpy and of Hugging Face's image columns."""
    for image in images:
        if isinstance(image, Mapping):  # {"bytes": ..., "path": ...}
            yield image.get("bytes") if image.get("bytes") is not None else image.get("path")
        else:
            yield image.item() if isinstance(image, np.generic) else image
