"""Reader of weights in several safetensors files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from vitzoo.checkpoint.containers import OpenFile, Reading, SafetensorsFile, Tensors, open_own
from vitzoo.errors import CheckpointError
from vitzoo.files.safetensors import Header, check_count
from vitzoo.files.shard_index import WEIGHT_MAP, read_index


class Shards:
    """The safetensors files that an index names, or some of them, all open at once.

    Args:
        file: the index, open for reading.
        source: its name for messages.
        names: of the files to open; None means all of them.
        opened: returns the open file of a name.
        keys: of the index, see `read_index`.
    """

    def __init__(
        self,
        file: OpenFile,
        source: str,
        names: Iterable[str] | None,
        opened: Callable[[str], SafetensorsFile],
        keys: tuple[str, ...] = (WEIGHT_MAP,),
    ) -> None:
        self.file = file
        weight_map = read_index(file.fd, source, keys=keys)
        self.parts: dict[str, SafetensorsFile] = {}
        for name in sorted(set(weight_map.values() if names is None else names)):
            self.parts[name] = opened(name)
            count = sum(len(part.header.tensors) for part in self.parts.values())
            check_count(count, f"{source} with its shards")
        check_union(weight_map, self.parts, source)
        here = {name: shard for name, shard in weight_map.items() if shard in self.parts}
        self.elsewhere = tuple(name for name in weight_map if name not in here)
        self.header = Header(
            {name: self.parts[shard].header.tensors[name] for name, shard in here.items()}, {}
        )

    @classmethod
    def beside(cls, path: Path, file: OpenFile, keys: tuple[str, ...]) -> Shards:
        """Open all shards beside the index at a path."""
        return cls(file, str(path), None, partial(_open, path), keys)

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer for each shard that is read, and one sha256.

        It is the sha256 of what `sha256sum` prints for these shards in the order of their names.
        """
        found = {
            name: part.read(reading)
            for name, part in self.parts.items()
            if reading.keys is None or not reading.keys.isdisjoint(part.header.tensors)
        }
        tensors = {name: t for shard in found.values() for name, t in shard.tensors.items()}
        return Tensors(
            {name: tensors[name] for name in self.header.tensors if name in tensors},
            combined({name: shard.sha256 for name, shard in found.items()}),
            all(shard.finite for shard in found.values()),
            any(shard.stamped for shard in found.values()),
        )


def combined(hashes: Mapping[str, str]) -> str:
    """Return the one sha256 of files by name; empty if they were verified before."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest() if all(hashes.values()) else ""


def _open(index: Path, name: str) -> SafetensorsFile:
    path = index.with_name(name)
    try:
        file = open_own(path)
    except CheckpointError as error:
        raise CheckpointError(f"{index} names the shard {name}: {error}") from error
    return SafetensorsFile(file, str(path))


def check_union(
    weight_map: Mapping[str, str], parts: Mapping[str, SafetensorsFile], source: str
) -> None:
    """Refuse an index that disagrees with open shards: tensors missing, twice, or elsewhere."""
    places: dict[str, list[str]] = {name: [] for name, s in weight_map.items() if s in parts}
    for shard, part in parts.items():
        for name in part.header.tensors:
            places.setdefault(name, []).append(shard)
    problems = [
        f"{name!a} is in {' and '.join(found[:3]) or 'no shard'}, "
        + (f"the index says {weight_map[name]}" if name in weight_map else "not in the index")
        for name, found in places.items()
        if found != [weight_map.get(name)]
    ]
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise CheckpointError(
            f"{source} and its shards disagree: tensor {'; tensor '.join(problems[:10])}{more}"
        )
