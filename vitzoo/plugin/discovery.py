"""The states of installed plugins and commands before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from vitzoo.plugin.entry_points import COMMANDS, Found, normal
from vitzoo.plugin.info import CORE, FIRST_PARTY, FIRST_PARTY_COMMANDS, LOCAL, PluginInfo, renewal
from vitzoo.plugin.switches import NOT, ONLY, Switches
from vitzoo.schema.reader import NAMESPACE

ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+\.toml)?", re.ASCII)
MANIFEST_OR_MODULE = (
    "'package:file.toml' for a manifest next to the package's code, or 'package.module'"
)
COMMAND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def sort_out(
    plugins: Iterable[Found], switches: Switches
) -> tuple[dict[str, PluginInfo], dict[str, Found]]:
    """Return the states of plugins, and the entry points of those that can be read, by namespace.

    A plugin that has lost its namespace to another one, or that may not have it, is listed as
    `namespace (distribution)`.
    """
    claims: dict[str, list[Found]] = {}
    off: list[PluginInfo] = []
    for found in plugins:
        if info := refused(found, switches):
            off.append(info)
        else:
            claims.setdefault(found.namespace, []).append(found)
    states: dict[str, PluginInfo] = {}
    readable: dict[str, Found] = {}
    for namespace, claimants in claims.items():
        rivals = [found for found in claimants if not found.here] or claimants
        off += [outdone(found, rivals[0]) for found in claimants if found not in rivals]
        states[namespace] = claimed(rivals)
        if len(rivals) == 1:
            readable[namespace] = rivals[0]
    for info in off:
        name, owner = info.namespace, info.distribution
        reserved = FIRST_PARTY.get(name, normal(owner)) != normal(owner)
        if name in states or name in (CORE, LOCAL) or reserved:
            name = f"{name} ({owner})"
        states[name] = info
    return states, readable


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
    owners: Mapping[str, str] = FIRST_PARTY
    ours: tuple[str, ...] = (CORE, LOCAL)
    if found.group == COMMANDS:
        what, form, expected = "command", COMMAND, "'package.module:name_of_the_click_command'"
        owners, ours = FIRST_PARTY_COMMANDS, tuple(own)
    owner = owners.get(name)
    reserved = "vitzoo" if name in ours else owner and f"the distribution {owner}"
    if found.damage:
        return f"its metadata cannot be read: {found.damage}"
    if not NAMESPACE.fullmatch(name):
        return (
            f"its {what} {name!r}, the name of the entry point, must be 1 to 64 lower-case "
            "letters, digits, '-' and '_', starting with a letter and not equal to the name of a "
            "Windows device, such as con"
        )
    if reserved and normal(found.distribution) != owner:
        return f"its {what} {name!r} is reserved for {reserved}"
    if not form.fullmatch(found.value):
        return f"{entry_point} is malformed; write {expected}"
    if re.split(r"[.:]", found.value)[0] == "vitzoo":
        return f"{entry_point} must name a package of the plugin, not vitzoo"
    return ""


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
