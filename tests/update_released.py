"""Adds new names to tests/released.json, which freezes what every released name means.

    python tests/update_released.py [FILE [NAMESPACE]]

FILE is this folder's, of the core, or a first-party plugin's with its namespace.

It only ever adds: new variants, new weights of a variant, a default where there was none. Where
a released name has changed or is gone it writes nothing and says so; give the change a new name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import vitzoo
from internals import Reader

RELEASED = Path(__file__).with_name("released.json")


def snapshot(namespace: str = "core") -> dict[str, Any]:
    """Return what every variant of the core, or of a plugin, means now."""
    return {v.name: _meaning(v) for v in vitzoo.variants(namespace=namespace)}


def read(path: Path) -> dict[str, Any]:
    """Return what is frozen in a file, nothing if there is none yet."""
    released: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return released


def normal(released: dict[str, Any]) -> dict[str, Any]:
    """Return released rows with the defaults of options that `Spec` has learned since."""
    return {
        name: row | {"spec": _read(name, row["spec"]).to_data()} for name, row in released.items()
    }


def changes(released: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Say which released names no longer mean what they meant."""
    found = []
    for name, row in normal(released).items():
        now = present.get(name)
        if now is None:
            found.append(f"{name} is gone")
            continue
        found += [
            f"{name}: {key} was {row[key]!r}, is {now[key]!r}"
            for key in ("spec", "builder", "params")
            if row[key] != now[key]
        ]
        if row["default"] not in (None, now["default"]):
            found.append(f"{name}: default was {row['default']!r}, is {now['default']!r}")
        found += [
            f"{name}: weights {weights} had sha256 {sha256}, now {now['weights'].get(weights)}"
            for weights, sha256 in row["weights"].items()
            if now["weights"].get(weights) != sha256
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
    path.write_text(json.dumps(present, indent=1) + "\n", encoding="utf-8")
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


def _read(name: str, spec: dict[str, Any]) -> vitzoo.Spec:
    return vitzoo.Spec.read(Reader(spec, name), vitzoo.Spec(variant=name))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2]), *sys.argv[2:3]))
