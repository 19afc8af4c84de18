"""Plugins: their states, and their contributions.

Nothing of a plugin is read before something needs it. Names of the core need nothing; a listing
needs every manifest; a name in a namespace needs that plugin alone, and a module is imported only
then. A plugin that fails is a state with a cause and a way out: the rest of the zoo goes on
working, and asking for something it owns raises that cause.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pluggy

from vitzoo import hookspecs
from vitzoo.catalogue import (
    CheckpointFormat,
    Contribution,
    DropPathPolicy,
    Head,
    PatchEmbedder,
    PositionEmbedding,
    Target,
    Variant,
)
from vitzoo.discovery import GROUP, Found, find_plugins
from vitzoo.errors import IncompatibleManifest, PluginError, VitzooError, did_you_mean
from vitzoo.manifest import CORE_BUILDER, MAX_PLUGIN_MANIFEST, ManifestPlugin, read_manifest
from vitzoo.schema import NAME, NAME_RULE, describe
from vitzoo.switches import NOT, STRICT, Switches

CORE = "core"
LOCAL = "local"
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+\.toml)?", re.ASCII)
NAMESPACE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
HOOKS: dict[str, type[Contribution] | type[Variant]] = {
    "vitzoo_patch_embedders": PatchEmbedder,
    "vitzoo_position_embeddings": PositionEmbedding,
    "vitzoo_heads": Head,
    "vitzoo_drop_path_policies": DropPathPolicy,
    "vitzoo_checkpoint_formats": CheckpointFormat,
    "vitzoo_variants": Variant,
}
CORE_MANIFEST = Path(__file__).with_name("registry.toml")
FIRST_PARTY = {  # nobody else may have these
    "hybrid": "vitzoo-hybrid",
    "deit": "vitzoo-deit",
    "dino": "vitzoo-dino",
    "dinov2": "vitzoo-dino",
    "dinov3": "vitzoo-dino",
    "clip": "vitzoo-clip",
    "siglip": "vitzoo-clip",
    "mim": "vitzoo-mim",
    "mae": "vitzoo-mim",
    "beit": "vitzoo-mim",
    "eva02": "vitzoo-mim",
    "timm": "vitzoo-timm",
}

State = Literal["core", "loaded", "lazy", "disabled", "incompatible", "broken", "conflict"]
OFF = ("disabled", "incompatible", "broken", "conflict")
TROUBLE = ("incompatible", "broken", "conflict")


@dataclass(frozen=True)
class PluginInfo:
    """One plugin and what became of it.

    Args:
        namespace: name of its entry point, the part of names before the slash.
        state: `core`, `loaded`, `lazy` (nothing has asked for it yet), `disabled` (switched off),
            `incompatible` (made for a newer vitzoo), `broken` or `conflict` (another distribution
            claims the namespace; both are off).
        distribution, version: what to pip-uninstall.
        entry_point: its value.
        location: manifest or module file, where known.
        cause: why it cannot be used.
        remedy: the way out.
        trace: what was done to find it, step by step.
    """

    namespace: str
    state: State
    distribution: str = "vitzoo"
    version: str = ""
    entry_point: str = ""
    location: str = ""
    cause: str = ""
    remedy: str = ""
    trace: tuple[str, ...] = ()

    @property
    def trouble(self) -> str:
        """Cause and way out as one text."""
        return "; ".join(filter(None, (self.cause, self.remedy)))


class PluginHost:
    """Holds the plugin manager and, by namespace, every plugin's state and contributions.

    Args:
        switches: what may be used; what the environment says if None.

    Attributes:
        rows: (hook name, contribution) pairs of those that are loaded.
    """

    def __init__(self, switches: Switches | None = None) -> None:
        self.switches = Switches.read() if switches is None else switches
        self.manager = pluggy.PluginManager(GROUP)
        self.manager.add_hookspecs(hookspecs)
        self.rows: dict[str, tuple[tuple[str, Any], ...]] = {}
        self.found: list[Found] = []
        self._infos: dict[str, PluginInfo] = {}
        self._packages = {CORE: "vitzoo"}
        self._waiting: dict[str, Found] = {}
        self._discovered = False
        self._lock = threading.RLock()
        self.core = read_manifest(CORE_MANIFEST, package="vitzoo")
        self._register(
            PluginInfo(CORE, "core", location=str(CORE_MANIFEST)), ManifestPlugin(self.core)
        )

    @property
    def infos(self) -> dict[str, PluginInfo]:
        """The state of every plugin, the core first."""
        self.discover()
        return self._infos

    def discover(self) -> None:
        """Find the plugins that are installed, if that is not done yet; nothing is imported."""
        with self._lock:
            if not self._discovered:
                self._find()
                self._discovered = True

    def _find(self) -> None:
        self.found = find_plugins()
        claims: dict[str, list[tuple[Found, PluginInfo]]] = {}
        for found in self.found:
            self._admit(found, claims)
        for namespace, rivals in sorted(claims.items()):
            first, info = rivals[0]
            if namespace in self._infos:  # of one that is off; another has the name
                off = self._infos[namespace]
                self._infos[f"{namespace} ({off.distribution})"] = off
            if len(rivals) > 1:
                owners = " and ".join(found.owner for found, _ in rivals)
                cause = f"the namespace {namespace!r} is claimed by {owners}"
                self._infos[namespace] = replace(
                    info, state="conflict", cause=cause, remedy="uninstall one of them"
                )
            else:
                self._waiting[namespace] = first
                self._infos[namespace] = replace(info, state="lazy")
        order = sorted(self._infos, key=lambda name: (name != CORE, name))
        self._infos = {name: self._infos[name] for name in order}

    def manifests(self) -> list[str]:
        """Return the namespaces whose manifests nothing has asked for yet."""
        self.discover()
        return [name for name, found in self._waiting.items() if found.value.endswith(".toml")]

    def manifest_path(self, namespace: str) -> Path | None:
        """Return where the manifest of a plugin that waits lies, None if it is not there.

        Its package is not imported.
        """
        try:
            return _manifest_path(self._waiting[namespace])
        except (PluginError, ImportError, ValueError, AttributeError):
            return None

    def load(self, namespace: str) -> bool:
        """Read the manifest of a plugin, or import its module, if nothing has done so yet.

        Returns:
            Whether it was done now.

        Raises:
            PluginError: the plugin cannot be used.
        """
        self.discover()
        found = self._waiting.pop(namespace, None)
        if found:
            manifest = found.value.endswith(".toml")
            self._guard(found, self._load_manifest if manifest else self._load_module)
        info = self._infos.get(namespace)
        if info is not None and info.state in OFF:
            raise PluginError(f"plugin {namespace!r} cannot be used: {info.trouble}")
        return found is not None

    def unhidden(self, namespace: str) -> list[Any]:
        """Return all that a loaded plugin contributes, what is switched off by name too."""
        return [row for _, row in self._contributions(namespace)]

    def package(self, namespace: str) -> str:
        """Return the package of a plugin, for bundled files."""
        if namespace not in self._packages:
            self.load(namespace)
        return self._packages[namespace]

    def import_target(self, namespace: str, row: Contribution | Variant) -> Any:
        """Return the object that a contribution names.

        Raises:
            PluginError: what it requires is not installed, or it cannot be imported.
        """
        target: Target = row.builder if isinstance(row, Variant) else row.target
        if not isinstance(target, str):
            return target
        info = self._infos[namespace]
        whose = f"plugin {namespace!r} ({info.distribution} {info.version})".replace(" )", ")")
        if row.requires:
            from vitzoo.requirements import check_requirements

            check_requirements(row.requires, f"{whose}: {row.name!r}")
        module, _, name = target.partition(":")
        try:
            with _no_output():
                return getattr(importlib.import_module(module), name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise PluginError(f"{whose}: cannot import {target!r}: {_reason(error)}") from error

    def add_local(self, path: Path) -> None:
        """Note the user's own registry file."""
        self.discover()
        self._infos[LOCAL] = PluginInfo(LOCAL, "loaded", "", location=str(path))

    def check_strict(self) -> None:
        """Raise if the switches are strict and a plugin cannot be used.

        Raises:
            PluginError: names them all.
        """
        if not self.switches.strict:
            return
        bad = [f"{i.namespace!r}: {i.trouble}" for i in self.infos.values() if i.state in TROUBLE]
        bad += self.switches.unmatched(self.found)
        if bad:
            raise PluginError(f"{STRICT} is set, and not all is well: {'; '.join(bad)}")

    def _admit(self, found: Found, claims: dict[str, list[tuple[Found, PluginInfo]]]) -> None:
        """Note a plugin as a claim to its namespace, or why it has none."""
        info, off = _info(found), self.switches.why_off(found)
        trace = (*info.trace, f"switches: {off or 'it may be used'}")
        info = replace(info, trace=trace)
        cause = _malformed(found)
        if off:
            state: State = "disabled"
            cause, remedy = off, f"change {'VITZOO_PLUGINS' if 'VITZOO_PLUGINS' in off else NOT}"
        elif cause:
            state, remedy = "broken", _renew(found)
        else:
            claims.setdefault(found.namespace, []).append((found, info))
            return
        place = found.namespace
        if place in self._infos or place in (CORE, LOCAL) or not _may_have(found):
            place = f"{found.namespace} ({found.distribution})"
        self._infos[place] = replace(info, state=state, cause=cause, remedy=remedy)

    def _guard(self, found: Found, load: Callable[[PluginInfo, Found], None]) -> None:
        info = self._infos[found.namespace]
        try:
            load(info, found)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if plugin := self.manager.get_plugin(info.namespace):
                self.manager.unregister(plugin)
            self.rows.pop(info.namespace, None)
            newer = isinstance(error, IncompatibleManifest)
            remedy = getattr(error, "remedy", "") or _renew(found)
            self._infos[info.namespace] = replace(
                info,
                state="incompatible" if newer else "broken",
                cause=f"{found.owner}: {_reason(error)}",
                remedy=remedy,
                trace=(*info.trace, f"failed: {_reason(error)}"),
            )

    def _load_manifest(self, info: PluginInfo, found: Found) -> None:
        path = _manifest_path(found)
        module, _, _ = found.value.partition(":")
        manifest = read_manifest(
            path, package=module.split(".")[0], sizes=self.core.sizes, limit=MAX_PLUGIN_MANIFEST
        )
        trace = (*info.trace, f"read the manifest {path}; nothing imported")
        info = replace(info, state="loaded", location=str(path), trace=trace)
        self._register(info, ManifestPlugin(manifest))
        self._packages[info.namespace] = module

    def _load_module(self, info: PluginInfo, found: Found) -> None:
        with _no_output():
            module = importlib.import_module(found.value)
            location = str(getattr(module, "__file__", ""))
            _check_marks(module, found.value)
            trace = (*info.trace, f"imported {found.value} from {location}")
            info = replace(info, state="loaded", location=location, trace=trace)
            self._register(info, module)
        package = getattr(module, "__package__", None)
        self._packages[info.namespace] = str(package or found.value)
        if not self.rows[info.namespace] and not self._hidden(info.namespace):
            raise PluginError(
                f"{found.value} contributes nothing; is every hook function decorated with "
                "@vitzoo.hookimpl and returning its rows?"
            )

    def _hidden(self, namespace: str) -> bool:
        return any(name.startswith(f"{namespace}/") for name in self.switches.off)

    def _register(self, info: PluginInfo, plugin: object) -> None:
        namespace = info.namespace
        self.manager.register(plugin, name=namespace)
        self.manager.check_pending()
        rows = list(self._contributions(namespace))
        _check_twice(rows)
        top = None if isinstance(plugin, ManifestPlugin) else str(getattr(plugin, "__name__", ""))
        if top is not None:
            _check_targets(rows, top.split(".")[0])
        kept = [(h, row) for h, row in rows if not self.switches.hides(f"{namespace}/{row.name}")]
        counted = f"{len(kept)} contributions"
        if len(kept) < len(rows):
            counted += f", {len(rows) - len(kept)} more switched off by {NOT}"
        self.rows[namespace] = tuple(kept)
        self._infos[namespace] = replace(info, trace=(*info.trace, counted))

    def _contributions(self, namespace: str) -> Iterator[tuple[str, Any]]:
        others = [p for name, p in self.manager.list_name_plugin() if name != namespace]
        for hook, cls in HOOKS.items():
            for rows in self.manager.subset_hook_caller(hook, others)():
                for row in rows:
                    if not isinstance(row, cls) or not NAME.fullmatch(row.name):
                        raise PluginError(
                            f"{hook} must give {cls.__name__} objects named with {NAME_RULE}, "
                            f"got {describe(row)}"
                        )
                    yield hook, row


