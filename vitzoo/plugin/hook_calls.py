"""Calls of pluggy hooks. Only module plugins need them: the entries of a manifest are data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import pluggy

from vitzoo.errors import PluginError, RegistryError
from vitzoo.plugin import hookspecs, importing
from vitzoo.plugin.entry_points import GROUP
from vitzoo.plugin.guard import defined_at
from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.plugin.validation import check_marks, check_rows, check_twice
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.record import Record

if TYPE_CHECKING:
    from vitzoo.schema.manifest import Manifest

Rows = tuple[tuple[str, Any], ...]  # (hook name, entry) pairs


class ManifestPlugin:
    """Implements the hooks for which a manifest has entries."""

    def __init__(self, manifest: Manifest) -> None:
        for hook in HOOKS:
            if rows := manifest.rows(hook):
                setattr(self, hook, hookimpl(_returning(rows)))


def new_manager(plugins: Mapping[str, object]) -> pluggy.PluginManager:
    """Return a plugin manager with plugins by namespace: modules and manifests."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    for namespace, plugin in plugins.items():
        manifest = isinstance(plugin, Record)
        known = ManifestPlugin(cast("Manifest", plugin)) if manifest else plugin
        manager.register(known, name=namespace)
    return manager


def module_rows(module: object, value: str, namespace: str) -> Rows:
    """Return the (hook name, entry) pairs of a plugin's module, whose name is `value`.

    Raises:
        PluginError, RegistryError: a hook function or an entry is wrong, or there are no entries.
    """
    check_marks(module, value, HOOKS)
    with importing.around_plugins():
        rows = tuple(_contributions(module, namespace, value.partition(".")[0]))
    if not rows:
        raise PluginError(
            f"{value} contributes nothing; decorate every hook function with @vitzoo.hookimpl, "
            "and return entries from it"
        )
    check_twice(rows)
    return rows


def _contributions(module: object, namespace: str, package: str) -> list[tuple[str, Any]]:
    """Return the checked (hook name, entry) pairs of a module in `package`."""
    manager = new_manager({namespace: module})  # for this plugin alone
    manager.check_pending()
    rows: list[tuple[str, Any]] = []
    for hook, cls in HOOKS.items():
        for own in getattr(manager.hook, hook).get_hookimpls():
            try:  # not by pluggy, which forgets the function and leaves out None
                rows += [(hook, row) for row in check_rows(hook, cls, own.function(), package)]
            except (PluginError, RegistryError) as error:
                raise type(error)(f"{error} ({defined_at(own.function)})") from error
    return rows


def _returning(rows: tuple[Any, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: rows
