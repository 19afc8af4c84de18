"""Checkpoint keys as data: one table, read in both directions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.text import listed

BLOCK = "blocks.{}."
Key = str | tuple[str, ...]
Names = Mapping[Any, Key]  # of str or tuple; keys of a mapping are invariant
Tensors = Mapping[str, Tensor]
Reshape = Callable[[str, Tensor], Tensor | None]
Pair = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class KeyMap:
    """The names that a checkpoint format gives the tensors of a network, as data.

    Both tables map a key of the checkpoint to a key of the model. A key that ends in a dot is a
    module: `"ln_1.": "norm1."` stands for its `weight` and its `bias`. A tuple of keys, such as
    `("q.", "k.", "v."): "attn.qkv."`, joins equal parts along the first axis; a key that it repeats
    takes two parts. If two rows share a key, the longer tuple is tried first, then the earlier row.
    `{}` in a key stands for a number.

    Args:
        stem: keys outside the blocks.
        layer: keys within a block.
        block: prefix of the keys of a block in the checkpoint; `{}` is the number of the block.
        aliases: other beginnings of keys in files, to the beginnings in the tables.
        prefixes: prefixes that all keys of a file may have.
        bare: beginnings of keys that never have a prefix, such as those of a classifier. If such a
            key is written, all other keys get the first of `prefixes`.
        others: whether keys outside the tables are the same in checkpoint and model.
        refused: beginnings of keys of the model that have no place even if `others` is true.

    Raises:
        InvalidOption: a row has several keys on both sides, or keys of different kinds.

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
    refused: tuple[str, ...] = ()
    _reading: _Rows = field(init=False, repr=False, compare=False)
    _writing: _Rows = field(init=False, repr=False, compare=False)
    _starts: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = [*_expanded(self.stem, "", ""), *_expanded(self.layer, self.block, BLOCK)]
        object.__setattr__(self, "_reading", _Rows(rows))
        object.__setattr__(self, "_writing", _Rows((b, a) for a, b in rows))
        starts = (alias.partition("{}")[0] for alias in self.aliases)
        object.__setattr__(self, "_starts", tuple(dict.fromkeys(starts)))

    def plain(self, key: str) -> str:
        """Return a key of a file without its prefix, with the beginning that the tables have."""
        for prefix in self.prefixes:
            if key.startswith(prefix):
                key = key[len(prefix) :]
                break
        if not key.startswith(self._starts):  # as most keys of a file of another format
            return key
        for alias, target in self.aliases.items():
            start = alias.partition("{}")[0]
            if key.startswith(start) and (match := _pattern(alias).match(key)):
                return target.format(*match.groups()) + key[match.end() :]
        return key

    def to_model(self, tensors: Tensors, reshape: Reshape | None = None) -> dict[str, Tensor]:
        """Return the tensors of a file under the keys of the model.

        Unknown keys stay as they are, without prefix. So do tensors that cannot be split, and the
        parts of a fused tensor if one is missing or of another shape or type.

        Args:
            tensors: by the keys of a file.
            reshape: `Format.read_axes`.

        Raises:
            CheckpointError: two tensors of the file have the same key in the model.
        """
        plain = unique((self.plain(key), tensor) for key, tensor in tensors.items())
        pairs, left = _converted(plain, self._reading, reshape, None)
        return unique([*pairs, *((key, plain[key]) for key in left)])

    def from_model(
        self, tensors: Tensors, name: str, reshape: Reshape | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors of a model under the keys of the checkpoint.

        Args:
            tensors: by the keys of the model.
            name: of the checkpoint format, for errors.
            reshape: `Format.write_axes`.

        Raises:
            CheckpointError: the checkpoint has no place for some of them.
        """
        pairs, left = _converted(tensors, self._writing, None, reshape)
        if odd := [key for key in left if not self.others or self._claims(key)]:
            raise unheld(name, odd)
        written = dict(pairs) | {key: tensors[key] for key in left}
        headed = self.bare and any(key.startswith(self.bare) for key in written)
        return prefixed(written, self.prefixes[0] if headed else "", self.bare)

    def targets(self, key: str) -> list[str]:
        """Return the keys of the model that a key of the checkpoint is, or is a part of."""
        rows = self._reading.found(self.plain(key))
        return [name.format(*numbers) for (_, names), numbers in rows for name in names]

    def knows(self, key: str) -> bool:
        """Return whether a row has a key, as a key of the checkpoint or of the model."""
        return any(True for rows in (self._reading, self._writing) for _ in rows.found(key))

    def _claims(self, key: str) -> bool:
        refused = any(_pattern(start).match(key) for start in self.refused)
        return refused or self.knows(key) or self.plain(key) != key


def prefixed(tensors: Tensors, prefix: str, bare: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Return the tensors with a prefix before all keys that do not begin with one of `bare`."""
    return {key if key.startswith(bare) else prefix + key: t for key, t in tensors.items()}


def without(tensors: Tensors, keys: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors without those of some keys."""
    left = set(keys)
    return {key: tensor for key, tensor in tensors.items() if key not in left}


def unique(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the pairs as a dictionary; raise CheckpointError if two have the same key."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in tensors:
            raise CheckpointError(f"two tensors of the file have the key {name!a} in the model")
        tensors[name] = tensor
    return tensors


def same(*keys: str) -> dict[str, str]:
    """Return rows for keys that checkpoint and model share."""
    return dict(zip(keys, keys, strict=True))


def fold_class_position(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors of a model with registers, whose table has a row for the class token alone.

    The row is added to the class token. Registers of shape (1, 0, d) are left out.
    """
    found = {k: t for k, t in tensors.items() if k != "reg_token" or t.numel()}
    token, table = found.get("cls_token"), found.get("pos_embed")
    if "reg_token" not in tensors or token is None or table is None:
        return found
    if token.dim() != 3 or table.dim() != 3 or token.shape != table[:, :1].shape:
        return found
    return found | {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:]}


def unfold_class_position(tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors with a row for the class token, which `fold_class_position` removes."""
    table = tensors.get("pos_embed")
    if "reg_token" not in tensors or table is None or table.dim() != 3:
        return dict(tensors)
    zero = torch.full_like(table[:, :1], -0.0)  # -0.0 + x has the bits of x
    return {**tensors, "pos_embed": torch.cat((zero, table), dim=1)}


def unheld(name: str, keys: Iterable[str]) -> CheckpointError:
    """Return the error for keys of the model that the checkpoint format `name` has no place for."""
    rows = sorted(keys)
    return CheckpointError(
        f"the checkpoint format {name} has no place for {len(rows)} tensor{'s' * (len(rows) > 1)}: "
        f"{listed(rows, 5)}; timm, the model's own format, has a place for every tensor"
    )


class _Rows:
    """The rows of a map by the keys that they read, as templates for block numbers."""

    def __init__(self, rows: Iterable[Pair]) -> None:
        groups: dict[str, dict[str, list[Pair]]] = {}
        for row in sorted(rows, key=lambda row: -len(row[0])):
            for source in dict.fromkeys(row[0]):
                head, mark, rest = source.rpartition("{}")
                groups.setdefault(head + mark, {}).setdefault(rest, []).append(row)
        self.groups = [(head, head.partition("{}")[0], rests) for head, rests in groups.items()]

    def of(self, key: str) -> Iterator[list[list[str]]]:
        """Yield sources and targets of each row that reads a key."""
        for row, numbers in self.found(key):
            yield [[text.format(*numbers) for text in side] for side in row]

    def found(self, key: str) -> Iterator[tuple[Pair, tuple[str, ...]]]:
        """Yield each row that reads a key, with the numbers in the key."""
        for head, start, rests in self.groups:
            if key.startswith(start) and (match := _pattern(head).match(key)):
                for row in rests.get(key[match.end() :], ()):
                    yield row, match.groups()


def _expanded(names: Names, before: str, before_model: str) -> Iterator[Pair]:
    """Yield the rows of a table with full keys, and modules as weights and biases."""
    for row in names.items():
        left, right = ((keys,) if isinstance(keys, str) else keys for keys in row)
        a, b = tuple(before + key for key in left), tuple(before_model + key for key in right)
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
            whole = _fused(_reshaped(tensors, sources, before), sources)
            parts = _reshaped(_split(whole, targets), targets, after)
            if len(parts) == len(set(targets)):
                pairs += parts.items()
                used.update(sources)
                break
        if name not in used:
            left.append(name)
    return pairs, left


def _reshaped(tensors: Tensors, names: Iterable[str], reshape: Reshape | None) -> Tensors:
    """Return the tensors of some names, without those that cannot be reshaped."""
    found = ((name, tensors[name]) for name in names if name in tensors)
    pairs = ((name, reshape(name, tensor) if reshape else tensor) for name, tensor in found)
    return {name: tensor for name, tensor in pairs if tensor is not None}


def _fused(parts: Tensors, names: Sequence[str]) -> Tensor | None:
    """Join parts along the first axis, None if one is missing or they are not alike."""
    shares = Counter(names) if len(names) > 1 else {}
    if len(shares) < 2:
        return parts.get(names[0])
    if len(parts) < len(shares) or not all(tensor.dim() for tensor in parts.values()):
        return None
    kinds = {(t.dtype, t.shape[1:], t.shape[0] / shares[name]) for name, t in parts.items()}
    return torch.cat(list(parts.values())) if len(kinds) == 1 else None


def _split(whole: Tensor | None, names: Sequence[str]) -> dict[str, Tensor]:
    """Split a tensor along its first axis, into nothing if its length does not divide."""
    if whole is None:
        return {}
    shares = Counter(names) if len(names) > 1 else {}
    if len(shares) < 2:
        return {names[0]: whole}
    if not whole.dim() or whole.shape[0] % len(names):
        return {}
    lengths = [whole.shape[0] // len(names) * share for share in shares.values()]
    return dict(zip(shares, torch.split(whole, lengths), strict=True))


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Return a pattern with a group for each number of a template."""
    return re.compile(re.escape(template).replace(r"\{\}", "([0-9]+)"))
