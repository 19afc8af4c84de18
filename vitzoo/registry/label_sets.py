"""Names of the ImageNet classes, read from the package's data when they are asked for; torch-free.

The names come from WordNet (see `data/WORDNET.txt`); `tests/update_labels.py` writes the files.
"""

from __future__ import annotations

import zlib
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TypeVar

from vitzoo.errors import UnknownName, did_you_mean

T = TypeVar("T")

DATA = Path(__file__).parents[1] / "data"
OWN = "imagenet_1k_labels.txt"  # one name a line, in the order of the logits
SHARED = "imagenet_labels.txt.gz"  # a line of marks, then one name a synset, sorted by its id
SYNSETS = "imagenet_synsets.txt.gz"  # one synset a line: its id, a tab, its names
MARK = ord("0")  # of a synset that is in no set; bit i is added where it is in the i-th of SETS
SETS = {
    "imagenet-1k": 1000,
    "imagenet-12k": 11821,
    "imagenet-21k": 21843,
    "imagenet-21k-miil": 11221,
    "imagenet-22k": 21841,
    "imagenet-22k-ms": 21842,
}


@cache
def class_names(label_set: str) -> tuple[str, ...]:
    """Return the short names of a label set's classes, each unique in it, in the logits' order.

    Args:
        label_set: one of `SETS`.

    Raises:
        UnknownName: with the sets that are known.

    >>> class_names("imagenet-1k")[207]
    'golden retriever'
    """
    check_label_set(label_set)
    if label_set == "imagenet-1k":
        return tuple((DATA / OWN).read_text(encoding="utf-8").splitlines())
    marks, *labels = _lines(SHARED)
    return _members(label_set, marks, labels)


def synsets(label_set: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (WordNet id, all its names) for every class of a label set, in the logits' order.

    Raises:
        UnknownName: with the sets that are known.

    >>> synsets("imagenet-1k")[0]
    ('n01440764', ('tench', 'Tinca tinca'))
    """
    check_label_set(label_set)
    rows = _members(label_set, _lines(SHARED)[0], _lines(SYNSETS))
    return tuple((wnid, tuple(lemmas.split(", "))) for wnid, lemmas in _pairs(rows))


def check_label_set(label_set: str) -> None:
    """Raise `UnknownName` unless the names of a label set are known."""
    if label_set not in SETS:
        hint = did_you_mean(label_set, SETS)
        raise UnknownName(
            f"unknown label set {label_set!r}{hint}; vitzoo has the names of: {', '.join(SETS)}"
        )


def known_labels(label_set: str, labels: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return `labels`, else the names of the set; empty where neither is known."""
    return labels or (class_names(label_set) if label_set in SETS else ())


def _members(label_set: str, marks: str, rows: list[T]) -> tuple[T, ...]:
    """Pick a set's rows from those of all synsets: by their ids, but Microsoft puts 1k first."""
    bit = list(SETS).index(label_set)
    inside = [ord(mark) - MARK >> bit & 1 for mark in marks]
    if label_set != "imagenet-22k-ms":
        return tuple(compress(rows, inside))
    first = [ord(mark) - MARK & 1 for mark in marks]
    later = [a & ~b for a, b in zip(inside, first, strict=True)]
    return (*compress(rows, first), *compress(rows, later))


def _pairs(rows: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(wnid, lemmas) for wnid, _, lemmas in (row.partition("\t") for row in rows)]


def _lines(file: str) -> list[str]:
    return zlib.decompress((DATA / file).read_bytes(), wbits=31).decode().splitlines()  # 31: gzip
