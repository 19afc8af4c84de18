"""The command `vitzoo plugins` and its subcommands.

Only `compile` imports a plugin's code into its own process.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from vitzoo.cli.environment import set_for_command
from vitzoo.cli.options import PATH, force_option, json_option
from vitzoo.cli.output import Fit, echo, on_terminal, print_fields, print_json, print_rows, say
from vitzoo.errors import ExitCode
from vitzoo.plugin.switches import STRICT

COLUMNS = ("namespace", "state", "distribution", "version", "variants", "parts", "formats")
LEAVING = ("version", "formats", "parts", "distribution", "variants")  # on a narrow terminal
DETAILS = ("entry_point", "location", "cause", "fix")
LEFT_OUT = (
    "training, copies, compilation, saving, conversion of checkpoint formats, and files outside "
    "the package; pytest with vitzoo.testing.PluginTests tests them"
)


@click.group("plugins", invoke_without_command=True)
@json_option
@click.pass_context
def plugins_command(context: click.Context, as_json: bool) -> None:
    """List the installed plugins, check plugins, or write a new one.

    A plugin is a Python package that adds variants, parts, checkpoint formats or commands to
    vitzoo. This command reads the manifests of plugins and imports no code. A plugin without a
    manifest is `lazy`: its contributions are unknown until its module is imported. A command of a
    plugin has a separate entry, `vitzoo NAME`. A plugin that cannot be used is listed with its
    cause and fix, and the exit code is still 0; use `vitzoo plugins check` for an exit code of 1.

    \b
    Examples:
      vitzoo plugins
      vitzoo plugins --json
      vitzoo plugins check
      vitzoo plugins why acme
      vitzoo plugins new acme
    """
    if name := context.invoked_subcommand:
        if as_json:
            raise click.UsageError(f"write --json last: vitzoo plugins {name} --json")
        return
    set_for_command(STRICT, "")  # list the plugins for which strict mode would raise
    rows = _states()
    shown = on_terminal() and not as_json
    columns = COLUMNS if shown else (*COLUMNS, *DETAILS)
    print_rows(rows, columns, as_json=as_json, fit=Fit(LEAVING, one_line=True))
    if shown:
        _print_details(rows)


@plugins_command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each plugin.",
)
@json_option
def check_command(names: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Import and test plugins, each in a separate process.

    NAME is a namespace, a command of a plugin, or a distribution. A namespace includes the commands
    of its distribution. Without NAME, every plugin that is not disabled is checked. Requirements
    must be installed, and every target and command must be importable. Parts must pass the
    conformance tests of vitzoo.testing, except long tests and tests that need sample files.
    Variants are built without memory and their parameters are counted; of the networks that a
    plugin's own builder makes, only one of each architecture is built. Weights files inside the
    package are compared with size and sha256 of their entries. What was left out is printed as "not
    tested". A process that exceeds the time limit is killed with all processes that it started. The
    exit code is 1 if there is a problem.

    \b
    Examples:
      vitzoo plugins check
      vitzoo plugins check acme --timeout 120
      vitzoo plugins check vitzoo-deit --json
    """
    from vitzoo.authoring.plugin_check import check

    done = []
    for row in check(names, timeout=timeout):
        for line in str(row).splitlines():
            say(line)
        done.append(row)
    problems = [problem for row in done for problem in row.problems]
    if as_json or problems or not on_terminal():
        plugins = [{k: v for k, v in asdict(row).items() if k != "problems"} for row in done]
        data = {"plugins": plugins, "problems": problems}
        print_rows(problems, ("namespace", "what", "cause", "location"), as_json=as_json, data=data)
    if done:
        say(f"not tested of any plugin: {LEFT_OUT}")
    if problems:
        raise Exit(ExitCode.FAILED)


@plugins_command.command("why")
@click.argument("name")
@json_option
def why_command(name: str, as_json: bool) -> None:
    """Explain how vitzoo found a plugin, or why it did not.

    The steps are printed in the order in which vitzoo takes them. NAME is a namespace, a name in it
    such as acme/overlap, a command of a plugin, or a distribution. A namespace includes the
    commands of its distribution. Nothing is imported. The exit code is 1 if no such plugin is
    installed.

    \b
    Examples:
      vitzoo plugins why acme
      vitzoo plugins why acme/overlap
      vitzoo plugins why acme-vit --json
    """
    from vitzoo.authoring.plugin_why import traces

    found = traces(name)
    if as_json:
        print_json(found)
    else:
        for i, trace in enumerate(found):
            if i:
                echo()
            _print_trace(trace)
    if any(trace["state"] == "not installed" for trace in found):
        raise Exit(ExitCode.FAILED)


