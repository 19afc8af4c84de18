"""Which plugins may be used: what the environment says, before anything of a plugin is read.

| variable | meaning |
|---|---|
| `VITZOO_PLUGINS` | only these: namespaces or distributions, comma-separated; empty for none |
| `VITZOO_DISABLE_PLUGINS` | not these: namespaces, distributions, names (`acme/overlap`), or `*` |
| `VITZOO_STRICT_PLUGINS` | 1: a plugin that cannot be used is an error for every call |
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from vitzoo.errors import InvalidOption, did_you_mean
from vitzoo.plugin.entry_points import Found, normal
from vitzoo.settings import FALSE, TRUE

ONLY = "VITZOO_PLUGINS"
NOT = "VITZOO_DISABLE_PLUGINS"
STRICT = "VITZOO_STRICT_PLUGINS"
VARIABLES = (ONLY, NOT, STRICT)
ALL = "*"


@dataclass(frozen=True)
class Switches:
    """What is switched on and off.

    Args:
        only: namespaces and distributions that may be used; None for all.
        off: namespaces, distributions and single names that may not be used; it wins.
        strict: whether a plugin that cannot be used is an error for every call.
    """

    only: frozenset[str] | None = None
    off: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def read(cls) -> Switches:
        """Read the environment.

        Raises:
            InvalidOption: `VITZOO_STRICT_PLUGINS` is neither on nor off.
        """
        only = os.environ.get(ONLY)
        strict = os.environ.get(STRICT, "").strip().lower()
        if strict not in TRUE + FALSE:
            raise InvalidOption(f"{STRICT} must be 1 or 0, got {strict!r}")
        return cls(
            only=None if only is None else _names(only),
            off=_names(os.environ.get(NOT, "")),
            strict=strict in TRUE,
        )

    def why_off(self, found: Found) -> str:
        """Say why a plugin is off, empty if it is not."""
        if named := sorted(entry for entry in self.off if _names_it(entry, found)):
            return f"{NOT} names {named[0]!r}"
        if ALL in self.off:
            return f"{NOT} names '*', all of them"
        if self.only is not None and any(_names_it(entry, found) for entry in self.only):
            return ""
        if self.only is not None and ALL not in self.only:
            return f"{ONLY} does not name it"
        if found.here:
            return f"it lies in the current directory, and {ONLY} does not name it"
        return ""

    def hides(self, name: str) -> bool:
        """Tell whether a single name of a plugin, such as `acme/overlap`, is off."""
        return "/" in name and name in self.off

    def unmatched(self, plugins: Iterable[Found]) -> list[str]:
        """Say which entries of the variables name no plugin that is installed."""
        plugins = list(plugins)
        known = {name for found in plugins for name in (found.namespace, found.distribution)}
        rows = []
        for variable, entries in ((ONLY, self.only or frozenset()), (NOT, self.off)):
            for entry in sorted(entries - {ALL}):
                single = variable == NOT and "/" in entry
                plugin = entry.partition("/")[0] if single else entry
                if not any(
                    plugin == found.namespace if single else _names_it(plugin, found)
                    for found in plugins
                ):
                    hint = did_you_mean(plugin, known)
                    rows.append(f"{variable} names {entry!r}, which is no installed plugin{hint}")
        return rows

    def unknown(self, namespace: str, names: Collection[str]) -> list[str]:
        """Say which single names are switched off that a plugin does not have.

        Args:
            namespace: of the plugin.
            names: of everything it contributes, without the namespace.
        """
        rows = []
        for entry in sorted(self.off):
            whose, slash, name = entry.partition("/")
            if slash and whose == namespace and name not in names:
                hint = did_you_mean(entry, [f"{namespace}/{n}" for n in names])
                rows.append(f"{NOT} names {entry!r}, which the plugin does not have{hint}")
        return rows


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _names_it(entry: str, found: Found) -> bool:
    """Tell whether an entry names a plugin, by namespace or by distribution in any spelling."""
    return entry == found.namespace or normal(entry) == normal(found.distribution)
