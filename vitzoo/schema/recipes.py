"""Reading recipes of fine-tuning from a manifest; torch-free.

The table `recipes` at the top of a manifest states a recipe once for several weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitzoo.schema.figures import commit_of, known_row, positive
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Recipe

SHARES = ("layer_decay", "drop_path", "random_erasing", "label_smoothing", "ema")  # at most 1
STRENGTHS = ("weight_decay", "warm_up", "clip", "mixup", "cutmix")


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
    lengths = {
        key: reader.count(key)
        for key in ("epochs", "steps")
        if reader.take(key, object, None) is not None
    }
    if len(lengths) != 1:
        stated = " and ".join(lengths) or "neither"
        raise reader.fail(f"a recipe states its length as epochs or as steps, got {stated}")
    shares = {key: _number(reader, key, most=1) for key in SHARES}
    values: dict[str, Any] = lengths | shares | {key: _number(reader, key) for key in STRENGTHS}
    return Recipe(
        data=reader.text("data"),
        optimizer=reader.text("optimizer"),
        lr=positive(reader, "lr"),
        batch_size=reader.count("batch_size"),
        image_size=reader.size("image_size"),
        augmentation=reader.text("augmentation", ""),
        source=reader.text("source"),
        commit=commit_of(reader, "commit", ""),
        **values,
    )


def _number(reader: Reader, key: str, most: float = 2**31) -> float | None:
    value = reader.take(key, float, None)
    if value is not None and not 0 <= value <= most:
        limit = " to 1" if most == 1 else ""
        raise reader.fail(f"{key} must be a number from 0{limit}, got {value}")
    return value
