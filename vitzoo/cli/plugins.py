"""`vitzoo plugins`: what is installed, what is wrong with it, and making more of it.

None of these commands imports a plugin's code into its own process, but `compile`, whose user
wrote that code.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitzoo.cli.environment import show_trouble
from vitzoo.cli.output import echo, json_option, on_terminal, print_json, print_rows
from vitzoo.errors import UnknownName

if TYPE_CHECKING:
    from vitzoo.tools.plugin_check import Checked
    from vitzoo.tools.plugin_why import Trace

COLUMNS = ("namespace", "state", "distribution", "version", "variants", "parts", "formats")
DETAILS = ("entry_point", "location", "cause", "fix")
PRETTY = dict.fromkeys(("variants", "parts", "formats"), str)


@click.group("plugins", invoke_without_command=True)
@json_option
@click.pass_context
def plugins_group(context: click.Context, as_json: bool) -> None:
    """List the installed plugins and their states; find out what is wrong, make new ones.

    Manifests are read, nothing is imported: of a module that nothing has asked for, `lazy`, the
    contributions are not known. A plugin that cannot be used is listed with cause and fix, and
    is no failure of this command: `vitzoo plugins check` is the one that fails.

    \b
    Examples:
      vitzoo plugins
      vitzoo plugins --json
      vitzoo plugins check
      vitzoo plugins why acme
      vitzoo plugins new acme
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"write --json after {context.invoked_subcommand}")
        return
    show_trouble()
    rows = _states()
    if as_json:
        print_json(rows)
    elif on_terminal():
        print_rows(rows, COLUMNS, pretty=PRETTY)
        _print_details(rows)
    else:
        print_rows(rows, (*COLUMNS, *DETAILS))


@plugins_group.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that each plugin has.",
)
@json_option
@click.pass_context
def check_command(
    context: click.Context, names: tuple[str, ...], timeout: float, as_json: bool
) -> None:
    """Import and build all that plugins bring, each in a process of its own.

    NAME is a namespace or a distribution; without one, every plugin is checked but the core and
    those that are switched off. Targets are imported and requirements looked up. Parts pass the
    conformance tests of vitzoo.testing, except those that need samples or take long. Variants are
    built without memory and their parameters counted; of those that are not made of vitzoo's
    parts, one of each architecture. A plugin that hangs is killed when its time is over, with all
    that it started. Exits with 1 on any problem.

    \b
    Examples:
      vitzoo plugins check
      vitzoo plugins check acme --timeout 120
      vitzoo plugins check vitzoo-deit --json
    """
    from vitzoo.tools.plugin_check import check

    done = []
    for row in check(names, timeout=timeout):
        click.echo(_outcome(row), err=True)
        done.append(row)
    problems = [problem for row in done for problem in row.problems]
    if as_json:
        plugins = [asdict(row) for row in done]
        for plugin in plugins:
            plugin.pop("problems")
        print_json({"plugins": plugins, "problems": [asdict(problem) for problem in problems]})
    elif problems or not on_terminal():
        rows = [asdict(problem) for problem in problems]
        print_rows(rows, ("namespace", "what", "cause", "location"))
    if problems:
        context.exit(1)


@plugins_group.command("why")
@click.argument("name")
@json_option
@click.pass_context
def why_command(context: click.Context, name: str, as_json: bool) -> None:
    """Say step by step how a plugin was found and read, or where it was looked for.

    NAME is a namespace, a name in it or a distribution. Nothing is imported. Exits with 1 if no
    such plugin is installed.

    \b
    Examples:
      vitzoo plugins why acme
      vitzoo plugins why acme/overlap
      vitzoo plugins why acme-vit --json
    """
    from vitzoo.tools.plugin_why import traces

    found = traces(name)
    if as_json:
        print_json([_trace_data(name, trace) for trace in found])
    else:
        for i, trace in enumerate(found):
            if i:
                echo()
            _print_trace(name, trace)
    if not all(trace.info for trace in found):
        context.exit(UnknownName.exit_code)


@plugins_group.command("new")
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    default=".",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder to write the project's folder into.",
)
@click.option(
    "--distribution",
    default="",
    metavar="TEXT",
    help="What pip installs; vitzoo-NAME if not given.",
)
@json_option
def new_command(name: str, folder: Path, distribution: str, as_json: bool) -> None:
    """Write a complete plugin project: a part, a variant, tests.

    The folder has the name of the distribution, and all in it works as it is. NAME becomes the
    namespace: what the plugin brings is used as NAME/... Nothing is overwritten.

    \b
    Examples:
      vitzoo plugins new acme
      vitzoo plugins new acme --distribution acme-vit --dir ~/src
    """
    from vitzoo.tools.plugin_new import write_project

    project = write_project(name, folder, distribution)
    files = sorted(str(path) for path in project.rglob("*") if path.is_file())
    if as_json:
        print_json({"project": str(project), "files": files})
    else:
        print_rows([{"file": file} for file in files], ("file",))
    click.echo(
        f"next: pip install -e '{project}[dev]', then pytest {project}, then "
        f"vitzoo list '{name}/*'; its README.md says what to change",
        err=True,
    )


