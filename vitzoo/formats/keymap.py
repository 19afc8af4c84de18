"""Checkpoint keys as data: one table, read in both directions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.report import listed

SHOWN = 5
BLOCK = "blocks.{}."
Key = str | tuple[str, ...]
Names = Mapping[Any, Key]  # of str or tuple; keys of a mapping are invariant
Tensors = Mapping[str, Tensor]
Reshape = Callable[[str, Tensor], Tensor | None]
Row = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class KeyMap:
    """The names that a checkpoint format gives the tensors of a network, and the model's names.

    Both tables map a key of the checkpoint to a key of the model. Keys that end in a dot are
    modules: `"ln_1.": "norm1."` stands for their `weight` and `bias`. In place of a key may stand a
    tuple of keys: `("q.", "k.", "v."): "attn.qkv."` fuses three tensors to one, along the first
    axis; the other way round, one tensor is split. The parts are of equal size; a key that stands
    twice in a tuple takes two parts. Where two rows have the same key on one side, the longer tuple
    is tried first, then the row that comes first.

    Args:
        stem: keys outside the blocks. `{}` in a key stands for a number.
        layer: keys within a block.
        block: what the checkpoint has before the keys of a block, with `{}` for the block's number.
        aliases: other beginnings of keys that files have, to the beginning that the tables have;
            `{}` stands for a number. Files are read with either, and written with the latter.
        prefixes: what may stand before each key of a file.
        bare: beginnings of keys that never have a prefix, such as those of a classifier. Where one
            of them is written, the first of `prefixes` is written before all other keys.
        others: whether keys that the tables do not have are the same in checkpoint and model.

    Raises:
        InvalidOption: a row has several keys on both sides, unequally many `{}`, or one module.

    >>> import torch
    >>> keys = KeyMap({"cls": "cls_token"}, {("q", "k", "v"): "attn.qkv.weight"}, "layer{}.")
    >>> file = {"cls": torch.ones(1, 1, 2)} | {f"layer0.{x}": torch.ones(2, 2) for x in "qkv"}
    >>> {key: tuple(tensor.shape) for key, tensor in keys.to_model(file).items()}
    {'cls_token': (1, 1, 2), 'blocks.0.attn.qkv.weight': (6, 2)}
    """

    stem: Names = field(default_factory=dict)
    layer: Names = field(default_factory=dict)
    block: str = BLOCK
    aliases: Mapping[str, str] = field(default_factory=dict)
    prefixes: Sequence[str] = ()
    bare: tuple[str, ...] = ()
    others: bool = False
    _reading: _Rows = field(init=False, repr=False, compare=False)
    _writing: _Rows = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = [*_expanded(self.stem, "", ""), *_expanded(self.layer, self.block, BLOCK)]
        object.__setattr__(self, "_reading", _Rows(rows))
        object.__setattr__(self, "_writing", _Rows((b, a) for a, b in rows))

    def plain(self, key: str) -> str:
        """Return a key of a file without prefix, and as the tables have it."""
        key = key.removeprefix(next((p for p in self.prefixes if key.startswith(p)), ""))
        for alias, target in self.aliases.items():
            if match := _pattern(alias).match(key):
                return target.format(*match.groups()) + key[match.end() :]
        return key

    def to_model(self, tensors: Tensors, reshape: Reshape | None = None) -> dict[str, Tensor]:
        """Return the tensors of a file under the model's keys; unknown keys stay, without prefix.

        So do the parts of a fused tensor if one is missing or of another shape or type, and a
        tensor that cannot be split.

        Args:
            tensors: by the keys of a file, with data or on `meta`.
            reshape: brings a tensor of the file, given with its plain key, to the model's axes;
                None where it cannot.

        Raises:
            CheckpointError: two tensors of the file are one of the model's.
        """
        own = unique((self.plain(key), tensor) for key, tensor in tensors.items())
        pairs, left = _converted(own, self._reading, reshape, None)
        return unique([*pairs, *((key, own[key]) for key in left)])

    def from_model(
        self, tensors: Tensors, layout: str, reshape: Reshape | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors of a model under the checkpoint's keys.

        Args:
            tensors: by the keys of the model, with data or on `meta`.
            layout: name of the checkpoint format, for errors.
            reshape: brings a tensor, given with its plain key, to the axes of the file; None where
                it cannot.

        Raises:
            CheckpointError: the checkpoint has no place for some of them.
        """
        pairs, left = _converted(tensors, self._writing, None, reshape)
        same = [key for key in left if self.others and not self._knows(key)]
        if len(same) < len(left):
            raise unheld(layout, set(left) - set(same))
        written = dict(pairs) | {key: tensors[key] for key in same}
        headed = self.bare and any(key.startswith(self.bare) for key in written)
        return prefixed(written, self.prefixes[0] if headed else "", self.bare)

    def _knows(self, key: str) -> bool:
        rows = [*self._reading.of(key), *self._writing.of(key)]
        return bool(rows) or self.plain(key) != key


