"""The commands `vitzoo show` and `vitzoo which`; torch-free."""

from __future__ import annotations

from dataclasses import asdict
from types import ModuleType
from typing import Any

import click

from vitzoo.advice.names import explain_plugin
from vitzoo.cli.completion import complete_names
from vitzoo.cli.listing import COMMERCIAL, NOTES
from vitzoo.cli.options import choose_output, flag, json_option, table_option
from vitzoo.cli.output import (
    PERCENT,
    Fit,
    Write,
    count,
    echo,
    megabytes,
    on_terminal,
    paged,
    print_fields,
    print_json,
    print_rows,
    say,
    three_digits,
)
from vitzoo.errors import UnknownName, did_you_mean
from vitzoo.files.names import on_hub
from vitzoo.opening import registered
from vitzoo.plugin.info import FIRST_PARTY
from vitzoo.registry.available import needs, reader_of
from vitzoo.registry.foreign_names import (
    QUICK,
    Meaning,
    call,
    create_call,
    known_elsewhere,
    known_in_plugins,
    of_no_plugin,
    plugin_call,
    unknown_tag,
)
from vitzoo.registry.listing import Family, Listed
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.addresses import is_repository, one_form, parts_of_address, repository
from vitzoo.schema.kinds import KINDS, PARTS_OF_WEIGHTS
from vitzoo.schema.rows import Contribution, Recipe, Throughput, Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec
from vitzoo.schema.terms import (
    CORE_BUILDER,
    FURTHER_RESULTS,
    RESULT_SETS,
    RESULTS,
    commercial_use,
)
from vitzoo.text import px

WEIGHTS_FIT = Fit(
    ("pin", "license", "size", "classes", "default", "top1"),
    shorter={
        "license": lambda name: commercial_use(name.removesuffix(" (gated)")) or "-",
        "pin": lambda note: note.rpartition(", ")[2],  # file not seen
    },
    notes={"license shorter": NOTES["license shorter"]},
    one_line=True,
    headings=COMMERCIAL,
)
PRETTY: dict[str, Write] = {"top1": PERCENT, "size": str}
USES = {"yes": "allows commercial use", "no": "no commercial use", "read": "read its terms"}
# Settings of every network, in the table of `show` on a terminal.
ALWAYS = (
    "params", "gmacs", "activations", "image_size", "patch_size", "num_classes", "embed_dim",
    "depth", "num_heads", "mlp_dim",
)  # fmt: skip
EVALUATION = ("evaluation_size", "evaluation_source", "evaluation_commit")
SPEED = "images/s"
OF_NETWORK = {*vars(Spec()), *(f"block.{key}" for key in vars(Spec().block))}.difference(ALWAYS)
IN_PAPER = "model in the paper"
PAPER = (
    IN_PAPER, "pretraining_data", "epochs", "px", *RESULT_SETS, "exaflops", "core_days", "source"
)  # fmt: skip
EXAMPLE = "vit_b16"  # a variant, in calls with a part
WHICH = (
    "create", "name", "kind", "weights", "known_as", "plugin", "target", "defined", "location",
    "license", "documented", "stored",
)  # fmt: skip


@click.command("show")
@click.argument("name", shell_complete=complete_names)
@flag("--all", "everything", help="Show all weights, results and sources on a terminal, too.")
@table_option
@json_option
def show_command(name: str, everything: bool, table: bool, as_json: bool) -> None:
    """Show a variant: the call, sizes, accuracy, license and weights.

    NAME is a variant, VARIANT:WEIGHTS for all that is known about one weights file, or a family
    such as dinov2 for its names. A terminal shows the best weights of a variant; --all adds all
    weights, their results, the settings of the network that differ from their defaults, the results
    in papers, and the sources, in the pager that PAGER names, or less. The line `default weights
    override` of --all lists the settings of the variant that differ when its default weights are
    loaded. A pipe and --json get everything.

    \b
    Examples:
      vitzoo show vit_b16
      vitzoo show vit_b16 --all
      vitzoo show vit_b16:augreg_in21k
      vitzoo show dinov2
      vitzoo show vit_digits --json
    """
    choose_output(table=table, json=as_json)
    zoo = registry()
    if found := _family(zoo, name):
        _screen().print_family(zoo, found, as_json=as_json, everything=everything)
        return
    variant, weights = _named(zoo, name)
    if as_json:
        known_as, spec = dict(variant.known_as), variant.spec.to_data()
        changed = {"spec": spec, "builder": str(variant.builder), "known_as": known_as}
        chosen = variant.weights if weights is None else (weights,)
        data = asdict(variant) | {"weights": [_data(entry) for entry in chosen]} | changed
        print_json(data)
    elif weights is not None:
        print_fields(_facts(variant, weights), f"{variant.name}:{weights.name}")
    elif on_terminal() and everything:
        with paged():
            _show_to_people(variant)
    elif on_terminal():
        shown = {key: value for key, value in _differing(variant).items() if key in OF_NETWORK}
        _screen().print_screen(variant, shown)
    else:
        print_fields(_settings(variant))
        _print_paper_results(variant)
        _print_all_weights(variant)


