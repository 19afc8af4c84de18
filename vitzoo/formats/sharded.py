"""`ShardedFolder`: how a library divides the tensors of one network into the files of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.files.names import INDEX, SAFETENSORS, valid_file
from vitzoo.files.shard_index import MAX_SHARDS, WEIGHT_MAP
from vitzoo.schema.reader import describe

BESIDE = ("config.json", "preprocessor_config.json")  # names that other files have


@dataclass(frozen=True)
class ShardedFolder:
    """An index, and the safetensors files beside it (shards); by default those of transformers.

    Args:
        index: name of the index, a JSON file.
        key: of the table in the index that has the name of the file of each tensor.
        shards: name of a shard that is written, with its `{number}`, from 1, and their `{count}`.
        shard_size: most bytes of tensors in a shard that is written, unless it has only one.

    Raises:
        InvalidOption: an argument is not possible.
    """

    index: str = f"model{INDEX}"
    key: str = WEIGHT_MAP
    shards: str = f"model-{{number:05}}-of-{{count:05}}{SAFETENSORS}"
    shard_size: int = 5_000_000_000

    def __post_init__(self) -> None:
        plain = isinstance(self.index, str) and valid_file(self.index) and "/" not in self.index
        good = plain and self.index.endswith(".json") and self.index not in BESIDE
        _check(good, "index", "the name of a .json file, such as 'index.json'", self.index)
        _check(isinstance(self.key, str) and self.key != "", "key", "text", self.key)
        expected = f"the name of a {SAFETENSORS} file with {{number}}, such as 'part-{{number}}"
        _check(self._has_names(), "shards", f"{expected}{SAFETENSORS}'", self.shards)
        size = self.shard_size
        _check(type(size) is int and size > 0, "shard_size", "a number of bytes", size)

    def _has_names(self) -> bool:
        """Tell whether `shards` gives each shard a valid name."""
        try:
            names = {self.name_of(number, MAX_SHARDS) for number in (1, 2, MAX_SHARDS)}
        except (AttributeError, LookupError, TypeError, ValueError):  # of `str.format`
            return False
        good = all(valid_file(n) and "/" not in n and n.endswith(SAFETENSORS) for n in names)
        return good and len(names) == 3

    def name_of(self, number: int, count: int) -> str:
        """Return the name of a shard."""
        return self.shards.format(number=number, count=count)

    def divided(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return the file of each tensor, as the index has it.

        Args:
            sizes: bytes of each tensor, by its key in a file.

        Raises:
            CheckpointError: there are more shards than vitzoo reads.
        """
        numbers, number, filled = dict[str, int](), 1, 0
        for key, size in sizes.items():
            if filled and filled + size > self.shard_size:
                number, filled = number + 1, 0
            numbers[key], filled = number, filled + size
        if number > MAX_SHARDS:
            raise CheckpointError(
                f"shards of {self.shard_size} bytes would be {number} files, more than the "
                f"{MAX_SHARDS} that vitzoo reads; raise shard_size"
            )
        return {key: self.name_of(own, number) for key, own in numbers.items()}


def _check(good: bool, name: str, expected: str, value: object) -> None:
    if not good:
        raise InvalidOption(f"ShardedFolder: {name} must be {expected}, got {describe(value)}")
