"""The command `vitzoo list`; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import click
from click.exceptions import Exit

from vitzoo.cli.completion import complete_families, complete_fields, complete_names
from vitzoo.cli.options import choose_output, flag, json_option, table_option
from vitzoo.cli.output import (
    Fit,
    Legend,
    count,
    echo,
    megabytes,
    on_terminal,
    paged,
    print_rows,
    print_text,
    say,
    three_digits,
)
from vitzoo.errors import ExitCode, UnknownName, did_you_mean
from vitzoo.plugin.info import CORE, LOCAL, TROUBLE
from vitzoo.registry.listing import (
    FIELDS,
    KINDS,
    LABEL,
    MEASUREMENTS,
    OF_WEIGHTS,
    TIMM,
    Family,
    Listed,
    check_field,
    doubled,
    pareto,
    pareto_fields,
    sort,
    sort_keys,
)
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.terms import FURTHER_RESULTS, KNN, RESULTS, commercial_use
from vitzoo.text import listed

SHOWN = ("name", "params", "top1", "image_size", "gmacs", "license", "pin")  # on a terminal
WIDE = tuple(dict.fromkeys((*SHOWN, *FURTHER_RESULTS, "weights", "pretraining_data", *FIELDS)))
PIPED = (
    "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights", "summary"
)  # fmt: skip
LEAVING = (KNN, "pin", "license", "gmacs", "image_size", "top1", "params")  # in this order
MOST_NAMED = 4  # papers or licenses in one line
PINS = {"confirmed": "c", "reported": "r", "first-use": "f"}
PRETTY: dict[str, Any] = {
    "params": count,
    "image_size": str,
    "patch_size": str,
    "num_classes": str,
    "gmacs": three_digits,
    "activations": megabytes,
    **dict.fromkeys(RESULTS, "{:.2f}".format),
    **dict.fromkeys(MEASUREMENTS, "{:,.0f}".format),
    "pin": lambda pin: PINS.get(pin, pin),
}
COMMERCIAL = {"license": "commercial"}  # the heading of the shorter form
NOTES: dict[str, str | Legend] = {
    "pin": Legend(
        "pin: SHA-256 from:",
        {"c": "the author", "r": "third parties", "f": "the Hub at first download"},
    ),
    "license shorter": Legend(
        "commercial:",
        {"yes": "allowed by the license", "no": "not allowed", "read": "see its terms"},
    ),
    KNN: "k-NN: top-1 of the nearest neighbours of features, without a trained classifier",
}


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...", shell_complete=complete_names)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="List only entries that meet a condition, such as 'params<100M'.",
)
@click.option(
    "--sort",
    "order",
    metavar="FIELD[:desc]",
    shell_complete=complete_fields,
    help="Sort by a field, or by several with commas; :desc puts large values first.",
)
@click.option(
    "--pareto",
    "trade_off",
    metavar="FIELD:FIELD",
    shell_complete=complete_fields,
    help="List only entries than which no other is better in both fields, such as params:top1.",
)
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_families,
    help="List a family, such as clip.",
)
@flag("--all", "everything", help="List all variants on a terminal, too.")
@flag("--local", "here", help="List only variants with weights on this machine.")
@flag("--available", help="List the variants of vitzoo's plugins that are not installed.")
@click.option(
    "--columns",
    metavar="FIELD,FIELD",
    shell_complete=complete_fields,
    help="Show these columns.",
)
@flag("--wide", help="Show all columns that fit.")
@flag("-q", "--quiet", help="Print only names, one per line.")
@table_option
@json_option
def list_command(
    patterns: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    trade_off: str | None,
    families: tuple[str, ...],
    everything: bool,
    here: bool,
    available: bool,
    columns: str | None,
    wide: bool,
    quiet: bool,
    table: bool,
    as_json: bool,
) -> None:
    """List variants: the networks that vitzoo can build by name.

    PATTERN is a shell-style pattern of names, or a family: the part of names before the slash.
    Another word without *, ? and [ that is no name is searched in names, families, summaries and
    names of other libraries, but not with -q and --json. A pattern that matches nothing is an
    error. The former name of a renamed variant finds the variant. Without a choice, a terminal
    shows the variants of the core, and the families of the plugins with the number of their
    variants; a pipe, --json and -q give all variants. On a terminal, --all uses the pager that
    PAGER names, or less. There, timm's networks that another family has, too, need --all.

    Each variant is one line, with the values of its default weights. If --where, --sort or --pareto
    name a field of weights, such as top1 or license, each weights entry is one line. Entries that
    are not the default are named VARIANT:WEIGHTS, which `show`, `which` and `fetch` take, too.

    The fields of all options are the keys that --json prints. A terminal that is too narrow shows
    fewer columns. In --pareto, more is better for test results, less for other fields. With
    --local, the exit code is 3 if the registry and the lock file contradict each other about a
    weights file.

    With --available, the list has the variants of vitzoo's own plugins that are not installed, with
    the name of the plugin. Their other fields are known when the plugin is installed.

    \b
    Examples:
      vitzoo list
      vitzoo list 'vit_b*' 'vit_l*' --sort params:desc
      vitzoo list dinov2
      vitzoo list swin
      vitzoo list --family clip --columns name,top1,pretraining_data
      vitzoo list --where 'top1>=88' --sort top1:desc
      vitzoo list --where 'params<30M and image_size=224' --pareto params:top1
      vitzoo list --where 'license=mit or license=apache-2.0' --json
      vitzoo list --where 'pretraining=self-supervised and num_classes=0'
      vitzoo list --local
      vitzoo list --available 'dinov2/*'
    """
    choose_output(table=table, json=as_json, quiet=quiet)
    zoo = registry()
    if available:
        _available().check_options({"--pareto": trade_off, "--local": here, "--columns": columns})
        tests, keys = _tests(conditions)[0], sort_keys(order) if order else []
        _available().print_available(
            zoo, patterns, families, tests, keys, quiet=quiet, as_json=as_json
        )
        return
    machine = quiet or as_json
    people = on_terminal() and not machine
    chosen = patterns or families or conditions or order or trade_off or here
    named, wanted = zoo.index.families(patterns)
    if not machine and _print_absent(zoo, patterns, named):
        return
    wanted = wanted if machine else _searched(zoo, wanted)
    rows, conflicts, used = _selected(zoo, wanted, families, conditions, order, trade_off, here)
    short = people and not (chosen or everything)
    if short:
        rows = [row for row in rows if row["namespace"] in (CORE, LOCAL)]
    elif people and not everything:
        rows = without_doubled(zoo, rows, patterns)
    elif not (chosen or machine or people):
        rows += _lazy_rows(zoo)
    shown = _columns(columns, used, rows, wide=wide, here=here)
    fit = _fit(shown, LEAVING if columns is None else (), () if wide else used, here)
    only = "name" if quiet else ""
    with paged() if everything and not machine else nullcontext():
        _print_headers(named if people and len(patterns) == 1 else {})
        if rows or not named or not people:
            print_rows(rows, shown, as_json=as_json, only=only, pretty=PRETTY, fit=fit)
    if people and not chosen:
        _print_others(zoo, families=short)
    _say_contents(named)
    for conflict in conflicts:
        say(f"vitzoo: {conflict}")
    if conflicts:
        raise Exit(ExitCode.DAMAGED)


def _available() -> ModuleType:
    """Return what knows of plugins that are not installed; many lists do without."""
    from vitzoo.cli import available

    return available


def print_header(found: Family) -> None:
    """Print what a family is, with papers and licenses, above its names."""
    print_text(f"{found.name}: {found.summary or found.contents}")
    about = {
        "papers": listed(found.papers, MOST_NAMED),
        "licenses": listed(found.licenses, MOST_NAMED),
        "plugin": found.plugin,
    }
    print_text("; ".join(f"{key}: {value}" for key, value in about.items() if value))
    if found.rows:
        echo()


def _print_headers(named: dict[str, Family]) -> None:
    for one in named.values():
        print_header(one)


def _say_contents(named: dict[str, Family]) -> None:
    """Say what families without networks have, and which other families their plugins have."""
    for one in named.values():
        if not one.rows:
            say(f"vitzoo: {one.name} has no network, but {one.contents}: vitzoo show {one.name}")
            say_siblings(one)


def say_siblings(found: Family) -> None:
    """Say which other families the plugin of a family without networks has."""
    if found.siblings:
        say(f"vitzoo: {found.plugin} also has the families {', '.join(found.siblings)}")


def without_doubled(zoo: Registry, rows: list[Listed], asked: Iterable[str] = ()) -> list[Listed]:
    """Return the rows without timm's networks that another family builds; say how many they are.

    The names in `asked` stay.
    """
    if not any(row["name"].startswith(f"{TIMM}/") for row in rows):
        return rows
    names = doubled(zoo.index.rows()).difference(asked)
    left = [row for row in rows if row["name"].partition(":")[0] not in names]
    if number := len(rows) - len(left):
        say(
            f"vitzoo: {number} of timm's networks that other families have are left out; --all "
            "lists them, too"
        )
    return left


def _print_absent(zoo: Registry, patterns: tuple[str, ...], named: dict[str, Family]) -> bool:
    """Print families whose plugins are not installed, if all patterns name such; tell if so."""
    absent = [one for one in named.values() if not one.installed]
    if not absent or len(absent) < len(patterns):
        return False
    for one in absent:
        if on_terminal():
            print_header(one)
        if one.rows:
            own = [f"{name}/*" for name in dict.fromkeys(row["namespace"] for row in one.rows)]
            _available().print_available(zoo, own, (), (), (), quiet=False, as_json=False)
        if not (one.rows and on_terminal()):  # otherwise that was said
            say(f"vitzoo: {one.needs}")
    return True


def _searched(zoo: Registry, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns; a word that is no name becomes the names that it is found with."""
    words = [word for word in patterns if not {"*", "?", "["}.intersection(word)]
    found = {word: zoo.index.search(word) for word in zoo.index.unmatched(words)} if words else {}
    for word, names in found.items():
        if names:
            have = "networks have" if len(names) > 1 else "network has"
            say(f"vitzoo: {len(names)} {have} {word!r} in name, family, summary or name elsewhere")
    return tuple(name for pattern in patterns for name in found.get(pattern) or [pattern])


def _selected(
    zoo: Registry,
    patterns: tuple[str, ...],
    families: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    trade_off: str | None,
    here: bool,
) -> tuple[list[Listed], list[str], list[str]]:
    """Return the rows that the options select, contradictions about pins, and the fields used."""
    tests, used = _tests(conditions)
    keys = sort_keys(order) if order else []
    compared = pareto_fields(trade_off) if trade_off else []
    used = [*(key for key, _ in keys), *compared, *used]
    each = not set(used).isdisjoint(OF_WEIGHTS)
    rows = candidates = _candidates(zoo, patterns, families, each_weights=each)
    if tests:
        rows = [row for row in rows if all(one.test(row) for one in tests)]
    conflicts: list[str] = []
    if here:
        rows, conflicts = _with_local_weights(rows, each_weights=each)
    if not rows and tests:
        why = "; ".join(_conditions().unmet(tests, candidates))
        say(f"vitzoo: nothing meets the conditions{why and f': {why}'}")
    found, rows = rows, sort(pareto(rows, compared) if compared else rows, keys)
    if found and not rows:
        say(f"vitzoo: no entry has values of all of {', '.join(compared)}, which --pareto compares")
    if each:
        rows = [row | {"name": row.pop(LABEL)} for row in rows]
    return rows, conflicts, used


def _conditions() -> ModuleType:
    """Return what reads conditions; many lists have none."""
    from vitzoo.registry import conditions

    return conditions


def _tests(conditions: Iterable[str]) -> tuple[list[Any], list[str]]:
    """Read conditions; return them and the fields that they use."""
    if not conditions:
        return [], []
    tests = [_conditions().where(condition) for condition in conditions]
    return tests, [field for one in tests for field in one.fields]


def _candidates(
    zoo: Registry, patterns: tuple[str, ...], families: tuple[str, ...], *, each_weights: bool
) -> list[Listed]:
    """Return the rows of patterns and families; say which plugins have failed.

    Raises:
        UnknownName: a pattern matches no name, or there is no such family.
    """
    own = tuple("*" if name == CORE else f"{name}/*" for name in families)
    rows = zoo.index.listing(patterns or own or ("*",), each_weights=each_weights)
    for info in zoo.host.infos.values():
        if info.state in TROUBLE:
            say(f"vitzoo: plugin {info.namespace!r} has failed: {info.trouble}")
    for former in [pattern for pattern in patterns if pattern in zoo.aliases]:
        say(f"vitzoo: {former!r} is the former name of {zoo.aliases[former]!r}")
    if missing := zoo.index.unmatched((*patterns, *own)):
        raise UnknownName(_no_match(zoo, missing))
    return [row for row in rows if row["namespace"] in families] if families else rows


def _with_local_weights(
    rows: list[Listed], *, each_weights: bool
) -> tuple[list[Listed], list[str]]:
    """Return the rows with stored weights, and contradictions about the pins of variants."""
    from vitzoo.inventory import local

    present, differing = local()
    names = {row["name"]: None for row in rows}
    conflicts = [text for name in names for text in differing.get(name, ())]
    if each_weights:
        return [r for r in rows if r["weights"] in present.get(r["name"], ())], conflicts
    rows = [row for row in rows if row["name"] in present]
    return [row | {"weights": ", ".join(present[row["name"]])} for row in rows], conflicts


def _columns(
    columns: str | None, used: list[str], rows: list[Listed], *, wide: bool, here: bool
) -> tuple[str, ...]:
    """Return the columns of `list`; a terminal also shows the numbers that its options use.

    There, a network without top-1 shows its k-NN accuracy, if an author published that.
    """
    if columns is not None:
        return tuple(check_field(column.strip()) for column in columns.split(","))
    if wide:
        return WIDE
    if not on_terminal():
        return PIPED
    numbers = [field for field in used if KINDS[field] == "number"]
    if any(row[KNN] is not None and row["top1"] is None for row in rows):
        numbers.insert(0, KNN)
    bare = KNN in numbers and "top1" not in used and all(row["top1"] is None for row in rows)
    shown = (*SHOWN[: 2 if bare else 3], *numbers, *SHOWN[3:])
    return tuple(dict.fromkeys((shown[0], "weights", *shown[1:]) if here else shown))


def _fit(
    columns: tuple[str, ...], leaving: tuple[str, ...], used: Iterable[str], here: bool
) -> Fit:
    """Say which columns of `list` a narrow terminal leaves out: never the name.

    The first columns of `leaving` leave first, then all others from the right, then `top1` and
    `params`, then the numbers and the license that the options use; but those of --wide leave
    before all of them. A license that the options use is not shortened.
    """
    if "top1" not in columns:  # k-NN takes its place
        leaving = tuple(KNN if field == "top1" else field for field in leaving if field != KNN)
    figure = "top1" if "top1" in leaving else KNN
    asked = [field for field in dict.fromkeys(used) if leaving and _is_kept(field)]
    kept = "name" if "name" in columns else columns[0]
    others = [column for column in reversed(columns) if column not in (*leaving, kept)]
    at = 0 if columns == WIDE else leaving.index(figure) if leaving else 0
    order = [*leaving[:at], *others, *leaving[at:]]
    order = [column for column in order if column not in asked] + asked[::-1]
    if here and "weights" in order:  # they are the reason for the listing
        order.remove("weights")
        order.append("weights")
    return Fit(
        [column for column in order if column in columns and column != kept],
        shorter={} if "license" in asked else {"license": lambda name: commercial_use(name) or "-"},
        notes=NOTES,
        one_line=True,
        headings=COMMERCIAL,
        see=f"--columns {kept}",
    )


def _is_kept(field: str) -> bool:
    """Tell whether a field stays longer than others if an option uses it."""
    return field == "license" or KINDS[field] == "number"


def _print_others(zoo: Registry, *, families: bool) -> None:
    """Print the families of the plugins, and say what plugins there are besides."""
    if families:
        _print_families(zoo)
    _available().say_more(zoo)


def _print_families(zoo: Registry) -> None:
    """Print a line for each family of the plugins, and say how to list one."""
    families: dict[str, dict[str, Any]] = {}
    for row in zoo.index.listing(each_weights=True):
        if (name := row["namespace"]) in (CORE, LOCAL):
            continue
        family = families.setdefault(name, {"variants": set(), "weights": 0, "best top1": 0})
        family["variants"].add(row["name"])
        family["weights"] += row["weights"] is not None
        family["best top1"] = max(family["best top1"], row["top1"] or 0)
    rows = [
        {"family": name, **family}
        | {"variants": len(family["variants"]), "best top1": family["best top1"] or None}
        for name, family in families.items()
    ]
    for row in _lazy_rows(zoo):
        say(f"vitzoo: {row['name']}: {row['summary']}")
    if rows:
        echo()
        print_rows(rows, tuple(rows[0]), pretty={"best top1": "{:.2f}".format})
        say(
            f"vitzoo: vitzoo list {rows[0]['family']} lists a family, and vitzoo list --all "
            "lists all of them"
        )


def _no_match(zoo: Registry, patterns: list[str]) -> str:
    """Return the error message about patterns that match no variant, with suggestions."""
    rows = zoo.index.listing()
    spaces = {row["namespace"] for row in rows} - {CORE}
    spaces |= {info.namespace for info in zoo.host.infos.values() if info.state == "lazy"}
    names = [*(f"{space}/*" for space in spaces), *(row["name"] for row in rows)]
    hints = [
        _available().hint(zoo, pattern) or did_you_mean(pattern, names) for pattern in patterns
    ]
    found = [f"{p!r}{hint and f' ({hint[2:]})'}" for p, hint in zip(patterns, hints, strict=True)]
    every = "" if all(hints) else "; `vitzoo list --all` lists all names"
    return f"no variant matches {', '.join(found)}{every}"


def _lazy_rows(zoo: Registry) -> list[dict[str, Any]]:
    """Return a row for each module plugin that has not been imported."""
    return [
        dict.fromkeys(FIELDS)
        | {
            "name": f"{info.namespace}/*",
            "summary": f"plugin {info.distribution} {info.version}, not imported yet: "
            f"vitzoo list '{info.namespace}/*' imports it",
        }
        for info in zoo.host.infos.values()
        if info.state == "lazy" and not info.entry_point.endswith(".toml")
    ]
