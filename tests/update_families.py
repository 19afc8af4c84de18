"""Fills the tables of weights in docs/families/ from the registry.

    python tests/update_families.py

What stands between `<!-- weights: NAMESPACE... -->` and `<!-- end -->` becomes a table of the
namespaces' weights, and a line of the variants that have none; `core` is the core's.
`<!-- weights: core vit_digits -->` takes the variants that match the patterns after the namespace.
The weights of a variant are sorted: the default, then by falling top-1, then by name.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from functools import cache
from pathlib import Path

import vitzoo
from vitzoo.schema.terms import PINS

PAGES = Path(__file__).parents[1] / "docs" / "families"
SECTION = re.compile(r"(<!-- weights: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("variant", "weights", "classes", "px", "params", "license", "top-1", "pin", "file")
BY_HAND = "python tests/update_families.py"
MOST = 20  # names in the line of variants without weights; of more it gives the number


def chosen(words: list[str]) -> list[vitzoo.Variant]:
    """Return the variants for namespaces, and patterns of the names in them."""
    installed = {info.namespace for info in vitzoo.plugins()}
    spaces = [word for word in words if word in installed]
    patterns = [word for word in words if word not in installed] or ["*"]
    if not spaces:
        raise SystemExit(f"no namespace of {words} is installed; there are {sorted(installed)}")
    return [
        variant
        for space in spaces
        for variant in vitzoo.variants(namespace=space)
        if any(fnmatch.fnmatch(variant.name.rpartition("/")[2], pattern) for pattern in patterns)
    ]


def rows(variants: list[vitzoo.Variant]) -> list[str]:
    """Return the rows of the variants' weights."""
    return [line(variant, weights) for variant in variants for weights in in_order(variant.weights)]


def in_order(weights: tuple[vitzoo.Weights, ...]) -> list[vitzoo.Weights]:
    """Sort the weights of a variant: the default, then the most accurate, then by name."""
    return sorted(weights, key=lambda w: (not w.default, -(w.top1 or 0), w.name))


def without(variants: list[vitzoo.Variant]) -> list[str]:
    """Return the lines under a table that name the variants without weights."""
    found = [f"`{variant.name}`" for variant in variants if not variant.weights]
    said = ", ".join(found) if len(found) <= MOST else f"{len(found)} others"
    return ["", f"Without published weights: {said}."] if found else []


@cache
def files() -> Counter[str]:
    """Return how many different files of each repository are registered."""
    every = {(w.repo, w.file) for variant in vitzoo.variants() for w in variant.weights}
    return Counter(repo for repo, _ in every)


def classes(variant: vitzoo.Variant, weights: vitzoo.Weights) -> str:
    """Say how many classes weights have; outputs without a label are an embedding or unnamed."""
    count = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    if not count:
        return "none"
    unnamed = "unnamed" if weights.pretraining == "supervised" else "embedding"
    return f"{count:,}" if weights.label_set or weights.labels else f"{count:,} ({unnamed})"


def line(variant: vitzoo.Variant, weights: vitzoo.Weights) -> str:
    """Write the row of one file of weights."""
    h, w = variant.spec.image_size
    several = weights.repo and files()[weights.repo] > 1
    cells = (
        f"`{variant.name}`",
        f"`{weights.name}`" + (" (default)" if weights.default else ""),
        classes(variant, weights),
        str(h) if h == w else f"{h}x{w}",
        f"{variant.params / 1e6:.1f} M",
        weights.license,
        "" if weights.top1 is None else f"{weights.top1:.2f}",
        PINS[weights.pin],
        (weights.repo or "bundled") + (f": `{weights.file}`" if several else ""),
    )
    return "| " + " | ".join(cells) + " |"


def filled(page: str) -> str:
    """Return a page with its tables written anew."""

    def table(match: re.Match[str]) -> str:
        variants = chosen(match[2].split())
        head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        return match[1] + "\n".join([*head, *rows(variants), *without(variants), ""]) + match[3]

    return SECTION.sub(table, page)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(filled(path.read_text()))
