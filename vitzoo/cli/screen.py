"""What a terminal shows of a network, in 24 lines of 80 columns, and of a family; torch-free."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from vitzoo.cli.browse import USES, call_of, classes, file_size
from vitzoo.cli.listing import print_header, say_siblings, without_doubled
from vitzoo.cli.output import (
    PERCENT,
    Fit,
    Write,
    bold,
    count,
    echo,
    on_terminal,
    paged,
    print_fields,
    print_json,
    print_rows,
    say,
    terminal_width,
    three_digits,
    wrapped,
)
from vitzoo.registry.listing import ENTRIES, Family, Listed
from vitzoo.registry.registry import Registry
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.terms import KNN, commercial_use
from vitzoo.text import px

LINES = 24  # of the screen
MOST, LEAST = 6, 2  # weights
MOST_OF_VALUE = 6  # lines
BELOW = 6  # lines: two above the weights, three notes, and the prompt of the shell
LABELS = 10  # columns of the names of lines
PRETTY: dict[str, Write] = {"classes": str, "size": str, "top1": PERCENT, KNN: PERCENT}
FIT = Fit(("license", "size", "classes", "default"), one_line=True)
KEYS = ("name", "params", "top1", KNN, "image_size", "license", "weights")  # as in `list`
FAMILY_FIT = Fit(
    ("weights", "image_size", "license"),
    shorter={"weights": lambda names: _first(names.split(", "))},
    one_line=True,
)
FAMILY_PRETTY: dict[str, Write] = {
    "params": count,
    "image_size": str,
    "top1": PERCENT,
    KNN: PERCENT,
}


def print_screen(variant: Variant, settings: dict[str, Any]) -> None:
    """Print what a network is, the call that creates it, its sizes, accuracy, license and weights.

    Args:
        variant: the network.
        settings: of the network, where they differ from the defaults.
    """
    width = terminal_width()
    title = wrapped(f"{variant.name}: {variant.summary}", width, MOST_OF_VALUE)
    lines = [*title, "", f"  {call_of(variant)}", ""]
    for name, text in _lines(variant, settings).items():
        if text:
            first, *more = wrapped(text, max(width - LABELS, LABELS), MOST_OF_VALUE)
            lines += [bold(name.ljust(LABELS)) + first, *(" " * LABELS + line for line in more)]
    echo("\n".join(lines))
    if variant.weights:
        echo()
        _print_weights(variant, min(MOST, max(LEAST, LINES - BELOW - len(lines))))
    else:
        say(f"vitzoo: no published weights; vitzoo show {variant.name} --all prints more")


def _lines(variant: Variant, settings: dict[str, Any]) -> dict[str, str]:
    spec = variant.spec
    sizes = {  # a builder of a plugin may use none of the last three
        "{} parameters": count(variant.params),
        "{} GMACs": variant.gmacs and three_digits(variant.gmacs),
        "{} px": px(spec.image_size),
        "patch {}": spec.embed_dim and px(spec.patch_size),
        "width {}": spec.embed_dim,
        "{} blocks": spec.depth,
    }
    speed = variant.throughput[0] if variant.throughput else None
    return {
        "size": ", ".join(text.format(number) for text, number in sizes.items() if number),
        "settings": ", ".join(f"{key}={value}" for key, value in settings.items()),
        "accuracy": _accuracy(variant),
        "license": _licenses(variant),
        "speed": f"{speed.images_per_second:,.0f} images/s on {speed.hardware} "
        f"({speed.precision}, {speed.mode})"
        if speed
        else "",
        "paper": variant.paper,
        "elsewhere": ", ".join(f"{name} ({library})" for library, name in variant.known_as),
    }


def _accuracy(variant: Variant) -> str:
    """Return the best stated accuracy, that of the default weights if it is stated."""
    row = next((row for row in _best(variant) if _figure(row)), None)
    if row is None:
        return ""
    kind = "top-1" if row.top1 is not None else "k-NN"
    where = f" ({row.evaluation})" if row.evaluation else ""
    of = "" if row.default else f" with {row.name}"
    return f"{_figure(row):.2f} % {kind}{of}{where}"


def _licenses(variant: Variant) -> str:
    """Return the license of the default weights, and what it says of commercial use."""
    rows = _best(variant)
    if not rows or not rows[0].license:
        return ""
    use = USES[commercial_use(rows[0].license) or "read"]
    more = "; others below" if len({row.license_note for row in rows}) > 1 else ""
    return f"{rows[0].license_note} ({use}){more}"


def _figure(row: Weights) -> float | None:
    return row.top1 if row.top1 is not None else row.knn_top1


def _best(variant: Variant) -> list[Weights]:
    """Return the weights, the default first and then those of the highest accuracy."""
    return sorted(variant.weights, key=lambda row: (not row.default, -(_figure(row) or 0)))


def _print_weights(variant: Variant, most: int) -> None:
    """Print the best weights, and say how many there are besides."""
    every = _best(variant)
    rows = [
        {
            "weights": row.name,
            "top1": row.top1,
            KNN: row.knn_top1,
            "classes": classes(row, variant),
            "size": file_size(row),
            "license": row.license_note,
            "default": "yes" if row.default else "",
        }
        for row in every[:most]
    ]
    same = {"license"} if len({row.license_note for row in every}) == 1 else set()
    empty = {key for key in ("top1", KNN, "default") if not any(row[key] for row in rows)}
    columns = [key for key in rows[0] if key not in same | empty]
    print_rows(rows, columns, pretty=PRETTY, fit=FIT)
    more = f"{len(every) - most} more weights, " if len(every) > most else ""
    say(f"vitzoo: vitzoo show {variant.name} --all shows {more}all results and settings")
    say(f"vitzoo: vitzoo show {variant.name}:NAME shows one file")


def print_family(zoo: Registry, found: Family, *, as_json: bool, everything: bool = False) -> None:
    """Print a family and its names, or its parts and formats if it has no networks.

    With `everything`, a terminal also shows timm's networks that another family has.
    """
    if found.needs:
        say(f"vitzoo: {found.needs}")
    parts = _contributions(zoo, found)
    about: dict[str, Any] = {
        "family": found.name,
        "summary": found.summary,
        "plugin": found.plugin,
        "installed": found.installed,
    }
    rows = [_row(row) for row in found.rows]
    if as_json:
        lists: dict[str, Any] = {"papers": found.papers, "licenses": found.licenses}
        variants = [row | {"weights": _names(found.rows[at])} for at, row in enumerate(rows)]
        print_json(about | lists | {"variants": variants, "contributions": parts})
        return
    if not on_terminal():
        lists = {"papers": ", ".join(found.papers), "licenses": ", ".join(found.licenses)}
        print_fields(about | lists)
        for table in filter(None, (rows, parts)):
            echo()
            print_rows(table, tuple(table[0]))
        return
    with paged() if everything else nullcontext():  # as in `list`
        print_header(found)
        if not rows:
            echo()
            print_rows(parts or [], ("kind", "name", "summary"))
            say_siblings(found)
            return
        rows = rows if everything else without_doubled(zoo, rows)
        empty = {key for key in ("top1", KNN) if all(row[key] is None for row in rows)}
        same = {"license"} if len(found.licenses) < 2 else set()
        shown = [key for key in KEYS if key not in empty | same]
        print_rows(rows, shown, pretty=FAMILY_PRETTY, fit=FAMILY_FIT)
        say(f"vitzoo: vitzoo show {rows[0]['name']} describes one network")


def _row(row: Listed) -> Listed:
    """Return what a family shows of a network."""
    return {key: row[key] for key in KEYS} | {"weights": ", ".join(_names(row))}


def _names(row: Listed) -> list[str]:
    """Return the names of the weights of a row, the default first."""
    names: list[str] = [entry[0] for entry in row[ENTRIES]]
    return sorted(names, key=lambda name: name != row["weights"])


def _first(names: list[str]) -> str:
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0]


def _contributions(zoo: Registry, found: Family) -> list[dict[str, str]] | None:
    """Return the parts and checkpoint formats of a family; None if it is not installed."""
    if not found.installed:
        return None
    for namespace in found.namespaces:
        zoo.host.load(namespace)
    return [
        {"kind": kind, "name": name, "summary": row.summary}
        for kind, rows in zoo.host.parts.items()
        for name, (namespace, row) in rows.items()
        if namespace in found.namespaces
    ]
