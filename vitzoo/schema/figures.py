"""Reading results of weights, images per second and recipes from a manifest; torch-free.

Tables at the top of a manifest state once what many entries share: `evaluations` the source of
results, `measurements` the source of images per second, `recipes` how weights were fine-tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vitzoo.display import ResultTuple
from vitzoo.errors import did_you_mean
from vitzoo.schema.reader import NAME, NAME_RULE, Reader
from vitzoo.schema.rows import Recipe, Throughput, Weights
from vitzoo.schema.terms import FURTHER_RESULTS, KNN
from vitzoo.schema.values import optional, positive, required

T = TypeVar("T")
Evaluation = Mapping[str, str]  # texts by field of `Weights`
TEXTS = ("evaluation", "evaluation_source", "evaluation_commit")


def read_evaluations(reader: Reader) -> dict[str, Evaluation]:
    """Read the table `evaluations` of a manifest."""
    readers = {key: optional(Weights)[key] for key in TEXTS}
    return dict(reader.rows("evaluations", lambda name, row: (name, row.each(readers))))


def read_measurements(reader: Reader) -> dict[str, Throughput]:
    """Read the table `measurements` of a manifest; the images per second are 0."""
    return dict(reader.rows("measurements", lambda name, row: (name, _measurement(name, row))))


def shared_results(reader: Reader, known: Mapping[str, Evaluation]) -> Evaluation:
    """Return the evaluation that the key `evaluated` of weights names, or no texts.

    Args:
        reader: of the weights.
        known: the evaluations of the manifest.
    """
    if "evaluated" not in reader:
        return {}
    return known_row(reader, "evaluations", reader.text("evaluated"), known)


def check_results(reader: Reader, stated: Mapping[str, Any]) -> None:
    """Refuse results beyond top-1 without their source, and without the image size of logits."""
    for name in FURTHER_RESULTS:
        if name in stated and not (
            stated.get("evaluation_size") and stated.get("evaluation_source")
        ):
            raise reader.fail(f"{name} needs the keys evaluation_size and evaluation_source")
    if KNN in stated and not stated.get("evaluation_source"):
        raise reader.fail(f"{KNN} needs the key evaluation_source")


def read_throughput(reader: Reader, known: Mapping[str, Throughput]) -> tuple[Throughput, ...]:
    """Read the images per second of a variant.

    Args:
        reader: of the variant. In its table `throughput`, a number belongs to the measurement of
            its name; a table states the measurement, too.
        known: the measurements of the manifest.
    """
    sub = reader.sub("throughput")
    if sub is None:
        return ()
    return ResultTuple(_measured(sub, name, known) for name in sub.table)


def _measured(reader: Reader, name: str, known: Mapping[str, Throughput]) -> Throughput:
    if not isinstance(reader.table[name], Mapping):
        found = known_row(reader, "measurements", name, known)
        return found.with_values(images_per_second=positive(reader, name))
    keys = (*reader.keys, name)
    row = Reader(reader.table[name], f"{reader.where}: {name}", reader.error, keys)
    found = _measurement(name, row)
    found = found.with_values(images_per_second=positive(row, "images_per_second"))
    row.done()
    return found


def _measurement(name: str, reader: Reader) -> Throughput:
    if not NAME.fullmatch(name):
        raise reader.fail(f"the name {name!r} must be {NAME_RULE}")
    return Throughput(
        name=name,
        images_per_second=0.0,
        **reader.every(required(Throughput)),
        **reader.each(optional(Throughput)),
    )


def known_row(reader: Reader, table: str, name: str, known: Mapping[str, T]) -> T:
    """Return the entry of a table at the top of the manifest."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise reader.fail(
            f"{name!r} is not in the table {table!r} at the top of the file{hint}; add it there"
        )
    return known[name]


def read_recipes(reader: Reader) -> dict[str, Recipe]:
    """Read the table `recipes` of a manifest."""
    return dict(reader.rows("recipes", lambda name, row: (name, _recipe(row))))


def read_recipe(reader: Reader, known: Mapping[str, Recipe]) -> Recipe | None:
    """Read the recipe of weights: the name of one of the manifest, or a table.

    Args:
        reader: of the weights.
        known: the recipes of the manifest.
    """
    if not isinstance(reader.table.get("recipe", {}), Mapping):
        return known_row(reader, "recipes", reader.text("recipe"), known)
    sub = reader.sub("recipe")
    if sub is None:
        return None
    row = _recipe(sub)
    sub.done()
    return row


def _recipe(reader: Reader) -> Recipe:
    values = reader.each(optional(Recipe))
    lengths = [key for key in ("epochs", "steps") if key in values]
    if len(lengths) != 1:
        stated = " and ".join(lengths) or "neither"
        raise reader.fail(f"a recipe states its length as epochs or as steps, got {stated}")
    return Recipe(**values, **reader.every(required(Recipe)))
