"""The commands `vitzoo list`, `vitzoo show` and `vitzoo which`; torch-free."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from click.exceptions import Exit

from vitzoo.cli.output import (
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
from vitzoo.plugin.info import CORE, TROUBLE
from vitzoo.registry.listing import sort
from vitzoo.registry.registry import Registry, describe, registry
from vitzoo.schema.rows import Contribution, Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec

COLUMNS = (
    "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights", "summary"
)  # fmt: skip
WHICH = ("name", "kind", "weights", "known_as", "plugin", "target", "defined", "location")
PRETTY: dict[str, Any] = {
    "params": count,
    "image_size": str,
    "num_classes": str,
    "top1": "{:.2f}".format,
}
OPTIONAL = ("weights", "summary", "license", "pin")  # not shown on a narrow terminal


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="List only variants that meet a condition, such as 'params<100M'.",
)
@click.option(
    "--sort",
    "order",
    metavar="FIELD[:desc]",
    help="Sort by a field; :desc puts large values first.",
)
@flag("--local", "here", help="List only variants with weights on this machine.")
@flag("-q", "--quiet", help="Print only names, one per line.")
@json_option
def list_command(
    patterns: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    here: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """List variants: the networks that vitzoo can build by name.

    PATTERN is a shell-style pattern of names; without one, every variant is listed. A pattern that
    matches no name is an error. The former name of a renamed variant finds the variant. The fields
    of --where and --sort are the keys that --json prints. A terminal that is too narrow shows
    fewer columns. With --local, the exit code is 3 if the registry and the lock file contradict
    each other about a weights file.

    \b
    Examples:
      vitzoo list
      vitzoo list 'vit_b*' 'vit_l*' --sort params:desc
      vitzoo list 'dinov2/*'
      vitzoo list --where 'params<30M and image_size=224'
      vitzoo list --where 'license=mit or license=apache-2.0' --json
      vitzoo list --where 'pretraining=self-supervised and num_classes=0'
      vitzoo list --local
    """
    zoo = registry()
    rows = zoo.listing(patterns or ("*",))
    for info in zoo.host.infos.values():
        if info.state in TROUBLE:
            say(f"vitzoo: plugin {info.namespace!r} has failed: {info.trouble}")
    for former in [pattern for pattern in patterns if pattern in zoo.aliases]:
        say(f"vitzoo: {former!r} is the former name of {zoo.aliases[former]!r}")
    if patterns and (missing := zoo.unmatched(patterns)):
        raise UnknownName(_no_match(zoo, missing))
    rows = _that_meet(conditions, rows)
    if order:
        rows = sort(rows, order)
    conflicts: list[str] = []
    if here:
        rows, conflicts = _with_local_weights(rows)
    if not (patterns or conditions or here or quiet or as_json):
        rows += _lazy_rows(zoo)
    only, optional = "name" if quiet else "", OPTIONAL[here:]
    print_rows(rows, COLUMNS, as_json=as_json, only=only, pretty=PRETTY, optional=optional)
    for conflict in conflicts:
        say(f"vitzoo: {conflict}")
    if conflicts:
        raise Exit(PinError.exit_code)


@click.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show the network, the weights and the sources of a variant.

    The line `default weights override` lists the settings of the
    variant that differ when its default weights are loaded.

    \b
    Examples:
      vitzoo show vit_b16
      vitzoo show vit_digits --json
    """
    variant = describe(name)
    if as_json:
        known_as, spec = dict(variant.known_as), variant.spec.to_data()
        changed = {"spec": spec, "builder": str(variant.builder), "known_as": known_as}
        print_json(asdict(variant) | changed)
        return
    print_fields(_settings(variant), f"{variant.name}: {variant.summary}")
    if variant.paper_results:
        echo()
        results = [
            {"pretraining_data": row.pretraining_data, "epochs": row.epochs}
            | dict(row.accuracies)
            | {"exaflops": row.exaflops, "source": row.source}
            for row in variant.paper_results
        ]
        title = "results in the paper, whose weights were never published"
        print_rows(results, tuple(results[0]), title=title)
    if variant.weights:
        echo()
        _print_weights(variant)


@click.command("which")
@click.argument("name")
@json_option
def which_command(name: str, as_json: bool) -> None:
    """Show what a registered NAME is and where its code is.

    NAME is a variant, a part or a checkpoint format. A name of timm, torchvision or open_clip, or
    a Hub repository, is translated to the variant and weights of vitzoo. For a repository that is
    not registered, the error names the call that loads it. `plugin` registers the name.
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
    print_rows(_meanings(registry(), name), WHICH, as_json=as_json)


def _that_meet(conditions: tuple[str, ...], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that meet all conditions."""
    if not conditions:
        return rows
    from vitzoo.registry.conditions import where

    tests = [where(condition) for condition in conditions]
    return [row for row in rows if all(test(row) for test in tests)]


