"""Fills the tables of weights in docs/families/ from the registry.

    python tests/update_families.py

What stands between `<!-- weights: NAMESPACE... -->` and `<!-- end -->` becomes a table of the
namespaces' weights; `core` is the core's. `<!-- weights: core vit_digits -->` takes the variants
that match the patterns after the namespace.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import vitzoo

PAGES = Path(__file__).parents[1] / "docs" / "families"
SECTION = re.compile(r"(<!-- weights: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("variant", "weights", "classes", "px", "params", "licence", "top-1", "pin", "file")
BY_HAND = "python tests/update_families.py"


def rows(words: list[str]) -> list[str]:
    """Return the rows for namespaces, and patterns of the names in them."""
    installed = {info.namespace for info in vitzoo.plugins()}
    spaces = [word for word in words if word in installed]
    patterns = [word for word in words if word not in installed] or ["*"]
    if not spaces:
        raise SystemExit(f"no namespace of {words} is installed; there are {sorted(installed)}")
    return [
        line(variant, weights)
        for space in spaces
        for variant in vitzoo.variants(namespace=space)
        if any(fnmatch.fnmatch(variant.name.rpartition("/")[2], pattern) for pattern in patterns)
        for weights in sorted(variant.weights, key=lambda w: (not w.default, w.name))
    ]


def line(variant: vitzoo.Variant, weights: vitzoo.Weights) -> str:
    """Write the row of one file of weights."""
    classes = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    h, w = variant.spec.image_size
    cells = (
        f"`{variant.name}`",
        f"`{weights.name}`" + (" (default)" if weights.default else ""),
        f"{classes:,}" if classes else "none",
        str(h) if h == w else f"{h}x{w}",
        f"{variant.params / 1e6:.1f} M",
        weights.license,
        "" if weights.top1 is None else f"{weights.top1:.2f}",
        weights.pin,
        weights.repo or "bundled",
    )
    return "| " + " | ".join(cells) + " |"


def filled(page: str) -> str:
    """Return a page with its tables written anew."""

    def table(match: re.Match[str]) -> str:
        found = rows(match[2].split())
        head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        return match[1] + "\n".join([*head, *found, ""]) + match[3]

    return SECTION.sub(table, page)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(filled(path.read_text()))
