"""Fill the tables of keys in docs/registry.md and docs/parts.md. A test compares them.

    python docs/generate_keys.py

A table stands between `<!-- NAME -->` and `<!-- end -->`. Its keys, defaults and meanings are the
fields of a class in `vitzoo.schema` and their descriptions in its docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitzoo.schema.entries import NUMBERS
from vitzoo.schema.rows import PaperResult, Recipe, Throughput, Variant, Weights
from vitzoo.schema.spec import BlockSpec, PartSpec, Spec
from vitzoo.schema.terms import CORE_BUILDER

FOLDER = Path(__file__).parent
PAGES = ("parts.md", "registry.md")
TABLES: dict[str, tuple[type[Any], tuple[str, ...]]] = {  # class, and the fields that are no keys
    "block": (BlockSpec, ()),
    "measurement": (Throughput, ("name", "images_per_second")),
    "network": (Spec, ("variant", "block")),
    "paper_result": (PaperResult, ("accuracies",)),
    "recipe": (Recipe, ()),
    "variant": (Variant, ("name", "spec", "base", "namespace", "weights")),
    "weights": (Weights, ("name",)),
}
ALWAYS = ("license", "params", "source", "summary")  # also where a module plugin may leave them out
ARGUMENT = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)


def rows(cls: type[Any], left_out: tuple[str, ...]) -> Iterator[str]:
    """Yield the row of each key that a class describes."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    described = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")[2]
    for names, meaning in ARGUMENT.findall(described):
        keys = [name for name in names.split(", ") if name not in left_out]
        if keys:
            cells = dict.fromkeys(default(fields[key]) for key in keys)
            text = " ".join(meaning.split()).removesuffix(".")
            yield f"| {', '.join(f'`{key}`' for key in keys)} | {', '.join(cells)} | {text} |"


def default(field: dataclasses.Field[Any]) -> str:
    """Return what holds if a registry file lacks a key, empty if that is nothing."""
    value = field.default
    if "required" in field.metadata or field.name in ALWAYS:
        return "required"
    if field.name in NUMBERS:
        return "that of `size`"
    if value == CORE_BUILDER:
        return "vitzoo's"
    if isinstance(value, PartSpec):
        return f"`{value.name}`"
    if isinstance(value, tuple):
        return str(*value[:1])
    if value is None or value is dataclasses.MISSING:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")


def table(name: str) -> str:
    """Return the table of a name."""
    cls, left_out = TABLES[name]
    return "\n".join(("| key | default | meaning |", "|---|---|---|", *rows(cls, left_out), ""))


def filled(text: str) -> str:
    """Return the text of a page with its tables as they should be."""
    pattern = re.compile(rf"(<!-- ({'|'.join(TABLES)}) -->\n).*?(?=<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + table(match[2]), text)


if __name__ == "__main__":
    for page in map(FOLDER.joinpath, PAGES):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