def _with_local_weights(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of variants with stored weights, and contradictions about their pins."""
    from vitzoo.inventory import local

    present, differing = local()
    conflicts = [text for row in rows for text in differing.get(row["name"], ())]
    rows = [row for row in rows if row["name"] in present]
    return [row | {"weights": ", ".join(present[row["name"]])} for row in rows], conflicts


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
    listed = "" if all(hints) else "; `vitzoo list` lists all names"
    return f"no variant matches {', '.join(found)}{listed}"


def _print_weights(variant: Variant) -> None:
    """Print the weights: one line for each in a pipe, two tables on a terminal."""
    if not on_terminal():
        rows = [asdict(weights) | {"license": weights.license_note} for weights in variant.weights]
        columns = ("name", "default", "num_classes", "top1", "license", "pin", "repo")
        also = ("pretraining", "pretraining_data", "evaluation", "size", "sha256", "source")
        print_rows(rows, columns + also)
        return
    table = [_weights_row(weights, variant) for weights in variant.weights]
    print_rows(table, tuple(table[0]), pretty={"top1": str, "size": str}, title="weights")
    echo()
    files = [line for weights in variant.weights for line in _file_lines(weights)]
    print_rows(files, ("weights", "field", "value"), title="files of the weights")


def _weights_row(weights: Weights, variant: Variant) -> dict[str, Any]:
    size = weights.size or weights.predicted_size
    classes = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    return {
        "name": weights.name,
        "default": "yes" if weights.default else "",
        "classes": classes or "none",
        "top1": weights.top1,
        "size": size and f"{'' if weights.size else '~'}{megabytes(size)}",
        "pin": weights.pin,
    }


def _file_lines(weights: Weights) -> list[dict[str, str]]:
    """Return a line for each known field of the file; the first line has the weights' name."""
    place = f"{weights.repo}/{weights.file}" if weights.repo else f"{weights.file} (bundled)"
    known = {
        "file": place,
        "revision": weights.revision,
        "sha256": weights.sha256 or "recorded at the first download (trust on first use)",
        "license": weights.license_note,
        "pretraining": ", ".join(filter(None, (weights.pretraining, weights.pretraining_data))),
        "label set": weights.label_set,
        "evaluation": weights.evaluation,
        "source": weights.source,
    }
    lines = [{"weights": "", "field": k, "value": v} for k, v in known.items() if v]
    return [lines[0] | {"weights": weights.name}, *lines[1:]]


def _meanings(zoo: Registry, name: str) -> list[dict[str, Any]]:
    zoo.listing([name])  # imports the module of a lazy plugin
    elsewhere = zoo.known_elsewhere(name)
    tagged = "." in name and all(weights is None for _, _, weights in elsewhere)
    if elsewhere and name not in zoo.variants and not tagged:
        return [
            _meaning(zoo, variant.namespace, variant, f"{name} ({library})")
            | {"weights": weights.name if weights else None}
            for library, variant, weights in elsewhere
        ]
    parts = [rows[name] for rows in zoo.parts.values() if name in rows]
    if parts:
        return [_meaning(zoo, namespace, row) for namespace, row in parts]
    variant = zoo.variant(name)
    known_as = f"{name} (alias)" if name in zoo.aliases else None
    return [_meaning(zoo, variant.namespace, variant, known_as)]


def _meaning(
    zoo: Registry, namespace: str, row: Contribution | Variant, known_as: str | None = None
) -> dict[str, Any]:
    from vitzoo.tools.plugin_why import named

    info = zoo.host.infos[namespace]
    found = asdict(named(info, row))
    found["defined"] = found["defined"] or None
    plugin = f"{namespace} ({info.distribution} {info.version})".replace(" )", ")")
    found |= {"plugin": plugin, "weights": None, "known_as": known_as}
    return {key: found[key] for key in WHICH}


def _settings(variant: Variant) -> dict[str, Any]:
    spec = variant.spec.to_data()
    block = spec.pop("block")
    spec.pop("variant", None)
    default = variant.default_weights
    overrides = _overrides(default, variant.spec) if default else ""
    return {
        "params": f"{variant.params:,}" if on_terminal() else variant.params,
        **spec,
        **{f"block.{key}": value for key, value in block.items()},
        "builder": variant.builder,
        "paper": variant.paper,
        "source": variant.source,
        **{f"name in {library}": name for library, name in variant.known_as},
        "weights": ", ".join(w.name for w in variant.weights) or "none",
        **({"default weights override": overrides} if overrides else {}),
    }


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
        dict.fromkeys(COLUMNS)
        | {
            "name": f"{info.namespace}/*",
            "summary": f"plugin {info.distribution} {info.version}, not imported yet: "
            f"vitzoo list '{info.namespace}/*' imports it",
        }
        for info in zoo.host.infos.values()
        if info.state == "lazy" and not info.entry_point.endswith(".toml")
    ]
