"""One variant on one screen of a terminal: at most 24 lines of 80 columns; torch-free."""

from __future__ import annotations

from shutil import get_terminal_size
from typing import Any

from vitzoo.cli.browse import USES, call_of, classes, file_size
from vitzoo.cli.output import (
    PERCENT,
    Fit,
    Write,
    bold,
    count,
    cut,
    echo,
    print_rows,
    say,
    three_digits,
)
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.terms import KNN, commercial_use
from vitzoo.text import px

MOST = 6  # weights
LABELS = 10  # columns of the names of lines
PRETTY: dict[str, Write] = {"classes": str, "size": str, "top1": PERCENT, KNN: PERCENT}
FIT = Fit(("license", "size", "classes", "default"), one_line=True)


def print_screen(variant: Variant, settings: dict[str, Any]) -> None:
    """Print what a network is, the call that creates it, its sizes, accuracy, license and weights.

    Args:
        variant: the network.
        settings: of the network, where they differ from the defaults.
    """
    width = get_terminal_size().columns
    echo(cut(f"{variant.name}: {variant.summary}", width))
    echo()
    echo(f"  {call_of(variant)}")
    echo()
    for name, text in _lines(variant, settings).items():
        if text:
            echo(bold(name.ljust(LABELS)) + cut(text, max(width - LABELS, LABELS)))
    if variant.weights:
        echo()
        _print_weights(variant)
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


def _print_weights(variant: Variant) -> None:
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
        for row in every[:MOST]
    ]
    same = {"license"} if len({row.license_note for row in every}) == 1 else set()
    empty = {key for key in ("top1", KNN, "default") if not any(row[key] for row in rows)}
    columns = [key for key in rows[0] if key not in same | empty]
    print_rows(rows, columns, pretty=PRETTY, fit=FIT)
    more = f"{len(every) - MOST} more weights, and all results" if len(every) > MOST else ""
    say(f"vitzoo: {more or 'all results'}: --all; one file: vitzoo show {variant.name}:NAME")
