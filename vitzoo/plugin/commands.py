"""Commands of plugins: entry points of the group `vitzoo.commands`, each a click command."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout

import click

from vitzoo.errors import PluginError
from vitzoo.plugin import importing
from vitzoo.plugin.discovery import claimed, fitting, refused
from vitzoo.plugin.entry_points import COMMANDS, Found, find_plugins
from vitzoo.plugin.guard import Owner
from vitzoo.plugin.info import TROUBLE, PluginInfo
from vitzoo.plugin.source_lines import where_defined
from vitzoo.plugin.switches import STRICT, Switches
from vitzoo.schema.reader import describe

AUTHOR = f'[project.entry-points."{COMMANDS}"] in pyproject.toml'


def command_states(
    found: Iterable[Found], switches: Switches, own: Collection[str]
) -> dict[str, PluginInfo]:
    """Return the states of the commands of plugins; those that can be used are `lazy`.

    The keys are the names, and `NAME (DISTRIBUTION)` for a command that is disabled or malformed.
    `own` are the commands of vitzoo.
    """
    states: dict[str, PluginInfo] = {}
    claims: dict[str, list[Found]] = {}
    for one in found:
        if one.group != COMMANDS:
            continue
        if info := refused(one, switches, own):
            states[f"{one.namespace} ({one.distribution})"] = info
        else:
            claims.setdefault(one.namespace, []).append(one)
    for name, rivals in claims.items():
        states[name] = claimed([one for one in rivals if not one.here] or rivals)
    return dict(sorted(states.items()))


def usable_commands(own: Collection[str]) -> dict[str, str]:
    """Return the commands of plugins that can be used, and the distribution of each."""
    states = command_states(find_plugins(), Switches.read(), own)
    usable = {name: info for name, info in states.items() if info.state == "lazy"}
    return {name: f"{one.distribution} {one.version}".strip() for name, one in usable.items()}


def find_command(name: str, own: Collection[str]) -> click.Command | None:
    """Import a command of a plugin; None if no plugin has it.

    Raises:
        PluginError: the command cannot be used; or with `VITZOO_STRICT_PLUGINS=1`, another one.
    """
    found, switches = find_plugins(), Switches.read()
    states = command_states(found, switches, own)
    info = states.get(name) or next(
        (one for one in states.values() if one.namespace == f"vitzoo {name}"), None
    )
    if info is None:
        return None
    if info.state != "lazy":
        raise PluginError(f"the command {name!r} cannot be used: {info.trouble}")
    bad = [f"{key!r}: {one.trouble}" for key, one in states.items() if one.state in TROUBLE]
    bad += switches.unmatched(found)
    if switches.strict and bad:
        raise PluginError(f"{STRICT}=1, and there are problems: {'; '.join(bad)}")
    return import_command(info)


def import_command(info: PluginInfo) -> click.Command:
    """Import a command.

    Raises:
        PluginError: the distribution requires another vitzoo, the import fails, or the command is
            no click command.
    """
    info = fitting(info)
    if info.state == "incompatible":
        raise PluginError(info.trouble)
    owner = Owner(info, info.namespace.removeprefix("vitzoo "), "command")
    module, _, name = info.entry_point.partition(":")
    try:
        with redirect_stdout(sys.stderr):
            found = getattr(importing.import_module(module), name)
    except (Exception, SystemExit) as error:
        failed = owner.failed(info.entry_point, error, AUTHOR)
        raise PluginError(failed.trouble) from error
    if not isinstance(found, click.Command):
        at = where_defined(info.entry_point)
        raise PluginError(
            f"{owner}: {info.entry_point!r} is {describe(found)}, expected a function with "
            f"@click.command or @click.group ({at}); {owner.fix(None, at)}"
        )
    return found
