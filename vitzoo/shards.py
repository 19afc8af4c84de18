"""Weights in several safetensors files, with an index."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from vitzoo.container import OpenFile, open_own
from vitzoo.errors import CheckpointError
from vitzoo.files.safetensors import Header, check_count
from vitzoo.files.shard_index import read_index
from vitzoo.safetensors_file import SafetensorsFile


class Shards:
    """A container: the safetensors files that an index names, all opened at once.

    The tensors are exactly those of the index, each in the file that it says.

    Args:
        file: the index, open for reading.
        path: where it lies; the shards are beside it.
    """

    def __init__(self, file: OpenFile, path: Path) -> None:
        self.file = file
        weight_map = read_index(file.fd, str(path))
        self.parts: dict[str, SafetensorsFile] = {}
        for name in sorted(set(weight_map.values())):
            self.parts[name] = _open(path, name)
            held = sum(len(part.header.tensors) for part in self.parts.values())
            check_count(held, f"{path} with its shards")
        _check_union(weight_map, self.parts, str(path))
        self.header = Header(
            {name: self.parts[shard].header.tensors[name] for name, shard in weight_map.items()}, {}
        )

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return views of one buffer a shard, and one sha256 for all.

        It is the sha256 of what `sha256sum` prints for the shards in the order of their names.
        Nothing proves several files at once, so all are read and hashed.
        """
        tensors: dict[str, Tensor] = {}
        lines = []
        for name, part in self.parts.items():
            held, digest = part.read(proven=False)
            tensors |= held
            lines.append(f"{digest}  {name}\n")
        in_order = {name: tensors[name] for name in self.header.tensors}
        return in_order, sha256("".join(lines).encode()).hexdigest()


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
    """Refuse a tensor that is missing, in another shard, in two, or not in the index."""
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