def data_file(package: str, file: str) -> Path | None:
    """Return the path of a bundled file in the `data` folder of `package`, without importing."""
    top, *below = package.split(".")
    spec = importlib.util.find_spec(top)
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root, *below, "data", file)
        if path.is_file():
            return path
    return None


def _malformed(found: Found) -> str:
    """Say why an entry point can be no plugin, empty if it can."""
    namespace = found.namespace
    if found.damage:
        return f"its metadata cannot be read: {found.damage}"
    if namespace in (CORE, LOCAL) or not NAMESPACE.fullmatch(namespace):
        return (
            f"its namespace {namespace!r} is reserved or malformed; the entry point's "
            "name must be lower-case letters, digits, '-' and '_'"
        )
    if not _may_have(found):
        owner = FIRST_PARTY[namespace]
        return f"its namespace {namespace!r} is reserved to the distribution {owner}"
    if not ENTRY_POINT.fullmatch(found.value):
        return (
            f"{found.owner}: its entry point {found.value!r} is malformed; write "
            "'package:file.toml' for a manifest next to the package's code, or 'package.module'"
        )
    return ""


def _may_have(found: Found) -> bool:
    """Tell whether a namespace is free, or reserved to this very distribution."""
    owner = FIRST_PARTY.get(found.namespace)
    return owner is None or found.distribution.replace("_", "-").lower() == owner


