"""Reading plugins on demand, and keeping their states and entries.

A listing reads every manifest. A name with a namespace reads only that plugin, and only then is a
plugin's module imported. A plugin that fails is recorded with cause and fix. Its names raise
`PluginError`; the core and other plugins are not affected.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo.errors import IncompatibleManifest, MissingDependency, PluginError, RegistryError
from vitzoo.plugin.entry_points import GROUP, Found, find_plugins
from vitzoo.plugin.guard import (
    GuardedFormat,
    Owner,
    defined_at,
    package_files,
    raised_at,
    reason_of,
    text_of,
)
from vitzoo.plugin.importing import import_module
from vitzoo.plugin.info import CORE, LOCAL, OFF, TROUBLE, PluginInfo, installing
from vitzoo.plugin.switches import STRICT, Switches
from vitzoo.schema.reader import describe
from vitzoo.schema.terms import CORE_MANIFEST, MAX_PLUGIN_MANIFEST

if TYPE_CHECKING:  # a listing of known manifests imports neither their data classes nor pluggy
    import pluggy

    from vitzoo.schema.manifest import Manifest
    from vitzoo.schema.rows import Contribution, Variant
    from vitzoo.schema.spec import Spec

Rows = tuple[tuple[str, Any], ...]  # (hook name, entry) pairs
Parts = dict[str, dict[str, tuple[str, "Contribution"]]]  # (namespace, entry) by kind and name
LOCK = threading.RLock()  # held while attributes change; no code of a plugin runs under it
LASTING = (ImportError, SyntaxError, PluginError, RegistryError)  # the same error would come again


class Contents(NamedTuple):
    """What a plugin has.

    Args:
        plugin: the manifest or module.
        rows: all entries, including disabled names.
        aliases: former names of variants, and their present names.
        package: contains the plugin's data files.
        summary: what its networks are, in one sentence; a module states none.
        label_sets: class names by the name of a set; a module has none.
    """

    plugin: object
    rows: Rows
    aliases: Mapping[str, str]
    package: str
    summary: str = ""
    label_sets: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class PluginHost:
    """Keeps the states and entries of all plugins. The core is the first plugin.

    Args:
        switches: which plugins are enabled; None reads the environment.
        complete: as for `read_manifest`.

    Attributes:
        found: the entry points of the installed plugins.
        contents: what the plugins that were read have, by namespace.
        rows: their entries without disabled names, by namespace.
        variants, parts, aliases, label_sets: the same entries by their full names.
        fitting: namespaces of the plugins that do not require another vitzoo.
    """

    def __init__(self, switches: Switches | None = None, *, complete: bool = True) -> None:
        self.complete = complete
        self.switches = Switches.read() if switches is None else switches
        self.found: list[Found] = []
        self.contents: dict[str, Contents] = {}
        self.rows: dict[str, Rows] = {}
        self.variants: dict[str, Variant] = {}
        self.parts: Parts = defaultdict(dict)
        self.aliases: dict[str, str] = {}
        self.label_sets: dict[str, tuple[str, ...]] = {}
        self._infos = {CORE: PluginInfo(CORE, "core", location=str(CORE_MANIFEST))}
        self._unread = {CORE: Found(CORE, "vitzoo:registry.toml", "vitzoo")}
        self._discovered = False
        self.fitting: set[str] = set()
        self._reading: set[tuple[int, str]] = set()  # by which thread

    @cached_property
    def core(self) -> Manifest:
        """The manifest of the core."""
        return read_manifest(CORE_MANIFEST, package="vitzoo", installed=True)

    @property
    def manager(self) -> pluggy.PluginManager:
        """A new manager of pluggy with the core and the plugins that have been read."""
        from vitzoo.plugin.hook_calls import new_manager

        read = {name: contents.plugin for name, contents in self.contents.items()}
        return new_manager({CORE: self.core, **read})

    @property
    def infos(self) -> dict[str, PluginInfo]:
        """The state of every plugin, the core first."""
        self.discover()
        return self._infos

    def discover(self) -> None:
        """Find the installed plugins, unless that is done; no plugin is imported."""
        with LOCK:
            if not self._discovered:
                self.found = find_plugins()
                ours = [found for found in self.found if found.group == GROUP]
                states, unread = discovery().sort_out(ours, self.switches)
                states |= self._infos
                order = sorted(states, key=lambda name: (name != CORE, name == LOCAL, name))
                self._infos = {name: states[name] for name in order}
                self._unread |= unread
                self._discovered = True
                _warn(self.switches.unmatched(self.found))

    def manifests(self) -> list[str]:
        """Return the namespaces whose manifests have not been read yet."""
        self.discover()
        with LOCK:
            return [name for name, found in self._unread.items() if found.value.endswith(".toml")]

    def manifest_path(self, namespace: str) -> Path | None:
        """Return the path of a manifest that has not been read yet, None if it is missing."""
        if namespace == CORE:
            return CORE_MANIFEST
        try:
            found: Path = package_files().manifest_path(self._unread[namespace])
        except Exception:  # noqa: BLE001  # reading the manifest reports the error
            return None
        return found

    def load(self, namespace: str) -> None:
        """Read a manifest or import a module, unless that is done, and record state and entries.

        No lock is held while code of the plugin runs, so a plugin that hangs blocks only the
        threads that use its names. Code of the plugin that asks for the plugin's own names finds
        none. After an error that may not come again, the next call reads the plugin again.

        Raises:
            PluginError: the plugin cannot be used; the message has cause and fix.
        """
        if namespace != CORE:
            self.discover()
        found, reading = self._unread.get(namespace), (threading.get_ident(), namespace)
        result: tuple[PluginInfo, Contents | None] | None
        error: BaseException | None = None
        usable = namespace == CORE or self._infos[namespace].state != "incompatible"
        if found is not None and usable and reading not in self._reading:
            try:
                self._reading.add(reading)
                result = self._read(found, self._infos[namespace])
            except (Exception, SystemExit) as raised:
                if namespace == CORE:
                    raise
                error, result = raised, (self._failed(found, raised), None)
            finally:
                self._reading.discard(reading)
            if result is not None:
                self._record(*result, lasting=error is None or isinstance(error, LASTING))
        info = self._infos.get(namespace)
        if info is not None and info.state in OFF:
            raise PluginError(
                f"plugin {info.namespace!r} cannot be used: {info.trouble}"
            ) from error

    def _read(self, found: Found, info: PluginInfo) -> tuple[PluginInfo, Contents] | None:
        """Return state and contents of a plugin; None if other code is importing its module."""
        if found.namespace == CORE:
            return info, _contents(self.core, "vitzoo")
        if found.value.endswith(".toml"):
            path, package = package_files().manifest_path(found), found.value.partition(":")[0]
            manifest = read_manifest(
                path,
                package=package.split(".")[0],
                namespace=found.namespace,
                sizes=self.core.sizes,
                limit=MAX_PLUGIN_MANIFEST,
                installed=True,
                complete=self.complete,
            )
            step = f"read the manifest {path}; nothing imported"
            return _loaded(info, str(path), step), _contents(manifest, package)
        module = import_module(found.value)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            return None
        for namespace, other in list(self.contents.items()):  # other threads may add some
            if other.plugin is module and namespace != found.namespace:
                raise PluginError(
                    f"the plugin {namespace!r} already uses its module {found.value}; use one "
                    "module for each namespace"
                )
        from vitzoo.plugin.hook_calls import module_rows

        rows = module_rows(module, found.value, found.namespace)
        location = text_of(getattr(module, "__file__", ""))
        package = str(getattr(module, "__package__", None) or found.value)
        step = f"imported {found.value} from {location}"
        return _loaded(info, location, step), Contents(module, rows, {}, package)

    def _failed(self, found: Found, error: BaseException) -> PluginInfo:
        """Return the state of a plugin that cannot be read."""
        info = self._infos[found.namespace]
        is_module = not found.value.endswith(".toml")
        at = defined_at(found.value) if is_module else getattr(error, "place", "")
        line = raised_at(error, info.package, at)
        reason, newer = reason_of(error, line), isinstance(error, IncompatibleManifest)
        cause, owner = f"{found.owner}: {reason}", Owner(info, found.namespace)
        fix = owner.fix(error, at and line)
        if not at and isinstance(error, PluginError | ModuleNotFoundError):  # there is no such file
            cause += discovery().declared(found)
            near = package_files().near(found.value) if is_module else ""
            fix = discovery().author_fix(found) + near
        return replace(
            info,
            state="incompatible" if newer else "broken",
            cause=cause,
            fix=installing().update() if newer else fix,
            trace=(*info.trace, f"failed: {reason}"),
        )

    def _record(self, info: PluginInfo, contents: Contents | None, *, lasting: bool) -> None:
        """Set state and entries of a plugin, unless another thread did.

        If `lasting`, the plugin is not read again.
        """
        namespace = info.namespace
        with LOCK:
            if namespace not in self._unread:
                return
            self._infos[namespace] = info
            if contents is not None:
                self.contents[namespace] = contents
                rows = (
                    (hook, row)
                    for hook, row in contents.rows
                    if not self.switches.hides(full_name(namespace, row.name))
                )
                self.rows[namespace] = tuple(rows)
                self.add(namespace, self.rows[namespace], contents.aliases, contents.label_sets)
                _warn(self.switches.unknown(namespace, self._names(namespace)))
            if lasting:
                del self._unread[namespace]

    def check_vitzoo(self, namespace: str) -> None:
        """Set the state `incompatible` if the distribution of a plugin requires another vitzoo.

        Listings do not call this, because it reads the requirements of the distribution.

        Raises:
            PluginError: the plugin cannot be used.
        """
        info = self.infos.get(namespace)
        if info and info.entry_point and info.state not in OFF and namespace not in self.fitting:
            info = discovery().fitting(info)
            with LOCK:
                self._infos[namespace] = info
                self.fitting |= {namespace} if info.state != "incompatible" else set()
        if info and info.state == "incompatible":
            raise PluginError(f"plugin {namespace!r} cannot be used: {info.trouble}")

    def add(
        self,
        namespace: str,
        rows: Rows,
        aliases: Mapping[str, str],
        label_sets: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Add entries under their full names."""
        from vitzoo.schema.kinds import KIND_OF_HOOK, VARIANT_HOOK

        for former, present in aliases.items():
            self.aliases[full_name(namespace, former)] = full_name(namespace, present)
        self.label_sets |= {full_name(namespace, name): one for name, one in label_sets.items()}
        for hook, row in rows:
            name = full_name(namespace, row.name)
            if hook == VARIANT_HOOK:
                self.variants[name] = named(namespace, row)
            else:
                self.parts[KIND_OF_HOOK[hook]][name] = (namespace, row)

    def add_local(self, paths: Sequence[Path], cause: str = "") -> None:
        """Record the user's registry files as the plugin `local`; `cause` why names are missing."""
        info = PluginInfo(LOCAL, "loaded", "", location=os.pathsep.join(map(str, paths)))
        if cause:
            fix = "install the plugin, or remove the variant"
            info = replace(info, state="failed", cause=cause, fix=fix)
        self._infos[LOCAL] = info

    def package(self, namespace: str) -> str:
        """Return the package of a plugin, for bundled files."""
        return self.contents[namespace].package

    def import_target(self, namespace: str, row: Contribution | Variant) -> Any:
        """Import and return the target of an entry; a failure sets the plugin's state to `failed`.

        Exceptions of the core's modules pass unchanged.

        Raises:
            PluginError: a required distribution is not installed, or the plugin's import fails.
        """
        from vitzoo.schema.rows import Variant

        target: Any = row.builder if isinstance(row, Variant) else row.target
        info, entry = self._infos[namespace], f"{namespace}/{row.name.rpartition('/')[2]}"
        if row.requires:
            from vitzoo.plugin.requirements import check_requirements

            owner = Owner(info, entry, row=row)
            whose = f"{owner}: {row.name!r}"
            try:
                check_requirements(row.requires, whose)
            except (PluginError, MissingDependency) as error:
                place = f"{whose} ({owner.declared('requires')})"
                raise type(error)(str(error).replace(whose, place, 1)) from error
        if not isinstance(target, str):
            return target
        module, _, name = target.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (Exception, SystemExit) as error:
            if namespace == CORE:
                raise
            owner = Owner(info, entry, row=row)
            key = "builder" if isinstance(row, Variant) else "target"
            place = owner.declared(key)
            info = owner.failed(target, error, f"the {key} in {place}", place)
            self._infos[namespace] = info
            raise PluginError(info.trouble) from error
        if info.state == "failed" and repr(target) in info.cause:
            self._infos[namespace] = replace(info, state="loaded", cause="", fix="")
        return found

    def part(self, kind: str, namespace: str, row: Contribution) -> Any:
        """Return the target of an entry; the methods of a plugin's format raise `PluginError`.

        Raises as `import_target`, and `PluginError` if the target of a part cannot make one.
        """
        target = self.import_target(namespace, row)
        if namespace == CORE:
            return target
        owner = Owner(self._infos[namespace], f"{namespace}/{row.name}", kind)
        if kind == "checkpoint format":
            return GuardedFormat(target, owner)
        is_module = hasattr(target, "forward") and not isinstance(target, type)
        if is_module or not callable(target):
            problem = f"its target is {describe(target)}, expected a class or a function"
            raise owner.error(problem, row.target)
        return target

    def network(self, variant: Variant, spec: Spec) -> Any:
        """Return the network that the plugin's builder of a variant makes of a spec.

        The builder of a base gets the name of the base. Raises as `import_target`, and
        `PluginError` if the builder fails, or returns no network.
        """
        build, owner = self.import_target(variant.maker, variant), self.builder_of(variant)
        with owner.calling(build, "it"):
            model = build(replace(spec, variant=variant.base) if variant.base else spec)
            from torch import nn  # which the builder has imported

            if isinstance(model, nn.Module) and any(True for _ in model.parameters()):
                return model
        expected = "expected a torch.nn.Module with parameters"
        raise owner.error(f"it returned {describe(model)}, {expected}", build)

    def builder_of(self, variant: Variant) -> Owner:
        """Return the plugin whose builder makes a variant, for errors of its code."""
        name = variant.base or variant.name
        return Owner(self._infos[variant.maker], name, "builder of")

    def check_strict(self) -> None:
        """In strict mode, raise `PluginError` if a plugin fails or a switch matches nothing."""
        if not self.switches.strict:
            return
        bad = [f"{i.namespace!r}: {i.trouble}" for i in self.infos.values() if i.state in TROUBLE]
        bad += self.switches.unmatched(self.found)
        for namespace in self.rows:
            bad += self.switches.unknown(namespace, self._names(namespace))
        if bad:
            raise PluginError(f"{STRICT}=1, and there are problems: {'; '.join(bad)}")

    def _names(self, namespace: str) -> set[str]:
        """Return all names of a loaded plugin, including aliases and disabled names."""
        contents = self.contents[namespace]
        return {row.name for _, row in contents.rows} | {*contents.aliases}


