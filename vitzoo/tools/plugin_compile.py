"""The manifest of a module plugin: what its hooks give, written in TOML.

A manifest can name what stands at the top level of a module of the plugin's package, and nothing
else. What is written is read back and compared before anybody sees it.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from vitzoo.errors import InvalidOption, PluginError, RegistryError, UnknownName
from vitzoo.files.access import writing_to
from vitzoo.plugin.guard import reason_of
from vitzoo.plugin.host import PluginHost, module_rows
from vitzoo.plugin.package_files import module_file
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.manifest import (
    API,
    CORE_BUILDER,
    MAX_PLUGIN_MANIFEST,
    TARGET,
    Manifest,
    read_manifest,
    table_of,
)
from vitzoo.schema.rows import Variant


@dataclass(frozen=True)
class Compiled:
    """A manifest that says what a module says.

    Args:
        module: whose hooks gave the rows.
        package: whose folder holds the module, and shall hold the manifest.
        namespace: of the installed plugin, empty where a module was named.
        text: TOML.
        count: of contributions.
    """

    module: str
    package: str
    namespace: str
    text: str
    count: int

    def notes(self, out: Path | None = None) -> list[str]:
        """Say what is left to do."""
        file = module_file(self.package)
        folder = f"{file.parent if file else self.package}/"
        name = out.name if out else "registry.toml"
        entry = f'{self.namespace or "NAMESPACE"} = "{self.package}:{name}"'
        notes = [
            f"{self.count} contributions, read back and equal",
            f"put the manifest into {folder}",
            f"in pyproject.toml, [project.entry-points.vitzoo], write: {entry}",
            "then reinstall, and run `vitzoo plugins check`",
        ]
        if file and file.name != "__init__.py":
            notes.append(
                f"{self.package} is a single file, and a manifest needs a package: make it "
                f"{self.package}/__init__.py"
            )
        return notes


def compile_plugin(name: str) -> Compiled:
    """Import a module plugin and return its manifest.

    Args:
        name: an installed plugin's namespace, or a module.

    Raises:
        PluginError: it cannot be imported, or has what a manifest cannot say; the message says
            what to change.
        UnknownName: neither is there.
    """
    info = PluginHost().infos.get(name)
    value = info.entry_point if info else name
    if info and (not value or value.endswith(".toml")):
        what = value or "the core's"
        raise InvalidOption(f"plugin {name!r} has a manifest, {what}; there is nothing to compile")
    module = _imported(value, name)
    try:
        rows = module_rows(module, value, name)
    except Exception as error:
        raise PluginError(f"{value}: {reason_of(error, value.partition('.')[0])}") from error
    named = [(hook, _named(row, module)) for hook, row in rows]
    problems = [row for _, row in named if isinstance(row, str)]
    if problems:
        raise PluginError(f"{value} has what a manifest cannot say: {'; '.join(problems)}")
    found = [(hook, row) for hook, row in named if not isinstance(row, str)]
    try:
        text = _written(value, found)
    except (TypeError, ValueError) as error:
        raise PluginError(f"{value} has what a manifest cannot say: {error}") from error
    _compare(text, found, value)
    package = module.__package__ or value
    return Compiled(value, package, name if info else "", text, len(found))


def write_manifest(compiled: Compiled, file: Path, *, force: bool = False) -> None:
    """Write a manifest to a file.

    Raises:
        InvalidOption: the file is there and `force` is not given, or its folder is not there.
        StoreError: it cannot be written.
    """
    with writing_to(file, force=force) as manifest:
        manifest.write(compiled.text.encode())


def _imported(value: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(value)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, ModuleNotFoundError) and (error.name or "") in (value, name):
            raise UnknownName(
                f"there is no plugin and no module {name!r}; is it installed (pip install -e .)?"
            ) from error
        raise PluginError(f"{value} cannot be imported: {type(error).__name__}: {error}") from error


def _named(row: Any, module: ModuleType) -> Any:
    """Return a row whose target is written as a name, or say why it cannot be."""
    field = "builder" if isinstance(row, Variant) else "target"
    target = getattr(row, field)
    if isinstance(row, Variant):
        row = replace(row, spec=replace(row.spec, variant=None))
        if target == CORE_BUILDER or _is_core_builder(target):
            return replace(row, builder=CORE_BUILDER)
    name = target if isinstance(target, str) else _name_of(target, module)
    if name is None:
        return (
            f"{row.name!r} has {_shown(target)}, which no module of the package holds at its top "
            "level; give it a name there, `name = ...`, and contribute that"
        )
    if not TARGET.fullmatch(name):
        return f"{row.name!r} names {name!r}; write 'package.module:Name', without further dots"
    return replace(row, **{field: name})


def _is_core_builder(target: object) -> bool:
    module, _, name = CORE_BUILDER.partition(":")
    return getattr(target, "__module__", "") == module and getattr(target, "__name__", "") == name


def _shown(target: Any) -> str:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    return f"{module}.{name}" if name else f"an object of {type(target).__qualname__}"


def _name_of(target: Any, module: ModuleType) -> str | None:
    """Return `module:name` of an object, where a module of the plugin's package holds it.

    The module that defines it, or its class, comes first, then the one with the hooks.
    """
    package = module.__name__.partition(".")[0]
    home = getattr(target, "__module__", None) or type(target).__module__
    places = [
        place
        for place in list(sys.modules.values())
        if isinstance(place, ModuleType) and place.__name__.partition(".")[0] == package
    ]
    places.sort(key=lambda place: (place.__name__ != home, place is not module, place.__name__))
    own = getattr(target, "__qualname__", "")
    for place in places:
        names = [key for key, value in list(vars(place).items()) if value is target]
        if names:
            return f"{place.__name__}:{own if own in names else names[0]}"
    return None


def _written(value: str, rows: list[tuple[str, Any]]) -> str:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"Compiled from {value} by `vitzoo plugins compile`."))
    document.add("api", tomlkit.item(API))
    for hook in HOOKS:
        table = tomlkit.table(is_super_table=True)
        for row in (row for given, row in rows if given == hook):
            table.append(row.name, _table(table_of(row)))
        if table:
            document.append(hook.removeprefix("vitzoo_"), table)
    return tomlkit.dumps(document)


def _table(data: dict[str, Any]) -> Any:
    """Return data as a TOML table: what has rows of its own in sections, the rest inline."""
    import tomlkit

    table = tomlkit.table()
    for key, value in data.items():
        if key == "weights":
            below = tomlkit.table(is_super_table=True)
            for name, row in value.items():
                below.append(name, _table(row))
            table.append(key, below)
        elif isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table.append(key, inline)
        else:
            table.append(key, value)
    return table


def _compare(text: str, rows: list[tuple[str, Any]], value: str) -> None:
    """Read a manifest back and raise where it does not say what the module says."""
    package = value.partition(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "registry.toml")
        file.write_text(text, "utf-8")
        core = PluginHost().core
        try:
            back = read_manifest(file, package=package, sizes=core.sizes, limit=MAX_PLUGIN_MANIFEST)
        except RegistryError as error:
            told = str(error).replace(f"{file}: ", "")
            raise PluginError(f"{value} has what a manifest cannot say: {told}") from error
    for hook, row in rows:
        again = _row(back, hook, row.name)
        for field in dataclasses.fields(row):
            was, now = getattr(row, field.name), getattr(again, field.name)
            if was != now:
                raise PluginError(
                    f"{value} has what a manifest cannot say: {row.name!r} has {field.name} "
                    f"{was!r}, which comes back as {now!r}"
                )


def _row(manifest: Manifest, hook: str, name: str) -> Any:
    return next(row for row in manifest.rows(hook) if row.name == name)
