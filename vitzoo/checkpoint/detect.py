"""Detection of the checkpoint format of a file, and of a prefix before its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from vitzoo.checkpoint.containers import Container, Reading, Tensors
from vitzoo.checkpoint.tower import OWN_KEYS, tower_of
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.plugin.guard import for_file
from vitzoo.text import escaped, fold, listed

if TYPE_CHECKING:
    from vitzoo.checkpoint.checkpoint import Checkpoint
    from vitzoo.formats import Config, Format, Keys
    from vitzoo.registry.registry import Registry

WRAPPED = "timm_model."  # the prefix that transformers' TimmWrapper writes
TOWERS = r"vision_model|vision_tower|vision_encoder|visual\.trunk|visual"  # of larger models
PREFIX = (
    r"(?:module|_orig_mod|backbone|model|timm_model|net|encoder|student|teacher"
    rf"|{TOWERS})\."
)
PREFIXES = re.compile(f"(?:{PREFIX}){{1,4}}")  # that are removed, one before the other
STARTS = re.compile(rf"(?:{PREFIX}|[^.]+\.)((?:{PREFIX}){{,3}})")  # that a network may be behind
COMPARED = 500  # keys of an unknown file, those of all blocks as one
RANGE = re.compile(r"\{[0-9,-]+\}")  # of blocks in such a key


class Group:
    """The tensors of a file whose keys have a prefix, without the prefix."""

    def __init__(self, whole: Container, prefix: str) -> None:
        self.whole, self.prefix, self.file = whole, prefix, whole.file
        self.header = replace(whole.header, tensors=_behind(prefix, whole.header.tensors))

    def read(self, reading: Reading) -> Tensors:
        """Return the tensors of the group, and the sha256 of the whole file."""
        keys = self.header.tensors if reading.keys is None else reading.keys
        own = frozenset(self.prefix + key for key in keys)
        found = self.whole.read(replace(reading, keys=own))
        return found._replace(tensors=_behind(self.prefix, found.tensors))


def format_of(checkpoint: Checkpoint, zoo: Registry) -> Format:
    """Return the format of a file that `identified` returned."""
    return for_file(zoo.part("checkpoint format", checkpoint.format or ""), checkpoint.source)


def identified(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return the file with its format, by its entry or by its keys.

    If no format matches the keys, but one matches behind a prefix of `PREFIXES`, the file is
    returned without the prefix, and without all other keys. So is that of a larger model whose
    config describes an image tower, with the config of the tower.

    Raises:
        CheckpointError: no format matches the keys, several formats of plugins do, or the keys
            behind several prefixes are networks.
    """
    if checkpoint.format is not None:
        return checkpoint
    keys, tower = checkpoint.header.tensors.keys(), tower_of(checkpoint.config, zoo)
    prefix, name = place_of(keys, checkpoint.config, checkpoint.source, zoo)
    config = tower.config if tower else checkpoint.config
    return _without(prefix, replace(checkpoint, config=config), name)


def place_of(keys: Keys, config: Config, source: str, zoo: Registry) -> tuple[str, str]:
    """Return the prefix of the keys of the network in a file, and its format; see `identified`."""
    tower, failed = tower_of(config, zoo), ""
    groups = tower.groups(keys, zoo) if tower else {}
    if not groups:
        tower, (name, failed) = None, _matching(keys, source, zoo)
        if name:
            return "", name
        groups = _groups(keys, source, zoo)
    if len(groups) > 1:
        found = ", ".join(f"'{escaped(prefix)}' ({name})" for prefix, name in groups.items())
        raise CheckpointError(
            f"{source}: the keys behind several prefixes are networks: {found}; expected one: "
            "write the tensors of one prefix to a file of their own"
        )
    for prefix, name in groups.items():
        if tower or PREFIXES.fullmatch(prefix):
            return prefix, name
        failed = f"; behind the prefix '{escaped(prefix)}' are keys of {name}: remove it{failed}"
    from vitzoo.checkpoint.others import check_vit, encoder_in

    check_vit(source, config, keys)
    if encoder := encoder_in(config, zoo):
        raise CheckpointError(
            f"{source}: {encoder}; expected a plain Vision Transformer: use a network of `vitzoo "
            "list --all` with its own weights, or transformers"
        )
    raise CheckpointError(f"{source}: {_unknown(keys, zoo)}{failed}")


def of_own_builder(checkpoint: Checkpoint) -> Checkpoint:
    """Return the file of a network that a plugin builds, in the names of that network."""
    wrapped = any(key.startswith(WRAPPED) for key in checkpoint.header.tensors)
    return _without(WRAPPED if wrapped else "", checkpoint, OWN_KEYS)


def _without(prefix: str, checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return the file in a format, without a prefix and without all other keys."""
    if not prefix:
        return replace(checkpoint, format=name)
    return replace(
        checkpoint,
        container=Group(checkpoint.container, prefix),
        format=name,
        prefix=prefix,
        outside=(
            *(key for key in checkpoint.header.tensors if not key.startswith(prefix)),
            *checkpoint.outside,
        ),
    )


def _matching(keys: Keys, source: str, zoo: Registry) -> tuple[str, str]:
    """Return the name of the format that matches, empty for none, and the failures of plugins."""
    core = sorted(zoo.core_parts("checkpoint format"), key=lambda name: (name != OWN_KEYS, name))
    matching = (name for name in core if zoo.part("checkpoint format", name).matches(keys))
    found = [*islice(matching, 1)]  # each layout has one format of the core
    others = [] if found else sorted(zoo.parts["checkpoint format"].keys() - set(core))
    failed = ""
    for name in others:
        try:
            found += [name] if zoo.part("checkpoint format", name).matches(keys) else []
        except VitzooError as error:  # another format may match
            failed += f"; {name} could not be tried: {error}"
    if len(found) > 1:
        raise CheckpointError(
            f"{source}: several formats match its keys: {', '.join(found)}; disable all but one"
        )
    return "".join(found), failed


def _groups(keys: Keys, source: str, zoo: Registry) -> dict[str, str]:
    """Return the formats of the keys behind each prefix; the shortest of nested prefixes."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        match = STARTS.match(key)
        ends = [match.start(1), *_ends(match)] if match else []
        for end in ends:
            groups.setdefault(key[:end], []).append(key[end:])
    found: dict[str, str] = {}
    for prefix in sorted(groups, key=len):
        if not prefix.startswith(tuple(found)) and len(groups[prefix]) > 1:
            name, _ = _matching(groups[prefix], source, zoo)
            found |= {prefix: name} if name else {}
    return found


def _ends(match: re.Match[str]) -> list[int]:
    return [match.start(1) + part.end() for part in re.finditer(PREFIX, match[1])]


def _behind(prefix: str, table: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): value for k, value in table.items() if k.startswith(prefix)}


def _unknown(keys: Keys, zoo: Registry) -> str:
    """Return the message about keys that match no format, with those that no format has."""
    names = sorted(zoo.parts["checkpoint format"], key=lambda name: ("/" in name, name))
    rows = sorted(fold(keys), key=lambda row: (row.count(".") + row.count("/"), row))
    odd = rows[:COMPARED]  # keys outside the blocks first, because they tell most
    for name in names:
        with suppress(Exception):  # `_matching` has named the failure
            layout: Format = zoo.part("checkpoint format", name)
            odd = [row for row in odd if not layout.knows(RANGE.sub("0", row))]
    shown = listed(odd or rows, 5) or "none"
    what = "no known format has its keys" if odd else "known formats need more than its keys"
    return f"unknown checkpoint format; {what} {shown}; known formats: {', '.join(names)}"
