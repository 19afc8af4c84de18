"""Writes the table of repositories into docs/other-libraries.md.

python tests/update_repositories.py
"""

from __future__ import annotations

import re
from pathlib import Path

from vitzoo.registry.repositories import Repository, repositories

PAGE = Path(__file__).parents[1] / "docs" / "other-libraries.md"
TABLE = re.compile(r"(<!-- repositories -->\n).*(<!-- end -->)", re.DOTALL)
HEAD = "| repository | library | type | license | also passed | compared |\n" + "|---" * 6 + "|\n"


def _row(row: Repository) -> str:
    stated = {k: v for k, v in row.arguments.items() if k in ("mlp_layer", "act_layer")}
    passed = ", ".join(f"`{key}={value}`" for key, value in stated.items())
    cells = (f"`{row.name}`", row.library, f"`{row.type}`", row.license_note, passed)
    return f"| {' | '.join(cells)} | {'yes' if row.checked else ''} |\n"


def filled(page: str) -> str:
    """Return the page with the table of `vitzoo/registry/repositories.toml`."""
    table = HEAD + "".join(map(_row, repositories().values()))
    return TABLE.sub(lambda match: match[1] + table + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
