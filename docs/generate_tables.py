"""Fill the tables that pages take from docstrings and from the registry. A test compares them.

    python docs/generate_tables.py

A table stands between `<!-- NAME -->` and `<!-- end -->` on a page of `PAGES`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vitzoo.apps.identity.canonical import Network, Numbers
from vitzoo.parts import protocols
from vitzoo.plugin import hookspecs
from vitzoo.schema.entries import NUMBERS
from vitzoo.schema.manifest import read_manifest
from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.rows import Contribution, PaperResult, Recipe, Throughput, Variant, Weights
from vitzoo.schema.spec import BlockSpec, PartSpec, Spec
from vitzoo.schema.terms import CORE_BUILDER

FOLDER = Path(__file__).parent
SOURCE = FOLDER.parent / "vitzoo"
ALWAYS = ("license", "params", "source", "summary")  # also where a module plugin may leave them out
ARGUMENT = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)
GIVEN = {  # numbers of the network that a part gets, by hook
    "patch_embedders": ("patch_size", "in_chans", "embed_dim"),
    "position_embeddings": (
        *("grid_size", "num_prefix_tokens", "embed_dim", "num_heads", "depth", "windows"),
    ),
    "pools": ("num_prefix_tokens", "class_token", "embed_dim"),
    "heads": ("in_dim", "num_classes"),
    "drop_path_policies": ("depth",),
}
PUBLIC = (
    *("vitzoo", "vitzoo.cli", "vitzoo.errors", "vitzoo.formats", "vitzoo.parts", "vitzoo.ray"),
    "vitzoo.testing",
)
Rows = Iterable[tuple[str, ...]]


def described(text: str, heading: str) -> list[tuple[str, str]]:
    """Return names and descriptions in a section of a docstring."""
    section = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
    return [(names, plain(meaning)) for names, meaning in ARGUMENT.findall(section)]


def plain(text: str) -> str:
    """Return a text in one line, without the last full stop."""
    return " ".join(text.split()).removesuffix(".")


def keys(cls: type[Any], *left_out: str) -> Rows:
    """Yield key, default and meaning of the fields of a data class."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    yield "key", "default", "meaning"
    for names, meaning in described(inspect.cleandoc(cls.__doc__ or ""), "Args"):
        shown = [name for name in names.split(", ") if name not in left_out]
        if shown:
            defaults = dict.fromkeys(default(fields[name]) for name in shown)
            yield ", ".join(f"`{name}`" for name in shown), ", ".join(defaults), meaning


def fields(cls: type[Any]) -> Rows:
    """Yield name and meaning of the fields of a data class."""
    yield "field", "content"
    for names, meaning in described(inspect.cleandoc(cls.__doc__ or ""), "Args"):
        yield ", ".join(f"`{name}`" for name in names.split(", ")), meaning


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


def members(protocol: type[Any]) -> Rows:
    """Yield the members of a protocol with their meaning."""
    text = inspect.cleandoc(protocol.__doc__ or "")
    yield "member", "meaning"
    if made := plain(text.partition("\n\nConstructor: ")[2].partition("\n\n")[0]):
        yield "constructor", made
    yield from ((f"`{name}`", meaning) for name, meaning in described(text, "Attributes"))
    for method in filter(inspect.isfunction, vars(protocol).values()):
        if method.__name__ == "__call__" or method.__name__[0] != "_":
            _, *names = inspect.signature(method).parameters
            name = "call `" if method.__name__ == "__call__" else f"`{method.__name__}"
            yield f"{name}({', '.join(names)})`", action(inspect.cleandoc(method.__doc__ or ""))


def action(text: str) -> str:
    """Return what a method does and raises, from its docstring."""
    text = re.sub(r"\n\nArgs:\n.*?(?=\n\n|$)", "", text, flags=re.DOTALL)
    verb, _, rest = re.sub(r"\n\nRaises:\n *(\w+):", r" Raises `\1`:", text).partition(" ")
    return plain(f"{verb.lower()}s {rest}")


def parts(kind: str) -> Rows:
    """Yield the core's parts of a kind: name, options and summary."""
    yield "name", "options", "computation"
    for name, part, summary in core(kind):
        yield f"`{name}`", ", ".join(options(part, GIVEN[kind])), summary


