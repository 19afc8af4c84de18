"""The commands `vitzoo list`, `vitzoo show` and `vitzoo which`; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click
from click.exceptions import Exit

from vitzoo.cli.output import (
    Fit,
    count,
    echo,
    flag,
    json_option,
    megabytes,
    on_terminal,
    print_fields,
    print_json,
    print_rows,
    say,
)
from vitzoo.errors import PinError, UnknownName, did_you_mean
from vitzoo.plugin.info import CORE, LOCAL, TROUBLE
from vitzoo.registry.foreign_names import (
    QUICK,
    call,
    create_call,
    is_repository,
    repository,
)
from vitzoo.registry.listing import (
    FIELDS,
    LABEL,
    MEASUREMENTS,
    OF_WEIGHTS,
    Row,
    check_field,
    commercial_use,
    pareto,
    pareto_fields,
    sort,
    sort_keys,
)
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.kinds import KINDS
from vitzoo.schema.rows import (
    CORE_BUILDER,
    FURTHER_RESULTS,
    RESULTS,
    Contribution,
    Throughput,
    Variant,
    Weights,
    choose,
)
from vitzoo.schema.spec import PartSpec, Spec

SHOWN = ("name", "params", "top1", "image_size", "gmacs", "license", "pin")  # on a terminal
WIDE = tuple(dict.fromkeys((*SHOWN, *FURTHER_RESULTS, "weights", "pretraining_data", *FIELDS)))
PIPED = (
    "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights", "summary"
)  # fmt: skip
LEAVING = ("pin", "license", "gmacs", "image_size", "top1", "params")  # in this order
LONGEST_NAME = 41  # a terminal of one width shows the same columns for all names up to this length
PINS = {"confirmed": "c", "reported": "r", "first-use": "f"}
PRETTY: dict[str, Any] = {
    "params": count,
    "image_size": str,
    "patch_size": str,
    "num_classes": str,
    "gmacs": lambda gmacs: f"{gmacs:.3g}" if gmacs < 100 else f"{gmacs:,.0f}",
    "activations": megabytes,
    **dict.fromkeys(RESULTS, "{:.2f}".format),
    **dict.fromkeys(MEASUREMENTS, "{:,.0f}".format),
    "pin": lambda pin: PINS.get(pin, pin),
}
NOTES = {
    "pin": "pin: c confirmed, r reported by third parties, f trusted on first use",
    "license shorter": "license: is commercial use allowed? read: see its terms",
}
WEIGHTS_FIT = Fit(
    ("pin", "license", "size", "classes", "default", "top1"),
    shorter={"license": lambda name: commercial_use(name.removesuffix(" (gated)")) or "-"},
    notes={"license shorter": NOTES["license shorter"]},
    one_line=True,
)
# Settings of every network, in the table of `show` on a terminal.
ALWAYS = (
    "params", "gmacs", "activations", "image_size", "patch_size", "num_classes", "embed_dim",
    "depth", "num_heads", "mlp_dim",
)  # fmt: skip
EVALUATION = ("evaluation_size", "evaluation_source", "evaluation_commit")
EXAMPLE = "vit_b16"  # a variant, in calls with a part
WHICH = (
    "create", "name", "kind", "weights", "known_as", "plugin", "target", "defined", "location"
)  # fmt: skip


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
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
    help="Sort by a field, or by several with commas; :desc puts large values first.",
)
@click.option(
    "--pareto",
    "trade_off",
    metavar="FIELD:FIELD",
    help="List only entries than which no other is better in both fields, such as params:top1.",
)
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="List a family, such as clip."
)
@flag("--all", "everything", help="List the variants of all families on a terminal, too.")
@flag("--local", "here", help="List only variants with weights on this machine.")
@click.option("--columns", metavar="FIELD,FIELD", help="Show these columns.")
@flag("--wide", help="Show all columns that fit.")
@flag("-q", "--quiet", help="Print only names, one per line.")
@json_option
def list_command(
    patterns: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    trade_off: str | None,
    families: tuple[str, ...],
    everything: bool,
    here: bool,
    columns: str | None,
    wide: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """List variants: the networks that vitzoo can build by name.

    PATTERN is a shell-style pattern of names; a pattern that matches no name is an error. The
    former name of a renamed variant finds the variant. Without a choice, a terminal shows the
    variants of the core, and the families of the plugins with the number of their variants; a pipe,
    --json and -q give all variants. A family is the part of a name before the slash.

    Each variant is one line, with the values of its default weights. If --where, --sort or --pareto
    name a field of weights, such as top1 or license, each weights entry is one line. Entries that
    are not the default are named VARIANT:WEIGHTS, which `show`, `which` and `fetch` take, too.

    The fields of all options are the keys that --json prints. A terminal that is too narrow shows
    fewer columns. In --pareto, more is better for test results, less for other fields. With
    --local, the exit code is 3 if the registry and the lock file contradict each other about a
    weights file.

    \b
    Examples:
      vitzoo list
      vitzoo list 'vit_b*' 'vit_l*' --sort params:desc
      vitzoo list 'dinov2/*'
      vitzoo list --family clip --columns name,top1,pretraining_data
      vitzoo list --where 'top1>=88' --sort top1:desc
      vitzoo list --where 'params<30M and image_size=224' --pareto params:top1
      vitzoo list --where 'license=mit or license=apache-2.0' --json
      vitzoo list --where 'pretraining=self-supervised and num_classes=0'
      vitzoo list --local
    """
    zoo = registry()
    chosen = patterns or families or conditions or order or trade_off or here
    rows, conflicts = _selected(zoo, patterns, families, conditions, order, trade_off, here)
    short = on_terminal() and not (chosen or everything or quiet or as_json)
    if short:
        rows = [row for row in rows if row["namespace"] in (CORE, LOCAL)]
    elif not (chosen or quiet or as_json or on_terminal()):
        rows += _lazy_rows(zoo)
    shown = _columns(columns, wide=wide, here=here)
    only = "name" if quiet else ""
    print_rows(rows, shown, as_json=as_json, only=only, pretty=PRETTY, fit=_fit(shown, here))
    if short:
        _print_families(zoo)
    for conflict in conflicts:
        say(f"vitzoo: {conflict}")
    if conflicts:
        raise Exit(PinError.exit_code)


@click.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show the weights, the network and the sources of a variant.

    NAME is a variant, or VARIANT:WEIGHTS for all that is known about one weights file. On a
    terminal, only the settings of the network that differ from their defaults are printed. The line
    `default weights override` lists the settings of the variant that differ when its default
    weights are loaded.

    \b
    Examples:
      vitzoo show vit_b16
      vitzoo show vit_b16:augreg_in21k
      vitzoo show vit_digits --json
    """
    variant, weights = _named(registry(), name)
    if as_json:
        known_as, spec = dict(variant.known_as), variant.spec.to_data()
        changed = {"spec": spec, "builder": str(variant.builder), "known_as": known_as}
        chosen = variant.weights if weights is None else (weights,)
        data = asdict(variant) | {"weights": [asdict(entry) for entry in chosen]} | changed
        print_json(data)
    elif weights is not None:
        print_fields(_facts(variant, weights), f"{variant.name}:{weights.name}")
    elif on_terminal():
        _show_to_people(variant)
    else:
        print_fields(_settings(variant))
        _print_paper_results(variant)
        _print_all_weights(variant)


