"""Adds new names to tests/released.json, which freezes what every released name means.

    python tests/update_released.py [FILE [NAMESPACE]]

FILE is this folder's, of the core, or a first-party plugin's with its namespace.

It only ever adds: new variants, new weights of a variant, a default or a SHA-256 where there was
none. What is frozen stays as it is written. Where a released name has changed or is gone, it writes
nothing and says so; give the change a new name. A row does not state options that `Spec` got after
the row was frozen. For a new option, add to `ADDED` the value that leaves the released networks as
they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import vitzoo
from vitzoo.schema.terms import CORE_BUILDER

RELEASED = Path(__file__).with_name("released.json")
ADDED: dict[str, Any] = {"num_registers": 0, "pre_norm": False, "final_norm": True}
ADDED_TO_BLOCK: dict[str, Any] = {
    "norm": "layer",
    "proj_bias": True,
    "qk_norm": False,
    "attn_norm": False,
    "mlp": "mlp",
    "mlp_norm": False,
    "mlp_bias": True,
    "parallel": False,
    "post_norm": False,
    "merge": 0,
    "window": 0,
}
"""What a frozen row means that does not state the option. These values are frozen, too: a test
that took today's defaults of `Spec` would not notice that a default has changed."""


def snapshot(namespace: str = "core") -> dict[str, Any]:
    """Return what every variant of the core, or of a plugin, means now."""
    return {v.name: _meaning(v) for v in vitzoo.variants(namespace=namespace)}


def read(path: Path) -> dict[str, Any]:
    """Return what is frozen in a file, nothing if there is none yet."""
    released: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return released


def normal(released: dict[str, Any]) -> dict[str, Any]:
    """Return released rows with the core's builder, and the options that `Spec` got since."""
    return {
        name: {"builder": CORE_BUILDER} | row | {"spec": _completed(row["spec"])}
        for name, row in released.items()
    }


def changes(released: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Say which released names no longer mean what they meant."""
    found = []
    for name, row in normal(released).items():
        now = present.get(name)
        if now is None:
            found.append(f"{name} is gone")
            continue
        before, after = _comparable(row), _comparable(now)
        found += [
            f"{name}: {key} was {before.get(key)!r}, is {after.get(key)!r}"
            for key in before | after
            if before.get(key) != after.get(key)
        ]
        if row["default"] not in (None, now["default"]):
            found.append(f"{name}: default was {row['default']!r}, is {now['default']!r}")
        found += [
            f"{name}: weights {weights} had sha256 {sha256 or None}, now {given}"
            for weights, sha256 in row["weights"].items()
            if (given := now["weights"].get(weights)) is None or (sha256 and given != sha256)
        ]
    return found


def say(*lines: str) -> None:
    """Print lines, the first of them flush left."""
    sys.stdout.write("\n  ".join(lines) + "\n")


def main(path: Path = RELEASED, namespace: str = "core") -> int:
    """Add what is new to the file; 1 where something released has changed."""
    released, present = read(path), snapshot(namespace)
    if problems := changes(released, present):
        say("a released name keeps its meaning; nothing was written:", *problems)
        return 1
    added = [name for name, row in present.items() if row != normal(released).get(name)]
    rows = {
        name: released.get(name, _stored(row)) | {key: row[key] for key in ("default", "weights")}
        for name, row in present.items()
    }
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    say(f"added to {path.name}: {', '.join(added) or 'nothing'}")
    return 0


def _meaning(variant: vitzoo.Variant) -> dict[str, Any]:
    default = variant.default_weights
    return {
        "spec": variant.spec.to_data(),
        "builder": variant.builder,
        "params": variant.params,
        "default": default.name if default else None,
        "weights": {weights.name: weights.sha256 for weights in variant.weights},
    }


def _stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the core's builder, whose module may move."""
    return {k: v for k, v in row.items() if (k, v) != ("builder", CORE_BUILDER)}


def _completed(spec: dict[str, Any]) -> dict[str, Any]:
    return ADDED | spec | {"block": ADDED_TO_BLOCK | spec["block"]}


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal: builder, parameters and each option of a completed spec."""
    block = {f"block.{key}": value for key, value in row["spec"]["block"].items()}
    options = {key: value for key, value in row["spec"].items() if key != "block"}
    return {key: row[key] for key in ("builder", "params")} | options | block


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2]), *sys.argv[2:3]))