@click.command("which")
@click.argument("name", shell_complete=complete_names)
@json_option
def which_command(name: str, as_json: bool) -> None:
    """Show the call that creates what NAME means, and its code.

    NAME is a variant, VARIANT:WEIGHTS, a family, a part or a checkpoint format. A name of timm,
    torchvision or open_clip, or a Hub repository, is translated to the variant and weights of
    vitzoo. For a repository that is not registered, the call loads it from the Hub; of a well-known
    one, the license and the call that its authors document are known, too. `stored` is its file in
    the store. Variants of vitzoo's own plugins are known without the plugins; then stderr says how
    to install the plugin. `plugin` registers the name. `target` is the import path of the class or
    function that makes the part or network, and `defined` is its source location. `location` is the
    file that registers the name, with the line number if that file is a manifest. The command does
    not import that code, and sends no request.

    \b
    Examples:
      vitzoo which vit_b16
      vitzoo which vit_base_patch16_224.augreg_in21k
      vitzoo which vit_l_16
      vitzoo which facebook/dinov2-base
      vitzoo which MahmoodLab/UNI2-h
    """
    zoo = registry()
    found = _family(zoo, name)
    if found and zoo.named(name):  # of a part or a format
        say(f"vitzoo: {name} is also a family: vitzoo show {name}")
        found = None
    if found and on_terminal() and not as_json:
        _screen().print_family(zoo, found, as_json=False, everything=False)
        return
    rows = _of_family(zoo, found) if found else _meanings(zoo, name)
    if as_json or not on_terminal():
        print_rows(rows, WHICH, as_json=as_json)
        return
    for number, row in enumerate(rows):
        if number:
            echo()
        echo(row["create"])
        print_fields({key: value for key, value in row.items() if value and key != "create"})


def _data(weights: Weights) -> dict[str, Any]:
    """Return an entry as plain data."""
    return asdict(weights) | {"preprocessing": weights.preprocessing.to_data()}


def _named(zoo: Registry, name: str) -> tuple[Variant, Weights | None]:
    """Return the variant of a name, and the weights of `variant:weights`."""
    found = registered(name, zoo)
    return found.variant, found.row


def _show_to_people(variant: Variant) -> None:
    """Print weights, network and results of the paper as tables."""
    echo(f"{variant.name}: {variant.summary}{'' if variant.weights else '; no published weights'}")
    if variant.weights:
        table = [_weights_row(weights, variant) for weights in variant.weights]
        echo()
        print_rows(table, tuple(table[0]), pretty=PRETTY, fit=WEIGHTS_FIT)
        say(f"vitzoo: vitzoo show {variant.name}:NAME describes one file")
        _print_results(variant)
    echo()
    print_fields(_differing(variant))
    _print_throughput(variant)
    _print_paper_results(variant)


def _differing(variant: Variant) -> dict[str, Any]:
    """Return the settings that `show` prints to people: sizes, and what differs from defaults."""
    usual = _spec_settings(Spec()) | {"builder": CORE_BUILDER, "weights": None}
    return {
        key: _part_for_people(value)
        for key, value in _settings(variant).items()
        if _is_shown(key, value, usual) and not key.startswith(SPEED)
    }