@click.command("which")
@click.argument("name")
@json_option
def which_command(name: str, as_json: bool) -> None:
    """Show the call that creates what NAME means, and where its code is.

    NAME is a variant, VARIANT:WEIGHTS, a part or a checkpoint format. A name of timm, torchvision
    or open_clip, or a Hub repository, is translated to the variant and weights of vitzoo. For a
    repository that is not registered, the call loads it from the Hub. `plugin` registers the name.
    `target` is the import path of the class or function that makes the part or network, and
    `defined` is its source location. `location` is the file that registers the name, with
    the line number if that file is a manifest. The command does not import that code.

    \b
    Examples:
      vitzoo which vit_b16
      vitzoo which vit_base_patch16_224.augreg_in21k
      vitzoo which vit_l_16
      vitzoo which facebook/dinov2-base
    """
    rows = _meanings(registry(), name)
    if as_json or not on_terminal():
        print_rows(rows, WHICH, as_json=as_json)
        return
    for number, row in enumerate(rows):
        if number:
            echo()
        echo(row["create"])
        print_fields({key: value for key, value in row.items() if value and key != "create"})


def _selected(
    zoo: Registry,
    patterns: tuple[str, ...],
    families: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    trade_off: str | None,
    here: bool,
) -> tuple[list[Row], list[str]]:
    """Return the rows that the options of `list` select, and contradictions about pins."""
    tests, used = _tests(conditions)
    keys = sort_keys(order) if order else []
    compared = pareto_fields(trade_off) if trade_off else []
    each = not {*used, *(key for key, _ in keys), *compared}.isdisjoint(OF_WEIGHTS)
    rows = candidates = _candidates(zoo, patterns, families, each_weights=each)
    if tests:
        rows = [row for row in rows if all(test(row) for test in tests)]
    conflicts: list[str] = []
    if here:
        rows, conflicts = _with_local_weights(rows, each_weights=each)
    if not rows and tests:
        from vitzoo.registry.conditions import unmet

        why = "; ".join(unmet(tests, candidates))
        say(f"vitzoo: nothing meets the conditions{why and f': {why}'}")
    rows = sort(pareto(rows, compared) if compared else rows, keys)
    if each:
        rows = [row | {"name": row.pop(LABEL)} for row in rows]
    return rows, conflicts