@plugins_group.command("compile")
@click.argument("name", metavar="MODULE_OR_NAMESPACE")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def compile_command(name: str, out: Path | None, force: bool) -> None:
    """Write the manifest of a module plugin, so that listings need not import it.

    The module is imported. What it contributes must be reachable by name at the top level of a
    module of its package; the manifest is read back and compared before it is written.

    \b
    Examples:
      vitzoo plugins compile acme
      vitzoo plugins compile acme_vit.hooks --out acme_vit/registry.toml
    """
    from vitzoo.tools.plugin_compile import compile_plugin, write_manifest

    compiled = compile_plugin(name)
    if out is None:
        echo(compiled.text, nl=False)
    else:
        write_manifest(compiled, out, force=force)
        click.echo(f"wrote {out}", err=True)
    for note in compiled.notes(out):
        click.echo(note, err=True)


def _states() -> list[dict[str, Any]]:
    from vitzoo.plugin.info import LOCAL
    from vitzoo.registry.registry import registry
    from vitzoo.tools.plugin_why import counts, place

    zoo = registry()
    zoo.load_manifests()
    rows = []
    for key, info in zoo.host.infos.items():
        known = counts(zoo.host, key) or (None, None, None)
        if key == LOCAL:
            known = (sum(variant.namespace == key for variant in zoo.variants.values()), 0, 0)
        rows.append(
            {"namespace": info.namespace, "state": info.state, "distribution": info.distribution}
            | {"version": info.version}
            | dict(zip(PRETTY, known, strict=True))
            | {"entry_point": info.entry_point, "location": place(info)}
            | {"cause": info.cause, "fix": info.fix}
        )
    for warning in zoo.host.switches.unmatched(zoo.host.found):
        click.echo(f"vitzoo: {warning}", err=True)
    return rows


def _print_details(rows: list[dict[str, Any]]) -> None:
    """Print a paragraph about each plugin that cannot be used, and one about lazy modules."""
    for row in rows:
        if row["cause"]:
            lines = [
                {"field": key.replace("_", " "), "value": row[key]} for key in DETAILS if row[key]
            ]
            title = f"{row['namespace']} ({row['distribution']}): {row['state']}"
            echo()
            print_rows(lines, ("field", "value"), title=title)
    if lazy := [row["namespace"] for row in rows if row["state"] == "lazy"]:
        echo(
            f"\nlazy: a module, imported when something in it is asked for (vitzoo list "
            f"'{lazy[0]}/*'); vitzoo plugins check imports it in a process of its own"
        )


def _outcome(row: Checked) -> str:
    """Say how the check of one plugin ended."""
    whose = f"{row.namespace} ({row.distribution} {row.version})".replace(" )", ")")
    if row.state == "disabled":
        return f"{whose}: switched off, not checked"
    brings = "" if row.contributions is None else f"{row.contributions} contributions, "
    found = {0: "ok", 1: "1 problem"}.get(len(row.problems), f"{len(row.problems)} problems")
    return f"{whose}: {brings}{found} ({row.seconds:.1f} s)"


def _trace_data(name: str, trace: Trace) -> dict[str, Any]:
    from vitzoo.tools.plugin_why import place

    info = trace.info
    return {
        "name": name,
        "namespace": info.namespace if info else None,
        "state": info.state if info else "not installed",
        "distribution": info.distribution if info else None,
        "version": info.version if info else None,
        "entry_point": info.entry_point if info else None,
        "location": place(info) if info else None,
        "cause": info.cause if info else trace.steps[0],
        "fix": info.fix if info else "",
        "steps": list(trace.steps),
        "contributions": [asdict(row) for row in trace.contributions],
    }


def _print_trace(name: str, trace: Trace) -> None:
    data = _trace_data(name, trace)
    title = f"{data['namespace'] or name}: {data['state']}"
    facts = ("namespace", "state", "distribution", "version", *DETAILS)
    lines = [{"field": key.replace("_", " "), "value": data[key]} for key in facts if data[key]]
    print_rows(lines, ("field", "value"), title=title)
    echo()
    steps = [{"step": i, "what": step} for i, step in enumerate(trace.steps, 1)]
    print_rows(steps, ("step", "what"), pretty={"step": str}, title="step by step")
    if trace.contributions:
        echo()
        rows = [
            asdict(row) | {"hidden": "yes" if row.hidden else ""} for row in trace.contributions
        ]
        columns = ("name", "kind", "hidden", "target", "defined", "location")
        print_rows(rows, columns, title="contributions")
