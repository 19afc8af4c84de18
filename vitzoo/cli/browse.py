"""`vitzoo list`, `show` and `which`: torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from shutil import get_terminal_size
from typing import Any

import click

from vitzoo.cli.output import (
    count,
    echo,
    json_option,
    megabytes,
    on_terminal,
    print_json,
    print_rows,
)
from vitzoo.errors import UnknownName
from vitzoo.plugin.info import CORE, TROUBLE
from vitzoo.plugin.source_lines import where_declared, where_defined
from vitzoo.registry.listing import sort, where
from vitzoo.registry.registry import Registry, describe, registry
from vitzoo.schema.kinds import KIND_OF_HOOK, VARIANT_HOOK
from vitzoo.schema.rows import PaperResult, Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec

COLUMNS = (
    "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights", "summary"
)  # fmt: skip
WHICH = ("name", "kind", "weights", "known_as", "plugin", "target", "defined", "location")
PRETTY: dict[str, Callable[[Any], str]] = {
    "params": count,
    "image_size": str,
    "num_classes": str,
    "top1": "{:.2f}".format,
}
ROOM_FOR_ALL = 110  # characters; below, summaries would wrap into four lines
ROOM_FOR_SUMMARY = 100
HEADINGS = {"image_size": "px", "num_classes": "classes"}


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--where", "conditions", multiple=True, metavar="TEXT", help="Keep rows, such as 'params<100M'."
)
@click.option("--sort", "order", metavar="FIELD[:desc]", help="Sort rows by a field.")
@click.option("--local", "here", is_flag=True, help="Only what has weights on this machine.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only, one a line.")
@json_option
def list_command(
    patterns: tuple[str, ...],
    conditions: tuple[str, ...],
    order: str | None,
    here: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """List the variants whose names match a PATTERN (all, if none is given).

    A former name of a variant finds the variant.

    \b
    Examples:
      vitzoo list
      vitzoo list 'vit_b*' 'vit_l*' --sort params:desc
      vitzoo list 'dinov2/*'
      vitzoo list --where 'params<30M and image_size=224'
      vitzoo list --where 'summary~pre-trained' --json
      vitzoo list --local
    """
    zoo = registry()
    rows = zoo.listing(patterns or ("*",))
    _mention_trouble(zoo)
    for former in [pattern for pattern in patterns if pattern in zoo.aliases]:
        click.echo(f"vitzoo: {former!r} is a former name of {zoo.aliases[former]!r}", err=True)
    for condition in conditions:
        rows = list(filter(where(condition), rows))
    if order:
        rows = sort(rows, order)
    if here:
        from vitzoo.inventory import local

        present = local()
        rows = [
            r | {"weights": ", ".join(present[r["name"]])} for r in rows if r["name"] in present
        ]
    if patterns and not rows and not here:
        raise UnknownName(_no_match(zoo, patterns))
    if as_json:
        print_json(rows)
    elif quiet:
        echo("".join(f"{row['name']}\n" for row in rows), nl=False)
    else:
        if not (patterns or conditions or here):
            rows += _lazy_rows(zoo)
        print_rows(rows, _columns(keep_weights=here), pretty=PRETTY, headings=HEADINGS)


@click.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show one variant: its network, its parts, its weights and where they come from.

    Facts of the network that its default weights change stand in a row of their own.

    \b
    Examples:
      vitzoo show vit_b16
      vitzoo show vit_digits --json
    """
    variant = describe(name)
    if as_json:
        print_json(_details(variant))
        return
    facts = [{"field": k, "value": v} for k, v in _facts(variant).items()]
    print_rows(facts, ("field", "value"), title=f"{variant.name}: {variant.summary}")
    if variant.paper_results:
        echo()
        results = [_result(row) for row in variant.paper_results]
        title = "the paper's own models, never published"
        print_rows(results, tuple(results[0]), title=title)
    if variant.weights:
        echo()
        _print_weights(variant)


