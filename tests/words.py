"""Print how many words of documentation people write, and how many scripts write: no test.

    python tests/words.py

What a script writes does not count if a test compares it: pages of `PAGES`, and on other pages what
stands between `<!-- NAME -->` and `<!-- end -->`, or what `PARTS` finds.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("docs/cli.md", "docs/errors.md", "docs/parity.md")
BLOCK = re.compile(r"^<!-- [^>]+ -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
PARTS = {
    "docs/choosing.md": re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE),
    "docs/testing.md": re.compile(r"^## What is tested$.*?(?=^## )", re.DOTALL | re.MULTILINE),
}


def by_hand(path: str, text: str) -> str:
    """Return what people wrote of a page."""
    if path in PAGES:
        return ""
    text = BLOCK.sub("", text)
    return PARTS[path].sub("", text) if path in PARTS else text


def main() -> None:
    """Print the words of each page, and of all."""
    listed = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True)
    rows = []
    for path in listed.splitlines():
        text = ROOT.joinpath(path).read_text(encoding="utf-8")
        rows.append((len(by_hand(path, text).split()), len(text.split()), path))
    rows.sort()
    total = (sum(hand for hand, *_ in rows), sum(words for _, words, _ in rows), "in all")
    for hand, words, path in [*rows, total]:
        sys.stdout.write(f"{hand:7,} by hand {words - hand:7,} by scripts  {path}\n")


if __name__ == "__main__":
    main()
