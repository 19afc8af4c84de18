"""Writes the names of the ImageNet classes into vitzoo/data, from an installed timm.

    python tests/update_labels.py [--check]

Facts only: which synsets a set holds and the names WordNet gives them. With --check nothing is
written, and the exit code is 1 where a file would change.
"""

from __future__ import annotations

import gzip
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from vitzoo.registry.label_sets import DATA, MARK, OWN, SETS, SHARED, SYNSETS

FILES = {
    "imagenet-1k": "imagenet_synsets.txt",
    "imagenet-12k": "imagenet12k_synsets.txt",
    "imagenet-21k": "imagenet21k_goog_synsets.txt",
    "imagenet-21k-miil": "imagenet21k_miil_synsets.txt",
    "imagenet-22k": "imagenet22k_synsets.txt",
    "imagenet-22k-ms": "imagenet22k_ms_synsets.txt",
}
LEMMAS = "imagenet_synset_to_lemma.txt"


def contents() -> dict[str, str]:
    """Return what the files must hold, by file name."""
    lemmas = dict(line.split("\t") for line in _read(LEMMAS))
    synsets = {wnid: names.split(", ") for wnid, names in sorted(lemmas.items())}
    sets = {label_set: frozenset(_read(file)) for label_set, file in FILES.items()}
    marks = "".join(
        chr(MARK + sum((wnid in sets[name]) << bit for bit, name in enumerate(SETS)))
        for wnid in synsets
    )
    own = sorted(sets["imagenet-1k"])
    return {
        OWN: _text(short_names({wnid: synsets[wnid] for wnid in own}).values()),
        SHARED: _text([marks, *short_names(synsets).values()]),
        SYNSETS: _text(f"{wnid}\t{', '.join(names)}" for wnid, names in synsets.items()),
    }


def short_names(synsets: dict[str, list[str]]) -> dict[str, str]:
    """Name every synset by its first name, or also by what tells it from others of that name.

    Where several share a first name each is told apart by a further name that no other of them
    has, in parentheses, else by its id.
    """
    sharing = defaultdict(list)
    for wnid, names in synsets.items():
        sharing[names[0].casefold()].append(wnid)
    labels = {}
    for wnid, (first, *further) in synsets.items():
        others = [w for w in sharing[first.casefold()] if w != wnid]
        taken = {name.casefold() for other in others for name in synsets[other]}
        own = next((name for name in further if name.casefold() not in taken), wnid)
        labels[wnid] = f"{first} ({own})" if others else first
    return labels


def read(path: Path) -> str:
    """Return the text of a data file; empty where there is none."""
    if not path.exists():
        return ""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def main(*args: str) -> int:
    """Write the files, or compare them."""
    changed = [name for name, text in contents().items() if read(DATA / name) != text]
    sys.stdout.write(f"changed: {', '.join(changed) or 'nothing'}\n")
    if "--check" in args:
        return bool(changed)
    for name in changed:
        data = contents()[name].encode()
        compressed = gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data
        (DATA / name).write_bytes(compressed)
    return 0


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read(file: str) -> list[str]:
    timm = importlib.util.find_spec("timm")  # found, not imported: that takes seconds
    if timm is None or timm.origin is None:
        raise SystemExit("timm is not installed: pip install timm")
    return Path(timm.origin).with_name("data").joinpath("_info", file).read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