def _tests(conditions: Iterable[str]) -> tuple[list[Any], set[str]]:
    """Read conditions; return a function for each that tests a row, and the fields they use."""
    if not conditions:
        return [], set()
    from vitzoo.registry.conditions import comparisons, where

    tests = [where(condition) for condition in conditions]
    return tests, {one.field for test in tests for one in comparisons(test)}


def _candidates(
    zoo: Registry, patterns: tuple[str, ...], families: tuple[str, ...], *, each_weights: bool
) -> list[Row]:
    """Return the rows of patterns and families; say which plugins have failed.

    Raises:
        UnknownName: a pattern matches no name, or there is no such family.
    """
    own = tuple("*" if name == CORE else f"{name}/*" for name in families)
    rows = zoo.listing(patterns or own or ("*",), each_weights=each_weights)
    for info in zoo.host.infos.values():
        if info.state in TROUBLE:
            say(f"vitzoo: plugin {info.namespace!r} has failed: {info.trouble}")
    for former in [pattern for pattern in patterns if pattern in zoo.aliases]:
        say(f"vitzoo: {former!r} is the former name of {zoo.aliases[former]!r}")
    if missing := zoo.unmatched((*patterns, *own)):
        raise UnknownName(_no_match(zoo, missing))
    return [row for row in rows if row["namespace"] in families] if families else rows


def _with_local_weights(rows: list[Row], *, each_weights: bool) -> tuple[list[Row], list[str]]:
    """Return the rows with stored weights, and contradictions about the pins of variants."""
    from vitzoo.inventory import local

    present, differing = local()
    names = {row["name"]: None for row in rows}
    conflicts = [text for name in names for text in differing.get(name, ())]
    if each_weights:
        return [r for r in rows if r["weights"] in present.get(r["name"], ())], conflicts
    rows = [row for row in rows if row["name"] in present]
    return [row | {"weights": ", ".join(present[row["name"]])} for row in rows], conflicts


def _columns(columns: str | None, *, wide: bool, here: bool) -> tuple[str, ...]:
    """Return the columns of `list`."""
    if columns is not None:
        return tuple(check_field(column.strip()) for column in columns.split(","))
    if wide:
        return WIDE
    if not on_terminal():
        return PIPED
    return (SHOWN[0], "weights", *SHOWN[1:]) if here else SHOWN


def _fit(columns: tuple[str, ...], here: bool) -> Fit:
    """Say which columns of `list` a narrow terminal leaves out: never the name."""
    kept = "name" if "name" in columns else columns[0]
    others = [column for column in reversed(columns) if column not in (*LEAVING, kept)]
    if here:  # the weights on this machine are the reason for the listing
        others = [column for column in others if column != "weights"]
    last = ["weights"] if here else []
    return Fit(
        [column for column in (*others, *LEAVING, *last) if column in columns and column != kept],
        shorter={"license": lambda name: commercial_use(name) or "-"},
        room={} if here else {"name": LONGEST_NAME},
        notes=NOTES,
        one_line=True,
    )


