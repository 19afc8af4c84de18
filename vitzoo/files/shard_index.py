"""The index of weights in several safetensors files (shards), and how it is found; torch-free.

An index is `{"metadata": {...}, "weight_map": {tensor: file}}`, as transformers and huggingface_hub
write it in the folder of the shards.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from vitzoo.errors import CheckpointError, printable
from vitzoo.files.names import INDEX, NPZ, SAFETENSORS, valid_file
from vitzoo.files.platform import files as system
from vitzoo.files.safetensors import PICKLES, check_count, no_pickle, place
from vitzoo.files.strict_json import strict_json
from vitzoo.text import listed

MAX_INDEX = 8 * 1024 * 1024  # bytes, also of a config: the names of 21,841 classes take 1.7 MB
MAX_SHARDS = 128  # each stays open
SHARD = re.compile(r"(.+)-\d+-of-\d+\.safetensors")


def read_index(fd: int, source: str) -> dict[str, str]:
    """Return the file of every tensor, in the order of the index.

    Args:
        fd: file descriptor; its position is not used.
        source: name of the index for messages.

    Raises:
        CheckpointError: it is no index, or it names a file outside its folder.
    """
    size = os.fstat(fd).st_size
    if size > MAX_INDEX:
        raise CheckpointError(f"{source} has {size} bytes, an index at most {MAX_INDEX}")
    neither = f"{source} is not safetensors (looks like a JSON text), and no index"
    try:
        table = strict_json(system.pread(fd, size, 0))
    except ValueError as error:
        raise CheckpointError(f"{neither}: {printable(str(error), 200)}") from error
    if not isinstance(table, dict) or set(table) | {"metadata"} != {"metadata", "weight_map"}:
        raise CheckpointError(f"{neither}: expected metadata and weight_map")
    weight_map = table["weight_map"]
    if not isinstance(weight_map, dict) or not isinstance(table.get("metadata", {}), dict):
        raise CheckpointError(f"{source}: metadata and weight_map must be tables")
    check_count(len(weight_map), source)
    for name, shard in weight_map.items():
        where = place(name, source)
        plain = isinstance(shard, str) and valid_file(shard) and "/" not in shard
        if not plain or not shard.endswith(SAFETENSORS):
            raise CheckpointError(
                f"{where}: expected the name of a {SAFETENSORS} file in the folder of the index, "
                f"got {ascii(shard)[:80]}"
            )
    shards = len(set(weight_map.values()))
    if shards > MAX_SHARDS:
        raise CheckpointError(f"{source} names {shards} files, more than the {MAX_SHARDS} accepted")
    return weight_map


def index_of(path: Path) -> Path | None:
    """Return the index in the folder of a shard; None if there is none."""
    match = SHARD.fullmatch(path.name)
    index = path.with_name(f"{match[1]}{INDEX}") if match else None
    with suppress(OSError):  # a name that is too long, a folder that may not be searched
        return index if index is not None and index.is_file() else None
    return None


def weights_in(folder: Path) -> Path:
    """Return the one index in a folder, or else its one safetensors or npz file.

    A path that is no folder is returned unchanged.

    Raises:
        CheckpointError: the folder has no such file, or several.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except (OSError, ValueError):
        return folder
    indices = [name for name in names if name.endswith(INDEX)]
    found = indices or [name for name in names if name.endswith((SAFETENSORS, NPZ))]
    if len(found) == 1:
        return folder / found[0]
    if not found:
        pickles = [name for name in names if name.endswith(PICKLES)]
        fix = f"; {no_pickle(str(folder / pickles[0]))}" if pickles else ""
        raise CheckpointError(
            f"{folder} is a folder without weights; expected one {INDEX}, {SAFETENSORS} or "
            f"{NPZ}{fix}"
        )
    raise CheckpointError(f"{folder} has several weights files; pass one of: {listed(found)}")
