"""The state of a plugin, with cause and fix."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from vitzoo.plugin.entry_points import COMMANDS, Found, normal
from vitzoo.plugin.switches import NOT, ONLY, Switches
from vitzoo.schema.reader import NAMESPACE
from vitzoo.schema.record import Record

CORE = "core"
LOCAL = "local"
ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+\.toml)?", re.ASCII)
MANIFEST_OR_MODULE = (
    "'package:file.toml' for a manifest next to the package's code, or 'package.module'"
)
COMMAND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
FIRST_PARTY = {  # namespaces that only these distributions may use
    "hybrid": "vitzoo-hybrid",
    "deit": "vitzoo-deit",
    **dict.fromkeys(("dino", "dinov2", "dinov3", "lingbot"), "vitzoo-dino"),
    **dict.fromkeys(("clip", "siglip", "aimv2"), "vitzoo-clip"),
    **dict.fromkeys(("mim", "mae", "beit", "eva", "eva02", "flexivit"), "vitzoo-mim"),
    **dict.fromkeys(("pe", "tipsv2", "radio", "internvit"), "vitzoo-encoders"),
    **dict.fromkeys(("sbb", "rope_vit"), "vitzoo-sbb"),
    "timm": "vitzoo-timm",
}

State = Literal[
    "core", "loaded", "lazy", "failed", "disabled", "incompatible", "broken", "conflict"
]
OFF = ("disabled", "incompatible", "broken", "conflict")
TROUBLE = ("failed", "incompatible", "broken", "conflict")


@dataclass(frozen=True)
class PluginInfo(Record):
    """One plugin and its state.

    Args:
        namespace: name of the entry point, the part before the slash in the plugin's names; for a
            plugin's command `vitzoo NAME`.
        state: `core`, `loaded`, `lazy` (not read yet), `failed` (one of its targets cannot be
            imported; its other names work), `disabled` (by a setting), `incompatible` (needs a
            newer vitzoo), `broken` (cannot be read or imported), or `conflict` (two distributions
            have the namespace; neither is used).
        distribution, version: the distribution that has the plugin.
        entry_point: value of the entry point.
        location: manifest or module file, if known.
        cause: why the plugin cannot be used.
        fix: how to correct that.
        trace: the steps in which the plugin was found and read.
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
        """Cause and fix in one text."""
        return "; ".join(filter(None, (self.cause, self.fix)))

    @property
    def package(self) -> str:
        """Name of the top-level package that has the plugin."""
        return re.split(r"[.:]", self.entry_point)[0]

    @property
    def unreadable(self) -> bool:
        """Whether the metadata is damaged, so that the namespace is unknown."""
        return self.state == "broken" and not self.entry_point


def refused(found: Found, switches: Switches, own: Collection[str] = ()) -> PluginInfo | None:
    """Return the state of a disabled or malformed plugin or command, None for others.

    `own` are the commands of vitzoo.
    """
    info = found_info(found)
    if off := switches.why_off(found):
        fix = f"change {ONLY if ONLY in off else NOT}"
        trace = (info.trace[0], f"switches: {off}")
        return replace(info, state="disabled", cause=off, fix=fix, trace=trace)
    if cause := _malformed(found, own):
        return replace(info, cause=cause, fix=renewal(found, found.distribution))
    return None


def _malformed(found: Found, own: Collection[str]) -> str:
    """Return the reason why an entry point cannot be a plugin or a command, empty if it can."""
    name, entry_point = found.namespace, f"{found.owner}: its entry point {found.value!r}"
    what, form, expected = "namespace", ENTRY_POINT, MANIFEST_OR_MODULE
    owner = FIRST_PARTY.get(name)
    reserved = "vitzoo" if name in (CORE, LOCAL) else owner and f"the distribution {owner}"
    if found.group == COMMANDS:
        what, form, expected = "command", COMMAND, "'package.module:name_of_the_click_command'"
        owner, reserved = None, "vitzoo" if name in own else None
    if found.damage:
        return f"its metadata cannot be read: {found.damage}"
    if not NAMESPACE.fullmatch(name):
        return (
            f"its {what} {name!r}, the name of the entry point, must be 1 to 64 lower-case "
            "letters, digits, '-' and '_', starting with a letter"
        )
    if reserved and normal(found.distribution) != owner:
        return f"its {what} {name!r} is reserved for {reserved}"
    if not form.fullmatch(found.value):
        return f"{entry_point} is malformed; write {expected}"
    if re.split(r"[.:]", found.value)[0] == "vitzoo":
        return f"{entry_point} must name a package of the plugin, not vitzoo"
    return ""


def may_have(info: PluginInfo) -> bool:
    """Tell whether the plugin's distribution may use the plugin's namespace."""
    return FIRST_PARTY.get(info.namespace) in (None, normal(info.distribution))


def install_command(namespace: str) -> str:
    """Return how to install the first-party plugin of a namespace, empty for other namespaces.

    The distributions are not on a package index before the first release, where anybody could
    register their names; see the release checklist in CONTRIBUTING.md.
    """
    if namespace not in FIRST_PARTY:
        return ""
    return f"pip install ./plugins/{FIRST_PARTY[namespace]}, in a clone of vitzoo's repository"


def claimed(rivals: list[Found]) -> PluginInfo:
    """Return the state of a namespace or command: `lazy` for one entry point, else `conflict`."""
    info, first = found_info(rivals[0]), rivals[0]
    if len(rivals) == 1:
        return replace(info, state="lazy")
    owners = sorted({found.owner for found in rivals})
    what = "command" if first.group == COMMANDS else "namespace"
    cause = f"the {what} {first.namespace!r} is claimed by {' and '.join(owners)}"
    fix = f"disable one of the distributions with {NOT}, or uninstall it"
    if len(owners) == 1:
        values = " and ".join(sorted(found.value for found in rivals))
        cause = f"{owners[0]} has two entry points named {first.namespace!r}: {values}"
        fix = renewal(first, first.distribution)
    return replace(info, state="conflict", cause=cause, fix=fix)


def outdone(found: Found, installed: Found) -> PluginInfo:
    """Return the state of a plugin in the current directory whose namespace is installed."""
    cause = (
        f"it is in the current directory, but {installed.owner} has the namespace and is installed"
    )
    return replace(found_info(found), state="disabled", cause=cause, fix=f"change {NOT}")


def found_info(found: Found) -> PluginInfo:
    """Return the state of a plugin whose entry point was found, and is not checked yet."""
    where = f" in {found.location}" if found.location else ""
    return PluginInfo(
        f"vitzoo {found.namespace}" if found.group == COMMANDS else found.namespace,
        "broken",
        distribution=found.distribution,
        version=found.version,
        entry_point=found.value,
        trace=(
            f"found the entry point {found.namespace} = {found.value} of {found.owner}{where}",
            "switches: enabled",
        ),
    )


def renewal(found: Found | PluginInfo, name: str) -> str:
    """Return the fix for a plugin that cannot be used; `name` is the value that disables it."""
    return (
        f"pip install --upgrade {found.distribution}, or pip uninstall {found.distribution}, or "
        f"{NOT}={name}"
    )
