"""`vitzoo registry check` and `pin`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from vitzoo.cli.output import json_option, print_json, print_rows

file_argument = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.group("registry")
def registry_group() -> None:
    """Check registry files, and fill in missing pins.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry pin my_package/registry.toml
    """


@registry_group.command("check")
@file_argument
@json_option
@click.pass_context
def check_command(context: click.Context, file: Path | None, as_json: bool) -> None:
    """Validate FILE (the installed registry, if none is given) offline.

    Beyond the schema: parts and formats exist, every variant made of parts can be built and has the
    parameters it states, sizes of weights files fit them, and no installed plugin is broken. A
    variant with parts of a plugin is built where that plugin is installed, as by `pip install -e .`
    in its folder; where it is not, that is a problem.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry check my_package/registry.toml --json
    """
    from vitzoo.tools.registry_check import check

    report = check(file)
    if as_json:
        print_json(asdict(report))
    else:
        counts = [{"what": what, "count": n} for what, n in report.counts.items()]
        print_rows(counts, ("what", "count"))
        for problem in report.problems:
            click.echo(f"problem: {problem}", err=True)
    if report.problems:
        context.exit(1)


@registry_group.command("pin")
@file_argument
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@json_option
@click.pass_context
def pin_command(context: click.Context, file: Path | None, dry_run: bool, as_json: bool) -> None:
    """Ask the Hub for the commit, size and sha256 of every unpinned entry of FILE and write them.

    An entry needs no size, and a pinned one that has none gets it. Comments and order are kept. An
    entry that is pinned and disagrees is an error, never overwritten. Exits with 1 if the Hub does
    not answer for an entry; the others are written.

    \b
    Examples:
      vitzoo registry pin registry.toml --dry-run
      vitzoo registry pin registry.toml
    """
    from vitzoo.tools.registry_pin import pin

    if file is None:
        raise click.UsageError("name the file to write")
    rows = [asdict(row) for row in pin(file, write=not dry_run)]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ("weights", "state", "sha256", "size", "revision"))
    if any(row["state"].startswith("failed") for row in rows):
        context.exit(1)