def core(kind: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the core's contributions of a kind: name, object and summary."""
    manifest = read_manifest(SOURCE.parent / "registry.toml", package="vitzoo")
    for row in manifest.rows(f"vitzoo_{kind}"):
        if isinstance(row, Contribution):
            module, _, name = str(row.target).partition(":")
            yield row.name, vars(import_module(module))[name], row.summary


def options(part: Callable[..., Any], given: tuple[str, ...]) -> Iterator[str]:
    """Yield the options of a part, which are no numbers of the network."""
    for option, parameter in inspect.signature(part).parameters.items():
        if option not in given and parameter.kind is parameter.KEYWORD_ONLY:
            yield f"`{option}`"


def formats() -> Rows:
    """Yield the core's checkpoint formats: name, files, keys, and settings without a config."""
    yield "format", "files", "keys", "settings without a config"
    for name, one, summary in core("checkpoint_formats"):
        marks = [mark if isinstance(mark, str) else mark[-1] for mark in one.marks]
        pairs = [
            f"`{key} = {value}`" for table in one.defaults.values() for key, value in table.items()
        ]
        stated = ", ".join(pairs) or ("must be stated" if one.asks else "those of the variant")
        yield f"`{name}`", summary, " ".join(f"`{key}`" for key in dict.fromkeys(marks)), stated


def hooks() -> Rows:
    """Yield the entries of plugins: table of a manifest, with its page, use, and hook."""
    yield "manifest", "entries", "hook"
    for name, hook in vars(hookspecs).items():
        if name.startswith("vitzoo_"):
            kind, use = name.removeprefix("vitzoo_"), inspect.cleandoc(hook.__doc__ or "")
            yield f"[`[{kind}.NAME]`](hooks/{kind}.md)", use.partition("::")[0], f"`{name}`"


def paths() -> Rows:
    """Yield the public import paths, with the first sentence of their docstrings."""
    yield "path", "contents"
    for name in PUBLIC:
        text = inspect.cleandoc(import_module(name).__doc__ or "")
        yield f"`{name}`", plain(text.partition("\n\n")[0])


def modules(folder: Path) -> Rows:
    """Yield the modules and folders of a package, with the first sentence of their docstrings."""
    yield "folder or file", "contents"
    for path in sorted(folder.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix == ".py" and path.name[0] != "_" and source.exists():
            text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
            name = f"{path.name}/" if path.is_dir() else path.name
            yield f"`{name}`", plain(text.partition("\n\n")[0])


PAGES: dict[str, dict[str, Callable[[], Rows]]] = {
    "architecture.md": {
        "folders": partial(modules, SOURCE),
        "apps": partial(modules, SOURCE / "apps"),
    },
    "formats.md": {"formats": formats},
    "hooks/drop_path_policies.md": {"members": partial(members, protocols.DropPath)},
    "hooks/heads.md": {"members": partial(members, protocols.Head)},
    "hooks/patch_embedders.md": {"members": partial(members, protocols.PatchEmbedder)},
    "hooks/pools.md": {"members": partial(members, protocols.Pool)},
    "hooks/position_embeddings.md": {"members": partial(members, protocols.PositionEmbedding)},
    "hooks/variants.md": {
        "adapter": partial(members, protocols.WeightsAdapter),
        "members": partial(members, protocols.Network),
    },
    "identity.md": {"network": partial(fields, Network), "numbers": partial(fields, Numbers)},
    "parts.md": {
        "block": partial(keys, BlockSpec),
        **{kind: partial(parts, kind) for kind in GIVEN},
    },
    "plugins.md": {"hooks": hooks, "paths": paths},
    "predicting.md": {"preprocessing": partial(keys, Preprocessing)},
    "registry.md": {
        "measurement": partial(keys, Throughput, "name", "images_per_second"),
        "network": partial(keys, Spec, "variant", "block"),
        "paper_result": partial(keys, PaperResult, "accuracies"),
        "recipe": partial(keys, Recipe),
        "variant": partial(keys, Variant, "name", "spec", "base", "namespace", "weights"),
        "weights": partial(keys, Weights, "name"),
    },
}


def table(rows: Rows) -> str:
    """Return rows as a table; the first has the headings."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    lines.insert(1, "|---" * (lines[0].count("|") - 1) + "|")
    return "\n".join([*lines, ""])


def filled(page: str, text: str) -> str:
    """Return the text of a page with its tables as they should be.

    Raises:
        ValueError: the page lacks a table.
    """
    for name, rows in PAGES[page].items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{page} has no {start.strip()} with {end}")
        text = before + start + table(rows()) + end + after
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = FOLDER / page
        path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")
