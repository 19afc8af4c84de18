"""Finding the source lines of contributions without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.plugin.package_files import module_file

MAX_HOPS = 8  # imports that are followed


def where_defined(target: object) -> str:
    """Return `file:line` of a target's definition, or only the file, or an empty string."""
    module, name = _named(target)
    file = module_file(module)
    for _ in range(MAX_HOPS):
        if file is None:
            return ""
        node = _definition(file, name)
        if not isinstance(node, ast.ImportFrom):
            return f"{file}:{node.lineno}" if node else str(file)
        after = module_file(_source_of(node, module, file))
        if after is None:
            return f"{file}:{node.lineno}"
        name = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        module, file = _source_of(node, module, file), after
    return str(file)


def _named(target: object) -> tuple[str, str]:
    """Return (module, name) of a target, or of its class if the target has no name."""
    if isinstance(target, str):
        module, _, name = target.partition(":")
        return module, name
    thing: Any = target.func if isinstance(target, partial) else target
    if not hasattr(thing, "__qualname__"):
        thing = type(thing)
    return str(thing.__module__), str(thing.__qualname__).partition(".")[0]


def _definition(file: Path, name: str) -> ast.stmt | None:
    """Return the last statement of a module that defines `name`."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, SystemError):
        return None  # Python 3.11 may raise SystemError while other threads parse, too
    found = [node for node in _statements(tree.body) if name in _defined_names(node)]
    return found[-1] if found else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _defined_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign() | ast.AnnAssign():
            inside = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            return [part.id for part in inside if isinstance(part.ctx, ast.Store)]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in node.names]
    return []


def _source_of(node: ast.ImportFrom, module: str, file: Path) -> str:
    """Return the full name of the module in a `from ... import`."""
    if not node.level:
        return node.module or ""
    package = module.split(".")
    keep = len(package) - node.level + (file.name == "__init__.py")
    return ".".join([*package[: max(keep, 0)], *filter(None, [node.module])])


def where_declared(location: str, hook: str, name: str, *key: str) -> str:
    """Return `file:line` of an entry, or of its key, in a manifest; the file of a module plugin."""
    if not location.endswith(".toml"):
        return location
    from vitzoo.files.strict_toml import line_of  # the command `plugins` reads no manifest

    line = line_of(_text(location), (hook.removeprefix("vitzoo_"), name, *key))
    return f"{location}:{line}" if line else location


def _text(manifest: str) -> str:
    """Return the text of a manifest, empty if it cannot be read."""
    with suppress(OSError, ValueError):
        return Path(manifest).read_text("utf-8")
    return ""
