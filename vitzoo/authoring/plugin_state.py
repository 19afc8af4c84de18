"""The state of a plugin as a row of `vitzoo plugins`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitzoo.cli.commands import COMMANDS
from vitzoo.plugin.commands import command_states
from vitzoo.plugin.entry_points import COMMANDS as ENTRY_POINTS, normal
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.info import PluginInfo
from vitzoo.plugin.package_files import module_file, package_folders

STATE = (
    "namespace", "state", "distribution", "version", "entry_point", "location", "cause", "fix"
)  # fmt: skip
RAISED_AT = re.compile(r"\(([^()]+):(\d+)\)$")


def with_commands(host: PluginHost) -> dict[str, PluginInfo]:
    """Return the states of all plugins by namespace, and of their commands by `vitzoo NAME`."""
    infos = host.infos  # finds the plugins
    commands = command_states(host.found, host.switches, COMMANDS)
    return infos | {f"vitzoo {key}": info for key, info in commands.items()}


def called(host: PluginHost, infos: Mapping[str, PluginInfo], name: str) -> dict[str, PluginInfo]:
    """Return the plugins and commands called `name`, or else those of that distribution.

    A plugin comes with the commands of its distribution, also with those that cannot be used.
    """
    names = name, f"vitzoo {name}"
    own = {key: info for key, info in infos.items() if key in names or info.namespace in names}
    plugins = [info for info in own.values() if info.entry_point and info.namespace == name]
    homes = {home for info in plugins for home in _homes(info)} if own else {normal(name)}
    commands = {
        f"vitzoo {one.namespace}"
        for one in host.found
        if one.group == ENTRY_POINTS and normal(one.distribution) in homes
    }
    of_homes = {
        key: info
        for key, info in infos.items()
        if info.entry_point and not homes.isdisjoint(_homes(info))
    }
    if own:
        of_homes = {key: info for key, info in of_homes.items() if info.namespace in commands}
    return own | of_homes


def _homes(info: PluginInfo) -> set[str]:
    """Return the normal names of the distributions that have a plugin or a command."""
    return {normal(name) for name in info.distribution.split(", ")}


def state_row(info: PluginInfo) -> dict[str, Any]:
    """Return the state of a plugin with its location, cause and fix."""
    return {key: getattr(info, key) for key in STATE} | {"location": place(info)}


def place(info: PluginInfo) -> str:
    """Return the file of a plugin's manifest or module, empty if there is none.

    If the plugin's cause names a line of that or another file, return `file:line`.
    """
    if (raised := RAISED_AT.search(info.cause)) and Path(raised[1]).is_file():
        return f"{raised[1]}:{raised[2]}"
    file = info.location or _file(info.entry_point)
    placed = re.search(rf"{re.escape(file)}:\d+", info.cause) if file else None
    return placed[0] if placed else file


def _file(entry_point: str) -> str:
    module, _, file = entry_point.partition(":")
    if not file.endswith(".toml"):
        return str(module_file(module) or "") if module else ""
    paths = [folder / file for folder in package_folders(module)]
    return str(next((path for path in paths if path.is_file()), ""))
