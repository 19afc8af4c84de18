"""Reading a manifest (`registry.toml`) strictly: every key and value is checked; torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.errors import IncompatibleManifest, PluginError, RegistryError, did_you_mean
from vitzoo.files.access import read_regular
from vitzoo.files.strict_toml import line_of, loads, strict_toml
from vitzoo.schema.entries import (
    NUMBERS,
    Entries,
    read_comparisons,
    read_label_sets,
    read_pretraining,
)
from vitzoo.schema.figures import read_evaluations, read_measurements, read_recipes
from vitzoo.schema.kinds import HOOKS, KINDS, VARIANT_HOOK
from vitzoo.schema.reader import Reader
from vitzoo.schema.record import Record
from vitzoo.schema.rows import Contribution, Variant
from vitzoo.schema.spec import LIMITS, Spec
from vitzoo.schema.terms import CORE_BUILDER as CORE_BUILDER, MAX_MANIFEST
from vitzoo.text import quoted

API = 1
TOML_LINE = re.compile(r" at line (\d+)")


@dataclass(frozen=True)
class Manifest(Record):
    """The entries of a registry file.

    Args:
        summary: what the networks of the file are, in one sentence; empty if it is not stated.
        contributions: parts and checkpoint formats by hook, in the order of `KINDS`.
        variants: in the order of the file.
        sizes: width, depth, heads and MLP width by size name, as specs.
        aliases: former name to present name.
        label_sets: class names by the name of a set.
        unusable: errors about variants of a user's file whose base belongs to a plugin that is
            missing or disabled; the other variants can be used.
    """

    summary: str = ""
    contributions: Mapping[str, tuple[Contribution, ...]] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    sizes: Mapping[str, Spec] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    label_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unusable: Mapping[str, RegistryError] = field(default_factory=dict)

    def rows(self, hook: str) -> tuple[Contribution, ...] | tuple[Variant, ...]:
        """Return the entries that belong to a hook."""
        return self.variants if hook == VARIANT_HOOK else self.contributions.get(hook, ())

    def entries(self) -> tuple[tuple[str, Any], ...]:
        """Return a pair of hook and entry for each entry, in the order of the hooks."""
        return tuple((hook, row) for hook in HOOKS for row in self.rows(hook))


def read_manifest(
    path: Path,
    *,
    package: str | None,
    namespace: str = "",
    data: bytes | None = None,
    sizes: Mapping[str, Spec] | None = None,
    limit: int = MAX_MANIFEST,
    installed: bool = False,
    complete: bool = True,
    base: Callable[[str], Variant] | None = None,
) -> Manifest:
    """Read and check a registry file.

    Args:
        path: the file.
        package: top-level package that targets must lie in; None for a user's registry file, which
            is data only: it has no targets, and its weights are not in a package.
        namespace: of the plugin, before the names of its label sets; empty if it is not known.
        data: of the file, if it is not written yet.
        sizes: the core's sizes, which variants may name as well as the file's sizes.
        limit: largest size of the file in bytes.
        installed: whether the file belongs to an installed package. The nesting and the keys of
            other files are limited.
        complete: whether variants must state `params`, and weights `size` or `predicted_size`.
        base: returns the registered variant that a variant of a user's registry file starts from.

    Raises:
        RegistryError: the file cannot be read, is not TOML or breaks the schema.
        IncompatibleManifest: the file needs a newer vitzoo.
    """
    if data is None and (data := read_regular(path, limit, RegistryError)) is None:
        raise RegistryError(
            f"{path}: cannot be read: No such file or directory; pass the path of a TOML file, "
            "such as acme_vit/registry.toml"
        )
    try:
        table = loads(data) if installed else strict_toml(data)
    except ValueError as error:
        line = TOML_LINE.search(str(error))
        raise _placed(RegistryError(f"{path}: {error}"), path, line and int(line[1])) from error
    try:
        reader = Reader(table, str(path))
        return _read(path, reader, package, namespace, sizes or {}, complete=complete, base=base)
    except RegistryError as error:
        _placed(error, path, line_of(data.decode(), error.keys))
        raise


def _placed(error: RegistryError, path: Path, line: int | None) -> RegistryError:
    """Write the line of a key behind the name of its file in the message of an error."""
    if line:
        error.place = f"{path}:{line}"
        error.args = (str(error.args[0]).replace(str(path), error.place, 1), *error.args[1:])
    return error


def _read(
    path: Path,
    reader: Reader,
    package: str | None,
    namespace: str,
    sizes: Mapping[str, Spec],
    *,
    complete: bool,
    base: Callable[[str], Variant] | None,
) -> Manifest:
    """Read the tables of a registry file; the arguments are those of `read_manifest`."""
    api = reader.count("api")
    if api > API:
        raise IncompatibleManifest(
            f"{path}: api is {api}, but this vitzoo reads at most {API}; the file needs a newer "
            f"vitzoo, or api = {API}"
        ).at("api")
    # Tables of figures come before the entries of weights, which refer to them by name.
    own_sizes, label_sets = _sizes(reader, sizes), read_label_sets(reader)
    entries = Entries(
        package,
        {**sizes, **own_sizes},
        complete=complete,
        evaluations=read_evaluations(reader),
        measurements=read_measurements(reader),
        recipes=read_recipes(reader),
        comparisons=read_comparisons(reader),
        pretraining=read_pretraining(reader),
        label_sets=label_sets,
        namespace=namespace,
        folder=path.absolute().parent if package is None else None,
        base=base,
    )
    # A registry file of a user has no parts, for they need an installed package.
    kinds = KINDS if package is not None else ()
    unusable: dict[str, RegistryError] = {}
    manifest = Manifest(
        summary=reader.text("summary", ""),
        contributions={
            kind.hook: tuple(reader.rows(kind.table, partial(entries.contribution, kind.row)))
            for kind in kinds
        },
        variants=tuple(filter(None, reader.rows("variants", partial(_variant, entries, unusable)))),
        sizes=own_sizes,
        aliases=_aliases(reader),
        label_sets=_distinct(label_sets, reader),
        unusable=unusable,
    )
    # A key that no reader has taken is unknown, so this comes last.
    reader.done()
    return manifest


def _variant(
    entries: Entries, unusable: dict[str, RegistryError], name: str, reader: Reader
) -> Variant | None:
    """Read a variant; None if the plugin of its base cannot be used."""
    try:
        return entries.variant(name, reader)
    except RegistryError as error:
        if not isinstance(error.__cause__, PluginError):
            raise
        unusable[name] = error
        reader.skip()
        return None


def _sizes(reader: Reader, taken: Mapping[str, Spec]) -> dict[str, Spec]:
    def parse(name: str, reader: Reader) -> tuple[str, Spec]:
        if name in taken:
            raise reader.fail(f"the core has a size {name!r}; choose another name")
        reader.text("source")
        numbers: dict[str, Any] = {key: reader.count(key, most=LIMITS[key]) for key in NUMBERS}
        return name, Spec(**numbers)

    return dict(reader.rows("sizes", parse))


def _distinct(label_sets: dict[str, tuple[str, ...]], reader: Reader) -> dict[str, tuple[str, ...]]:
    """Refuse a label set with the name of a variant: `vitzoo.labels` takes both."""
    for name in label_sets.keys() & reader.table.get("variants", {}).keys():
        problem = f"{quoted(name)} is a variant, too; choose another name for the label set"
        raise reader.fail(f"label_sets.{name}: {problem}", "label_sets")
    return label_sets


def _aliases(reader: Reader) -> dict[str, str]:
    sub = reader.sub("aliases")
    if sub is None:
        return {}
    names = set(reader.table.get("variants", {}))
    aliases = {former: sub.text(former) for former in sub.table}
    for former, present in aliases.items():
        if former in names:
            problem = f"{former!r} is the name of a variant; a former name is never reused"
            raise sub.fail(problem, former)
        if present not in names:
            raise sub.fail(_no_variant(former, aliases, names), former)
    return aliases


def _no_variant(former: str, aliases: Mapping[str, str], names: Collection[str]) -> str:
    """Say why the present name of a former one is no variant."""
    seen, last = [former], aliases[former]
    while last in aliases and last not in seen:
        seen.append(last)
        last = aliases[last]
    if last in seen:
        cycle = " -> ".join([*seen[seen.index(last) :], last])
        return f"the former names {cycle} are a cycle; write the name of a variant of this file"
    if last in names:
        return f"the present name of {former!r} is {seen[1]!r}, a former name; write {last!r}"
    return (
        f"the present name of {former!r} is {aliases[former]!r}, which is no variant of this file"
        f"{did_you_mean(last, names)}"
    )
