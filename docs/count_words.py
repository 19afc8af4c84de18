"""Print how many words of each page people write, and how many of them are records.

    python docs/count_words.py

Tables count, but code blocks and what a script writes do not: what stands between `<!-- NAME -->`
and `<!-- end -->`, and what `WRITTEN` names. Records are for auditors and contributors. A test
limits the words outside records to 30,000.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md")
PACKAGES = ("plugins/*/README.md",)
RECORDS = (
    "CHANGELOG.md",
    *(
        f"docs/{name}.md"
        for name in (
            "benchmarks",
            "faults",
            "maintainers",
            "parity",
            "releasing",
            "test-suite",
            "decisions/*",
        )
    ),
)
CODE = re.compile(r"^ *(```+).*?^ *\1$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^<!-- [^>]+ -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
WRITTEN = {  # what a script writes, up to the end of its section or of the page
    "docs/cli.md": re.compile(r"^## vitzoo .*", re.DOTALL | re.MULTILINE),
    "docs/errors.md": re.compile(r"^## Tree$.*", re.DOTALL | re.MULTILINE),
    "docs/parity.md": re.compile(r"^## Architectures$.*", re.DOTALL | re.MULTILINE),
    "docs/testing.md": re.compile(r"^## What is tested$.*?(?=^## )", re.DOTALL | re.MULTILINE),
}


def by_hand(path: str, text: str) -> int:
    """Return how many words of a page people wrote."""
    text = CODE.sub("", BLOCK.sub("", text))
    return len((WRITTEN[path].sub("", text) if path in WRITTEN else text).split())


def is_record(path: str) -> bool:
    """Tell whether a page, named by its path from the root, is a record."""
    return any(fnmatch(path, pattern) for pattern in RECORDS)


def count(*patterns: str) -> dict[str, int]:
    """Return the words of the pages that match patterns."""
    found = {page for pattern in patterns for page in ROOT.glob(pattern)}
    paths = {page.relative_to(ROOT).as_posix(): page for page in found}
    return {path: by_hand(path, paths[path].read_text(encoding="utf-8")) for path in sorted(paths)}


def sums() -> dict[str, int]:
    """Return the words of records, of all other pages, and of the READMEs of the plugins."""
    pages = count(*PAGES)
    records = sum(words for path, words in pages.items() if is_record(path))
    return {
        "records": records,
        "outside records": sum(pages.values()) - records,
        "READMEs of plugins": sum(count(*PACKAGES).values()),
    }


def main() -> None:
    """Print the words of each page, and the sums."""
    pages = count(*PAGES, *PACKAGES)
    for path, words in sorted(pages.items(), key=lambda pair: pair[1]):
        sys.stdout.write(f"{words:7,}  {path}{' (record)' if is_record(path) else ''}\n")
    for name, words in sums().items():
        sys.stdout.write(f"{words:7,}  {name}\n")


if __name__ == "__main__":
    main()
