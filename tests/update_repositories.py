"""Writes the tables of repositories (docs/other-libraries.md) and model types (docs/formats.md).

python tests/update_repositories.py
"""

from __future__ import annotations

import re
from pathlib import Path

from vitzoo.registry.registry import registry
from vitzoo.registry.repositories import Repository, repositories

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FORMATS = DOCS / "other-libraries.md", DOCS / "formats.md"
TABLE = re.compile(r"(<!-- repositories -->\n).*(<!-- end -->)", re.DOTALL)
TYPES = re.compile(r"(<!-- types -->\n).*(<!-- end -->)", re.DOTALL)
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


def with_types(page: str) -> str:
    """Return the page with the model types of transformers that each format reads."""
    zoo, lines = registry(), ["| format | `model_type` |\n", "|---|---|\n"]
    for name in sorted(zoo.parts["checkpoint format"], key=lambda name: ("/" in name, name)):
        kinds = sorted(zoo.part("checkpoint format", name).configs.keys() - {"open_clip"})
        if kinds:
            lines.append(f"| `{name}` | {', '.join(f'`{kind}`' for kind in kinds)} |\n")
    return TYPES.sub(lambda match: match[1] + "".join(lines) + match[2], page)


if __name__ == "__main__":
    for path, fill in ((PAGE, filled), (FORMATS, with_types)):
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
