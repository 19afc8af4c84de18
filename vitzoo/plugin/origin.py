"""Where an entry of a plugin or of the core is declared, and where its target is defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitzoo.plugin.info import CORE, PluginInfo
from vitzoo.plugin.source_lines import where_declared, where_defined
from vitzoo.schema.kinds import HOOKS, KIND_OF_HOOK
from vitzoo.schema.rows import Contribution, Variant

HOOK_OF_CLASS = {cls: hook for hook, cls in HOOKS.items()}


@dataclass(frozen=True)
class Named:
    """One contribution; `defined` and `location` are `file:line`, or `file`, or empty."""

    name: str
    kind: str
    target: str
    defined: str
    location: str
    hidden: bool = False


def named(
    info: PluginInfo,
    row: Contribution | Variant,
    *,
    hidden: bool = False,
    lookup: Callable[[str], str] = where_defined,
) -> Named:
    """Describe a contribution of a plugin; `lookup` returns where an import path is defined."""
    hook, inside = HOOK_OF_CLASS[type(row)], row.name.rpartition("/")[2]
    target = row.builder if isinstance(row, Variant) else row.target
    return Named(
        inside if info.namespace == CORE else f"{info.namespace}/{inside}",
        KIND_OF_HOOK.get(hook, "variant"),
        target if isinstance(target, str) else str(getattr(target, "__qualname__", target)),
        lookup(target) if isinstance(target, str) else where_defined(target),
        declared(info, row),
        hidden,
    )


def declared(info: PluginInfo, row: Contribution | Variant, *key: str) -> str:
    """Return `file:line` of a contribution, or of its key, in a manifest; the file of a module."""
    return where_declared(
        info.location, HOOK_OF_CLASS[type(row)], row.name.rpartition("/")[2], *key
    )
