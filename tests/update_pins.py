"""Writes what follows from the pins of the manifests, and prints the text of a pull request.

    vitzoo registry pin --all --json > PINS.json
    python tests/update_pins.py [PINS.json]

The released names get the new sha256, the pages of the families the kind of each pin, and
docs/trust.md the numbers of pins. All first-party plugins must be installed. With PINS.json, a
description of what was pinned, and of what was not, goes to stdout in Markdown.
"""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import vitzoo
from vitzoo.authoring.registry_check import without_commit
from vitzoo.schema.terms import PINS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "trust.md"
TABLE = re.compile(r"(<!-- pins -->\n).*?(<!-- end -->)", re.DOTALL)
WITHOUT = ("any, commit not known", "any, SHA-256 not known")
BY_HAND = "python tests/update_pins.py"
MOST = 60_000  # characters of a text; GitHub accepts 65,536
SHOWN = 300  # characters of a cause
INTRO = """\
`vitzoo registry pin --all` asked the Hub for the pins of all weights files: {pinned} are new, \
{already} were known, {rest} have none. docs/releasing.md says how to review this change.
"""
EARLY = """
The run ended early: {open} entries were not asked for. Run the workflow again.
"""


def filled(page: str) -> str:
    """Return docs/trust.md with the numbers of pins."""
    variants = vitzoo.variants()
    # Two variants can share a file.
    files = {(w.repo, w.file): (w, v.namespace) for v in variants for w in v.weights}
    every = Counter(kind for w, _ in files.values() for kind in kinds(w))
    core = Counter(
        kind for w, namespace in files.values() if namespace == "core" for kind in kinds(w)
    )
    shown = [*(f"`{pin}`" for pin in PINS), *WITHOUT]
    rows = [f"| {kind} | {every[kind]} | {core[kind]} |" for kind in shown]
    lines = ["| pin | files, with all plugins | files of the core |", "|---|---|---|", *rows, ""]
    return TABLE.sub(lambda match: match[1] + "\n".join(lines) + match[2], page)


def kinds(weights: vitzoo.Weights) -> list[str]:
    """Return the rows of the table in which a file counts."""
    lacking = (without_commit(weights), not weights.sha256)
    return [
        f"`{weights.pin}`",
        *(row for row, lacks in zip(WITHOUT, lacking, strict=True) if lacks),
    ]


def released() -> dict[str, Path]:
    """Return the files that freeze released names, by namespace."""
    found = {}
    manifests: dict[str, Path] = runpy.run_path(str(HERE / "update_figures.py"))["manifests"]([])
    for namespace, manifest in manifests.items():
        name = "released" if manifest.name == "registry.toml" else f"released_{namespace}"
        root = HERE.parent if namespace == "core" else manifest.parents[1]
        found[namespace] = root / "tests" / f"{name}.json"
    return {namespace: file for namespace, file in found.items() if file.exists()}


def update() -> int:
    """Write all files; 1 if a released name has changed."""
    write: Any = runpy.run_path(str(HERE / "update_released.py"))["main"]
    failed = [namespace for namespace, file in released().items() if write(file, namespace)]
    families: Any = runpy.run_path(str(HERE / "update_families.py"))
    for path in (*families["pages"](), PAGE):
        fill = filled if path == PAGE else families["filled"]
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
    return int(bool(failed))


def described(rows: list[dict[str, Any]]) -> str:
    """Return a text for the rows that `vitzoo registry pin --all --json` prints.

    Texts of the Hub are in a block of code, so that nothing in them is a link or names a person.
    """
    kinds = Counter(row["state"].partition(":")[0] for row in rows)
    rest = kinds.total() - kinds["pinned"] - kinds["already"] - kinds["open"]
    counts = {kind: kinds[kind] for kind in ("pinned", "already", "open")}
    text = (INTRO + EARLY * bool(kinds["open"])).format(rest=rest, **counts)
    causes = (
        f"{row['weights']}: {' '.join(row['state'].split())[:SHOWN]}\n"
        for row in rows
        if row["state"] not in counts
    )
    text += f"\nNot pinned:\n\n~~~~text\n{_fitting(causes, MOST // 3)}~~~~\n" if rest else ""
    pinned = (
        f"| `{row['weights']}` | {row['size']:,} | {_percent(row)} | `{row['revision'][:8]}` | "
        f"`{row['sha256'][:8]}` |\n"
        for row in sorted(rows, key=_odd, reverse=True)
        if row["state"] == "pinned"
    )
    head = "\n| weights | bytes | difference | commit | SHA-256 |\n|---|---|---|---|---|\n"
    return text + (head + _fitting(pinned, MOST - len(text)) if kinds["pinned"] else "")


def _odd(row: dict[str, Any]) -> float:
    """Return how far a size is from the predicted one."""
    return float("inf") if row["difference"] is None else abs(row["difference"])


def _percent(row: dict[str, Any]) -> str:
    return "" if row["difference"] is None else f"{row['difference']:+.2f} %"


def _fitting(lines: Iterable[str], most: int) -> str:
    """Return as many lines as fit, and the number of the others."""
    text, left = "", 0
    for line in lines:
        fits = not left and len(text) + len(line) <= most
        text, left = (text + line, left) if fits else (text, left + 1)
    return text + (f"\nand {left} more\n" if left else "")


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        status = update()
    if sys.argv[1:]:
        rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        sys.stdout.write(described(rows))
    sys.exit(status)
