"""`embed`: images to vectors in Parquet files, in parts that any process can compute.

Read `embedding/folder.py` next, then `embedding/pipeline.py`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitzoo.apps.embed.folder import (
    MANIFEST,
    Manifest,
    Part,
    agree,
    check_out,
    find_inputs,
    finish,
    locked,
    missing_parts,
    remove_leftovers,
    reopen,
)
from vitzoo.apps.embed.items import Piece
from vitzoo.apps.embed.parquet_reader import helper_ends
from vitzoo.apps.embed.part_file import VECTORS, Form, errors_of
from vitzoo.apps.embed.pipeline import Job, Task
from vitzoo.apps.embed.sources import Paths, slices
from vitzoo.apps.embed.work import Work
from vitzoo.apps.embed.workers import compute
from vitzoo.apps.identity.canary import canaries, vector_outputs
from vitzoo.apps.identity.hashes import identities
from vitzoo.apps.predict.classes import check_count
from vitzoo.apps.predict.cores import cores_of_process
from vitzoo.apps.predict.fingerprint import Fingerprint, check_unchanged
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.display import cut, cut_cell
from vitzoo.errors import InvalidOption, printable, short_repr
from vitzoo.images.find import LeftOut, shown_left_out
from vitzoo.keywords import (
    check_choice,
    check_keywords,
    check_progress,
    check_types,
    hint_of_progress,
)
from vitzoo.network.device import devices, label
from vitzoo.opening import is_model
from vitzoo.plugin.requirements import check_extra
from vitzoo.progress import OnProgress, reporting
from vitzoo.schema.spec import Spec

MOST = 4096  # workers, or images that are read ahead
MOST_NAMED = 3  # inputs with an error
FEW = 256  # images for a core, for which no other process is started to decode them
MOST_SHARDS = 10**9  # of counts of processes
FIX = "pass --shard INDEX/COUNT (shard=(index, count))"
STAGES = ("read", "decode", "model")


@dataclass(frozen=True)
class Embedded:
    """What a call of `embed` did.

    Args:
        folder: where the Parquet files are.
        inputs: number of inputs of all shards, which is the number of rows of a complete folder.
        errors: number of rows with an error; None while parts are missing.
        missing: number of parts that are not there yet, because other shards compute them.
        computed: number of inputs that this call read.
        seconds: duration of the call.
        work: seconds of work on reading, decoding and the model, over all threads.
        broken: keys of the first inputs with an error that this call read, at most 3.
        reasons: their errors.
        left_out: number of the other files in folders and archives by ending, such as `.heic`.
            Hidden files are not counted.
        device: that computed, such as `cuda:0 (NVIDIA H200)`.
    """

    folder: Path
    inputs: int
    errors: int | None
    missing: int
    computed: int
    seconds: float
    work: Work
    broken: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    device: str = ""

    def __repr__(self) -> str:
        return "\n".join(map(cut, self._lines(cut_cell(self.folder))))

    @property
    def shares(self) -> dict[str, float]:
        """Share of each stage (`read`, `decode`, `model`) in the work."""
        spent = {stage: getattr(self.work, stage) for stage in STAGES}
        return {stage: seconds / (sum(spent.values()) or 1) for stage, seconds in spent.items()}

    def __str__(self) -> str:
        named = zip(self.broken, self.reasons, strict=True)
        errors = [f"error: {printable(key)}: {printable(why)}" for key, why in named]
        if len(self.broken) == MOST_NAMED:
            errors.append("the column error has all of them")
        return "\n".join(self._lines(printable(self.folder), errors))

    def _lines(self, folder: str, errors: Sequence[str] = ()) -> list[str]:
        """Return what was done, with the lines of errors."""
        if self.errors is None:
            state = f"missing parts: {self.missing:,}, which other shards compute"
        else:
            state = f"errors: {self.errors:,}; complete"
        lines = [f"{folder}: inputs: {self.inputs:,}; {state}"]
        lines += filter(None, [shown_left_out(LeftOut(self.left_out))])
        if not self.computed:
            return [*lines, "nothing was left to compute"]
        lines += errors
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in self.shares.items())
        rate = self.computed / self.seconds
        spent = f"{self.seconds:,.1f} s ({rate:,.0f} images/s)"
        lines.append(f"computed {self.computed:,} in {spent} on {self.device}")
        lines.append(f"work: {shares}; bottleneck: {self.work.bottleneck}")
        return lines


@check_keywords(hint_of_progress)
@helper_ends()
def embed(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module | Predictor,
    sources: Paths | Iterable[Paths],
    out: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    vectors: str = "float32",
    column: str | None = None,
    shard: tuple[int, int] | None = None,
    extend: bool = False,
    workers: int | None = None,
    batch_size: int = 64,
    chunk: int | None = None,
    native_size: bool | int | None = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Embedded:
    """Write the outputs of a model for images to Parquet files, one row per image, in order.

    The columns are `key`, `error`, `width` and `height` (px), `sha256` (of the bytes of the image),
    and one for each output. An image that cannot be used is a row with its error. The vector of an
    image is the same bytes whatever its neighbours, its position, `batch_size`, `workers` and
    `shard`. A call on the same folder computes only the parts that are missing.

    Args:
        model: the network, as for `Predictor`; or a Predictor, with which `weights`, `outputs`,
            `dtype`, `device`, `chunk` and `native_size` are left out.
        sources: folders (with subfolders, without hidden files), image files, uncompressed tar
            archives, Parquet files, lists (.txt) of one path per line, and patterns of these: `*`,
            `**`, `{000..009}`.
        out: folder for the Parquet files and `_manifest.json`.
        weights, outputs, dtype, device: as for `Predictor`; the output is `pooled` by default. A
            folder that has vectors is continued on its kind of device.
        vectors: type of the stored vectors, `float32` or `float16`.
        column: column of Parquet files with the bytes or the paths of images; not needed if only
            one column can have them.
        shard: (index, count): compute only every count-th part, from number `index`. By default
            from RANK and WORLD_SIZE, or from SLURM_ARRAY_TASK_ID; otherwise (0, 1).
        extend: add inputs that were appended to the sources.
        workers: number of processes, this one included. By default one per CPU core that the
            container allows, or 1 on another device.
        batch_size: number of images that each process reads ahead of the model; on another device
            than the CPU at least two chunks.
        chunk: number of images in a forward pass, as for `Predictor`; by default that of the
            folder, if it has vectors.
        native_size: resize each image to its own size, as for `Predictor`: a number is the largest
            number of patches, True stands for that of the network.
        on_progress: is called with the images done, their number, and a text. An error that it
            raises ends the run and is raised as it is; finished parts stay.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        MissingDependency: pyarrow is not installed.
        ImageError: a source is missing, damaged or contains no images.
        InvalidOption: the folder has vectors of another model or of other inputs, or files that
            `embed` did not write; it is a source; two sources name the same file; the shape of an
            output depends on the native size; this machine does not have the device of the folder;
            or a value is not possible.
        StoreError: the folder cannot be written to, or another process writes this shard.
        VitzooError: a worker process was killed, or the model cannot be created.
    """
    began = time.perf_counter()
    check_extra("parquet", "vitzoo.embed")
    check_types("embed", sources=(sources, "text or a path or an iterable"))
    check_types("embed", out=(out, "text or a path"), column=(column, "text or None"))
    check_types("embed", shard=(shard, "a tuple or None"))
    check_progress("embed", on_progress, progress)
    check_choice("vectors", vectors, VECTORS)
    for name, value in (("workers", workers), ("batch_size", batch_size), ("chunk", chunk)):
        check_count(name, 1 if value is None else value, MOST)
    index, count = shard_of(shard)
    own_cores = cores_of_process()
    folder = Path(out).absolute()
    sources = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    # Sources and model are refused before the folder is made.
    _check_apart(folder, sources)
    check_out(folder)
    found = Manifest.read(folder / MANIFEST)
    pieces, left_out = find_inputs(found, sources, column)
    options = {"weights": weights, "outputs": outputs, "dtype": dtype, "native_size": native_size}
    device = _device(device, model, folder, found)
    predictor = _predictor(model, **options, device=device, chunk=chunk)
    if found is not None and found.form.chunk:
        predictor = predictor.with_chunk(found.form.chunk)
    fingerprint = predictor.fingerprint()
    check_unchanged(fingerprint.changes, predictor.device)
    form = _form(predictor, fingerprint, vectors, new=found is None)
    # From here on other processes see the folder; the first of them writes its manifest.
    manifest = agree(folder, form, pieces, extend=extend)
    on_cpu = _on_cpu(predictor.device)
    workers = workers or (own_cores if on_cpu else 1)
    job = Job(
        predictor=predictor,
        fingerprint=fingerprint,
        form=manifest.form,
        read_ahead=batch_size,
        threads=1 if on_cpu else max(1, own_cores // workers),
        processes=manifest.count >= FEW * own_cores,
    )
    # One process for each shard. Parts that are whole are kept, so a killed run is continued.
    shown = reporting("embed", on_progress, progress)
    with locked(folder, f"shard-{index}-of-{count}"), shown as report:
        own = [part for part in manifest.parts() if part.number % count == index]
        remove_leftovers(folder, own)
        parts = missing_parts(folder, own, manifest.form)
        total = Total(report, parts)
        broken = _compute(folder, parts, pieces, job, workers, total)
        manifest, missing = finish(folder)
    return Embedded(
        folder=Path(out),
        inputs=manifest.count,
        errors=manifest.errors,
        missing=missing,
        computed=total.work.images,
        seconds=time.perf_counter() - began,
        work=total.work,
        broken=tuple(key for key, _ in broken),
        reasons=tuple(why for _, why in broken),
        left_out=dict(left_out),
        device=label(predictor.device),
    )


def _form(predictor: Predictor, fingerprint: Fingerprint, vectors: str, *, new: bool) -> Form:
    report: Any = getattr(predictor.model, "load_report", None)
    outputs = vector_outputs(predictor, predictor.outputs) if new else []
    return Form(
        fingerprint=fingerprint.to_data(),
        vectors=vectors,
        outputs={name: list(predictor.shapes.get(name, ())) for name in predictor.outputs},
        license=report.license if report else "",
        identity=identities(predictor, outputs) if outputs else {},
        canary={name: one.to_data() for name, one in canaries(predictor, outputs).items()},
    )


def _compute(
    folder: Path, parts: list[Part], pieces: list[Piece], job: Job, workers: int, total: Total
) -> tuple[tuple[str, str], ...]:
    """Write parts until none is missing that no other process writes.

    Returns:
        the keys of the first inputs with an error, and their errors.
    """
    if parts:
        reopen(folder)
    inputs = slices(pieces, ((part.start, part.stop) for part in parts))
    tasks = [Task(folder / part.name, next(inputs)) for part in parts]
    left, before = tasks, -1
    while left and total.work.images > before:  # who had one of the parts may have ended
        before = total.work.images
        compute(job, left, workers, total)
        missed = {part.name for part in missing_parts(folder, parts, job.form)}
        left = [task for task in left if task.path.name in missed]
    return tuple(itertools.islice(errors_of(task.path for task in tasks), MOST_NAMED))


def _check_apart(folder: Path, sources: Iterable[object]) -> None:
    """Refuse an output folder that is a source."""
    for source in sources:
        if (
            isinstance(source, str | os.PathLike)
            and os.path.isdir(source)  # noqa: PTH112  # never raises
            and os.path.isdir(folder)  # noqa: PTH112
            and folder.samefile(source)
        ):
            shown = printable(source)
            raise InvalidOption(f"--out (out=) is the source {shown}; choose another --out")


class Total:
    """Adds up the work on parts and passes it on."""

    def __init__(self, report: OnProgress, parts: Iterable[Part]) -> None:
        self.work = Work()
        self.images = sum(part.stop - part.start for part in parts)
        self._report = report

    def __call__(self, work: Work) -> None:
        self.work += work
        waits = f"waits for {self.work.bottleneck}" if self.work else ""
        self._report(self.work.images, self.images, waits)


def shard_of(shard: tuple[int, int] | None, env: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return (index, count) of this process: the one asked for, or that of torchrun or SLURM.

    Raises:
        InvalidOption: the numbers are no shard.
    """
    where = "shard"
    if shard is not None:
        found = tuple(shard)
    elif {"RANK", "WORLD_SIZE"} <= env.keys():
        where = "RANK and WORLD_SIZE"
        found = _numbers(env, "RANK", "WORLD_SIZE")
    elif "SLURM_ARRAY_TASK_ID" in env:
        where = "SLURM_ARRAY_TASK_ID and its like"
        found = _of_slurm(env)
    else:
        return 0, 1
    whole = len(found) == 2 and all(type(n) is int for n in found)
    if not whole or not 0 <= found[0] < found[1] <= MOST_SHARDS:
        raise InvalidOption(
            f"{where} must be an index from 0 and a larger count, at most {MOST_SHARDS}, got "
            f"{short_repr(found)}; {FIX}"
        )
    return found[0], found[1]


