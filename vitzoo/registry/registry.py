"""The registry: names of variants, parts and checkpoint formats, and the entries behind them.

Bare names belong to the core, `namespace/name` to a plugin, and `local/name` to the user's
registry files (`VITZOO_REGISTRY`). Torch-free.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo import settings
from vitzoo.display import ResultList
from vitzoo.errors import PluginError, RegistryError, UnknownName
from vitzoo.files.names import on_hub
from vitzoo.keywords import check_each, check_types, short_errors
from vitzoo.plugin.host import LOCK, Parts, PluginHost, full_name
from vitzoo.plugin.info import CORE, LOCAL, PluginInfo, place
from vitzoo.plugin.switches import NOT, VARIABLES
from vitzoo.schema.reader import describe as describe_value
from vitzoo.text import count, quoted

if TYPE_CHECKING:  # `vitzoo list` imports no data class
    from vitzoo.registry.index import Index
    from vitzoo.schema.rows import Contribution, Variant

IN_NOTEBOOKS = ("name", "params", "top1", "image_size", "license", "summary")


class Unknown(NamedTuple):
    """A name without an entry.

    Args:
        what: "variant", the kind of a part, or "base" for a variant that another one starts from.
        name: as it was given.
        zoo: the registry.
    """

    what: str
    name: str
    zoo: Registry


class Registry:
    """All registered names. A plugin is read when one of its names is used.

    Args:
        local: the user's registry files.
        complete: whether the manifests of plugins must state what commands can write, as for
            `read_manifest`.

    Raises:
        RegistryError: one of the user's registry files cannot be used.
        PluginError: a plugin cannot be used, and `VITZOO_STRICT_PLUGINS` is 1.
    """

    def __init__(self, local: Sequence[Path] = (), *, complete: bool = True) -> None:
        self.host = PluginHost(complete=complete)
        self.aliases = self.host.aliases
        self._formats: dict[str, Any] = {}  # that were imported
        self._unusable: dict[str, RegistryError] = {}  # variants of the user's files
        if local:
            self._read_local(local)
        if self.host.switches.strict:
            self.load_manifests()
            self.host.check_strict()

    @cached_property
    def index(self) -> Index:
        """The rows of all variants, for listings."""
        from vitzoo.registry.index import Index

        return Index(self)

    @property
    def variants(self) -> dict[str, Variant]:
        """All variants by name, the core's first, without those of lazy module plugins."""
        self.load_manifests()
        with LOCK:
            return dict(
                sorted(self.host.variants.items(), key=lambda item: place(item[1].namespace))
            )

    @property
    def parts(self) -> Parts:
        """All parts and formats, without those of lazy module plugins."""
        self.load_manifests()
        with LOCK:
            return {kind: dict(rows) for kind, rows in self.host.parts.items()}

    def core_parts(self, kind: str) -> list[str]:
        """Return the names of the core's parts of a kind in their order; no plugin is read."""
        return self.parts_of(kind, CORE)

    def parts_of(self, kind: str, namespace: str) -> list[str]:
        """Return the names of the parts of a kind in one namespace; no other plugin is read."""
        if namespace != CORE and namespace not in self.host.infos:  # which looks for plugins
            return []
        self.host.load(namespace)
        with LOCK:
            rows = self.host.parts[kind].items()
            return [name for name, (whose, _) in rows if whose == namespace]

    def load_manifests(self) -> None:
        """Read the manifests of all plugins; the states of plugins record errors."""
        for namespace in self.host.manifests():
            with contextlib.suppress(PluginError):
                self.host.load(namespace)

    def check_vitzoo(self) -> None:
        """Set the state of each plugin that requires another vitzoo."""
        for namespace in list(self.host.infos):
            with contextlib.suppress(PluginError):
                self.host.check_vitzoo(namespace)

    def variant(self, name: str) -> Variant:
        """Return the variant of a name or of a former name (alias).

        Raises:
            UnknownName: no variant has this name; the message suggests similar names.
            PluginError: the plugin of this namespace cannot be used.
        """
        if not isinstance(name, str):
            raise UnknownName(f"the name of a variant must be text, got {describe_value(name)}")
        if "/" in name:
            self.host.check_vitzoo(name.partition("/")[0])
        self.load_namespace_of(name)
        if name in self.aliases and self.host.switches.hides(name):
            raise PluginError(_switched_off(name))
        name = self.aliases.get(name, name)
        if error := self._unusable.get(name):
            raise RegistryError(str(error)) from error
        if name not in self.host.variants:
            raise self._unknown("variant", name)
        return self.host.variants[name]

    def base(self, name: str) -> Variant:
        """Return the variant that a variant of a user's registry file may start from.

        Raises:
            UnknownName: the core and the plugins have no such variant.
            PluginError: the plugin is not installed or cannot be used, or it is a module, which
                listings do not import.
        """
        namespace, slash, _ = name.partition("/")
        info = self.host.infos.get(namespace) if slash else None
        if namespace == LOCAL and slash:
            raise UnknownName(
                f"{name!r} is in a registry file itself; name a variant of the core or of a plugin"
            )
        if slash and info is None:
            raise PluginError().of(Unknown("base", name, self))
        if info and info.entry_point and not info.entry_point.endswith(".toml"):
            raise PluginError(
                f"the plugin of {name!r} is a module, which listings do not import; expected a "
                f"plugin with a manifest, which `vitzoo plugins compile {namespace}` writes"
            )
        return self.variant(name)

    def part(self, kind: str, name: str) -> Any:
        """Import and return the constructor of a part, or a checkpoint format."""
        if kind != "checkpoint format":
            return self.host.part(kind, *self.contribution(kind, name))
        if name not in self._formats:  # loading a file asks for each of them several times
            self._formats[name] = self.host.part(kind, *self.contribution(kind, name))
        return self._formats[name]

    def contribution(self, kind: str, name: str) -> tuple[str, Contribution]:
        """Return the namespace and the entry of a part; its code is not imported."""
        rows = self.host.parts[kind]
        if "/" in name and name.partition("/")[0] not in self.host.fitting:
            self.host.check_vitzoo(name.partition("/")[0])
        if name not in rows:
            self.load_namespace_of(name)
        if name in rows:
            return rows[name]
        raise self._unknown(kind, name)

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin and its state, the core first."""
        self.load_manifests()
        self.check_vitzoo()
        return list(self.host.infos.values())

    def named(self, name: str) -> list[tuple[str, Contribution | Variant]]:
        """Return the namespace and the entry of every part, or of the variant, called `name`.

        Only the plugin that the name belongs to is read. A part comes before a variant.
        """
        if "/" in name:
            self.host.check_vitzoo(name.partition("/")[0])
        self.load_namespace_of(name)
        found = [rows[name] for rows in self.host.parts.values() if name in rows]
        variant = self.host.variants.get(name)
        return [*found, *([(variant.namespace, variant)] if variant else [])]

    def label_set(self, name: str) -> tuple[str, ...]:
        """Return the class names of a plugin's label set, none if there is no such set."""
        if "/" in name:  # those of the core are in `label_sets.py`
            self.load_namespace_of(name)
        return self.host.label_sets.get(name, ())

    def _read_local(self, paths: Sequence[Path]) -> None:
        from vitzoo.schema.manifest import read_manifest

        sizes, first = self.host.core.sizes, dict[str, Path]()
        for path in paths:
            try:
                options: Any = {"namespace": LOCAL, "sizes": sizes, "base": self.base}
                manifest = read_manifest(path, package=None, **options)
            except RegistryError as error:
                raise RegistryError(
                    "a file of VITZOO_REGISTRY cannot be used; correct it, or leave it out: "
                    f"{error}"
                ) from error
            rows = (row.name for row in manifest.variants)
            for name in (*rows, *manifest.unusable, *manifest.aliases, *manifest.label_sets):
                if first.setdefault(name, path) != path:
                    raise RegistryError(
                        f"two files of VITZOO_REGISTRY define {LOCAL}/{name}: {first[name]} and "
                        f"{path}; rename one of them, or leave one file out of VITZOO_REGISTRY"
                    )
            self.host.add(LOCAL, manifest.entries(), manifest.aliases, manifest.label_sets)
            self._unusable |= {full_name(LOCAL, n): error for n, error in manifest.unusable.items()}
        self.host.add_local(paths, "; ".join(map(str, self._unusable.values())))

    def load_namespace_of(self, name: str) -> None:
        """Read the plugin that a name belongs to, if it is installed."""
        namespace, slash, _ = name.partition("/")
        if not slash:
            self.host.load(CORE)
        elif namespace in self.host.infos:
            self.host.load(namespace)

    def _unknown(self, what: str, name: str) -> UnknownName:
        """Return the error about a name without an entry.

        Raises:
            PluginError: the name is disabled.
            InvalidOption: it is a malformed address.
        """
        namespace, slash, _ = name.partition("/")
        if what == "variant" and on_hub(name):
            from vitzoo.schema.addresses import one_form

            one_form(name)  # raises if the address is malformed
        here = not slash or namespace in self.host.infos
        if here and self.host.switches.hides(name):
            raise PluginError(_switched_off(name))
        return UnknownName().of(Unknown(what, name, self))


