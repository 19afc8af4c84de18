"""Fills the tables of docs/families/ and of the plugins' READMEs from the registry.

    python tests/update_families.py

What stands between `<!-- weights: NAMESPACE... -->` and `<!-- end -->` becomes a table of the
namespaces' weights, a line of the variants that have none, and the sources of top-1; `core`
is the core's.
`<!-- weights: core vit_digits -->` takes the variants that match the patterns after the namespace.
The weights of a variant are sorted: the default, then by falling top-1, then by name.

`<!-- paper: NAMESPACE... -->` becomes the table of the results in papers.

`<!-- contents: NAMESPACE... -->` becomes a row for each namespace, and one for each part and
checkpoint format in it. So the names of networks are on the pages of the families alone.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import vitzoo
from vitzoo.schema.terms import RESULT_SETS
from vitzoo.text import px

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "families"
SECTION = re.compile(r"(<!-- (weights|contents|paper): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("variant", "weights", "classes", "px", "params", "license", "top-1", "pin", "file")
BY_HAND = "python tests/update_families.py"
PARTS = {  # tables of a manifest
    "patch_embedders": "patch embedder",
    "position_embeddings": "position embedding",
    "pools": "pool",
    "heads": "head",
    "drop_path_policies": "drop-path policy",
    "checkpoint_formats": "checkpoint format",
}


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
    return ["", f"Without published weights: {', '.join(found)}."] if found else []


def sources(variants: list[vitzoo.Variant]) -> list[str]:
    """Return the lines under a table that say where the numbers of the column top-1 come from."""
    measured = [w for variant in variants for w in variant.weights if w.top1 is not None]
    found = {
        w.evaluation
        + (f": {w.evaluation_source}, at {w.evaluation_commit}" if w.evaluation_source else "")
        for w in measured
    }
    return ["", *(f"- Top-1: {source}." for source in sorted(found))] if found else []


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
        weights.pin_note,
        (weights.repo or "bundled") + (f": `{weights.file}`" if several else ""),
    )
    return "| " + " | ".join(cells) + " |"


def weights_table(words: list[str]) -> str:
    """Return the table of the weights of namespaces, or of some variants in them."""
    variants = chosen(words)
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([*head, *rows(variants), *without(variants), *sources(variants), ""])


def contents_table(spaces: list[str]) -> str:
    """Return the table of what namespaces contain."""
    lines = [line for space in spaces for line in (networks(space), *parts(space)) if line]
    return "\n".join(["| name | what it is |", "|---|---|", *lines, ""])


def networks(space: str) -> str:
    """Write the row of the networks of a namespace; an empty text if it has none."""
    found = vitzoo.variants(namespace=space)
    if not found:
        return ""
    sizes = [f"{size / 1e6:,.1f} M" for size in sorted({variant.params for variant in found})]
    licenses = sorted({w.license for variant in found for w in variant.weights})
    count = f"{len(found)} networks" if len(found) > 1 else "1 network"
    said = f"{count}, {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))} parameters"
    stated = f"; licenses of the weights: {', '.join(licenses)}" if licenses else ""
    return f"| `{space}/*` | {said}{stated} |"


def parts(space: str) -> Iterator[str]:
    """Yield the rows of the parts and checkpoint formats of a namespace."""
    (location,) = (info.location for info in vitzoo.plugins() if info.namespace == space)
    manifest = tomllib.loads(Path(location).read_text(encoding="utf-8"))
    for table, kind in PARTS.items():
        for name, row in manifest.get(table, {}).items():
            yield f"| `{space}/{name}` | {kind}: {row['summary']} |"


def paper_table(words: list[str]) -> str:
    """Return the table of the results in papers: those of variants, then what they compare with."""
    named = [(r.model or f"`{v.name}`", r) for v in chosen(words) for r in v.paper_results]
    ordered = sorted(
        dict.fromkeys(named), key=lambda pair: (pair[1].source[:25], bool(pair[1].model))
    )
    sets = [name for name in RESULT_SETS if any(name in row.cells for _, row in ordered)]
    columns = ("table", "network", "pre-training", "epochs", "px", *sets, "exaFLOPs", "core-days")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, row in ordered:
        size = px(row.image_size) if row.image_size else None
        results = [row.cells.get(key) for key in sets]
        numbers = [None if n is None else f"{n:,.0f}" for n in (row.exaflops, row.core_days)]
        cells = (row.source, name, row.pretraining_data, row.epochs, size, *results, *numbers)
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join([*lines, ""])


TABLES = {"weights": weights_table, "contents": contents_table, "paper": paper_table}


def filled(page: str) -> str:
    """Return a page with its tables written anew."""
    return SECTION.sub(lambda m: m[1] + TABLES[m[2]](m[3].split()) + m[4], page)


def pages() -> list[Path]:
    """Return the pages that have tables."""
    return [*sorted(PAGES.glob("*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]


if __name__ == "__main__":
    for path in pages():
        path.write_text(filled(path.read_text()))