def _of_slurm(env: Mapping[str, str]) -> tuple[int, ...]:
    """Return (index, count) of a task of a SLURM array, whose numbers have a constant step."""
    least, most, count = (f"SLURM_ARRAY_TASK_{name}" for name in ("MIN", "MAX", "COUNT"))
    names = ("SLURM_ARRAY_TASK_ID", least, most, count)
    step = {"SLURM_ARRAY_TASK_STEP": "1"} | dict(env)
    own, first, last, number, by = _numbers(step, *names, "SLURM_ARRAY_TASK_STEP")
    if by < 1 or (last - first) // by + 1 != number or (own - first) % by:
        raise InvalidOption(
            f"the array of SLURM has {number} tasks from {first} to {last} in steps of {by}, which "
            f"is no regular range; {FIX}"
        )
    return (own - first) // by, number


def _numbers(env: Mapping[str, str], *names: str) -> tuple[int, ...]:
    try:
        return tuple(int(env[name]) for name in names)
    except (KeyError, ValueError) as error:
        shown = ", ".join(f"{name}={env.get(name, '')}" for name in names)
        wrong = f"expected whole numbers in {short_repr(shown)}; {FIX}"
        raise InvalidOption(wrong) from error


def _device(
    device: torch.device | str | None, model: object, folder: Path, found: Manifest | None
) -> torch.device | str | None:
    """Return the device for a network: the one asked for, or else that of the folder.

    Raises:
        InvalidOption: this machine does not have the device of the folder.
    """
    if device is not None or found is None or is_model(model) or isinstance(model, Predictor):
        return device
    kind = found.form.device.partition(" ")[0]
    if kind not in {name.partition(":")[0] for name in devices()}:
        raise InvalidOption(
            f"{folder} has vectors of {found.form.device}, and the devices here are "
            f"{', '.join(devices())}; continue on a machine with {kind}, or choose another --out "
            "and a device of this machine with --device (device=): its vectors differ in the last "
            "digits, so this folder does not take them"
        )
    return kind


def _predictor(model: Any, **options: Any) -> Predictor:
    given = {name: value for name, value in options.items() if value is not None}
    if not isinstance(model, Predictor):
        return Predictor(model, **given)
    if given:
        raise InvalidOption(
            f"model is a Predictor, which has its own {', '.join(given)}; pass them to it instead"
        )
    return model


def _on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"
