"""Names of the ImageNet classes, read from data files of the package on first use; torch-free.

The names come from WordNet (see `data/WORDNET.txt`); `tests/update_labels.py` writes the files.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TypeVar

from vitzoo.display import Names
from vitzoo.errors import UnknownName, did_you_mean
from vitzoo.keywords import check_types, short_errors
from vitzoo.registry.registry import registry
from vitzoo.schema.terms import LABEL_SETS

T = TypeVar("T")

DATA = Path(__file__).parents[1] / "data"
OWN = "imagenet_1k_labels.txt"  # each line: one name, in the order of the logits
SHARED = "imagenet_labels.txt.gz"  # a line of marks, then each synset's name, sorted by synset id
SYNSETS = "imagenet_synsets.txt.gz"  # each line: synset id, tab, all names
MARK = ord("0")  # mark of a synset that is in no set; bit i is set for members of SETS[i]
SETS = LABEL_SETS


def class_names(label_set: str) -> tuple[str, ...]:
    """Return a short, unique name of each class of a label set, in the order of the logits.

    Args:
        label_set: one of `SETS`, or `NAMESPACE/NAME` of a plugin.

    Raises:
        UnknownName: the label set is unknown; the message lists the known sets.
        PluginError: the plugin of this namespace cannot be used.

    >>> class_names("imagenet-1k")[207]
    'golden retriever'
    """
    if names := registry().label_set(label_set):
        return Names(names)
    check_label_set(label_set)
    return _of_imagenet(label_set)


@cache
def _of_imagenet(label_set: str) -> tuple[str, ...]:
    if label_set == "imagenet-1k":
        return Names((DATA / OWN).read_text(encoding="utf-8").splitlines())
    marks, *labels = _lines(SHARED)
    return Names(_members(label_set, marks, labels))


@short_errors
def synsets(label_set: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the WordNet id and all names of each class of a label set, in the logits' order.

    Raises:
        UnknownName: the label set is unknown; the message lists the known sets.

    >>> synsets("imagenet-1k")[0]
    ('n01440764', ('tench', 'Tinca tinca'))
    """
    check_types("synsets", label_set=(label_set, "text"))
    check_label_set(label_set)
    rows = _members(label_set, _lines(SHARED)[0], _lines(SYNSETS))
    pairs = (row.partition("\t") for row in rows)
    return Names((wnid, tuple(names.split(", "))) for wnid, _, names in pairs)


def check_label_set(label_set: str) -> None:
    """Raise `UnknownName` if a label set is unknown."""
    if label_set not in SETS:
        hint = did_you_mean(label_set, [*SETS, *registry().host.label_sets])
        raise UnknownName(
            f"unknown label set {label_set!r}{hint}; known label sets: {', '.join(SETS)}"
        )


def is_label_set(name: str) -> bool:
    """Return whether a label set of vitzoo or of a plugin has this name."""
    return name in SETS or bool(registry().label_set(name))


def known_labels(label_set: str, labels: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return `labels` if there are any, else the names of the label set, if it is known."""
    return labels or (class_names(label_set) if label_set in SETS else ())


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes; those that several classes have are told apart.

    They become `NAME (index)`. In a list of all classes of a label set they become the names of
    `class_names`. All other names stay as they are.

    >>> distinct(["crane", "kite", "crane"])
    ('crane (0)', 'kite', 'crane (2)')
    """
    counts = Counter(names)
    if len(counts) == len(names):
        return tuple(names)
    better = _set_of(names)
    taken = {name for name, count in counts.items() if count == 1}
    found = []
    for index, name in enumerate(names):
        own = name
        if counts[name] > 1:
            own = better[index] if better else f"{name} ({index})"
            while own in taken:
                own += f" ({index})"
            taken.add(own)
        found.append(own)
    return tuple(found)


def _set_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of the label set whose classes a list names; without one, none."""
    for label_set, count in SETS.items():
        if count == len(names) and all(map(_names, synsets(label_set), names)):
            return class_names(label_set)
    return ()


def _names(synset: tuple[str, tuple[str, ...]], name: str) -> bool:
    """Return whether a text is the id of a synset, or names it first: `tench, Tinca tinca`."""
    wnid, known = synset
    first = name.partition(",")[0].strip().replace("_", " ").lower()
    return first == wnid or first in map(str.lower, known)


def _members(label_set: str, marks: str, rows: list[T]) -> tuple[T, ...]:
    """Return the rows of a set, sorted by id; `imagenet-22k-ms` begins with the 1k classes."""
    bit = list(SETS).index(label_set)
    inside = [ord(mark) - MARK >> bit & 1 for mark in marks]
    if label_set != "imagenet-22k-ms":
        return tuple(compress(rows, inside))
    first = [ord(mark) - MARK & 1 for mark in marks]
    later = [a & ~b for a, b in zip(inside, first, strict=True)]
    return (*compress(rows, first), *compress(rows, later))


def _lines(file: str) -> list[str]:
    return zlib.decompress((DATA / file).read_bytes(), wbits=31).decode().splitlines()  # 31: gzip