def _print_families(zoo: Registry) -> None:
    """Print a line for each family of the plugins, and say how to list one."""
    families: dict[str, dict[str, Any]] = {}
    for row in zoo.listing(each_weights=True):
        if (name := row["namespace"]) in (CORE, LOCAL):
            continue
        family = families.setdefault(name, {"variants": set(), "weights": 0, "top1": None})
        family["variants"].add(row["name"])
        family["weights"] += row["weights"] is not None
        family["top1"] = max(family["top1"] or 0, row["top1"] or 0) or None
    rows = [
        {"family": name, **family, "variants": len(family["variants"])}
        for name, family in families.items()
    ]
    for row in _lazy_rows(zoo):
        say(f"vitzoo: {row['name']}: {row['summary']}")
    if rows:
        echo()
        heading = {"top1": "best top1"}
        rows = [{heading.get(key, key): value for key, value in row.items()} for row in rows]
        print_rows(rows, tuple(rows[0]), pretty={"best top1": "{:.2f}".format})
        say(
            f"vitzoo: vitzoo list '{rows[0]['family']}/*' lists a family, and vitzoo list --all "
            "lists all of them"
        )


def _no_match(zoo: Registry, patterns: list[str]) -> str:
    """Return the error message about patterns that match no variant, with suggestions."""
    rows = zoo.listing()
    spaces = {row["namespace"] for row in rows} - {CORE}
    spaces |= {info.namespace for info in zoo.host.infos.values() if info.state == "lazy"}
    names = [*(f"{space}/*" for space in spaces), *(row["name"] for row in rows)]
    hints = [
        f"; did you mean '{pattern}/*'?" if pattern in spaces else did_you_mean(pattern, names)
        for pattern in patterns
    ]
    found = [f"{p!r}{hint and f' ({hint[2:]})'}" for p, hint in zip(patterns, hints, strict=True)]
    listed = "" if all(hints) else "; `vitzoo list --all` lists all names"
    return f"no variant matches {', '.join(found)}{listed}"


def _named(zoo: Registry, name: str) -> tuple[Variant, Weights | None]:
    """Return the variant of a name, and the weights of `variant:weights`."""
    variant, colon, weights = name.partition(":")
    if not colon or is_repository(name) or name.startswith("hf://"):
        return zoo.variant(name), None
    found = zoo.variant(variant)
    return found, choose(found, weights)


def _show_to_people(variant: Variant) -> None:
    """Print weights, network and results of the paper as tables."""
    echo(f"{variant.name}: {variant.summary}{'' if variant.weights else '; no published weights'}")
    if variant.weights:
        table = [_weights_row(weights, variant) for weights in variant.weights]
        echo()
        print_rows(table, tuple(table[0]), pretty={"top1": str, "size": str}, fit=WEIGHTS_FIT)
        say(f"vitzoo: vitzoo show {variant.name}:NAME describes one file")
        _print_results(variant)
    echo()
    usual = _spec_settings(Spec()) | {"builder": CORE_BUILDER, "weights": None}
    differing = {
        key: _part_for_people(value)
        for key, value in _settings(variant).items()
        if _is_shown(key, value, usual)
    }
    print_fields(differing)
    _print_paper_results(variant)


def _print_results(variant: Variant) -> None:
    """Print the results of all weights in percent, and where they come from."""
    rows = [
        {"name": w.name, "px": _px(w)} | {name: getattr(w, name) for name in RESULTS}
        for w in variant.weights
    ]
    rows = [row for row in rows if any(row[name] is not None for name in RESULTS)]
    present = [key for key in ("px", *RESULTS) if any(row[key] is not None for row in rows)]
    if rows:
        echo()
        sources = dict.fromkeys(filter(None, map(_evaluation, variant.weights)))
        notes = {"name": "\n".join(f"source: {source}" for source in sources)}
        fit = Fit(present[::-1], notes=notes, one_line=True)
        pretty = dict.fromkeys(present, str)
        print_rows(rows, ("name", *present), pretty=pretty, fit=fit, title="results in percent")


def _evaluation(weights: Weights) -> str:
    """Return data set, protocol, source and commit of the results of weights."""
    source = " ".join(filter(None, (weights.evaluation_source, weights.evaluation_commit)))
    return "; ".join(filter(None, (weights.evaluation, source)))