def prefixed(tensors: Tensors, prefix: str, bare: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Return the tensors with a prefix before their keys, but for those that begin with `bare`."""
    return {key if key.startswith(bare) else prefix + key: t for key, t in tensors.items()}


def without(tensors: Tensors, keys: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors but for those of some keys."""
    left = set(keys)
    return {key: tensor for key, tensor in tensors.items() if key not in left}


def unique(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the pairs as a dictionary.

    Raises:
        CheckpointError: two tensors have the same name.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in tensors:
            raise CheckpointError(f"two tensors of the file are the model's {name!a}")
        tensors[name] = tensor
    return tensors


def unheld(layout: str, names: Iterable[str]) -> CheckpointError:
    """Return the error for tensors, by the model's keys, that a checkpoint format cannot hold."""
    rows = sorted(names)
    what = "tensor" if len(rows) == 1 else "tensors"
    return CheckpointError(
        f"the layout {layout} has no place for {len(rows)} {what}: {listed(rows, SHOWN)}; "
        "timm, the model's own layout, has"
    )


class _Rows:
    """The rows of a map by their sources: templates of keys, to be filled with numbers."""

    def __init__(self, rows: Iterable[Row]) -> None:
        groups: dict[str, dict[str, list[Row]]] = {}
        for row in sorted(rows, key=lambda row: -len(row[0])):
            for source in dict.fromkeys(row[0]):
                head, mark, rest = source.rpartition("{}")
                groups.setdefault(head + mark, {}).setdefault(rest, []).append(row)
        self.groups = [(_pattern(head), rests) for head, rests in groups.items()]

    def of(self, key: str) -> Iterator[list[list[str]]]:
        """Yield sources and targets of each row that a key is a source of."""
        for pattern, rests in self.groups:
            if match := pattern.match(key):
                for row in rests.get(key[match.end() :], ()):
                    yield [[text.format(*match.groups()) for text in side] for side in row]


def _expanded(names: Names, theirs: str, ours: str) -> Iterator[Row]:
    """Yield the rows of a table with what stands before keys, modules as weights and biases."""
    for row in names.items():
        left, right = ((keys,) if isinstance(keys, str) else keys for keys in row)
        a, b = tuple(theirs + key for key in left), tuple(ours + key for key in right)
        kinds = {(key.count("{}"), key.endswith(".")) for key in a + b}
        if len(kinds) > 1 or min(len(set(a)), len(set(b))) > 1:
            raise InvalidOption(
                f"a row of a key map is {a} to {b}; expected one key on one side at least, as many "
                "{} in each key (that of `block` included), and a dot at the end of all or of none"
            )
        for kind in ("weight", "bias") if a[0].endswith(".") else ("",):
            yield tuple(key + kind for key in a), tuple(key + kind for key in b)


def _converted(
    tensors: Tensors, rows: _Rows, before: Reshape | None, after: Reshape | None
) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Return tensors under the targets of their rows, and the names of those without a row."""
    pairs: list[tuple[str, Tensor]] = []
    left: list[str] = []
    used: set[str] = set()
    for name in tensors:
        for sources, targets in rows.of(name) if name not in used else ():
            whole = _whole(_reshaped(tensors, sources, before), sources)
            parts = _reshaped(_divided(whole, targets), targets, after)
            if len(parts) == len(set(targets)):
                pairs += parts.items()
                used.update(sources)
                break
        if name not in used:
            left.append(name)
    return pairs, left


def _reshaped(tensors: Tensors, names: Iterable[str], reshape: Reshape | None) -> Tensors:
    """Return the tensors of some names, but for those that cannot be reshaped."""
    found = {name: tensors[name] for name in names if name in tensors}
    if reshape is None:
        return found
    pairs = ((name, reshape(name, tensor)) for name, tensor in found.items())
    return {name: tensor for name, tensor in pairs if tensor is not None}


def _whole(parts: Tensors, names: Sequence[str]) -> Tensor | None:
    """Stack parts along the first axis; None if one is missing or they are not alike."""
    shares = Counter(names)
    if len(parts) < len(shares):
        return None
    if len(shares) == 1:
        return parts[names[0]]
    kinds = {
        (tensor.dtype, tensor.shape[1:], tensor.shape[0] / shares[name]) if tensor.dim() else None
        for name, tensor in parts.items()
    }
    return torch.cat(list(parts.values())) if len(kinds) == 1 and None not in kinds else None


def _divided(whole: Tensor | None, names: Sequence[str]) -> dict[str, Tensor]:
    """Split a tensor along its first axis; nothing if it has not so many equal parts."""
    shares = Counter(names)
    if whole is None or len(shares) == 1:
        return {} if whole is None else {names[0]: whole}
    if not whole.dim() or whole.shape[0] % len(names):
        return {}
    ends = accumulate(whole.shape[0] // len(names) * share for share in shares.values())
    return dict(zip(shares, whole.tensor_split(list(ends)[:-1]), strict=True))


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Return a pattern for a template, whose numbers are its groups."""
    return re.compile(re.escape(template).replace(r"\{\}", "([0-9]+)"))