def _manifest_path(found: Found) -> Path:
    module, _, file = found.value.partition(":")
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)  # of a top-level name: finds it and imports nothing
    roots = list((spec and spec.submodule_search_locations) or ())
    for root in roots:
        path = Path(root, *below, file)
        if path.is_file():
            return path
    where = ", ".join(str(Path(root, *below)) for root in roots) or "any package of that name"
    raise PluginError(
        f"its manifest {file!r} is not in {where}; does the wheel include it? "
        "(setuptools: package-data, hatchling: it lies inside the package)"
    )


def _info(found: Found) -> PluginInfo:
    where = f" in {found.location}" if found.location else ""
    return PluginInfo(
        found.namespace,
        "broken",
        distribution=found.distribution,
        version=found.version,
        entry_point=found.value,
        trace=(f"found the entry point {found.namespace} = {found.value} of {found.owner}{where}",),
    )


def _renew(found: Found) -> str:
    return (
        f"pip install --upgrade {found.distribution}, or pip uninstall {found.distribution}, or "
        f"{NOT}={found.namespace}"
    )


def _check_marks(module: object, value: str) -> None:
    """Refuse hook functions that are not decorated, and decorated ones that are no hook."""
    for name, thing in list(vars(module).items()):
        marked = getattr(thing, f"{GROUP}_impl", None) is not None
        if name in HOOKS and callable(thing) and not marked and _own(thing, module):
            raise PluginError(f"{value}.{name} is not decorated with @vitzoo.hookimpl")
        if marked and name not in HOOKS:
            near = did_you_mean(name, HOOKS) or f"; hooks: {', '.join(HOOKS)}"
            raise PluginError(f"unknown hook {name!r} in {value}{near}")


def _own(thing: Any, module: object) -> bool:
    return getattr(thing, "__module__", None) == getattr(module, "__name__", "")


def _check_twice(rows: list[tuple[str, Any]]) -> None:
    seen: set[tuple[str, str]] = set()
    for hook, row in rows:
        if (hook, row.name) in seen:
            raise PluginError(f"{hook} gives two rows named {row.name!r}; rename one of them")
        seen.add((hook, row.name))


def _check_targets(rows: list[tuple[str, Any]], package: str) -> None:
    """Refuse names of objects outside the plugin's own package."""
    for hook, row in rows:
        target = row.builder if isinstance(row, Variant) else row.target
        if isinstance(target, str) and target != CORE_BUILDER:
            top = target.partition(":")[0].split(".")[0]
            if top != package or ":" not in target:
                raise PluginError(
                    f"{hook}: {row.name!r} names {target!r}, which must lie inside the package "
                    f"{package!r}, such as '{package}.module:Name'"
                )


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    """Send what a plugin prints to stderr: stdout is data."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _reason(error: BaseException) -> str:
    if isinstance(error, VitzooError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"