def _px(weights: Weights) -> str | None:
    """Return the size at which weights were evaluated."""
    if weights.evaluation_size is None:
        return None
    height, width = weights.evaluation_size
    return str(height) if height == width else f"{height}x{width}"


def _is_shown(key: str, value: Any, usual: dict[str, Any]) -> bool:
    """Tell whether `show` prints a setting on a terminal; `usual` has the defaults."""
    if key in ALWAYS:
        return bool(value) or key == "num_classes"  # a plugin's builder may use no other number
    return value not in ("", None) and usual.get(key, "") not in (value, None)


def _print_paper_results(variant: Variant) -> None:
    if not variant.paper_results:
        return
    echo()
    results = [
        {"pretraining_data": row.pretraining_data, "epochs": row.epochs}
        | dict(row.accuracies)
        | {"exaflops": row.exaflops, "source": row.source}
        for row in variant.paper_results
    ]
    title = "results in the paper, whose weights were never published"
    print_rows(results, tuple(results[0]), title=title)


def _print_all_weights(variant: Variant) -> None:
    """Print one line for each weights entry."""
    if variant.weights:
        echo()
        rows = [
            asdict(weights) | {"license": weights.license_note, "place": weights.place}
            for weights in variant.weights
        ]
        columns = ("name", "default", "num_classes", "top1", "license", "pin", "repo")
        also = ("pretraining", "pretraining_data", "evaluation", "size", "sha256", "source")
        print_rows(rows, columns + also + FURTHER_RESULTS + EVALUATION + ("place",))


def _weights_row(weights: Weights, variant: Variant) -> dict[str, Any]:
    return {
        "name": weights.name,
        "default": "yes" if weights.default else "",
        "top1": weights.top1,
        "classes": _classes(weights, variant),
        "size": _file_size(weights),
        "license": weights.license_note,
        "pin": weights.pin,
    }


def _classes(weights: Weights, variant: Variant) -> int | str:
    classes = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    return classes or "none"


def _file_size(weights: Weights) -> str | None:
    size = weights.size or weights.predicted_size
    return f"{'' if weights.size else '~'}{megabytes(size)}" if size else None


def _facts(variant: Variant, weights: Weights) -> dict[str, Any]:
    """Return what is known about a weights file."""
    use = commercial_use(weights.license)
    meaning = {"yes": "allows commercial use", "no": "no commercial use", "read": "read its terms"}
    known = {
        "create": _call(variant, weights),
        "default": "yes" if weights.default else "",
        "file": f"{weights.file} (bundled)" if weights.bundled else weights.place,
        "revision": weights.revision,
        "size": _file_size(weights),
        "pin": weights.pin,
        "sha256": weights.sha256 or "recorded at the first download (trust on first use)",
        "license": use and f"{weights.license_note} ({meaning[use]})",
        "classes": _classes(weights, variant),
        "label_set": weights.label_set,
        "pretraining": weights.pretraining,
        "pretraining_data": weights.pretraining_data,
        **{name: getattr(weights, name) for name in RESULTS},
        "evaluation": _evaluation(weights),
        "evaluation_size": _px(weights),
        "overrides": _overrides(weights, variant.spec),
        "source": weights.source,
    }
    return {key: value for key, value in known.items() if value}


def _call(variant: Variant, weights: Weights | None = None) -> str:
    """Return the call that creates a variant with weights, or with its default weights."""
    if weights is not None and not weights.default:
        return create_call(variant.name, weights=weights.name)
    return create_call(variant.name, pretrained=True if variant.default_weights else None)


def _meanings(zoo: Registry, name: str) -> list[dict[str, Any]]:
    zoo.listing([name])  # imports the module of a lazy plugin
    elsewhere = zoo.known_elsewhere(name)
    tagged = "." in name and all(weights is None for _, _, weights in elsewhere)
    if elsewhere and name not in zoo.variants and not tagged:
        return [
            _meaning(zoo, match[1].namespace, match[1], match[2], f"{name} ({match[0]})")
            | ({"create": call(name, match)} if QUICK.search(name) else {})
            for match in elsewhere
        ]
    parts = [rows[name] for rows in zoo.parts.values() if name in rows]
    if parts:
        return [_meaning(zoo, namespace, row) for namespace, row in parts]
    if not elsewhere and is_repository(name):
        place = repository(name)
        say(f"vitzoo: {place} is not registered; create reads its config and its weights")
        unknown = {"create": create_call(place), "name": place, "kind": "repository of the Hub"}
        return [dict.fromkeys(WHICH) | unknown]
    variant, weights = _named(zoo, name)
    known_as = f"{name} (alias)" if name in zoo.aliases else None
    return [_meaning(zoo, variant.namespace, variant, weights, known_as)]