@click.command("which")
@click.argument("name")
@json_option
def which_command(name: str, as_json: bool) -> None:
    """Say what a NAME means and who defines it; names of other libraries are translated.

    Those are names of timm and torchvision, and repositories of the Hub.

    `target` is what a part is made by, or a network built by, and `defined` the file and line of
    that, found without importing it; `location` is the file that registers the name,
    with the line where that is a manifest.

    \b
    Examples:
      vitzoo which vit_b16
      vitzoo which vit_base_patch16_224.augreg_in21k
      vitzoo which vit_l_16
    """
    rows = _meanings(registry(), name)
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, WHICH)


def _columns(*, keep_weights: bool) -> tuple[str, ...]:
    """Return the columns that fit: a narrow terminal has no room for what `show` lists too."""
    width = get_terminal_size().columns if on_terminal() else ROOM_FOR_ALL
    left_out = {"weights"} if width < ROOM_FOR_ALL and not keep_weights else set()
    left_out |= {"summary"} if width < ROOM_FOR_SUMMARY else set()
    return tuple(column for column in COLUMNS if column not in left_out)


def _no_match(zoo: Registry, patterns: tuple[str, ...]) -> str:
    """Say that no variant matches; a namespace alone is a frequent slip."""
    spaces = {row["namespace"] for row in zoo.listing()} - {CORE}
    spaces |= {info.namespace for info in zoo.host.infos.values() if info.state == "lazy"}
    near = [repr(f"{pattern}/*") for pattern in patterns if pattern in spaces]
    hint = f"did you mean {' or '.join(near)}?" if near else "`vitzoo list` shows all"
    return f"no variant matches {', '.join(map(repr, patterns))}; {hint}"


def _print_weights(variant: Variant) -> None:
    """Print the weights: piped, a line each; on a terminal what they are, then their files."""
    rows = [asdict(weights) | {"license": weights.license_note} for weights in variant.weights]
    if not on_terminal():
        columns = ["name", "default", "num_classes", "top1", "license", "pin", "repo"]
        print_rows(rows, [*columns, "evaluation", "size", "sha256", "source"], title="weights")
        return
    about = [_about(weights, variant) for weights in variant.weights]
    print_rows(about, tuple(about[0]), pretty={"top1": str, "size": str}, title="weights")
    echo()
    files = [line for weights in variant.weights for line in _file_lines(weights)]
    print_rows(files, ("weights", "field", "value"), title="their files and evaluation")


def _about(weights: Weights, variant: Variant) -> dict[str, Any]:
    size = weights.size or weights.predicted_size
    classes = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    return {
        "name": weights.name,
        "default": "yes" if weights.default else "",
        "classes": classes or "none",
        "label set": weights.label_set or None,
        "top1": weights.top1,
        "size": size and f"{'' if weights.size else '~'}{megabytes(size)}",
        "license": weights.license_note or None,
        "pin": weights.pin,
    }


def _file_lines(weights: Weights) -> list[dict[str, str]]:
    """Return a line for each fact that is known; the first carries the name."""
    place = f"{weights.repo}/{weights.file}" if weights.repo else f"{weights.file} (bundled)"
    facts = {
        "file": place,
        "revision": weights.revision,
        "sha256": weights.sha256 or "not known before the first use",
        "evaluation": weights.evaluation,
        "source": weights.source,
    }
    lines = [{"weights": "", "field": k, "value": v} for k, v in facts.items() if v]
    return [lines[0] | {"weights": weights.name}, *lines[1:]]


def _meanings(zoo: Registry, name: str) -> list[dict[str, Any]]:
    zoo.listing([name])  # which asks the module that its namespace may be
    elsewhere = zoo.known_elsewhere(name)
    tagged = "." in name and all(weights is None for _, _, weights in elsewhere)
    if elsewhere and name not in zoo.variants and not tagged:
        return [
            _meaning(zoo, variant.namespace, variant.name, "variant", variant.builder)
            | {"weights": weights.name if weights else None, "known_as": f"{name} ({library})"}
            for library, variant, weights in elsewhere
        ]
    rows = [
        _meaning(zoo, zoo.contribution(kind, name)[0], name, kind, rows[name][1].target)
        for kind, rows in zoo.parts.items()
        if name in rows
    ]
    if rows:
        return rows
    variant = zoo.variant(name)
    row = _meaning(zoo, variant.namespace, variant.name, "variant", variant.builder)
    return [row | {"known_as": f"{name} (alias)" if name in zoo.aliases else None}]


