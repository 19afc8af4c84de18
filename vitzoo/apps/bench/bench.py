"""`bench`: measure ways to compute the outputs of a network, and recommend the best."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitzoo.apps.bench.results import LEAST_ROUNDS, Benchmark, advise
from vitzoo.apps.bench.samples import samples
from vitzoo.apps.bench.turns import about, measure
from vitzoo.apps.bench.ways import CPU, NETWORK, WAYS, Place, choose_ways, ready_in
from vitzoo.apps.bench.worker import Job
from vitzoo.apps.identity.hashes import reported
from vitzoo.apps.predict.arithmetic import matmul_precision
from vitzoo.apps.predict.chunk import CHUNK, fitting, total_memory
from vitzoo.apps.predict.classes import MOST
from vitzoo.apps.predict.fingerprint import versions
from vitzoo.apps.predict.given import copied_to
from vitzoo.errors import InvalidOption, VitzooError, printable, short_repr
from vitzoo.factory import open_network
from vitzoo.keywords import check_keywords, check_progress, hint_of_progress
from vitzoo.network.device import choose_device, for_others, of_rank
from vitzoo.network.summary import cost
from vitzoo.opening import Named, is_model, locate
from vitzoo.progress import OnProgress, reporting
from vitzoo.schema.spec import Spec

MODEL = "vit_digits"  # in the package
BATCHES = (1, CHUNK)
ROUNDS = 9
SECONDS, QUICK_SECONDS = 30.0, 6.0
MOST_ROUNDS = 1000
MOST_SECONDS = 86_400
LONGEST = 300  # characters of the text of an error of torch


@check_keywords(hint_of_progress)
def bench(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module = MODEL,
    *,
    weights: str | os.PathLike[str] | None = None,
    untrained: bool = False,
    ways: Collection[str] | None = None,
    batches: Collection[int] | None = None,
    images: Iterable[str | os.PathLike[str]] | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    quick: bool = False,
    device: torch.device | str | None = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Benchmark:
    """Measure ways to compute the outputs of a network, and recommend what is clearly faster.

    Each way has a process, which prepares and then waits. In each round every way computes for a
    moment, one after the other, so that a busy machine slows all of them. The first way is `eager`,
    the network in float32 as `create` returns it; the others are compared with it. A way that fails
    is a row with its cause. Nothing is kept on the disk.

    Args:
        model: the network, see docs/create.md#which-network, in float32. A variant gets its default
            weights.
        weights: as in `create`.
        untrained: load no weights; the network gets random ones. Only for a variant or a spec.
        ways: names: `eager`, `compile`, `freeze` (compiled with frozen weights), `bf16`,
            `onnxruntime`, `openvino`, `torchao` (int8, compiled), `ort-int8` (int8 by
            onnxruntime); `timm`, `timm-compile` and `timm-bf16` are timm's network with the same
            weights. None: on the CPU all that are installed but timm's; on a GPU `eager`,
            `compile`, `bf16` and timm's.
        batches: numbers of images in a batch. None: 1 and 8; on a GPU of CUDA 1 and the largest of
            256, 128, 64, 32, 16 and 8 for which the network and its activations take about half of
            the memory at most.
        images: paths of images or folders on which outputs are compared. None: crops of the two
            photographs of scikit-learn, its digits for a network of grey images, or random numbers
            without scikit-learn.
        rounds: measurements of each way, at least 6; None: 9, or 6 if `quick`.
        seconds: time of all measurements together; each runs at least one batch. None: 30, or 6
            if `quick`.
        quick: leave out the ways that take long to get ready, unless `ways` names them: those that
            compile, OpenVINO and int8. A small network then takes less than a minute.
        device: of the computation, as for `Predictor`.
        on_progress: is called with the number of measurements so far, of all, and a text: first a
            sentence on what is measured and about how long; then the name of a way when it gets
            ready and when it is measured, and a sentence when it is ready. An error that it raises
            ends the call and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        InvalidOption: a value is not possible, or the outputs are all zero.
        MissingDependency: a way that was named needs a package that is not installed.
        ImageError: an image cannot be read.
        VitzooError: `create` cannot create the network, or `eager` failed.

    >>> done = bench(ways=["eager"], batches=[2], rounds=6, seconds=0.1)
    >>> [(row.way, row.batch, row.ratio) for row in done.rows]
    [('eager', 2, 1.0)]
    """
    check_progress("bench", on_progress, progress)
    rounds = (LEAST_ROUNDS if quick else ROUNDS) if rounds is None else rounds
    seconds = (QUICK_SECONDS if quick else SECONDS) if seconds is None else seconds
    sizes = _checked(BATCHES if batches is None else batches, rounds, seconds)
    network, place = _network(model, weights, device, untrained=untrained)
    if batches is None:
        sizes = sizes[0], _largest_batch(network, total_memory(torch.device(place)))
    names, left_out = choose_ways(ways, torch.device(place).type, quick=quick)
    shown = reporting("bench", on_progress, progress)
    with shown as report, tempfile.TemporaryDirectory(prefix="vitzoo-bench-") as folder:
        whole = ready_in(names, len(sizes), network.spec.depth) + seconds
        report(0, rounds * len(names) * len(sizes), _plan(names, sizes, rounds, whole))
        inputs, what, random_images = samples(network, images)
        where = Place(Path(folder), place)
        _write(network, where.folder / NETWORK)
        threads, precision = torch.get_num_threads(), matmul_precision(torch.device(place))
        job = Job("", where, False, sizes, inputs, threads, precision)
        rows, waited = measure(names, job, rounds, float(seconds), report, exact=untrained)
    passed = is_model(model)
    named = isinstance(model, str | os.PathLike)
    arguments = "" if passed else _arguments(model, weights, place, untrained=untrained)
    shell = _shell(model, weights) if named and not untrained else ""
    return Benchmark(
        model=str(model) if named else network.spec.variant or type(network).__name__,
        weights=_source(network, untrained=untrained, passed=passed),
        images=what,
        device=place,
        threads=threads,
        rounds=rounds,
        waited=waited,
        versions=versions(torch.device(place)),
        rows=rows,
        advice=advise(
            rows,
            {name: WAYS[name].lines(shell, arguments) for name in names},
            images=what,
            threads=threads,
            waited=waited,
            random_weights=untrained,
            random_images=random_images,
        ),
        left_out=tuple(left_out),
        identity="" if untrained else reported(network)[0],
    )


def _checked(batches: Any, rounds: Any, seconds: Any) -> tuple[int, ...]:
    """Return the sizes of batches; raise InvalidOption for impossible numbers."""
    sizes = tuple(dict.fromkeys(batches)) if isinstance(batches, Collection) else ()
    if not sizes or any(type(n) is not int or not 1 <= n <= MOST for n in sizes):
        raise InvalidOption(
            f"batches must be numbers of images from 1, such as [1, 8], got {short_repr(batches)}"
        )
    if type(rounds) is not int or not LEAST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise InvalidOption(
            f"rounds must be from {LEAST_ROUNDS} (fewer give no interval of 95 %) to "
            f"{MOST_ROUNDS}, got {short_repr(rounds)}"
        )
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (number and 0 < seconds <= MOST_SECONDS):
        raise InvalidOption(
            f"seconds must be a number above 0 and up to {MOST_SECONDS}, got {short_repr(seconds)}"
        )
    return sizes


def _largest_batch(network: Any, memory: int) -> int:
    """Return the largest batch that fits in the memory of a GPU, 8 on other devices."""
    if not memory:
        return CHUNK
    images = torch.empty(1, network.spec.in_chans, *network.spec.image_size, device="meta")
    try:
        each = cost(copied_to("meta", network), images).activations
    except RuntimeError:  # a part that a user passed reads numbers
        return CHUNK
    tensors = [*network.parameters(), *network.buffers()]
    return fitting(sum(tensor.nbytes for tensor in tensors), each, memory)[0]


def _plan(names: Collection[str], sizes: Collection[int], rounds: int, seconds: float) -> str:
    batches = f"batch{'es' * (len(sizes) > 1)} of {' and '.join(map(str, sizes))}"
    return f"{', '.join(names)}: {batches}, {rounds} rounds, {about(seconds)}"


def _network(model: Any, weights: Any, device: Any, *, untrained: bool) -> tuple[Any, str]:
    """Return the network in float32, and the device that is measured."""
    stays = device is None and is_model(model)
    chosen = None if stays else of_rank(choose_device(device))
    if untrained and weights is not None:
        raise InvalidOption(f"untrained loads no weights, got weights={short_repr(weights)}")
    network = open_network(model, weights, pretrained=not untrained)
    first = next(network.parameters())
    place = for_others(chosen, torch.empty(0, device=chosen).device) if chosen else first.device
    if first.dtype != torch.float32:
        raise InvalidOption(
            f"the model has numbers of type {first.dtype}, expected torch.float32; pass "
            "model.float()"
        )
    if "meta" in (first.device.type, place.type):
        raise InvalidOption(
            "nothing is computed on the device meta, expected a device with memory such as cpu; "
            "create the model on it, or pass device="
        )
    if untrained:
        _fill(network)
    return network.eval(), str(place)


@torch.no_grad()
def _fill(network: nn.Module) -> None:
    """Replace matrices of zeros, such as that of a new classifier, by random numbers."""
    for parameter in network.parameters():
        if parameter.dim() > 1 and not parameter.any():
            parameter.normal_(0, 0.02)


def _write(network: nn.Module, path: Path) -> None:
    try:
        torch.save(network, path)
    except Exception as error:  # torch raises RuntimeError for a full disk; a part may be a lambda
        reason = printable(" ".join(str(error).split()), LONGEST)
        raise VitzooError(
            f"the network cannot be passed to other processes through {path.parent}: {reason}; "
            "define its parts in a module, and name a folder with room for its weights in TMPDIR"
        ) from error


def _shell(model: Any, weights: Any) -> str:
    """Return the arguments of a command that name the model and its weights."""
    given = [os.fspath(model), *(["--weights", os.fspath(weights)] if weights else [])]
    return shlex.join(given)


def _arguments(model: Any, weights: Any, device: str, *, untrained: bool) -> str:
    """Return the arguments of `create` that give the model."""
    found = locate(model)
    bare = untrained or not isinstance(found, Named) or found.row
    loaded = f"weights={os.fspath(weights)!r}" if weights else "" if bare else "pretrained=True"
    place = f"device={device!r}" if device != CPU else ""  # `create` takes the CPU otherwise
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    return ", ".join(text for text in (repr(name), loaded, place) if text)


def _source(network: Any, *, untrained: bool, passed: bool) -> str:
    if untrained:
        return "random"
    if passed:
        return "of the model that was passed"
    return network.load_report.source if network.load_report else "of the file"