def _print_results(variant: Variant) -> None:
    """Print the results of all weights in percent, and where they come from."""
    rows = [
        {"name": w.name, "px": px(w.evaluation_size) or None}
        | {name: getattr(w, name) for name in RESULTS}
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


def _is_shown(key: str, value: Any, usual: dict[str, Any]) -> bool:
    """Tell whether `show` prints a setting on a terminal; `usual` has the defaults."""
    if key in ALWAYS:
        return bool(value) or key == "num_classes"  # a plugin's builder may use no other number
    return value not in ("", None) and usual.get(key, "") not in (value, None)


def _print_throughput(variant: Variant) -> None:
    """Print the images per second of an architecture, with the hardware and the sources."""
    if variant.throughput:
        echo()
        rows = [
            {"name": row.name, SPEED: row.images_per_second}
            | {key: getattr(row, key) for key in ("hardware", "mode", "precision", "software")}
            for row in variant.throughput
        ]
        sources = dict.fromkeys(f"{row.source} {row.commit}".rstrip() for row in variant.throughput)
        notes = {"name": "\n".join(f"source: {source}" for source in sources)}
        fit = Fit(("software", "precision", "mode"), notes=notes, one_line=True)
        pretty = {SPEED: "{:,.0f}".format}
        print_rows(rows, tuple(rows[0]), pretty=pretty, fit=fit, title="speed")


def _print_paper_results(variant: Variant) -> None:
    """Print the results of papers; a network that is no variant has the name in the paper."""
    if not variant.paper_results:
        return
    echo()
    results: list[dict[str, Any]] = [
        {IN_PAPER: row.model or variant.name, "pretraining_data": row.pretraining_data}
        | {"epochs": row.epochs, "px": row.image_size and px(row.image_size)}
        | row.cells
        | {"exaflops": row.exaflops, "core_days": row.core_days, "source": row.source}
        for row in variant.paper_results
    ]
    present = [key for key in PAPER if any(row.get(key) is not None for row in results)]
    rows = [{key: row.get(key) for key in present} for row in results]
    sources = dict.fromkeys(row.source for row in variant.paper_results)
    notes = {IN_PAPER: "\n".join(f"source: {source}" for source in sources)}
    order = ("source", "core_days", *RESULT_SETS[:0:-1], "exaflops", *PAPER[1:4])
    hide = [key for key in order if key in present]
    shorter = {"pretraining_data": lambda data: data.replace(" (private)", "")}
    fit = Fit(hide, shorter, notes, one_line=True)
    print_rows(rows, present, fit=fit, title="results in the paper, of no published file")


def _print_all_weights(variant: Variant) -> None:
    """Print one line for each weights entry."""
    if variant.weights:
        echo()
        rows = [
            _data(weights) | {"license": weights.license_note, "place": weights.place}
            for weights in variant.weights
        ]
        columns = ("name", "default", "num_classes", "top1", "license", "pin", "file_seen", "repo")
        also = ("pretraining", "pretraining_data", "evaluation", "size", "sha256", "source")
        print_rows(rows, columns + also + FURTHER_RESULTS + EVALUATION + ("place",))


def _weights_row(weights: Weights, variant: Variant) -> dict[str, Any]:
    return {
        "name": weights.name,
        "default": "yes" if weights.default else "",
        "top1": weights.top1,
        "classes": classes(weights, variant),
        "size": file_size(weights),
        "license": weights.license_note,
        "pin": weights.pin_note,
    }


def _facts(variant: Variant, weights: Weights) -> dict[str, Any]:
    """Return what is known about a weights file."""
    use = weights.commercial_use
    known = {
        "create": call_of(variant, weights),
        "default": "yes" if weights.default else "",
        "file": f"{weights.file} (bundled)" if weights.bundled else weights.place,
        "revision": weights.revision,
        "size": file_size(weights),
        "pin": weights.pin_note,
        "sha256": weights.sha256 or "recorded at the first download (trust on first use)",
        "license": use and f"{weights.license_note} ({USES[use]})",
        "classes": classes(weights, variant),
        "label_set": weights.label_set,
        "output_activation": weights.output_activation,
        "pretraining": weights.pretraining,
        "pretraining_data": weights.pretraining_data,
        **{name: getattr(weights, name) for name in RESULTS},
        "evaluation": _evaluation(weights),
        "evaluation_size": px(weights.evaluation_size),
        "overrides": _overrides(weights, variant.spec),
        "source": weights.source,
        **_recipe(weights.recipe),
    }
    return {key: value for key, value in known.items() if value}


def _recipe(recipe: Recipe | None) -> dict[str, str]:
    """Return the stated settings of a recipe of fine-tuning, and its source."""
    if recipe is None:
        return {}
    stated = {key: value for key, value in asdict(recipe).items() if value not in (None, "")}
    source = f"{stated.pop('source')} {stated.pop('commit', '')}".rstrip()
    stated["image_size"] = px(recipe.image_size)
    settings = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in stated.items())
    return {"recipe": ", ".join(settings), "recipe_source": source}


