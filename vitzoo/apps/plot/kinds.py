"""The kinds of plots, and checks of the arguments of `plot`; torch-free."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass

from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_choice

ONE = range(1, 2), "one image"
MANY = range(1, 33), "1 to 32 images"  # of one figure
ANY = range(1, sys.maxsize), "images"


@dataclass(frozen=True)
class Kind:
    """One kind of plot.

    Args:
        title: of the figure.
        images: numbers of images that are possible, and a text that says so.
        options: arguments of `plot` that the kind uses.
    """

    title: str
    images: tuple[range, str] = (range(1), "no images")
    options: tuple[str, ...] = ()


KINDS = {
    "filters": Kind("Patch filters"),
    "positions": Kind("Position similarity", options=("layers", "heads")),
    "attention-distance": Kind("Mean attention distance", ANY, ("layers",)),
    "attention": Kind("Attention maps", ONE, ("layers", "heads", "query")),
    "rollout": Kind("Attention rollout", MANY, ("query",)),
    "tokens": Kind("Patch tokens", MANY, ("layers",)),
}


def check_kind(kind: str, options: Collection[str]) -> Kind:
    """Return a kind by its name; raise InvalidOption for an option that it does not use."""
    check_choice("kind", kind, KINDS)
    chosen = KINDS[kind]
    for name in sorted(options):
        if name not in chosen.options:
            uses = f"it uses {', '.join(chosen.options)}" if chosen.options else "it has no options"
            raise InvalidOption(f"{kind} does not use {name}; {uses}; leave {name} out")
    return chosen


def check_count(kind: str, count: int) -> None:
    """Raise InvalidOption unless a kind takes this number of images."""
    possible, wanted = KINDS[kind].images
    if count not in possible:
        raise InvalidOption(f"{kind} needs {wanted}, got {count}; give {wanted} (images=)")
