"""Which plugins may be used: what the environment says, before anything of a plugin is read.

| variable | meaning |
|---|---|
| `VITZOO_PLUGINS` | only these: namespaces or distributions, comma-separated |
| `VITZOO_DISABLE_PLUGINS` | not these: namespaces, distributions, names (`acme/overlap`), or `*` |
| `VITZOO_STRICT_PLUGINS` | 1: a plugin that cannot be used is an error for every call |
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from vitzoo.discovery import Found, normal
from vitzoo.errors import did_you_mean

ONLY = "VITZOO_PLUGINS"
NOT = "VITZOO_DISABLE_PLUGINS"
STRICT = "VITZOO_STRICT_PLUGINS"
VARIABLES = (ONLY, NOT, STRICT)


@dataclass(frozen=True)
class Switches:
    """What is switched on and off.

    Args:
        only: namespaces and distributions that may be used; None for all.
        off: namespaces, distributions and single names that may not be used.
        strict: whether a plugin that cannot be used is an error for every call.
    """

    only: frozenset[str] | None = None
    off: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def read(cls) -> Switches:
        """Read the environment."""
        only = os.environ.get(ONLY)
        return cls(
            only=None if only is None else frozenset(_names(only)),
            off=frozenset(_names(os.environ.get(NOT, ""))),
            strict=os.environ.get(STRICT, "").lower() in ("1", "true", "yes", "on"),
        )

    def why_off(self, found: Found) -> str:
        """Say why a plugin is off, empty if it is not."""
        names = {found.namespace, found.distribution, normal(found.distribution)}
        if named := sorted(names & self.off):
            return f"{NOT} names {named[0]!r}"
        if "*" in self.off:
            return f"{NOT} names '*', all of them"
        if self.only is not None and not names & self.only:
            return f"{ONLY} does not name it"
        if found.here and self.only is None:
            return f"it lies in the current directory, and {ONLY} does not name it"
        return ""

    def hides(self, name: str) -> bool:
        """Tell whether a single name, such as `acme/overlap`, is off."""
        return name in self.off

    def unmatched(self, plugins: Iterable[Found], names: Iterable[str] = ()) -> list[str]:
        """Say which entries of the variables match nothing that is installed."""
        known = {"*", *names}
        for found in plugins:
            known |= {found.namespace, found.distribution, normal(found.distribution)}
        rows = []
        for variable, entries in ((ONLY, self.only or frozenset()), (NOT, self.off)):
            for entry in sorted(entries):
                if entry not in known and entry.partition("/")[0] not in known:
                    hint = did_you_mean(entry, known)
                    rows.append(f"{variable} names {entry!r}, which is no installed plugin{hint}")
        return rows


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]
