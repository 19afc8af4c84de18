"""The commands `vitzoo registry check`, `vitzoo registry pin` and `vitzoo registry add`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from vitzoo.authoring.registry_target import Target, manifest_of
from vitzoo.cli.environment import set_for_command
from vitzoo.cli.options import PATH, flag, json_option
from vitzoo.cli.output import echo, print_json, print_rows, say
from vitzoo.errors import ExitCode
from vitzoo.settings import registry_files

if TYPE_CHECKING:
    from vitzoo.authoring.registry_pin import Pinned

CHANGES = ("weights", "size", "difference", "sha256", "revision", "state")
SHORT = 8  # digits that are shown of a sha256 and a commit
EXAMPLE = "--license apache-2.0 (or proprietary) --source 'fine-tuned on our catalogue, run 7'"


@click.group("registry")
def registry_command() -> None:
    """Check registry files, and add pins and entries to them.

    A registry file (registry.toml) declares variants, parts and weights. A pin is the recorded
    commit, size and sha256 of a weights file.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry pin my_package/registry.toml
      vitzoo registry add cats cats.safetensors --license mit --source "run 7"
    """


@registry_command.command("check")
@click.argument("file", required=False, type=PATH)
@flag("--write", help="First write the numbers of parameters into FILE.")
@json_option
def check_command(file: Path | None, write: bool, as_json: bool) -> None:
    """Check a registry FILE, or everything that is registered.

    No network is used. The command checks that every part and checkpoint format exists, that every
    variant can be built and has the number of parameters that its entry states, that the size of
    every weights file fits its variant, and that files inside a package and at a path have the size
    and the sha256 of their entries. Without FILE, every plugin that cannot be used is
    reported, too. To check a plugin's file, first install the plugin, for instance with `pip
    install -e .` in its folder. The exit code is 1 if there is a problem.

    --write first counts the parameters of every variant, and writes `params` where the key is
    missing or wrong. Comments and the order of entries are kept.

    \b
    Examples:
      vitzoo registry check
      vitzoo registry check my_package/registry.toml --json
      vitzoo registry check my_package/registry.toml --write
    """
    from vitzoo.authoring.registry_check import check, write_params

    if write and file is None:
        raise click.UsageError("--write needs a FILE: name the registry file to write")
    for name, number in write_params(file).items() if write and file else ():
        say(f"wrote params = {number} of {name} to {file}")
    report = check(file)
    if as_json:
        print_json(report)
    else:
        counts = [{"what": what, "count": n} for what, n in report.counts.items()]
        print_rows(counts, ("what", "count"))
        for problem in report.problems:
            say(f"problem: {problem}")
    if report.problems:
        raise Exit(ExitCode.FAILED)


@registry_command.command("pin")
@click.argument("file", required=False, type=PATH)
@flag("--all", "every", help="Pin the manifests of all packages that are installed editable.")
@flag("--recheck", help="Compare complete entries with the Hub, too.")
@flag("--dry-run", help="Print the changes, write nothing.")
@json_option
def pin_command(
    file: Path | None, every: bool, recheck: bool, dry_run: bool, as_json: bool
) -> None:
    """Request missing pins from the Hub and write them to FILE.

    A pin is the commit, size and sha256 of a weights file. The command requests those that entries
    lack, with one request for each revision of a repository. Comments and the order of entries are
    kept. If the Hub contradicts an entry, the command stops with an error and writes nothing. If
    the request for an entry fails, the other entries are written, and the exit code is 1.

    The command waits as long as the Hub asks, up to 330 seconds for one request. If you interrupt
    it, if the network is lost, or if the Hub asks for a longer wait, it writes the pins that it has
    received. The same command continues with the other entries.

    The results list entries without a pin first. New pins follow, ordered by the difference from
    the predicted size, the largest first. --json lists all entries.

    --all writes the manifests of vitzoo and of its plugins, in a clone that is installed editable.
    It lists contradictions, and files that are missing or gated, and writes the other entries. The
    exit code is 1 if an entry failed or no file was found, and 4 if the Hub cannot be reached.

    \b
    Examples:
      vitzoo registry pin registry.toml --dry-run
      vitzoo registry pin registry.toml
      vitzoo registry pin --all
    """
    if every != (file is None):
        raise click.UsageError(f"expected a FILE or --all, got {'both' if file else 'neither'}")
    from vitzoo.authoring.registry_pin import pin

    rows = pin(file, write=not dry_run, recheck=recheck)
    kinds = Counter(row.state.partition(":")[0] for row in rows)
    print_rows(_changes(rows), CHANGES, as_json=as_json, data=rows)
    each = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    say(f"{len(rows)} entr{'ies' if len(rows) != 1 else 'y'}: {each or 'nothing to pin'}")
    done = kinds["pinned"] + kinds["already"]
    passed = done + (kinds["gated"] + kinds["missing"] if every else 0)
    if passed < len(rows) or (rows and not done):
        raise Exit(ExitCode.FAILED)


def _changes(rows: Iterable[Pinned]) -> list[dict[str, Any]]:
    """Return what a reviewer reads: the entries without a pin, then the new pins, the odd first."""
    order = ("failed", "missing", "gated", "pinned")
    found: list[tuple[int, float, dict[str, Any]]] = []
    for row in rows:
        kind = row.state.partition(":")[0]
        if kind in order:
            odd = float("inf") if row.difference is None else abs(row.difference)
            short = {
                "difference": "" if row.difference is None else f"{row.difference:+.2f} %",
                "sha256": row.sha256[:SHORT],
                "revision": row.revision[:SHORT],
            }
            found.append((order.index(kind), -odd, {**vars(row), **short}))
    return [shown for *_, shown in sorted(found, key=lambda one: one[:2])]


@registry_command.command("add")
@click.argument("name")
@click.argument("source", metavar="FILE_OR_ADDRESS")
@click.option("--license", "license_", default="", metavar="TEXT", help="License of the weights.")
@click.option("--source", "origin", default="", metavar="TEXT", help="Who trained them, and how.")
@click.option("--variant", default="", metavar="NAME", help="Registered variant that they fit.")
@click.option(
    "--file", type=PATH, help="Registry file to write; the first of VITZOO_REGISTRY if not given."
)
@click.option(
    "--plugin",
    type=PATH,
    metavar="FOLDER",
    help="Project of a plugin, or its manifest: write there, and copy the file into the package.",
)
@click.option("--sha256", default="", metavar="HEX", help="Published hash, for an https address.")
@click.option(
    "--preprocessing",
    default="",
    metavar="NAME",
    help="Variant, or variant:weights, whose preprocessing the weights need.",
)
@click.option("--label-set", default="", metavar="NAME", help="Names of the classes.")
@click.option("--summary", default="", metavar="TEXT", help="One line for listings.")
@flag("--force", help="Replace a variant or weights of the same name.")
@flag("--dry-run", help="Print the new tables, write nothing.")
@json_option
def add_command(
    name: str,
    source: str,
    license_: str,
    origin: str,
    file: Path | None,
    plugin: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **texts: str,
) -> None:
    """Write an entry for your weights to your registry file, or to a plugin of yours.

    NAME is a new variant, local/NAME for its users, and the weights become its default weights.
    VARIANT:WEIGHTS adds weights to a variant that the file may have. With --plugin, the entry is
    written to the manifest of a plugin's project, and a file on this machine is copied into the
    folder `data` of its package, for the wheel.

    FILE_OR_ADDRESS is a file of vitzoo.save, another safetensors or npz file, hf://owner/repo with
    or without @revision and /file, or an https address. The command loads the weights, and writes
    only if they fit: network, number of classes, checkpoint format, preprocessing, size and hash.
    --license and --source are required. A file that does not state its network needs --variant. An
    https address needs --sha256: the hash must not come from the host of the file. Comments and the
    order of entries are kept.

    \b
    Examples:
      vitzoo registry add cats a.npz --license mit --source "run 7" --dry-run
      vitzoo registry add cats a.npz --license mit --source "run 7" --plugin acme
      vitzoo registry add cats a.npz --license mit --source "run 7" --file r.toml
      vitzoo registry add cats hf://acme/cats --license mit --source "model card"
    """
    for option, value in (("--license", license_), ("--source", origin)):
        if not (value.strip() and value.isprintable()):
            raise click.UsageError(f"{option} is {value!r}, expected printable text: {EXAMPLE}")
    known = registry_files()
    target = _own_file(file, known) if plugin is None else _manifest(plugin, file)
    from vitzoo.authoring.registry_add import add
    from vitzoo.authoring.registry_load import EntryOptions

    stated = EntryOptions(license=license_, source=origin, **texts)
    added = add(name, source, stated, target, force=force, write=not dry_run)
    if as_json:
        print_json(added)
    elif dry_run:
        echo(added["text"], nl=False)
    else:
        columns = ("name", "variant", "classes", "format", "dtype", "size", "sha256")
        print_rows([added], (*columns, "preprocessing"))
        say(" and ".join(filter(None, (f"wrote {target.file}", added["bundled"]))))
    if not (dry_run or target.package or target.file in known):
        say(f"to use it: export VITZOO_REGISTRY={target.file}")


def _own_file(file: Path | None, files: Sequence[Path]) -> Target:
    """Return the user's registry file; if it is new, this process reads the registry without it."""
    if file is None and not files:
        raise click.UsageError(
            "no registry file is known, expected one in VITZOO_REGISTRY or --file: add --file "
            "vitzoo.toml, or first run export VITZOO_REGISTRY=$HOME/vitzoo.toml"
        )
    target = Target((file or files[0]).absolute())
    if not target.file.exists():
        others = [str(other) for other in files if other != target.file]
        set_for_command("VITZOO_REGISTRY", os.pathsep.join(others))
    return target


def _manifest(plugin: Path, file: Path | None) -> Target:
    if file is not None:
        raise click.UsageError(
            f"--plugin {plugin} and --file {file} name two files to write, expected one; leave out "
            "one of the options"
        )
    return manifest_of(plugin)
