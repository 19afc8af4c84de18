"""What becomes of a plugin: its state, with the cause and the fix."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from vitzoo.plugin.entry_points import Found, normal
from vitzoo.plugin.switches import NOT
from vitzoo.schema.reader import NAMESPACE

CORE = "core"
LOCAL = "local"
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+\.toml)?", re.ASCII)
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

State = Literal[
    "core", "loaded", "lazy", "failed", "disabled", "incompatible", "broken", "conflict"
]
OFF = ("disabled", "incompatible", "broken", "conflict")
TROUBLE = ("failed", "incompatible", "broken", "conflict")


@dataclass(frozen=True)
class PluginInfo:
    """One plugin and what became of it.

    Args:
        namespace: name of its entry point, the part of names before the slash.
        state: `core`, `loaded`, `lazy` (nothing has asked for it yet), `failed` (a target that was
            asked for cannot be imported; its other names work), `disabled` (switched off),
            `incompatible` (made for a newer vitzoo), `broken` or `conflict` (another distribution
            claims the namespace; both are off).
        distribution, version: what to pip-uninstall.
        entry_point: its value.
        location: manifest or module file, where known.
        cause: why it cannot be used.
        fix: what to do about it.
        trace: what was done to find it, step by step.
    """

    namespace: str
    state: State
    distribution: str = "vitzoo"
    version: str = ""
    entry_point: str = ""
    location: str = ""
    cause: str = ""
    fix: str = ""
    trace: tuple[str, ...] = ()

    @property
    def trouble(self) -> str:
        """Cause and fix as one text."""
        return "; ".join(filter(None, (self.cause, self.fix)))

    @property
    def unreadable(self) -> bool:
        """Whether its metadata is damaged, so that not even its namespaces are known."""
        return self.state == "broken" and not self.entry_point


def malformed(found: Found) -> str:
    """Say why an entry point can be no plugin, empty if it can."""
    namespace = found.namespace
    owner = FIRST_PARTY.get(namespace)
    if found.damage:
        return f"its metadata cannot be read: {found.damage}"
    if namespace in (CORE, LOCAL) or not NAMESPACE.fullmatch(namespace):
        return (
            f"its namespace {namespace!r} is reserved or malformed; the entry point's "
            "name must be lower-case letters, digits, '-' and '_'"
        )
    if owner and normal(found.distribution) != owner:
        return f"its namespace {namespace!r} is reserved to the distribution {owner}"
    if not ENTRY_POINT.fullmatch(found.value):
        return (
            f"{found.owner}: its entry point {found.value!r} is malformed; write "
            "'package:file.toml' for a manifest next to the package's code, or 'package.module'"
        )
    if re.split(r"[.:]", found.value)[0] == "vitzoo":
        return (
            f"{found.owner}: its entry point {found.value!r} names vitzoo, not a package of its own"
        )
    return ""


def may_have(info: PluginInfo) -> bool:
    """Tell whether a namespace is free, or reserved to this very distribution."""
    return FIRST_PARTY.get(info.namespace) in (None, normal(info.distribution))


def claimed(rivals: list[Found]) -> PluginInfo:
    """Return the state of a namespace that these claim."""
    info = found_info(rivals[0])
    if len(rivals) == 1:
        return replace(info, state="lazy")
    namespace = info.namespace
    owners = sorted({found.owner for found in rivals})
    if len(owners) == 1:
        values = " and ".join(sorted(found.value for found in rivals))
        cause = f"{owners[0]} gives the namespace {namespace!r} two values: {values}"
        fix = renewal(rivals[0], rivals[0].distribution)
        return replace(info, state="conflict", cause=cause, fix=fix)
    cause = f"the namespace {namespace!r} is claimed by {' and '.join(owners)}"
    fix = f"name one of them in {NOT}, or uninstall one of them"
    return replace(info, state="conflict", cause=cause, fix=fix)


def outdone(found: Found, installed: Found) -> PluginInfo:
    """Return the state of a plugin here whose namespace an installed one has."""
    cause = (
        f"it lies in the current directory, and {installed.owner} is installed for its namespace"
    )
    return replace(found_info(found), state="disabled", cause=cause, fix=f"change {NOT}")


def found_info(found: Found) -> PluginInfo:
    where = f" in {found.location}" if found.location else ""
    return PluginInfo(
        found.namespace,
        "broken",
        distribution=found.distribution,
        version=found.version,
        entry_point=found.value,
        trace=(
            f"found the entry point {found.namespace} = {found.value} of {found.owner}{where}",
            "switches: it may be used",
        ),
    )


def renewal(found: Found | PluginInfo, name: str) -> str:
    """Say what to do about a plugin that cannot be used; `name` switches off it alone."""
    return (
        f"pip install --upgrade {found.distribution}, or pip uninstall {found.distribution}, or "
        f"{NOT}={name}"
    )
