"""Write the contributions of a module plugin as a manifest.

A manifest refers to each contribution by an import path, so each must have a name at the top level
of a module in the plugin's package. The written manifest is read back and compared with the module.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from vitzoo.errors import InvalidOption, PluginError, RegistryError, UnknownName
from vitzoo.installing import pip
from vitzoo.plugin.guard import raised_at, reason_of
from vitzoo.plugin.hook_calls import module_rows
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.importing import import_module
from vitzoo.plugin.package_files import module_file
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.manifest import API, read_manifest
from vitzoo.schema.rows import Variant
from vitzoo.schema.tables import table_of
from vitzoo.schema.terms import CORE_BUILDER, MAX_PLUGIN_MANIFEST

Table = dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """A manifest as TOML text; `namespace` is empty if a module was named."""

    package: str
    namespace: str
    text: str
    count: int

    def notes(self, out: Path | None = None) -> list[str]:
        """List the steps that remain for the author."""
        file = module_file(self.package)
        folder = f"{file.parent if file else self.package}/"
        name = out.name if out else "registry.toml"
        entry = f'{self.namespace or "NAMESPACE"} = "{self.package}:{name}"'
        single = f"a manifest needs a package: move {self.package}.py to {self.package}/__init__.py"
        return [
            f"{self.count} contributions, read back and compared: equal",
            f"put the manifest into {folder}",
            *([single] if file and file.name != "__init__.py" else ()),
            f"in pyproject.toml, [project.entry-points.vitzoo], write: {entry}",
            "then reinstall the plugin, and run `vitzoo plugins check`",
        ]


def compile_plugin(name: str) -> Compiled:
    """Import a module plugin and return its manifest.

    Args:
        name: namespace of an installed plugin, or a module.

    Raises:
        PluginError: the module cannot be imported or written as a manifest.
    """
    info = PluginHost().infos.get(name)
    value = info.entry_point if info else name
    if info and (not value or value.endswith(".toml")):
        manifest = value or "vitzoo/registry.toml"
        raise InvalidOption(
            f"plugin {name!r} has the manifest {manifest} already; name a plugin that is a module"
        )
    try:
        module = import_module(value)
        rows = module_rows(module, value, name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (value, name):
            raise UnknownName(
                f"there is no plugin and no module {name!r}; is it installed "
                f"({pip('install', '-e', '.')})?"
            ) from error
        at = raised_at(error, value.partition(".")[0])
        raise PluginError(f"{value}: {reason_of(error, at)}") from error
    try:
        rows = _importable(rows, module)
        text = _written(value, rows)
        _compare(text, rows, value)
    except (TypeError, ValueError, RegistryError) as error:
        raise PluginError(f"{value} cannot be written as a manifest: {error}") from error
    return Compiled(module.__package__ or value, name if info else "", text, len(rows))


def _importable(rows: tuple[tuple[str, Any], ...], module: ModuleType) -> Any:
    """Return rows whose targets are import paths.

    Raises:
        ValueError: lists the targets that have none.
    """
    found, problems = [], []
    for hook, given in rows:
        row, field = given, "target"
        if isinstance(given, Variant):
            row, field = replace(given, spec=replace(given.spec, variant=None)), "builder"
        target = getattr(row, field)
        path = target if isinstance(target, str) else _import_path(target, module)
        if path is None:
            home, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
            shown = f"{home}.{name}" if name else f"an object of {type(target).__qualname__}"
            problems.append(
                f"{row.name!r} has {shown}, which has no name at the top level of a module in the "
                "package; give it a name there, `name = ...`, and contribute that"
            )
        else:
            found.append((hook, replace(row, **{field: path})))
    if problems:
        raise ValueError("; ".join(problems))
    return found


def _import_path(target: Any, module: ModuleType) -> str | None:
    """Return `module:name` of an object at the top level of a module in the plugin's package.

    The module that defines the object or its class is preferred, then `module`.
    """
    name = getattr(target, "__qualname__", "")
    home = getattr(target, "__module__", None) or type(target).__module__
    if f"{home}:{name}" == CORE_BUILDER:
        return CORE_BUILDER
    package = module.__name__.partition(".")[0]
    modules = [found for found in list(sys.modules.values()) if isinstance(found, ModuleType)]
    modules = [found for found in modules if found.__name__.partition(".")[0] == package]
    modules.sort(key=lambda found: (found.__name__ != home, found is not module, found.__name__))
    for found in modules:
        names = [known for known, value in list(vars(found).items()) if value is target]
        if names:
            return f"{found.__name__}:{name if name in names else names[0]}"
    return None


def _written(value: str, rows: list[tuple[str, Any]]) -> str:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Compiled from {value} by `vitzoo plugins compile`."))
    document.add("api", tomlkit.item(API))
    for hook in HOOKS:
        if tables := {row.name: table_of(row) for given, row in rows if given == hook}:
            document.append(hook.removeprefix("vitzoo_"), section(tables))
    return tomlkit.dumps(document)


def section(tables: dict[str, Table]) -> Any:
    """Return a TOML section for each entry; inside them, only weights get sections."""
    import tomlkit

    sections = tomlkit.table(is_super_table=True)
    for name, data in tables.items():
        table = tomlkit.table(is_super_table=data.keys() == {"weights"})
        for key, value in data.items():
            item = value
            if key == "weights":
                item = section(value)
            elif isinstance(value, dict):
                item = tomlkit.inline_table()
                item.update(value)
            table.append(key, item)
        sections.append(name, table)
    return sections


def _compare(text: str, rows: list[tuple[str, Any]], value: str) -> None:
    """Read a manifest back.

    Raises:
        RegistryError: the manifest breaks the schema.
        ValueError: a row differs.
    """
    if len(text) > MAX_PLUGIN_MANIFEST:
        raise ValueError(f"it has {len(text)} characters, expected {MAX_PLUGIN_MANIFEST} at most")
    package, sizes = value.partition(".")[0], PluginHost().core.sizes
    back = read_manifest(Path("the manifest"), data=text.encode(), package=package, sizes=sizes)
    for hook, row in rows:
        again = next(found for found in back.rows(hook) if found.name == row.name)
        for field in dataclasses.fields(row):
            was, now = getattr(row, field.name), getattr(again, field.name)
            if was != now:
                raise ValueError(f"{row.name!r} has {field.name} {was!r}, read back as {now!r}")