def _meaning(zoo: Registry, namespace: str, name: str, kind: str, target: Any) -> dict[str, Any]:
    info = zoo.host.infos[namespace]
    hook = next((hook for hook, named in KIND_OF_HOOK.items() if named == kind), VARIANT_HOOK)
    return {
        "name": name,
        "kind": kind,
        "weights": None,
        "known_as": None,
        "plugin": f"{namespace} ({info.distribution} {info.version})".replace(" )", ")"),
        "target": target if isinstance(target, str) else getattr(target, "__qualname__", target),
        "defined": where_defined(target) or None,
        "location": where_declared(info.location, hook, name.rpartition("/")[2]),
    }


def _facts(variant: Variant) -> dict[str, Any]:
    spec = variant.spec.to_data()
    block = spec.pop("block")
    spec.pop("variant", None)
    changed = "".join(_changed(row, variant.spec) for row in variant.weights if row.default)
    return {
        "params": f"{variant.params:,}" if on_terminal() else variant.params,
        **spec,
        **{f"block.{key}": value for key, value in block.items()},
        "builder": variant.builder,
        "paper": variant.paper,
        "source": variant.source,
        **{f"in {library}": theirs for library, theirs in variant.known_as},
        "weights": ", ".join(w.name for w in variant.weights) or "none",
        **({"with the default weights": changed} if changed else {}),
    }


def _changed(weights: Weights, spec: Spec) -> str:
    """Write the facts in which weights differ from their variant, such as `pool=mean`."""
    facts: dict[str, Any] = {f"block.{key}": value for key, value in weights.block}
    own: dict[str, Any] = {f"block.{k}": v for k, v in spec.block.to_data().items()}
    for field in ("patch_embed", "pos_embed", "pool", "head"):
        fact, part = getattr(weights, field), getattr(spec, field)
        if isinstance(fact, PartSpec):
            facts[field], own[field] = fact.to_data(), part.to_data()
        else:
            facts |= {f"{field}.{key}": value for key, value in fact}
            own |= {f"{field}.{key}": value for key, value in part.options}
    if weights.pre_norm is not None:
        facts["pre_norm"], own["pre_norm"] = weights.pre_norm, spec.pre_norm
    return ", ".join(f"{k}={v}" for k, v in facts.items() if k not in own or own[k] != v)


def _result(row: PaperResult) -> dict[str, Any]:
    about = {"paper's model": row.pretraining, "epochs": row.epochs}
    return about | dict(row.accuracies) | {"exaflops": row.exaflops, "source": row.source}


def _details(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "summary": variant.summary,
        "params": variant.params,
        "spec": variant.spec.to_data(),
        "builder": str(variant.builder),
        "paper": variant.paper,
        "source": variant.source,
        "known_as": dict(variant.known_as),
        "namespace": variant.namespace,
        "weights": [asdict(weights) for weights in variant.weights],
        "paper_results": [asdict(row) for row in variant.paper_results],
    }


def _lazy_rows(zoo: Registry) -> list[dict[str, Any]]:
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    return [
        empty
        | {
            "name": f"{info.namespace}/*",
            "summary": f"lazy plugin {info.distribution} {info.version}: "
            f"vitzoo list '{info.namespace}/*' imports it",
        }
        for info in zoo.host.infos.values()
        if info.state == "lazy" and not info.entry_point.endswith(".toml")
    ]


def _mention_trouble(zoo: Registry) -> None:
    for info in zoo.host.infos.values():
        if info.state in TROUBLE:
            click.echo(f"vitzoo: plugin {info.namespace!r} is off: {info.trouble}", err=True)