def call_of(variant: Variant, weights: Weights | None = None) -> str:
    """Return the call that creates a variant with weights, or with its default weights."""
    if weights is not None and not weights.default:
        return create_call(variant.name, weights=weights.name)
    return create_call(variant.name, pretrained=True if variant.default_weights else None)


def classes(weights: Weights, variant: Variant) -> int | str:
    """Return the number of outputs of weights, "none" for features."""
    number = variant.spec.num_classes if weights.num_classes is None else weights.num_classes
    return number or "none"


def file_size(weights: Weights) -> str | None:
    """Return the size of a file; one that is predicted begins with `~`."""
    size = weights.size or weights.predicted_size
    return f"{'' if weights.size else '~'}{megabytes(size)}" if size else None


def _meanings(zoo: Registry, name: str) -> list[dict[str, Any]]:
    own = zoo.named(name)  # imports the module of a lazy plugin
    parts = [pair for pair in own if not isinstance(pair[1], Variant)]
    if len(own) > len(parts):  # a variant; a part of the same name comes first
        return [_meaning(zoo, *pair) for pair in parts or own]
    if not own and name not in zoo.aliases and (there := known_in_plugins(name, zoo)):
        if unknown_tag(name, there[0]):
            raise UnknownName(explain_plugin(name, there[0]))
        return [_of_plugin(name, meaning) for meaning in there]
    elsewhere = known_elsewhere(name, zoo)
    without_entry = "." in name and all(weights is None for _, _, weights in elsewhere)
    if elsewhere and not without_entry:
        return [
            _meaning(zoo, match[1].namespace, match[1], match[2], f"{name} ({match[0]})")
            | ({"create": call(name, match)} if QUICK.search(name) else {})
            for match in elsewhere
        ]
    if parts:
        return [_meaning(zoo, *part) for part in parts]
    if not elsewhere and (is_repository(name) or (not own and of_no_plugin(name, zoo))):
        return [_of_repository(zoo, repository(name))]
    if not elsewhere and on_hub(name):  # a revision or a file
        return [_of_repository(zoo, one_form(name))]
    variant, weights = _named(zoo, name)
    known_as = f"{name} (alias)" if name in zoo.aliases else None
    return [_meaning(zoo, variant.namespace, variant, weights, known_as)]


def _of_repository(zoo: Registry, address: str) -> dict[str, Any]:
    """Return what table and store know about a repository without an entry; sends no request."""
    from vitzoo.foreign.hub import files_at
    from vitzoo.registry.repositories import known, repositories
    from vitzoo.store.obtain import TERMS, stored

    repo, _, _ = parts_of_address(address)
    row = known(repo)
    if row is None:
        near = did_you_mean(repo, [r.name for r in repositories().values()])
        say(
            f"vitzoo: {address} is not registered, and no server was asked; create loads it if it "
            f"exists and its config states a network that vitzoo can build{near}"
        )
    elif row.gated:
        say(f"vitzoo: https://huggingface.co/{row.name}: access is gated: {TERMS}")
    if row and row.arguments:
        say(
            "vitzoo: of the documented call, create adds the arguments that the config of the "
            "repository does not state"
        )
    if row and (way := reader_of("open_clip" if row.library == "open_clip" else row.type, zoo)):
        say(f"vitzoo: its network, {row.type}, is read by a plugin that is not installed; {way}")
    paths = (stored(file.pinned()) for file in files_at(address) if not file.small)
    found = {
        "create": create_call(address),
        "name": address,
        "kind": "repository of the Hub",
        "license": row and (row.license_note or None),
        "documented": row and row.documented,
        "stored": next((str(path) for path in paths if path), None),
    }
    return dict.fromkeys(WHICH) | found


def _family(zoo: Registry, name: str) -> Family | None:
    """Return the family of a name, which is no name of a variant."""
    if any(isinstance(row, Variant) for _, row in zoo.named(name)):
        return None
    return zoo.index.family(name)


