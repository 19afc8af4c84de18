"""Write the tables of docs/testing.md from the docstrings of the tests. A test compares the two."""

from __future__ import annotations

import inspect
from pathlib import Path

from vitzoo.testing import PluginTests

PAGE = Path(__file__).with_name("testing.md")
HEADING = "## What is tested\n"
INTRO = """
`python docs/generate_checks.py` writes this section from the docstrings of the tests.

A test runs once for each contribution that it applies to. In shapes, b is the batch size, d the
width, p the number of prefix tokens (class token and registers), n the number of patch tokens and l
the number of layers.
"""
GROUPS = {
    "plugin": "The plugin",
    "part": "Every part",
    "patch_embedder": "Patch embedders",
    "position_embedding": "Position embeddings",
    "pool": "Pools",
    "head": "Heads",
    "drop_path_policy": "Drop-path policies",
    "checkpoint_format": "Checkpoint formats",
    "variant": "Variants",
    "weights": "Weights",
}


def section() -> str:
    """Return the section: a table for each group of tests."""
    parts = [INTRO]
    for prefix, title in GROUPS.items():
        rows = [
            f"| `{name}` | {meaning(test.__doc__)} |"
            for name, test in vars(PluginTests).items()
            if name.startswith(f"test_{prefix}_")
        ]
        parts += [f"### {title}\n", "| test | what must hold |\n|---|---|", *rows, ""]
    return "\n".join(parts)


def meaning(docstring: str) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join(inspect.cleandoc(docstring).partition("\n\n")[0].split())


def page() -> str:
    """Return the page with the section as it should be."""
    before, heading, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    _, following, after = rest.partition("\n## ")
    return before + heading + section() + following + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
