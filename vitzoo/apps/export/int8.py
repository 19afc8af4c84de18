"""Dynamic quantisation of ONNX files to int8, with its measured agreement and speed."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitzoo.apps.export.runtimes import import_onnxruntime
from vitzoo.apps.export.targets import Run, inline, session
from vitzoo.errors import ExportError

LEAST_COSINE = 0.999
CHUNK = 8  # images in a batch
ROUNDS = 7  # measurements of each file


def quantise(full: Path, path: Path) -> None:
    """Write a copy of a float32 ONNX file that multiplies matrices in int8.

    Weights are quantised once, one scale for each column; activations in each call. Convolutions
    stay in float32. Weights have 7 bits: sums of products of 8 bits overflow on processors without
    VNNI, whose results would have nothing in common with float32.
    """
    import_onnxruntime()
    from onnxruntime.quantization import quantize_dynamic

    root, silent = logging.root, logging.NullHandler()
    root.addHandler(silent)  # onnxruntime's advice would configure the logging of the program
    try:
        quantize_dynamic(
            full,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=True,
            use_external_data_format=not inline(full),
        )
    finally:
        root.removeHandler(silent)


@torch.no_grad()
def smallest_cosine(network: nn.Module, run: Run, samples: Tensor, sizes: Collection[int]) -> float:
    """Return the smallest cosine of the outputs of an int8 file and of its network.

    Args:
        network: maps images to an output.
        run: of the int8 file.
        samples: prepared images (n, c, h, w); each is compared.
        sizes: of the first batches, so that each size is run.

    Raises:
        ExportError: the cosine is below 0.999.
    """
    repeated = samples.repeat(-(-sum(sizes) // len(samples)), 1, 1, 1)
    first = torch.split(repeated[: sum(sizes)], list(sizes))
    batches = [*first, *torch.split(samples, CHUNK)]
    pairs = [(run(images), network(images)) for images in batches]
    cosines = [F.cosine_similarity(a.flatten(1), b.flatten(1)) for a, b in pairs]
    least = torch.cat(cosines).min().item()
    if not least >= LEAST_COSINE:
        raise ExportError(
            f"int8 changes the output too much: for one sample image its cosine with float32 is "
            f"{least:.6f}, expected at least {LEAST_COSINE}; export without int8"
        )
    return least


def speed(full: Path, path: Path, samples: Tensor) -> float:
    """Return the time of a float32 file by that of its int8 file, for a batch of 8 images."""
    batch = samples.repeat(CHUNK, 1, 1, 1)[:CHUNK].numpy()
    runs = [session(file) for file in (full, path)]
    for run in runs:
        run(batch)  # the first run allocates
    times = [[_seconds(run, batch) for run in runs] for _ in range(ROUNDS)]
    whole, small = map(statistics.median, zip(*times, strict=True))
    return whole / small


def _seconds(run: Callable[[Any], Any], batch: Any) -> float:
    begin = time.perf_counter()
    run(batch)
    return time.perf_counter() - begin
