"""The environment variables that enable and disable plugins (docs/plugin-rules.md, "Switches")."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from vitzoo.errors import InvalidOption, did_you_mean
from vitzoo.plugin.entry_points import Found, normal
from vitzoo.settings import FALSE, TRUE

ONLY = "VITZOO_PLUGINS"
NOT = "VITZOO_DISABLE_PLUGINS"
STRICT = "VITZOO_STRICT_PLUGINS"
VARIABLES = (ONLY, NOT, STRICT)
ALL = "*"
OPTION = "--no-plugins"  # of the command line, which disables all plugins as a value of NOT


class Switches(NamedTuple):
    """The values of the environment variables.

    Args:
        only: namespaces and distributions that may be used; None for all.
        off: namespaces, distributions and names that are disabled, even if `only` has them.
        strict: whether a plugin that cannot be used is an error in every call.
    """

    only: frozenset[str] | None = None
    off: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def read(cls) -> Switches:
        """Read the environment; `InvalidOption` if `VITZOO_STRICT_PLUGINS` is neither 1 nor 0."""
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
        """Return the reason why a plugin is disabled, empty if it is enabled."""
        if named := sorted(entry for entry in self.off if _matches(entry, found)):
            return f"{NOT} names {named[0]!r}"
        if OPTION in self.off:
            return f"the option {OPTION} disables all plugins"
        if ALL in self.off:
            return f"{NOT} names '*', which disables all plugins"
        if self.only is not None and any(_matches(entry, found) for entry in self.only):
            return ""
        if self.only is not None and ALL not in self.only:
            return f"{ONLY} does not name it"
        if found.here:
            return f"it is in the current directory, and {ONLY} does not name it"
        return ""

    def fix(self, off: str) -> str:
        """Return how to enable a plugin that is disabled because of `off`."""
        variable = ONLY if ONLY in off else NOT
        return f"leave out {OPTION}" if OPTION in self.off else f"change {variable}"

    def hides(self, name: str) -> bool:
        """Tell whether a name of a plugin, such as `acme/overlap`, is disabled."""
        return "/" in name and name in self.off

    def unmatched(self, plugins: Iterable[Found]) -> list[str]:
        """Return a message for each value that matches no installed plugin."""
        plugins = list(plugins)
        known = {name for found in plugins for name in (found.namespace, found.distribution)}
        messages = []
        for variable, entries in ((ONLY, self.only or ()), (NOT, self.off)):
            for entry in sorted({*entries} - {ALL, OPTION}):
                namespace, slash, _ = entry.partition("/")
                if variable == NOT and slash:
                    there = any(namespace == found.namespace for found in plugins)
                else:
                    namespace, there = entry, any(_matches(entry, found) for found in plugins)
                if not there:
                    hint = did_you_mean(namespace, known)
                    messages.append(
                        f"{variable} names {entry!r}, but no such plugin is installed{hint}"
                    )
        return messages

    def unknown(self, namespace: str, names: Collection[str]) -> list[str]:
        """Return a message for each disabled name in `namespace` that is not one of `names`."""
        full = [f"{namespace}/{name}" for name in names]
        return [
            f"{NOT} names {entry!r}, but the plugin has no such name{did_you_mean(entry, full)}"
            for entry in sorted(self.off)
            if entry.startswith(f"{namespace}/") and entry not in full
        ]


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _matches(entry: str, found: Found) -> bool:
    """Tell whether an entry is the namespace or the distribution of a plugin or of a command."""
    names = (found.namespace, *found.siblings)
    return entry in names or normal(entry) == normal(found.distribution)
