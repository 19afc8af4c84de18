"""Enters what tests/facts knows about weights files into the manifests: hashes, sizes, revisions.

    python tests/update_reported.py [--check]

`pins.csv` has the SHA-256 of files, `revisions.csv` commits of files without one, `missing.csv`
files that their repository seems not to have. An entry with a SHA-256 becomes `reported`; an exact
size replaces the predicted one; a file of `missing.csv` without a known revision gets
`file_seen = false`. Everything else in a manifest is kept, comments and order included. A row that
contradicts an entry is an error, and nothing is written. With --check nothing is written, and the
exit code is 1 where a manifest and the tables differ.
"""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

FIGURES: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("update_figures.py")))
KEYS = ("pin", "revision", "sha256", "size", "predicted_size", "file_seen")  # in this order
STATED = ("repo", "revision", "sha256", "size")  # an entry must not contradict these
BY_HAND = "python tests/update_reported.py"


class Contradiction(Exception):
    """A row of the tables and an entry of a manifest name different files."""


def facts() -> dict[str, dict[str, Any]]:
    """Return what the tables state about each weights entry, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("missing", "revisions", "pins"):
        for row in FIGURES["table"](f"{name}.csv"):
            stated: dict[str, Any] = {key: value for key, value in row.items() if value}
            if size := stated.get("size"):
                stated["size"] = int(size)
            stated |= {"file_seen": False} if name == "missing" else {}
            found.setdefault(stated.pop("weights"), {}).update(stated)
    return found


def entered(label: str, entry: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with what the tables state about its file.

    Raises:
        Contradiction: the entry has another repository, revision, size or SHA-256.
    """
    for key in STATED:
        if key in stated and entry.get(key, stated[key]) != stated[key]:
            raise Contradiction(
                f"{label}: {key} is {entry[key]!r} in the manifest and {stated[key]!r} in "
                "tests/facts; find out which is right, then correct the other"
            )
    new = entry | stated
    if "sha256" in stated and new["pin"] == "first-use":
        new["pin"] = "reported"
    if "size" in new:
        new.pop("predicted_size", None)
    if "revision" in new or "sha256" in new:
        new.pop("file_seen", None)
    return new


def rewritten(text: str, prefix: str, known: dict[str, dict[str, Any]]) -> str:
    """Return a manifest with what the tables state.

    Args:
        text: the manifest.
        prefix: of its names, `NAMESPACE/`, empty for the core.
        known: `facts`; those of the manifest are removed.
    """
    variants = tomllib.loads(text).get("variants", {})
    blocks = list(FIGURES["_blocks"](text))
    for at, block in enumerate(blocks):
        header = FIGURES["HEADER"].match(block[0]) if block else None
        label = f"{prefix}{header['variant']}:{header['weights']}" if header else ""
        if header is None or label not in known:
            continue
        entry = variants[header["variant"]]["weights"][header["weights"]]
        new = entered(label, entry, known.pop(label))
        if new != entry:
            blocks[at] = _with(block, new)
            variants[header["variant"]]["weights"][header["weights"]] = new
    text = "\n".join(line for block in blocks for line in block)
    assert tomllib.loads(text).get("variants", {}) == variants, "a manifest with other tables"
    return text


def _with(block: list[str], entry: dict[str, Any]) -> list[str]:
    """Return the lines of an entry with its `KEYS`, after what stands before its pin."""
    place = next(at for at, line in enumerate(block) if line.startswith("pin = "))
    values = ((key, entry[key]) for key in KEYS if key in entry)
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}".lower()
        for key, value in values
    ]
    before, after = (FIGURES["_without"](part, KEYS) for part in (block[:place], block[place:]))
    return [*before, *lines, *after]


def changed() -> dict[str, tuple[Path, str]]:
    """Return file and new text of each manifest that differs from the tables, by namespace.

    Raises:
        Contradiction: a row contradicts its entry, or there is no such entry.
    """
    known, found = facts(), {}
    for namespace, path in FIGURES["manifests"]([]).items():
        text = path.read_text(encoding="utf-8")
        prefix = "" if namespace == "core" else f"{namespace}/"
        if (new := rewritten(text, prefix, known)) != text:
            found[namespace] = (path, new)
    if known:
        raise Contradiction(f"no manifest has {', '.join(known)}; correct tests/facts")
    return found


def main(*arguments: str) -> int:
    """Write or check the manifests; 1 if a check failed, or a row contradicts its entry."""
    try:
        found = changed()
    except Contradiction as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "--check" in arguments:
        if found:
            sys.stderr.write(f"not as in tests/facts: {', '.join(found)}; run {BY_HAND}\n")
        return int(bool(found))
    for path, text in found.values():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