def discovery() -> Any:
    """Return the module `vitzoo.plugin.discovery`, which names of the core do not need."""
    from vitzoo.plugin import discovery

    return discovery


def full_name(namespace: str, name: str) -> str:
    """Return a name of a plugin as users write it."""
    return name if namespace == CORE else f"{namespace}/{name}"


def named(namespace: str, row: Variant) -> Variant:
    """Return a variant with its full name."""
    name = full_name(namespace, row.name)
    spec = row.spec.with_values(variant=name)
    return row.with_values(name=name, spec=spec, namespace=namespace)


def read_manifest(path: Path, **options: Any) -> Manifest:
    """Read a manifest, and import what that needs."""
    from vitzoo.schema.manifest import read_manifest as read

    return read(path, **options)


def _contents(manifest: Manifest, package: str) -> Contents:
    entries, label_sets = manifest.entries(), manifest.label_sets
    return Contents(manifest, entries, manifest.aliases, package, manifest.summary, label_sets)


def _loaded(info: PluginInfo, location: str, step: str) -> PluginInfo:
    trace = (*info.trace, step)
    return replace(info, state="loaded", location=location, cause="", fix="", trace=trace)


def _warn(problems: Iterable[str]) -> None:
    for problem in problems:
        from vitzoo.log import log  # costs milliseconds, and only problems need it

        log.warning("%s", problem)
