"""The processes of all ways: they get ready one after the other, and then take turns."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Iterator, Sequence
from statistics import median
from typing import Any

from vitzoo.apps.bench.results import Measurement, agreement, interval, is_busy, is_recommended
from vitzoo.apps.bench.ways import EAGER, WAYS
from vitzoo.apps.bench.worker import MODULE, Failed, Job, Outputs, Turn
from vitzoo.apps.embed.processes import Process, ProcessEnded
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.progress import OnProgress

FOLDERS = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # variables of compilers
SAFE = {"PYTHONSAFEPATH": "1"}  # compilers of torch start `python -c`


def measure(
    names: Sequence[str],
    job: Job,
    rounds: int,
    seconds: float,
    report: OnProgress,
    *,
    exact: bool = False,
) -> tuple[tuple[Measurement, ...], float | None]:
    """Return the results of all ways, and the part of a turn in which they waited for a core.

    Args:
        names: of ways, `eager` first.
        job: what all processes have in common.
        rounds, seconds: as in `bench`.
        report: is called with the number of turns so far, of all, and a text: the name of a way
            when it gets ready and when it takes a turn, and a sentence when it is ready.
        exact: recommend no way that computes in fewer bits.

    Raises:
        InvalidOption: all outputs of `eager` are zero.
        VitzooError: `eager` failed.
    """
    done, total = 0, rounds * len(names) * len(job.batches)
    ways = [_Way(name) for name in names]
    eager, written = ways[0], dict[Any, str]()
    try:
        for way in ways:
            report(0, total, way.name)
            way.prepare(job, written)
            way.compare(eager)
            _check(eager)
            ready = f"ready in {way.seconds:.1f} s"
            report(0, total, f"{way.name}: {'failed' if way.error else ready}")
        running = [way for way in ways if not way.error]
        turn = seconds / (rounds * len(running) * len(job.batches))
        least = (outputs.seconds for way in running for outputs in way.outputs.values())
        needed = about(rounds * sum(max(turn, batch) for batch in least))
        several = "s" * (len(running) > 1)
        report(0, total, f"{rounds} rounds of {len(running)} way{several}, {needed}")
        for number in range(rounds):
            for batch in job.batches:
                for way in running[:: -1 if number % 2 else 1]:
                    report(done, total, way.name)
                    way.take(batch, turn)
                    done += 1
                _check(eager)
            running = [way for way in running if not way.error]
            total = done + (rounds - number - 1) * len(running) * len(job.batches)
        report(done, total, "")
    finally:
        for way in ways:
            way.end()
    turns = [turn for way in running for taken in way.turns.values() for turn in taken]
    waits = [turn.waited for turn in turns if turn.waited is not None]
    waited = median(waits) if waits else None
    busy = is_busy(waited)
    excluded = {way.name for way in ways if busy or (exact and WAYS[way.name].rounded)}
    rows = (row for way in ways for row in way.results(eager, len(job.samples), excluded))
    return tuple(rows), waited


def about(seconds: float) -> str:
    """Write a duration that is not exact.

    >>> about(38.4), about(100), about(7300)
    ('about 40 s', 'about 2 minutes', 'about 122 minutes')
    """
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} minutes"


class _Way:
    """A way while it is measured.

    Attributes:
        outputs: for the samples, by size of the batch.
        turns: by size of the batch.
        seconds: until it could run.
        error: why it failed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs: dict[int, Outputs] = {}
        self.turns: dict[int, list[Turn]] = {}
        self.seconds = 0.0
        self.error = ""
        self._process: Process | None = None

    def prepare(self, job: Job, written: dict[Any, str]) -> None:
        """Write the files of the way, start its process, and compute the samples.

        Args:
            job: what all processes have in common.
            written: the functions that have written files, with their errors.
        """
        began = time.monotonic()
        write = WAYS[self.name].write
        if write is not None and write not in written:
            self._start(job, write=True)
            self.end()
            written[write] = self.error
        self.error = written.get(write, "")
        for batch in () if self.error else job.batches:
            answer = self._ask() if self._process else self._start(job, write=False)
            if self.error:
                break
            self.outputs[batch], self.turns[batch] = answer, []
        self.seconds = time.monotonic() - began

    def compare(self, eager: _Way) -> None:
        """End the way if its outputs are no outputs of the network."""
        for batch, outputs in () if self.error else self.outputs.items():
            found, expected = outputs.values, eager.outputs[batch].values
            if found.shape != expected.shape:
                shapes = f"{tuple(found.shape)}, expected {tuple(expected.shape)}"
                self.error = f"its outputs have the shape {shapes}"
            elif not found.isfinite().all():
                self.error = f"with a batch of {batch}, its outputs have NaN or infinite values"
        if self.error:
            self.end()

    def take(self, batch: int, seconds: float) -> None:
        """Take a turn, unless the way has failed."""
        turn = self._ask((batch, seconds)) if self._process else None
        if turn is not None:
            self.turns[batch].append(turn)

    def results(self, eager: _Way, count: int, excluded: Collection[str]) -> Iterator[Measurement]:
        """Yield one row for each size of the batch, or one with the error.

        Args:
            eager: the way with which this one is compared.
            count: number of samples.
            excluded: names of ways that are not recommended.
        """
        if self.error:
            yield Measurement(self.name, seconds=self.seconds, error=self.error)
            return
        never = self.name in (EAGER, *excluded) or WAYS[self.name].compared
        for batch, turns in self.turns.items():
            speeds, of_eager = ([turn.speed for turn in t] for t in (turns, eager.turns[batch]))
            speed, speed_interval = interval(speeds)
            ratio, ratio_interval = interval([a / b for a, b in zip(speeds, of_eager, strict=True)])
            outputs, expected = self.outputs[batch], eager.outputs[batch].values
            cosine, top1 = agreement(outputs.values, expected, count)
            yield Measurement(
                self.name,
                batch,
                speed,
                speed_interval,
                ratio,
                ratio_interval,
                memory=outputs.memory,
                cosine=cosine,
                top1=top1 if expected.shape[1] > 1 else None,
                seconds=self.seconds,
                recommended=is_recommended(ratio_interval, cosine) and not never,
            )

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _start(self, job: Job, *, write: bool) -> Any:
        """Start the process, and return its first answer."""
        added = dict.fromkeys(FOLDERS, str(job.place.folder)) | SAFE
        quiet = os.environ.get("VITZOO_DEBUG") != "1"
        self._process = Process(MODULE, added, quiet=quiet, group=True)
        return self._ask(dataclasses.replace(job, way=self.name, write=write))

    def _ask(self, value: object = None) -> Any:
        """Send a value, unless it is None, and return the next answer; None after a failure."""
        process: Any = self._process
        try:
            if value is not None:
                process.send(value)
            answer = process.receive()
        except ProcessEnded as error:
            full = "; the memory was probably full" if "SIGKILL" in str(error) else ""
            answer = Failed(f"its process ended with {error}{full}")
        if not isinstance(answer, Failed):
            return answer
        self.error = answer.cause
        self.end()
        return None


def _check(eager: _Way) -> None:
    """Raise if there is nothing to compare with."""
    if eager.error:
        raise VitzooError(
            f"the network itself cannot run, so nothing can be compared: "
            f"{eager.error.rstrip('.')}; try a smaller batch or network"
        )
    if any(not outputs.values.any(1).all() for outputs in eager.outputs.values()):
        raise InvalidOption(
            "the outputs of the network are all zero, as those of a new classifier, so nothing can "
            "be compared; pass trained weights, or the name of the network with untrained=True "
            "(--untrained)"
        )
