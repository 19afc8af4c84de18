"""The search for the network in a file: the prefix of its keys, and a classifier beside it.

There is one search, for a network alone and for the image tower of a larger model. It tells which
prefixes have the keys of a network behind them; which of nested ones counts follows from the keys
that the longer one leaves outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from vitzoo.checkpoint.around import CLASSIFIERS, OUTSIDE, linear_layers, reason_of
from vitzoo.formats import Format, Keys
from vitzoo.text import fold, listed

Matching = Callable[[Keys], str]  # returns the name of the format of some keys, empty for none
Layouts = Callable[[str], Format]

DEPTH = 8  # of names in a prefix
ENDS = re.compile(r"[./]")  # of a name in a prefix; the second in files of JAX
NUMBERED = re.compile(r"(?:^|[./])\d+[./]")
FEWEST = 8  # tensors of a network with one block
MOST = 64  # prefixes that are looked at, those of most keys
MOST_NUMBERED = 8  # of them with a number; a prefix that the user names needs no search
OF_LAYERS = "it may be a classifier, and no tensor shows what it computes"
WORK = 30_000  # keys behind all of them; a file of many keys would take seconds


@dataclass(frozen=True)
class Place:
    """Where a network is in a file.

    Args:
        prefix: of its keys.
        format: name of its checkpoint format.
        keys: the keys of the file, by the names that the format reads.
        notes: for the load report, what was left out and why.
        unread: keys of the file that may be a classifier, and that are left out.
    """

    prefix: str
    format: str
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def found_in(
    keys: Keys, matching: Matching, layout: Layouts, root: str = "", *, tower: bool = False
) -> dict[str, str]:
    """Return the prefixes behind which keys are those of a network, each with its format.

    Args:
        keys: of a file, without wrappers.
        matching: returns the format of the keys behind a prefix.
        layout: returns a format by its name.
        root: the format of all keys, empty if they have none.
        tower: whether the network is a part of a larger model, whose other keys are unknown.
    """
    if root and _is_one(layout(root), keys):
        return {"": root}
    groups = grouped(keys, "." if root else "./")  # formats of JAX know their own prefixes
    formats = {"": root} if root else {}
    for prefix, names in groups.items():
        if name := matching(names) or (root if root and layout(root).matches(names) else ""):
            formats[prefix] = name
    search = _Search({**groups, "": [*keys]}, formats, matching, layout, tower)
    return dict(search.networks(""))


def grouped(keys: Keys, ends: str = "./") -> dict[str, list[str]]:
    """Return the keys behind each prefix that may have a network behind it, the shortest first.

    A prefix has more names behind it than a block. One with a number, such as that of a network in
    an `nn.Sequential`, has numbers behind it, too: those of blocks.
    """
    groups: dict[str, list[str]] = {}
    for key in keys:
        for end in islice((m.end() for m in ENDS.finditer(key) if m[0] in ends), DEPTH):
            groups.setdefault(key[:end], []).append(key[end:])
    large = [p for p, names in groups.items() if len(names) >= FEWEST and _is_whole(p, names)]
    most = sorted(large, key=lambda p: -len(groups[p]))[:MOST]
    numbered = [p for p in most if NUMBERED.search(p)]
    most = [p for p in most if p not in numbered[MOST_NUMBERED:]]
    found, work = dict[str, list[str]](), 0
    for prefix in sorted(most, key=lambda p: (len(p), p)):
        work += len(groups[prefix])
        if work <= WORK:
            found[prefix] = groups[prefix]
    return found


def _is_whole(prefix: str, names: Iterable[str]) -> bool:
    """Return whether names are not only those within a numbered module, such as a block."""
    if NUMBERED.search(prefix) and not any(map(NUMBERED.search, names)):
        return False
    return any(not ENDS.split(name, maxsplit=1)[0].isdigit() for name in names)


def _is_one(layout: Format, keys: Keys) -> bool:
    """Return whether all keys of a file are those of one network, so no other is among them."""
    if layout.file_prefixes or len(layout.plain(keys)) < len(keys):  # it may be two networks
        return False
    maps = (layout.keymap, *layout.keymaps.values())
    return all(any(keymap.targets(key) for keymap in maps) for key in keys)


@dataclass(frozen=True)
class _Search:
    groups: Mapping[str, list[str]]
    formats: Mapping[str, str]
    matching: Matching
    layout: Layouts
    tower: bool

    def networks(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the networks behind a prefix, with their formats.

        Of nested prefixes of one network, the longest counts if what it leaves outside is
        explained: by the table, or because it is another part of a larger model. A shorter one
        counts if the network reads a tensor between the two, such as a classifier, if another
        format reads all that is behind it, and for unknown keys, which are then an error.
        """
        longer = _next(prefix, self.formats)
        name = self.formats.get(prefix)
        if name is None:
            for inner in longer:
                yield from self.networks(inner)
            return
        read, group = self.layout(name), self.groups[prefix]
        own = {*group}.difference(read.ignored_keys(group))
        longer = [p for p in longer if any(key.startswith(p[len(prefix) :]) for key in own)]
        within = [row for p in longer for row in self.networks(p)]
        starts = tuple(p[len(prefix) :] for p, _ in within)
        outside = [key for key in own if not key.startswith(starts)]
        same = len(within) == 1 and within[0][1] == name and bool(prefix or outside)
        if within and len(outside) >= FEWEST and self.matching(outside):
            yield from [(prefix, name), *within]  # the keys without the longer prefix are a network
        elif len(within) > 1 or (same and all(self._explained(key, read) for key in outside)):
            yield from within
        else:
            yield prefix, name

    def _explained(self, key: str, layout: Format) -> bool:
        """Return whether a key may be outside the prefix of a network."""
        known = self.tower or key.partition(".")[0] in CLASSIFIERS or bool(OUTSIDE.fullmatch(key))
        return known and not layout.targets(key)