def _switched_off(name: str) -> str:
    return f"{quoted(name)} is disabled: {NOT} lists this name or its plugin"


def registry() -> Registry:
    """Return the registry of this process; it is read again if the environment changes."""
    with LOCK:  # concurrent first calls return the same registry
        return _registry(*(os.environ.get(name) for name in ("VITZOO_REGISTRY", *VARIABLES)))


@lru_cache(maxsize=8)
def _registry(*_environment: str | None) -> Registry:
    return Registry(settings.registry_files())


class Variants(ResultList["Variant"]):
    """A list of variants."""

    def _cells(self) -> list[dict[str, object]]:
        from vitzoo.registry.listing import HEADINGS, fields

        rows = [fields(variant) | {"params": count(variant.params)} for variant in self]
        return [{HEADINGS.get(c, c): row[c] for c in IN_NOTEBOOKS} for row in rows]


@short_errors
def variants(
    pattern: str | Iterable[str] = "*", *, where: str | None = None, **filters: Any
) -> list[Variant]:
    """Return the variants that match, in the order of the registry; the list shows as a table.

    Conditions on fields of weights, such as `top1` or `license`, are tested on each weights entry:
    one entry of the variant must meet all conditions. A variant without weights counts as an entry
    in which these fields are None.

    Args:
        pattern: shell-style pattern of names, or several; a variant must match one of them. The
            name of a family, such as "dinov2", means its variants; "vit" means those of the core.
        where: a condition as for `vitzoo list --where`, such as
            `"params<100M and (license=mit or license=apache-2.0)"`.
        filters: what fields must be: a value (`depth=12`, `license="apache-2.0"`), the rest of a
            condition (`params="<100M"`, `license="in (mit, apache-2.0)"`), None for a missing
            value, or a function that accepts values (`params=lambda n: n < 1e8`).

    Raises:
        UnknownOption: a field does not exist.
        InvalidOption: a condition cannot be read, or a value has the wrong type.

    >>> [v.name for v in variants("vit_b*", embed_dim=768, image_size=384)]
    ['vit_b16_384', 'vit_b32_384']
    """
    from vitzoo.registry.conditions import required, where as met

    check_types("variants", pattern=(pattern, "text or an iterable"), where=(where, "text or None"))
    patterns = [pattern] if isinstance(pattern, str) else pattern
    patterns = check_each("variants", "pattern", patterns, "text")
    tests = [required(field, value) for field, value in filters.items()]
    tests += [] if where is None else [met(where).test]
    zoo = registry()
    rows = zoo.index.listing(zoo.index.families(patterns)[1], each_weights=True)
    met_by = {row["name"]: row for row in rows if all(test(row) for test in tests)}
    found = (zoo.index.variant(row) for row in met_by.values())
    return Variants(variant for variant in found if variant is not None)


@short_errors
def describe(name: str) -> Variant:
    """Return the variant called `name`.

    Raises:
        UnknownName: no variant has this name; the message suggests similar names.
        PluginError: the plugin of this namespace cannot be used.

    >>> describe("vit_b16").params
    86567656
    """
    return registry().variant(name)


@short_errors
def plugins() -> list[PluginInfo]:
    """Return every plugin with its state, the core first."""
    return ResultList(registry().plugins())
