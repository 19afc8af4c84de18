"""Reader of weights in several safetensors files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from vitzoo.checkpoint.containers import OpenFile, Reading, SafetensorsFile, Tensors, open_own
from vitzoo.errors import CheckpointError
from vitzoo.files.safetensors import Header, check_count
from vitzoo.files.shard_index import read_index


class Shards:
    """The safetensors files that an index names, all open at once.

    Args:
        file: the index, open for reading.
        path: of the index; the shards are beside it.
    """

    def __init__(self, file: OpenFile, path: Path) -> None:
        self.file = file
        weight_map = read_index(file.fd, str(path))
        self.parts: dict[str, SafetensorsFile] = {}
        for name in sorted(set(weight_map.values())):
            self.parts[name] = _open(path, name)
            count = sum(len(part.header.tensors) for part in self.parts.values())
            check_count(count, f"{path} with its shards")
        _check_union(weight_map, self.parts, str(path))
        self.header = Header(
            {name: self.parts[shard].header.tensors[name] for name, shard in weight_map.items()}, {}
        )

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer for each shard that is read, and one sha256.

        It is the sha256 of what `sha256sum` prints for these shards in the order of their names.
        """
        found = {
            name: part.read(reading)
            for name, part in self.parts.items()
            if any(key.startswith(reading.prefix) for key in part.header.tensors)
        }
        lines = "".join(f"{shard.sha256}  {name}\n" for name, shard in found.items())
        tensors = {name: t for shard in found.values() for name, t in shard.tensors.items()}
        return Tensors(
            {name: tensors[name] for name in self.header.tensors if name in tensors},
            hashlib.sha256(lines.encode()).hexdigest(),
            all(shard.finite for shard in found.values()),
            any(shard.stamped for shard in found.values()),
        )


def _open(index: Path, name: str) -> SafetensorsFile:
    path = index.with_name(name)
    try:
        file = open_own(path)
    except CheckpointError as error:
        raise CheckpointError(f"{index} names the shard {name}: {error}") from error
    return SafetensorsFile(file, str(path))


def _check_union(
    weight_map: Mapping[str, str], parts: Mapping[str, SafetensorsFile], source: str
) -> None:
    """Refuse an index that disagrees with its shards: tensors missing, twice, or elsewhere."""
    places: dict[str, list[str]] = {name: [] for name in weight_map}
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