def _meaning(
    zoo: Registry,
    namespace: str,
    row: Contribution | Variant,
    weights: Weights | None = None,
    known_as: str | None = None,
) -> dict[str, Any]:
    from vitzoo.tools.plugin_why import named

    info = zoo.host.infos[namespace]
    found = asdict(named(info, row))
    found["defined"] = found["defined"] or None
    plugin = f"{namespace} ({info.distribution} {info.version})".replace(" )", ")")
    found |= {"plugin": plugin, "weights": weights and weights.name, "known_as": known_as}
    found["create"] = _call(row, weights) if isinstance(row, Variant) else _call_with(row, found)
    return {key: found[key] for key in WHICH}


def _call_with(row: Contribution, found: dict[str, Any]) -> str:
    """Return a call that uses a part or a checkpoint format."""
    argument = next(kind.field for kind in KINDS if isinstance(row, kind.row))
    if not argument:
        return create_call(EXAMPLE, weights="model.safetensors")
    return create_call(EXAMPLE, **{argument: found["name"]})


def _settings(variant: Variant) -> dict[str, Any]:
    default = variant.default_weights
    overrides = _overrides(default, variant.spec) if default else ""
    return {
        "params": f"{variant.params:,}" if on_terminal() else variant.params,
        "gmacs": variant.gmacs,
        "activations": variant.activations and _bytes(variant.activations),
        **_spec_settings(variant.spec),
        "builder": variant.builder,
        "paper": variant.paper,
        "source": variant.source,
        **{f"name in {library}": name for library, name in variant.known_as},
        **{f"images/s {row.name}": _throughput(row) for row in variant.throughput},
        "weights": ", ".join(w.name for w in variant.weights) or "none",
        **({"default weights override": overrides} if overrides else {}),
    }


def _bytes(size: int) -> int | str:
    return megabytes(size) if on_terminal() else size


def _throughput(row: Throughput) -> str:
    """Return images per second with hardware, settings and source."""
    batch = f"batch {row.batch_size}" if row.batch_size else ""
    how = (row.hardware, row.precision, row.mode, batch, row.software)
    source = f"{row.source} {row.commit}".rstrip()
    return f"{row.images_per_second:,.0f} ({', '.join(filter(None, how))}; {source})"


def _spec_settings(spec: Spec) -> dict[str, Any]:
    """Return the settings of a network; those of its blocks are named `block.NAME`."""
    data = spec.to_data()
    block = data.pop("block")
    data.pop("variant", None)
    return data | {f"block.{key}": value for key, value in block.items()}


def _part_for_people(value: Any) -> Any:
    """Write a part with options as `conv (bias=False)`."""
    if not isinstance(value, dict) or "name" not in value:
        return value
    options = ", ".join(f"{key}={option}" for key, option in value.items() if key != "name")
    return f"{value['name']} ({options})"


def _overrides(weights: Weights, spec: Spec) -> str:
    """Write the settings in which weights differ from their variant, such as `pool=mean`."""
    new: dict[str, Any] = {f"block.{key}": value for key, value in weights.block}
    old: dict[str, Any] = {f"block.{k}": v for k, v in spec.block.to_data().items()}
    for field in ("patch_embed", "pos_embed", "pool", "head"):
        override, part = getattr(weights, field), getattr(spec, field)
        if isinstance(override, PartSpec):
            new[field], old[field] = override.to_data(), part.to_data()
        else:
            new |= {f"{field}.{key}": value for key, value in override}
            old |= {f"{field}.{key}": value for key, value in part.options}
    if weights.pre_norm is not None:
        new["pre_norm"], old["pre_norm"] = weights.pre_norm, spec.pre_norm
    return ", ".join(f"{k}={v}" for k, v in new.items() if k not in old or old[k] != v)


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