@plugins_command.command("new")
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    default=".",
    show_default=True,
    type=PATH,
    help="Folder in which the project's folder is made.",
)
@click.option(
    "--distribution",
    default="",
    metavar="TEXT",
    help="Name of the distribution that pip installs; vitzoo-NAME if not given.",
)
@json_option
def new_command(name: str, folder: Path, distribution: str, as_json: bool) -> None:
    """Write a new plugin project with a part, a variant and tests.

    The project can be installed and tested at once; change its code to make it yours. NAME becomes
    the plugin's namespace: users write NAME/overlap for its part `overlap`. The folder gets the
    name of the distribution. A folder that exists is not overwritten.

    \b
    Examples:
      vitzoo plugins new acme
      vitzoo plugins new acme --distribution acme-vit --dir ~/src
    """
    from vitzoo.authoring.plugin_new import write_project
    from vitzoo.installing import pip, quoted

    project = write_project(name, folder, distribution)
    files = sorted(str(path) for path in project.rglob("*") if path.is_file())
    data = {"project": str(project), "files": files}
    print_rows([{"file": file} for file in files], ("file",), as_json=as_json, data=data)
    tests = f"pytest {quoted(str(project))}"
    steps = (pip("install", "-e", f"{project}[dev]"), tests, f"vitzoo list {name}")
    say("next:")
    for step in (*steps, f"read {project / 'README.md'}"):
        say(f"  {step}")


@plugins_command.command("compile")
@click.argument("name", metavar="MODULE_OR_NAMESPACE")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Manifest file to write; printed on stdout if not given.",
)
@force_option
def compile_command(name: str, out: Path | None, force: bool) -> None:
    """Write a manifest for a plugin that is a Python module.

    vitzoo can list a plugin with a manifest (registry.toml) without importing its code. This
    command imports the module. A manifest refers to each contribution by its import path, so the
    contribution must have a name at the top level of a module in the plugin's package. The manifest
    is read back and compared with the module before it is written.

    \b
    Examples:
      vitzoo plugins compile acme
      vitzoo plugins compile acme_vit.hooks --out acme_vit/registry.toml
    """
    from vitzoo.authoring.plugin_compile import compile_plugin
    from vitzoo.files.access import writing_to

    compiled = compile_plugin(name)
    if out is None:
        echo(compiled.text, nl=False)
    else:
        with writing_to(out, force=force) as file:
            file.write(compiled.text.encode())
        say(f"wrote {out}")
    for note in compiled.notes(out):
        say(note)


def _states() -> list[dict[str, Any]]:
    from vitzoo.authoring.plugin_state import state_row, with_commands
    from vitzoo.registry.registry import registry

    zoo = registry()
    plugins = [(info, counts) for _, info, counts in zoo.index.overview()]
    others = with_commands(zoo.host).values()
    plugins += [(info, None) for info in others if info.namespace.startswith("vitzoo ")]
    rows = []
    for info, counts in plugins:
        row = state_row(info) | dict(zip(COLUMNS[-3:], counts or (None,) * 3, strict=True))
        rows.append({key: row[key] for key in (*COLUMNS, *DETAILS)})
    for warning in zoo.host.switches.unmatched(zoo.host.found):
        say(f"vitzoo: {warning}")
    return rows


def _print_details(rows: list[dict[str, Any]]) -> None:
    """Print cause and fix of each plugin that cannot be used, and a note about lazy plugins."""
    for row in rows:
        if row["cause"]:
            echo()
            title = f"{row['namespace']} ({row['distribution']}): {row['state']}"
            print_fields({key.replace("_", " "): row[key] for key in DETAILS if row[key]}, title)
    modules = (row["namespace"] for row in rows if row["state"] == "lazy")
    if lazy := [name for name in modules if " " not in name]:  # no commands
        echo(
            f"\nlazy: using one of its names imports the plugin's module, for instance vitzoo list "
            f"'{lazy[0]}/*'; vitzoo plugins check imports it in a separate process"
        )


def _print_trace(trace: dict[str, Any]) -> None:
    from vitzoo.authoring.plugin_state import STATE

    fields = {key.replace("_", " "): trace[key] for key in STATE if trace[key]}
    print_fields(fields, f"{trace['namespace'] or trace['name']}: {trace['state']}")
    echo()
    steps = [{"step": i, "what": step} for i, step in enumerate(trace["steps"], 1)]
    print_rows(steps, ("step", "what"), title="step by step")
    if trace["contributions"]:
        echo()
        rows = [row | {"hidden": "yes" if row["hidden"] else ""} for row in trace["contributions"]]
        columns = ("name", "kind", "hidden", "target", "defined", "location")
        empty = () if any(row["hidden"] for row in rows) else ("hidden",)
        optional = ("location", "defined", *empty, "target") if len(rows) > 1 else ()
        print_rows(rows, columns, fit=Fit(optional), title="contributions")
