"""The commands `vitzoo registry check` and `vitzoo registry pin`."""

from __future__ import annotations

from pathlib import Path

import click
from click.exceptions import Exit

from vitzoo.cli.output import flag, json_option, print_json, print_rows, say


@click.group("registry")
def registry_group() -> None:
    """Check registry files, and add missing pins to them.

    A registry file (registry.toml) declares variants, parts and weights. A pin is the recorded
    commit, size and sha256 of a weights file.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry pin my_package/registry.toml
    """


@registry_group.command("check")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
def check_command(file: Path | None, as_json: bool) -> None:
    """Check a registry FILE, or everything that is registered.

    No network is used. The command checks that every part and checkpoint format exists, that every
    variant can be built and has the number of parameters that its entry states, and that the size
    of every weights file fits its variant. Without FILE, every plugin that cannot be used is
    reported, too. To check a plugin's file, first install the plugin, for instance with `pip
    install -e .` in its folder. The exit code is 1 if there is a problem.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry check my_package/registry.toml --json
    """
    from vitzoo.tools.registry_check import check

    report = check(file)
    if as_json:
        print_json(report)
    else:
        counts = [{"what": what, "count": n} for what, n in report.counts.items()]
        print_rows(counts, ("what", "count"))
        for problem in report.problems:
            say(f"problem: {problem}")
    if report.problems:
        raise Exit(1)


@registry_group.command("pin")
@click.argument("file", type=click.Path(path_type=Path))
@flag("--dry-run", help="Print the changes, write nothing.")
@json_option
def pin_command(file: Path, dry_run: bool, as_json: bool) -> None:
    """Request missing pins from the Hub and write them to FILE.

    A pin is the commit, size and sha256 of a weights file. Missing sizes of pinned entries are
    added, too. Comments and the order of entries are kept. If the Hub contradicts a pinned entry,
    the command stops with an error and writes nothing. If the request for an entry fails, the
    other entries are written, and the exit code is 1.

    \b
    Examples:
      vitzoo registry pin registry.toml --dry-run
      vitzoo registry pin registry.toml
    """
    from vitzoo.tools.registry_pin import pin

    rows = pin(file, write=not dry_run)
    print_rows(rows, ("weights", "state", "sha256", "size", "revision"), as_json=as_json)
    if any(row.state.startswith("failed") for row in rows):
        raise Exit(1)
