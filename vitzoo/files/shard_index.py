"""The index of weights in several safetensors files (shards), and how it is found; torch-free.

An index is `{"metadata": {...}, "weight_map": {tensor: file}}`, as transformers and huggingface_hub
write it in the folder of the shards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vitzoo.errors import CheckpointError, printable
from vitzoo.files.access import open_regular, read_regular
from vitzoo.files.names import INDEX, NPZ, SAFETENSORS, WEIGHTS, valid_file
from vitzoo.files.platform import files as system
from vitzoo.files.safetensors import (
    PICKLE_INDEX,
    PICKLES,
    check_count,
    no_pickle,
    place,
    read_header,
)
from vitzoo.files.strict_json import strict_json
from vitzoo.text import listed

MAX_INDEX = 8 * 1024 * 1024  # bytes, also of a config: the names of 21,841 classes take 1.7 MB
MAX_SHARDS = 128  # each stays open
DEPTH = 4  # folders between the root of a Hub cache, with `hub`, and a snapshot
MOST_BELOW, MOST_FOLDERS = 200, 1000  # entries of a folder, and folders, that are looked at
STATE = re.compile(r"optimizer|scheduler|rng_state|scaler|training_args|random_states|sampler")
PICKLE = "pytorch_model.bin"
MODEL = "model.safetensors"  # as vitzoo, timm and transformers call a whole network
UNFINISHED = "vitzoo_unfinished"  # in the metadata of a checkpoint: the command that continues it
COMMAND = re.compile(r"vitzoo [a-z][a-z-]{0,60}")  # no other text of a file is shown as a command
WEIGHT_MAP = "weight_map"
NAMED = re.compile(rb'"([^"]{1,300}\.safetensors)"')
SHARD = re.compile(r"(.+)-\d+-of-\d+\.safetensors")


def read_index(
    fd: int,
    source: str,
    endings: tuple[str, ...] = (SAFETENSORS,),
    keys: tuple[str, ...] = (WEIGHT_MAP,),
) -> dict[str, str]:
    """Return the file of every tensor, in the order of the index.

    Args:
        fd: file descriptor; its position is not used.
        source: name of the index for messages.
        endings: of the files that it may name.
        keys: one of them has the files. An index of a plugin's format may have others beside it.

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
    key = next((key for key in keys if isinstance(table, dict) and key in table), None)
    usual = keys == (WEIGHT_MAP,)
    if key is None or (usual and set(table) | {"metadata"} != {"metadata", WEIGHT_MAP}):
        expected = f"metadata and {WEIGHT_MAP}" if usual else " or ".join(keys)
        raise CheckpointError(f"{neither}: expected {expected}")
    weight_map = table[key]
    if not isinstance(weight_map, dict) or not isinstance(table.get("metadata", {}), dict):
        raise CheckpointError(f"{source}: metadata and {key} must be tables")
    check_count(len(weight_map), source)
    for name, shard in weight_map.items():
        where = place(name, source)
        plain = isinstance(shard, str) and valid_file(shard) and "/" not in shard
        if not plain or not shard.endswith(endings):
            pickled = plain and shard.endswith(PICKLES)
            raise CheckpointError(
                f"{where}: expected the name of a {' or '.join(endings)} file in the folder of the "
                f"index, got {ascii(shard)[:80]}{f'; {no_pickle(source)}' if pickled else ''}"
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


def pickle_in(names: Iterable[str]) -> str:
    """Return the name of the pickle that may have the weights of a network, empty if there is none.

    An index of several pickles comes first, then the name of transformers. Files in folders come
    after those outside. What a Trainer writes beside the weights is left out.
    """

    def order(name: str) -> tuple[object, ...]:
        return name.count("/"), not name.endswith(".json"), _file(name) != PICKLE, name

    found = [
        name for name in names if PICKLE_INDEX.fullmatch(_file(name)) or name.endswith(PICKLES)
    ]
    return min((name for name in found if not STATE.match(_file(name))), key=order, default="")


def _file(name: str) -> str:
    return name.rpartition("/")[2]


class WithoutWeights(NamedTuple):
    """A folder without weights, and the names in it."""

    folder: Path
    names: list[str]

    def paths(self) -> Iterator[Path]:
        """Yield the paths in the folder and in its subfolders, not many of them."""
        yield from (self.folder / name for name in self.names)
        for path, names in islice(_below(self.folder), MOST_FOLDERS):
            yield from (path / name for name in names)


def weights_in(folder: Path, known: Callable[[], Collection[str]] = tuple) -> Path:
    """Return the one index in a folder, or else its one safetensors or npz file.

    An index beside the whole file of the same name, such as `model.safetensors`, is left over from
    an earlier save; transformers reads the whole file, too. A path that is no folder is returned
    unchanged.

    Args:
        folder: a path.
        known: returns names of further indexes. It is called if there is no index, and several
            weights files, or one with a number.

    Raises:
        CheckpointError: the folder has no such file, or several, or is of a run that has not ended.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except (OSError, ValueError):
        return folder
    of_index = {
        name: name.removesuffix(INDEX) + SAFETENSORS for name in names if name.endswith(INDEX)
    }
    whole = {file if file in names else index for index, file in of_index.items()}
    found = sorted(whole) or [name for name in names if name.endswith((SAFETENSORS, NPZ))]
    if not whole and MODEL not in found:
        _check_ended(folder, found)
    shards = not whole and (len(found) > 1 or (len(found) == 1 and _numbered(found[0])))
    others = _naming(folder, names, found) if shards else []
    indexes = known() if others or (shards and len(found) > 1) else ()
    stated = sorted(set(others or names).intersection(indexes))
    if stated and (others or _apart(folder, found)):
        found = stated
    if len(found) == 1:
        return folder / found[0]
    if not found:
        instead = _instead(folder, names)
        error = CheckpointError(
            f"{folder} is a folder without weights; expected one {INDEX}, {SAFETENSORS} or "
            f"{NPZ}{instead}"
        )
        raise error if instead else error.of(WithoutWeights(folder, names))
    raise CheckpointError(f"{folder} has {_several(folder, found, others, indexes)}")


def _check_ended(folder: Path, names: Iterable[str]) -> None:
    """Raise CheckpointError if one of the files is the checkpoint of a run that has not ended."""
    for name in islice(names, MAX_SHARDS):
        metadata: Mapping[str, str] = {}
        with suppress(CheckpointError):
            fd = open_regular(folder / name, follow=True, kind=CheckpointError)
            if fd is not None:
                with os.fdopen(fd, "rb"):
                    metadata = read_header(fd, name).metadata
        if COMMAND.fullmatch(command := metadata.get(UNFINISHED, "")):
            raise CheckpointError(
                f"{folder} has no {MODEL}, because a run has not ended: {name} is its checkpoint; "
                f"run `{command}` again with the same arguments, which continues it"
            )


def _numbered(name: str) -> bool:
    """Tell whether a file may be one of several: its name has a number."""
    return any(one.isdecimal() for one in name)


def _several(folder: Path, found: list[str], others: list[str], indexes: Collection[str]) -> str:
    """Return what a folder has, and the fix: several indexes or networks, or several shards.

    Args:
        folder: the folder.
        found: names of the files of which one is expected.
        others: JSON files that name weights files.
        indexes: names of further indexes that are known.
    """
    if others and not set(others).intersection(found):
        return (
            f"{len(found)} weights files ({listed(found)}) and {listed(others)}, which no "
            f"installed checkpoint format reads as their index; expected NAME{INDEX}, or install "
            "the plugin of the format (`vitzoo plugins` names plugins that cannot be used)"
        )
    if MODEL not in found and _apart(folder, found):
        return (
            f"{len(found)} safetensors files without a common tensor, as shards of one network: "
            f"{listed(found)}; expected their index {' or '.join([f'NAME{INDEX}', *indexes])}, "
            "which names the file of each tensor; get it from where the files are from, or pass "
            "the path of a file that has a whole network"
        )
    return f"several weights files; pass one of: {listed(found)}"


def _naming(folder: Path, names: Iterable[str], weights: Iterable[str]) -> list[str]:
    """Return the JSON files that name several safetensors files, one of `weights` among them."""
    known, found = {os.fsencode(name) for name in weights}, list[str]()
    tables = (name for name in names if known and name.endswith(".json"))
    for name in islice(tables, MOST_BELOW):
        with suppress(CheckpointError):  # it is too large, or no regular file
            text = read_regular(folder / name, MAX_INDEX, CheckpointError) or b""
            files = set(NAMED.findall(text))
            found += [name] if len(files) > 1 and not known.isdisjoint(files) else []
    return found


def _apart(folder: Path, names: list[str]) -> bool:
    """Tell whether files are safetensors files, and no tensor is in two of them."""
    seen: set[str] = set()
    for name in names[: MAX_SHARDS + 1]:
        try:
            fd = open_regular(folder / name, follow=True, kind=CheckpointError)
            if fd is None:  # a broken link
                return False
            with os.fdopen(fd, "rb"):
                tensors = read_header(fd, name).tensors.keys()
        except CheckpointError:
            return False
        if not seen.isdisjoint(tensors):
            return False
        seen |= tensors
    return len(names) <= MAX_SHARDS


def _instead(folder: Path, names: Iterable[str]) -> str:
    """Return the end of an error: weights in folders below, such as those of a Trainer, or pickles.

    The root of a Hub cache has its weights in `models--OWNER--NAME/snapshots/COMMIT`.
    """
    if pickle := pickle_in(names):
        return f"; {no_pickle(str(folder / pickle))}"
    below = dict(islice(_below(folder), MOST_FOLDERS))
    there = [path for path, inside in below.items() if any(n.endswith(WEIGHTS) for n in inside)]
    if there:
        newest = ", ".join(map(str, sorted(there, key=_order, reverse=True)[:5]))
        return f"; these folders in it have some: {newest}; pass one of them"
    for path in sorted(below, key=_order, reverse=True):
        if pickle := pickle_in(below[path]):
            return f"; {no_pickle(str(path / pickle))}"
    return ""


def _below(folder: Path, depth: int = DEPTH) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders in a folder with the names of their files, not many of them."""
    with suppress(OSError):
        for path in sorted(entry for entry in islice(folder.iterdir(), MOST_BELOW)):
            if depth and path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    yield path, [entry.name for entry in islice(path.iterdir(), MOST_BELOW)]
                yield from _below(path, depth - 1)


def _order(path: Path) -> tuple[int, str]:
    """Return what sorts folders by the number at their end, such as that of a step."""
    match = re.search(r"-(\d{1,18})$", path.name)
    return (int(match[1]) if match else -1, str(path))
