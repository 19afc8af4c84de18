"""Reading plugins on demand, and keeping their states and entries.

A listing reads every manifest. A name with a namespace reads only that plugin, and only then is a
plugin's module imported. A plugin that fails is recorded with cause and fix. Its names raise
`PluginError`; the core and other plugins are not affected.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo.errors import IncompatibleManifest, PluginError, VitzooError
from vitzoo.plugin.entry_points import GROUP, Found, find_plugins
from vitzoo.plugin.guard import GuardedFormat, Owner, raised_at, reason_of, text_of
from vitzoo.plugin.importing import import_module
from vitzoo.plugin.info import (
    CORE,
    LOCAL,
    OFF,
    TROUBLE,
    PluginInfo,
    claimed,
    may_have,
    outdone,
    refused,
)
from vitzoo.plugin.package_files import manifest_path, package_folders
from vitzoo.plugin.source_lines import where_defined
from vitzoo.plugin.switches import STRICT, Switches
from vitzoo.schema.reader import describe
from vitzoo.schema.terms import CORE_MANIFEST, MAX_PLUGIN_MANIFEST

if TYPE_CHECKING:  # a listing of known manifests imports neither their data classes nor pluggy
    import pluggy

    from vitzoo.schema.manifest import Manifest
    from vitzoo.schema.rows import Contribution, Target, Variant
    from vitzoo.schema.spec import Spec

Rows = tuple[tuple[str, Any], ...]  # (hook name, entry) pairs
LOCK = threading.RLock()  # held while attributes change; no code of a plugin runs under it
LASTING = (ImportError, SyntaxError, VitzooError)  # another import would raise the same error


class Outcome(NamedTuple):
    """The result of reading or importing a plugin."""

    info: PluginInfo
    plugin: object | None = None  # manifest or module; None if the plugin cannot be used
    rows: Rows = ()
    aliases: Mapping[str, str] = MappingProxyType({})
    package: str = ""  # contains the plugin's data files
    error: BaseException | None = None  # why the plugin cannot be used


class PluginHost:
    """Keeps the states and entries of all plugins by namespace. The core is the first plugin.

    No lock is held while the code of a plugin runs, so a plugin that hangs blocks only the threads
    that use its names.

    Args:
        switches: which plugins are enabled; None reads the environment.

    Attributes:
        rows: (hook name, entry) pairs of the loaded plugins, without disabled names.
    """

    def __init__(self, switches: Switches | None = None) -> None:
        self.switches = Switches.read() if switches is None else switches
        self.rows: dict[str, Rows] = {}
        self.found: list[Found] = []
        self._infos = {CORE: PluginInfo(CORE, "core", location=str(CORE_MANIFEST))}
        self._waiting = {CORE: Found(CORE, "vitzoo:registry.toml", "vitzoo")}
        self._outcomes: dict[str, Outcome] = {}
        self._discovered = False
        self._busy = threading.local()
        self._core: Manifest | None = None
        folders_of = cache(package_folders)  # one package may have the manifests of many plugins
        self._manifest_path = partial(manifest_path, folders_of=folders_of)

    @property
    def core(self) -> Manifest:
        """The manifest of the core."""
        if self._core is None:
            self._core = read_manifest(CORE_MANIFEST, package="vitzoo", installed=True)
        return self._core

    @property
    def manager(self) -> pluggy.PluginManager:
        """A new manager of pluggy with the core and the plugins that have been read."""
        from vitzoo.plugin.hook_calls import new_manager

        read = {name: outcome.plugin for name, outcome in self._outcomes.items()}
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
                self._sort_out([found for found in self.found if found.group == GROUP])
                self._discovered = True
                _warn(self.switches.unmatched(self.found))

    def manifests(self) -> list[str]:
        """Return the namespaces whose manifests have not been read yet."""
        self.discover()
        with LOCK:
            return [name for name, found in self._waiting.items() if found.value.endswith(".toml")]

    def manifest_path(self, namespace: str) -> Path | None:
        """Return the path of a manifest that has not been read yet, None if it is missing."""
        try:
            if namespace == CORE:
                return CORE_MANIFEST
            return self._manifest_path(self._waiting[namespace])
        except Exception:  # noqa: BLE001  # reading the manifest reports the error
            return None

    def read(self, namespace: str) -> Outcome | None:
        """Read the manifest of a plugin or import its module; `admit` then takes the result.

        Returns:
            None if the plugin was read before, or if this thread is reading it.
        """
        if namespace != CORE:
            self.discover()
        found = self._waiting.get(namespace)
        busy: set[str] = self._busy.__dict__.setdefault("names", set())
        if found is None or namespace in busy:
            return None
        try:
            busy.add(namespace)
            if namespace == CORE:  # its errors are raised
                return _outcome_of(self.core, self._infos[CORE], "vitzoo")
            return self._try(found)
        finally:
            busy.discard(namespace)

    def admit(
        self, outcome: Outcome, collect: Callable[[str], None] = lambda _namespace: None
    ) -> None:
        """Take the result of `read`; call `collect(namespace)` if its entries are new and usable.

        After an exception in the middle, and after one that may not come again, such as that of the
        handler of a signal, the plugin is read again when it is next used.
        """
        namespace = outcome.info.namespace
        with LOCK:
            if namespace in self._waiting:
                self._admit(outcome)
                if namespace in self.rows:
                    collect(namespace)
                if outcome.error is None or isinstance(outcome.error, LASTING):
                    del self._waiting[namespace]

    def check(self, namespace: str, error: BaseException | None = None) -> None:
        """Raise `PluginError` with cause and fix, from `error`, if a plugin cannot be used."""
        info = self._infos.get(namespace)
        if info is not None and info.state in OFF:
            raise _unusable(info) from error

    def unhidden(self, namespace: str) -> list[Any]:
        """Return all entries of a loaded plugin, including disabled names."""
        return [row for _, row in self._outcomes[namespace].rows]

    def aliases(self, namespace: str) -> Mapping[str, str]:
        """Return the former names of a plugin's variants, and their present names."""
        return self._outcomes[namespace].aliases if namespace in self._outcomes else {}

    def package(self, namespace: str) -> str:
        """Return the package of a plugin, for bundled files."""
        return self._outcomes[namespace].package

    def import_target(self, namespace: str, row: Contribution | Variant) -> Any:
        """Import and return the target of an entry; a failure sets the plugin's state to `failed`.

        Exceptions of the core's modules pass unchanged.

        Raises:
            PluginError: a required distribution is not installed, or the plugin's import fails.
        """
        from vitzoo.schema.rows import Variant

        target: Target = row.builder if isinstance(row, Variant) else row.target
        info = self._infos[namespace]
        owner = Owner(info, f"{namespace}/{row.name.rpartition('/')[2]}")
        if row.requires:
            from vitzoo.plugin.requirements import check_requirements

            check_requirements(row.requires, f"{owner}: {row.name!r}")
        if not isinstance(target, str):
            return target
        module, _, name = target.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (Exception, SystemExit) as error:
            if namespace == CORE:
                raise
            info = owner.failed(target, error, f"the target in {info.location}")
            self._infos[namespace] = info
            raise PluginError(info.trouble) from error
        if info.state == "failed" and repr(target) in info.cause:
            self._infos[namespace] = replace(info, state="loaded", cause="", fix="")
        return found

    def part(self, namespace: str, row: Contribution) -> Any:
        """Return the target of an entry; the methods of a plugin's format raise `PluginError`."""
        target = self.import_target(namespace, row)
        if namespace == CORE or type(row).__name__ != "CheckpointFormat":
            return target
        owner = Owner(self._infos[namespace], f"{namespace}/{row.name}", "checkpoint format")
        return GuardedFormat(target, owner)

    def network(self, variant: Variant, spec: Spec) -> Any:
        """Return the network that the plugin's builder of a variant makes of a spec.

        The builder of a base gets the name of the base. Raises as `import_target`, and
        `PluginError` if the builder fails, or returns no network.
        """
        name = variant.base or variant.name
        build = self.import_target(variant.maker, variant)
        owner = Owner(self._infos[variant.maker], name, "builder of")
        with owner.calling(build, "it"):
            model = build(replace(spec, variant=variant.base) if variant.base else spec)
            from torch import nn  # which the builder has imported

            if isinstance(model, nn.Module) and any(True for _ in model.parameters()):
                return model
        expected = "expected a torch.nn.Module with parameters"
        raise owner.error(f"it returned {describe(model)}, {expected}", build)

    def add_local(self, paths: Sequence[Path], cause: str = "") -> None:
        """Record the user's registry files as the plugin `local`; `cause` why names are missing."""
        info = PluginInfo(LOCAL, "loaded", "", location=os.pathsep.join(map(str, paths)))
        if cause:
            fix = "install the plugin, or remove the variant"
            info = replace(info, state="failed", cause=cause, fix=fix)
        self._infos[LOCAL] = info

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

    def _sort_out(self, plugins: list[Found]) -> None:
        """Set the state of every plugin that was found: the core first, then by name."""
        claims: dict[str, list[Found]] = {}
        off: list[PluginInfo] = []
        for found in plugins:
            info = refused(found, self.switches)
            if info is None:
                claims.setdefault(found.namespace, []).append(found)
            else:
                off.append(info)
        states: dict[str, PluginInfo] = {}
        for namespace, claimants in claims.items():
            rivals = [found for found in claimants if not found.here] or claimants
            off += [outdone(found, rivals[0]) for found in claimants if found not in rivals]
            states[namespace] = claimed(rivals)
            if len(rivals) == 1:
                self._waiting[namespace] = rivals[0]
        for info in off:
            place = info.namespace
            if place in states or place in (CORE, LOCAL) or not may_have(info):
                place = f"{info.namespace} ({info.distribution})"
            states[place] = info
        states |= self._infos
        order = sorted(states, key=lambda name: (name != CORE, name == LOCAL, name))
        self._infos = {name: states[name] for name in order}

    def _try(self, found: Found) -> Outcome | None:
        info = self._infos[found.namespace]
        try:
            if found.value.endswith(".toml"):
                return self._read_manifest(info, found)
            return self._import_module(info, found)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the state has it
            at = "" if found.value.endswith(".toml") else where_defined(found.value)
            reason = reason_of(error, info.package, at)
            at = at and raised_at(error, info.package, at)
            info = replace(
                info,
                state="incompatible" if isinstance(error, IncompatibleManifest) else "broken",
                cause=f"{found.owner}: {reason}",
                fix=getattr(error, "fix", "") or Owner(info, found.namespace).fix(error, at),
                trace=(*info.trace, f"failed: {reason}"),
            )
            return Outcome(info, error=error)

    def _read_manifest(self, info: PluginInfo, found: Found) -> Outcome:
        path = self._manifest_path(found)
        module, _, _ = found.value.partition(":")
        manifest = read_manifest(
            path,
            package=module.split(".")[0],
            sizes=self.core.sizes,
            limit=MAX_PLUGIN_MANIFEST,
            installed=True,
        )
        trace = (*info.trace, f"read the manifest {path}; nothing imported")
        info = replace(info, state="loaded", location=str(path), trace=trace)
        return _outcome_of(manifest, info, module)

    def _import_module(self, info: PluginInfo, found: Found) -> Outcome | None:
        module = import_module(found.value)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            return None  # the module uses its own names during an import by other code
        from vitzoo.plugin.hook_calls import module_rows

        location = text_of(getattr(module, "__file__", ""))
        rows = module_rows(module, found.value, info.namespace)
        trace = (*info.trace, f"imported {found.value} from {location}")
        info = replace(info, state="loaded", location=location, trace=trace)
        package = getattr(module, "__package__", None)
        return Outcome(info, module, rows, package=str(package or found.value))

    def _admit(self, outcome: Outcome) -> None:
        info, namespace = outcome.info, outcome.info.namespace
        self._infos[namespace] = info
        if outcome.plugin is None:
            return
        for first, other in self._outcomes.items():
            if first != namespace and other.plugin is outcome.plugin:
                cause = f"the plugin {first!r} already uses its module {info.entry_point}"
                fix = "use one module for each namespace"
                self._infos[namespace] = replace(info, state="broken", cause=cause, fix=fix)
                return
        self._outcomes[namespace] = outcome
        self.rows[namespace] = tuple(
            (hook, row)
            for hook, row in outcome.rows
            if namespace == CORE or not self.switches.hides(f"{namespace}/{row.name}")
        )
        _warn(self.switches.unknown(namespace, self._names(namespace)))

    def _names(self, namespace: str) -> set[str]:
        """Return all names of a loaded plugin, including aliases and disabled names."""
        return {row.name for row in self.unhidden(namespace)} | {*self.aliases(namespace)}


def _unusable(info: PluginInfo) -> PluginError:
    return PluginError(f"plugin {info.namespace!r} cannot be used: {info.trouble}")


def read_manifest(path: Path, **options: Any) -> Manifest:
    """Read a manifest, and import what that needs."""
    from vitzoo.schema.manifest import read_manifest as read

    return read(path, **options)


def _outcome_of(manifest: Manifest, info: PluginInfo, package: str) -> Outcome:
    return Outcome(info, manifest, manifest.entries(), manifest.aliases, package)


def _warn(problems: list[str]) -> None:
    for problem in problems:
        from vitzoo.log import log  # costs milliseconds, and only problems need it

        log.warning("%s", problem)
