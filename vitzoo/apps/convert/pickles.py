"""Pickles of PyTorch to safetensors, in a limited process.

This is the only way in which vitzoo reads a pickle. The process uses torch's weights-only loader,
and imports no class that the pickle names.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import BinaryIO

from vitzoo.errors import CheckpointError, VitzooError, printable
from vitzoo.files.safetensors import MAX_HEADER, read_header
from vitzoo.plugin.limited import MIB, run_limited

WORKER = "vitzoo.apps.convert.pickle_worker:write"
MEMORY_SLACK = 512 * MIB
MEMORY_FACTOR = 4  # times the size of the file: its bytes, its tensors, and one contiguous copy
OUTPUT_FACTOR = 2  # tied weights are written twice
OUTPUT_SLACK = MAX_HEADER + 16 * MIB
SECONDS, SPEED = 60, 20 * MIB  # of processor time: for any file, and bytes for a further second


@dataclass(frozen=True)
class Limits:
    """What the process that reads a pickle may use.

    Args:
        memory: bytes beside those of torch itself.
        output: bytes of the written file.
        seconds: of processor time.
    """

    memory: int
    output: int
    seconds: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """Return the limits for a file of this many bytes."""
        return cls(
            memory=MEMORY_FACTOR * size + MEMORY_SLACK,
            output=OUTPUT_FACTOR * size + OUTPUT_SLACK,
            seconds=SECONDS + size // SPEED,
        )


def write_tensors(fd: int, source: str, target: BinaryIO, key: str | None) -> tuple[int, str]:
    """Write the tensors of a pickle to an open file as safetensors, under the keys of the pickle.

    Args:
        fd: descriptor of the pickle.
        source: its name, for messages.
        target: an empty file.
        key: names of the entry with the tensors, separated by dots; None to look for it.

    Returns:
        the number of tensors, and the names of their entry.

    Raises:
        CheckpointError: it is no pickle of tensors, or exceeds a limit.
    """
    limits = asdict(Limits.of(os.fstat(fd).st_size))
    try:
        found = run_limited(WORKER, key, limits["output"], source=fd, target=target, **limits)
    except VitzooError as error:
        text = f"{source} is not converted: {printable(str(error), 600)}"
        raise CheckpointError(text) from error
    header = read_header(target.fileno(), source)  # the process is not trusted
    return len(header.tensors), printable(str(found), 200)
