"""Finding plugins and asking them for their contributions.

Discovery reads entry points and manifests and imports no plugin. A module plugin stays `lazy`
until something in its namespace is asked for. A plugin that fails is a state with a cause: the
rest of the zoo goes on working, and asking for something it owns raises that cause.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
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
from vitzoo.errors import PluginError, VitzooError
from vitzoo.manifest import ManifestPlugin, read_manifest
from vitzoo.schema import NAME, NAME_RULE, describe

GROUP = "vitzoo"
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

State = Literal["core", "loaded", "lazy", "broken", "conflict"]


@dataclass(frozen=True)
class PluginInfo:
    """One plugin and what became of it.

    Args:
        namespace: name of its entry point, the part of names before the slash.
        state: `core`, `loaded`, `lazy` (a module that nothing has asked for yet), `broken`
            or `conflict` (another distribution claims the namespace; both are off).
        distribution, version: what to pip-uninstall.
        entry_point: its value.
        location: manifest or module file, where known.
        cause: why it is broken or in conflict, and the way out.
    """

    namespace: str
    state: State
    distribution: str = "vitzoo"
    version: str = ""
    entry_point: str = ""
    location: str = ""
    cause: str = ""


class PluginHost:
    """Holds the plugin manager and, by namespace, every plugin's state and contributions.

    Attributes:
        infos: state of every plugin, the core first.
        rows: (hook name, contribution) pairs of those that are loaded.
        packages: package of each, for bundled files.
    """

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(GROUP)
        self.manager.add_hookspecs(hookspecs)
        self.infos: dict[str, PluginInfo] = {}
        self.rows: dict[str, tuple[tuple[str, Any], ...]] = {}
        self.packages: dict[str, str] = {}
        self._lazy: dict[str, EntryPoint] = {}
        self.core = read_manifest(CORE_MANIFEST, package="vitzoo")
        self._register(
            PluginInfo(CORE, "core", location=str(CORE_MANIFEST)), ManifestPlugin(self.core)
        )
        self._discover()

    def load(self, namespace: str) -> bool:
        """Import the module plugin of `namespace` if it is still lazy; tell whether it was.

        Raises:
            PluginError: the plugin is broken or in conflict.
        """
        entry_point = self._lazy.pop(namespace, None)
        if entry_point:
            self._guard(self.infos[namespace], self._load_module, entry_point)
        info = self.infos.get(namespace)
        if info is not None and info.state in ("broken", "conflict"):
            raise PluginError(f"plugin {namespace!r} cannot be used: {info.cause}")
        return entry_point is not None

    def import_target(self, namespace: str, target: Target) -> Any:
        """Return the object that a contribution of `namespace` names."""
        if not isinstance(target, str):
            return target
        module, _, name = target.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            info = self.infos[namespace]
            raise PluginError(
                f"plugin {namespace!r} ({info.distribution} {info.version}): cannot import "
                f"{target!r}: {_reason(error)}"
            ) from error

    def _discover(self) -> None:
        found: dict[str, list[EntryPoint]] = {}
        for entry_point in entry_points(group=GROUP):
            found.setdefault(entry_point.name, []).append(entry_point)
        for namespace, claims in sorted(found.items()):
            info = _info(claims[0])
            if len(claims) > 1:
                self.infos[namespace] = replace(info, state="conflict", cause=_clash(claims))
            elif namespace in (CORE, LOCAL) or not NAMESPACE.fullmatch(namespace):
                cause = (
                    f"its namespace {namespace!r} is reserved or malformed; the entry point's "
                    "name must be lower-case letters, digits, '-' and '_'"
                )
                place = f"{namespace} ({info.distribution})" if namespace == CORE else namespace
                self.infos[place] = replace(info, state="broken", cause=cause)
            elif not ENTRY_POINT.fullmatch(info.entry_point):
                cause = (
                    f"{info.distribution} {info.version}: its entry point {info.entry_point!r} is "
                    "malformed; write 'package:file.toml' for a manifest next to the package's "
                    "code, or 'package.module'"
                )
                self.infos[namespace] = replace(info, state="broken", cause=cause)
            elif info.entry_point.endswith(".toml"):
                self._guard(info, self._load_manifest, claims[0])
            else:
                self._lazy[namespace] = claims[0]
                self.infos[namespace] = replace(info, state="lazy")

    def _guard(self, info: PluginInfo, load: Any, entry_point: EntryPoint) -> None:
        try:
            load(info, entry_point)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a plugin does, the zoo goes on
            if plugin := self.manager.get_plugin(info.namespace):
                self.manager.unregister(plugin)
            self.infos[info.namespace] = replace(
                info, state="broken", cause=f"{info.distribution} {info.version}: {_reason(error)}"
            )

    def _load_manifest(self, info: PluginInfo, entry_point: EntryPoint) -> None:
        path = _manifest_path(entry_point)
        package = entry_point.module.split(".")[0]
        manifest = read_manifest(path, package=package, sizes=self.core.sizes)
        self._register(replace(info, state="loaded", location=str(path)), ManifestPlugin(manifest))
        self.packages[info.namespace] = entry_point.module

    def _load_module(self, info: PluginInfo, entry_point: EntryPoint) -> None:
        module = entry_point.load()
        location = str(getattr(module, "__file__", ""))
        self._register(replace(info, state="loaded", location=location), module)
        package = getattr(module, "__package__", None)
        self.packages[info.namespace] = str(package or entry_point.module)
        if not self.rows[info.namespace]:
            raise PluginError(
                f"{entry_point.value} contributes nothing; is every hook function decorated "
                "with @vitzoo.hookimpl and returning its rows?"
            )

    def _register(self, info: PluginInfo, plugin: object) -> None:
        self.manager.register(plugin, name=info.namespace)
        self.manager.check_pending()
        self.rows[info.namespace] = tuple(self._contributions(info.namespace))
        self.infos[info.namespace] = info

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


def _manifest_path(entry_point: EntryPoint) -> Path:
    top, *below = entry_point.module.split(".")
    spec = importlib.util.find_spec(top)  # of a top-level name: finds it and imports nothing
    roots = list((spec and spec.submodule_search_locations) or ())
    for root in roots:
        path = Path(root, *below, entry_point.attr)
        if path.is_file():
            return path
    where = ", ".join(str(Path(root, *below)) for root in roots) or "any package of that name"
    raise PluginError(
        f"its manifest {entry_point.attr!r} is not in {where}; does the wheel include it? "
        "(setuptools: package-data, hatchling: it lies inside the package)"
    )


def _info(entry_point: EntryPoint) -> PluginInfo:
    dist = entry_point.dist
    return PluginInfo(
        entry_point.name,
        "broken",
        distribution=(dist and dist.name) or "unknown",
        version=(dist and dist.version) or "",
        entry_point=entry_point.value,
    )


def _clash(claims: list[EntryPoint]) -> str:
    owners = " and ".join(f"{i.distribution} {i.version}" for i in map(_info, claims))
    return f"the namespace {claims[0].name!r} is claimed by {owners}; uninstall one of them"


def _reason(error: BaseException) -> str:
    if isinstance(error, VitzooError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"
