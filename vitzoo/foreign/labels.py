"""The classes in configs of transformers and timm: their names, and how logits become answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitzoo.registry.label_sets import distinct
from vitzoo.schema.reader import describe
from vitzoo.schema.terms import IDENTITY, SIGMOID

PROBLEMS = {  # of transformers; with several classes, "" stands for the usual softmax
    "single_label_classification": "",
    "multi_label_classification": SIGMOID,
    "regression": IDENTITY,
}

KEYS = ("id2label", "label_names", "labels")  # of transformers; of timm, and of timm 0.4 to 0.6


def labels_in(config: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the class names in a `config.json`, and a note if they cannot be used.

    The names are those of transformers (`id2label`) or of timm (`label_names`). They must be
    printable. The indices of a table must be 0 to k - 1. `LABEL_0` is no name. A name that several
    classes have is changed by `distinct`.
    """
    inner = config.get("pretrained_cfg")
    tables = (config, inner if isinstance(inner, Mapping) else {})
    keys = KEYS if _is_of_timm(config) else KEYS[:2]
    stated = ((key, table[key]) for key in keys for table in tables if key in table)
    key, table = next(stated, ("", None))
    if table is None:
        return (), ()
    names = None if key == "id2label" else table  # of transformers only as a table
    if isinstance(table, Mapping):
        names = [table.get(str(i)) for i in range(len(table))]
    good = isinstance(names, list) and all(
        isinstance(name, str) and name.strip() and name.isprintable() for name in names
    )
    if not isinstance(names, list) or not good:
        return (), (f"{key} is not used: expected printable names of the classes 0 to k",)
    usual = names == [f"LABEL_{i}" for i in range(len(names))]
    return () if usual else distinct(names), ()


def activation_in(config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the output activation in a `config.json`, empty for the usual one, and a note.

    It is that of transformers' pipeline for image classification: `problem_type` states it, and a
    single class has a sigmoid unless it is a regression. A config of timm has no such rule.
    """
    problem = config.get("problem_type")
    known = isinstance(problem, str) and problem in PROBLEMS
    note: tuple[str, ...] = ()
    if problem is not None and not known:
        expected = ", ".join(PROBLEMS)
        note = (f"problem_type is not used: expected one of {expected}, got {describe(problem)}",)
    stated = PROBLEMS[str(problem)] if known else ""
    table = config.get("id2label")
    count = len(table) if isinstance(table, Mapping) else config.get("num_labels")
    one = count == 1 and not _is_of_timm(config)
    return stated or (SIGMOID if one else ""), note


def _is_of_timm(config: Mapping[str, Any]) -> bool:
    """Return whether timm wrote a config; transformers' own for networks of timm has a type."""
    return "architecture" in config and "model_type" not in config


def problem_of(activation: str) -> dict[str, str]:
    """Return the key of a `config.json` that states an output activation, none for the usual."""
    names = [name for name, found in PROBLEMS.items() if found == activation]
    return {"problem_type": names[0]} if activation and names else {}