def _next(prefix: str, formats: Iterable[str]) -> list[str]:
    """Return the shortest prefixes of networks within a prefix."""
    found: list[str] = []
    for longer in sorted(formats, key=len):
        if longer != prefix and longer.startswith(prefix) and not longer.startswith(tuple(found)):
            found.append(longer)
    return found


def placed(
    network: tuple[str, str],
    layout: Format,
    keys: Mapping[str, str],
    others: Collection[str],
    *,
    alone: bool,
) -> Place:
    """Return the place of a network, with a classifier beside it.

    Args:
        network: the prefix, and the name of the checkpoint format.
        layout: the checkpoint format.
        keys: of the file, by their names without wrappers.
        others: prefixes of other networks of the file, which have their own classifiers.
        alone: whether the network is no part of a larger model.
    """
    prefix, name = network
    if not prefix and not others and _is_one(layout, keys):  # nothing is left out
        return Place(prefix, name, dict(keys))
    inside = tuple(other for other in others if other.startswith(prefix))
    own = {
        key.removeprefix(prefix): key
        for key in keys
        if key.startswith(prefix) and not (inside and key.startswith(inside))
    }
    own = {n: k for n, k in own.items() if not OUTSIDE.fullmatch(n) or layout.targets(n)}
    notes, unread = tuple[str, ...](), list[str]()
    if alone:
        read = {name for name in own if layout.reads_classifier(name)}
        instead, notes = _classifier_beside(prefix, layout, own, read, keys, others)
        if instead:
            named = {*instead.values()}
            own = {n: k for n, k in own.items() if n not in read and k not in named} | instead
            read = {*instead}
        unread = _unread(prefix, layout, own, read, keys, others)
    own = {name: key for name, key in own.items() if key not in unread}
    taken = {*own.values()}
    left = _by_reason(_ancestors(prefix), [key for key in keys if key not in taken])
    rows = (f"ignored ({why}): {listed(fold(names), 5)}" for why, names in left.items())
    place = {key: keys[plain] for key, plain in own.items()}
    if unread:
        notes = (*notes, f"not read ({OF_LAYERS}): {listed(fold(unread), 5)}")
    return Place(prefix, name, place, (*notes, *rows), tuple(keys[key] for key in unread))


def _classifier_beside(
    prefix: str,
    layout: Format,
    own: Mapping[str, str],
    read: Collection[str],
    keys: Collection[str],
    others: Collection[str],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the names and keys of a classifier under another name, if there is one, and a note.

    A classifier beside the network comes before one in it (`read`), whose outputs it replaced.
    """
    for level in _levels(prefix, others):
        if level == prefix:
            left = [] if read else [name for name in own if not layout.targets(name)]
            found = linear_layers(left)
        else:
            beside = [k for k in keys if k.startswith(level) and not k.startswith(prefix)]
            found = linear_layers(key.removeprefix(level) for key in beside)
        if len(found) == 1:
            ((module, tensors),) = found.items()
            used = {layout.linear_head + kind: level + key for kind, key in tensors.items()}
            instead = f", not {prefix}{listed(sorted(read), 1)}" if read else ""
            return used, (f"classifier = {level}{module}{instead}",)
    return {}, ()


def _unread(
    prefix: str,
    layout: Format,
    own: Mapping[str, str],
    names_read: Collection[str],
    keys: Collection[str],
    others: Collection[str],
) -> list[str]:
    """Return keys in and beside a network that may be a classifier, and that are not read.

    A key in a network whose classifier is read is another layer of it, and stays unexpected.
    """
    read = {own[name] for name in names_read}
    taken, found = {*own.values()}, []
    for level in _levels(prefix, others):
        inside = level == prefix
        for key in keys:
            name = key.removeprefix(level)
            module = name.partition(".")[0] if key.startswith(level) else ""
            if module not in CLASSIFIERS or key in read or OUTSIDE.fullmatch(name):
                continue
            unknown = not read and module != "head" and not layout.knows(name)
            if unknown if inside else key not in taken:
                found.append(key)
    return found


def _levels(prefix: str, others: Collection[str]) -> Iterator[str]:
    """Yield the prefixes beside which a classifier of a network may be, and then its own."""
    for level in _ancestors(prefix)[1:]:
        if any(other.startswith(level) for other in others):
            break
        yield level
    yield prefix


def _ancestors(prefix: str) -> list[str]:
    """Return a prefix, and the shorter ones, down to the empty one."""
    ends = [match.end() for match in ENDS.finditer(prefix)]
    return [prefix[:end] for end in (*reversed(ends), 0)]


def common_prefix(keys: Collection[str]) -> str:
    """Return the longest prefix that all keys have."""
    prefix = next(iter(keys), "").rpartition(".")[0] + "."
    return next(
        (level for level in _ancestors(prefix) if all(key.startswith(level) for key in keys)), ""
    )


def _by_reason(levels: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return names that are left out and that the table knows at some level, by the reason."""
    found: dict[str, list[str]] = {}
    for name in names:
        for level in levels:
            if name.startswith(level) and (why := reason_of(name.removeprefix(level))):
                found.setdefault(why, []).append(name)
                break
    return found
