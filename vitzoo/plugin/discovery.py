"""The states of installed plugins and commands before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import requires, version
from pathlib import Path

from vitzoo.plugin.entry_points import COMMANDS, Found, normal
from vitzoo.plugin.info import (
    CORE,
    FIRST_PARTY,
    FIRST_PARTY_COMMANDS,
    LOCAL,
    PluginInfo,
    installing,
    renewal,
)
from vitzoo.plugin.switches import NOT, Switches
from vitzoo.schema.reader import NAMESPACE, renamed

ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:\w+\.toml)?", re.ASCII)
MANIFEST_OR_MODULE = (
    "'package:file.toml' for a manifest next to the package's code, or 'package.module'"
)
COMMAND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

OF_VITZOO = re.compile(r"vitzoo\s*(?:[\[(<>=!~;]|$)", re.IGNORECASE)
RELEASE = re.compile(r"\d+(?:\.\d+)*")
BOUND = re.compile(rf"(>=|<)\s*({RELEASE.pattern})")
BOUNDS = re.compile(rf"vitzoo\s*((?:(?:>=|<)\s*{RELEASE.pattern}\s*,?\s*)*)")


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
        trace = (info.trace[0], f"switches: {off}")
        return replace(info, state="disabled", cause=off, fix=switches.fix(off), trace=trace)
    if cause := _malformed(found, own):
        return replace(info, cause=f"{cause}{declared(found)}", fix=author_fix(found))
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
            f"{found.owner}: its {what} {name!r}, the name of the entry point, must be 1 to 64 "
            "lower-case letters, digits, '-' and '_', starting with a letter and not equal to the "
            f"name of a Windows device, such as con{renamed(name)}"
        )
    if reserved and normal(found.distribution) != owner:
        return f"{found.owner}: its {what} {name!r} is reserved for {reserved}"
    if not form.fullmatch(found.value):
        return f"{entry_point} is malformed; write {expected}"
    if re.split(r"[.:]", found.value)[0] == "vitzoo":
        return f"{entry_point} must name a package of the plugin, not vitzoo"
    return ""


def fitting(info: PluginInfo) -> PluginInfo:
    """Return a state; it is `incompatible` if the distribution requires another vitzoo."""
    problem = ""
    with suppress(Exception):  # damaged metadata, or vitzoo is not installed
        present = version("vitzoo")
        stated = [text for text in requires(info.distribution) or () if OF_VITZOO.match(text)]
        if unclear := [text for text in stated if not _plainly_fits(text, present)]:
            from vitzoo.plugin.requirements import other_vitzoo  # imports packaging

            problem = other_vitzoo(unclear)
    if not problem:
        return info
    cause = f"{info.distribution} {info.version}".strip() + f": {problem}"
    fix = f"{installing().update()}, or {renewal(info, info.distribution)}"
    trace = (*info.trace, f"failed: {problem}")
    return replace(info, state="incompatible", cause=cause, fix=fix, trace=trace)


def _plainly_fits(requirement: str, present: str) -> bool:
    """Tell whether a requirement has only the limits `>=` and `<`, and a version is within them."""
    limits = BOUNDS.fullmatch(requirement)
    if not limits or not RELEASE.fullmatch(present):
        return False
    bounds = [(sign, _release(bound)) for sign, bound in BOUND.findall(limits[1])]
    now = _release(present)
    return all(now >= bound if sign == ">=" else now < bound for sign, bound in bounds)


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at its end."""
    return tuple(map(int, re.sub(r"(\.0+)+$", "", text).split(".")))


def declared(found: Found) -> str:
    """Return `file:line` of an entry point in the metadata, in brackets; empty if not known."""
    from vitzoo.files.strict_toml import line_of  # only problems need it

    file, line = Path(found.location, "entry_points.txt"), 0
    with suppress(OSError, ValueError):
        line = line_of(file.read_text("utf-8"), f"{found.group}.{found.namespace}".split("."))
    return f" ({file}:{line})" if line else ""


def author_fix(found: Found) -> str:
    """Return the fix of an entry point, which its author writes in pyproject.toml."""
    group = found.group if found.group != COMMANDS else f'"{found.group}"'
    correct = "" if found.damage else f"correct [project.entry-points.{group}] in pyproject.toml"
    return renewal(found, found.distribution, correct)


def claimed(rivals: list[Found]) -> PluginInfo:
    """Return the state of a namespace or command: `lazy` for one entry point, else `conflict`."""
    info, first = found_info(rivals[0]), rivals[0]
    if len(rivals) == 1:
        return replace(info, state="lazy")
    owners = sorted({found.owner for found in rivals})
    what = "command" if first.group == COMMANDS else "namespace"
    places = sorted({f"{found.owner}{declared(found)}" for found in rivals})
    cause = f"the {what} {first.namespace!r} is claimed by {' and '.join(places)}"
    fix = (
        f"disable one of the distributions with {NOT}, or uninstall it, or choose another {what} "
        "in its pyproject.toml"
    )
    if len(owners) == 1:
        values = " and ".join(sorted(found.value for found in rivals))
        cause = f"{owners[0]} has two entry points named {first.namespace!r}: {values}"
        cause, fix = f"{cause}{declared(first)}", author_fix(first)
    else:
        names = ", ".join(sorted({found.distribution for found in rivals}))
        info = replace(info, distribution=names, version="")
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