def _screen() -> ModuleType:
    """Return what prints for people; pipes do without."""
    from vitzoo.cli import screen

    return screen


def _of_family(zoo: Registry, found: Family) -> list[dict[str, Any]]:
    """Return what is known of each name of a family; say how to install a missing plugin."""
    known_as = f"{found.name} (family)"
    if not found.installed:
        say(f"vitzoo: {found.needs}")
        return [_absent(row, known_as) for row in found.rows]
    for namespace in found.namespaces:
        zoo.host.load(namespace)
    every: list[tuple[str, Contribution | Variant]] = [
        pair for rows in zoo.host.parts.values() for pair in rows.values()
    ]
    every += [(row.namespace, row) for row in zoo.host.variants.values()]
    return [
        _meaning(zoo, owner, row, known_as=known_as)
        for owner, row in every
        if owner in found.namespaces
    ]


def _of_plugin(name: str, meaning: Meaning) -> dict[str, Any]:
    """Return what is known of a variant whose plugin is not installed; say how to install it."""
    library, row, weights = meaning
    say(f"vitzoo: {row['name']} {needs(row)}")
    known = _absent(row, f"{name} ({library})" if library else None)
    return known | {"create": plugin_call(name, meaning), "weights": weights or None}


def _absent(row: Listed, known_as: str | None) -> dict[str, Any]:
    """Return what is known of a variant whose plugin is not installed."""
    namespace = row["namespace"]
    return dict.fromkeys(WHICH) | {
        "create": plugin_call("", ("", row, "")),
        "name": row["name"],
        "kind": "variant",
        "known_as": known_as,
        "plugin": f"{namespace} ({FIRST_PARTY[namespace]}, not installed)",
    }


def _meaning(
    zoo: Registry,
    namespace: str,
    row: Contribution | Variant,
    weights: Weights | None = None,
    known_as: str | None = None,
) -> dict[str, Any]:
    from vitzoo.plugin.origin import named

    info = zoo.host.infos[namespace]
    found = asdict(named(info, row))
    found["defined"] = found["defined"] or None
    release = f"{info.distribution} {info.version}".strip()
    plugin = f"{namespace} ({release})" if release else namespace
    found |= {"plugin": plugin, "weights": weights and weights.name, "known_as": known_as}
    found["license"] = weights and (weights.license_note or None)
    found["create"] = call_of(row, weights) if isinstance(row, Variant) else _call_with(row, found)
    return {key: found.get(key) for key in WHICH}


def _call_with(row: Contribution, found: dict[str, Any]) -> str:
    """Return a call that uses a part or a checkpoint format."""
    argument = next(kind.field for kind in KINDS if isinstance(row, kind.row))
    if not argument:
        return create_call(EXAMPLE, weights="model.safetensors")
    return create_call(EXAMPLE, **{argument: found["name"]})


def _settings(variant: Variant) -> dict[str, Any]:
    default, people, size = variant.default_weights, on_terminal(), variant.activations
    overrides = _overrides(default, variant.spec) if default else ""
    return {
        "params": count(variant.params) if people else variant.params,
        "gmacs": three_digits(variant.gmacs) if variant.gmacs and people else variant.gmacs,
        "activations": megabytes(size) if size and people else size,
        **_spec_settings(variant.spec),
        "builder": variant.builder,
        "paper": variant.paper,
        "source": variant.source,
        **{f"name in {library}": name for library, name in variant.known_as},
        **{f"{SPEED} {row.name}": _throughput(row) for row in variant.throughput},
        "weights": ", ".join(w.name for w in variant.weights) or "none",
        **({"default weights override": overrides} if overrides else {}),
    }


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
    for field in PARTS_OF_WEIGHTS:
        override, part = getattr(weights, field), getattr(spec, field)
        if isinstance(override, PartSpec):
            new[field], old[field] = override.to_data(), part.to_data()
        else:
            new |= {f"{field}.{key}": value for key, value in override}
            old |= {f"{field}.{key}": value for key, value in part.options}
    if weights.pre_norm is not None:
        new["pre_norm"], old["pre_norm"] = weights.pre_norm, spec.pre_norm
    return ", ".join(f"{k}={v}" for k, v in new.items() if k not in old or old[k] != v)
