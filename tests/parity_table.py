"""Compare every ViT architecture of timm with the same network made of vitzoo's parts.

    python tests/parity_table.py --full       compares all and writes docs/parity.md: half an hour
    python tests/parity_table.py 'vit_s*'     compares some and replaces their rows of the page
    python tests/parity_table.py --missing    compares those without numbers, and writes new names

timm's network gets random weights: timm's own initialisation, then fan-in scaled normals. vitzoo's
network gets the same weights, and every element of tokens and logits is compared. With --full, a
network has its full depth if that costs at most `LIMIT` for an image. Other networks, and all
networks without --full, have two blocks. The column `blocks` of the page states the depth.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import re
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import vitzoo
from vitzoo.errors import UnknownName
from vitzoo.schema.terms import CORE_BUILDER
from vitzoo_timm.look import NotNative

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "parity.md"
HELPERS = runpy.run_path(str(ROOT / "tests" / "parity" / "conftest.py"))
FAMILIES = ("vit_*", "deit*", "beit*", "eva02*", "eva_*", "flexivit_*", "aimv2_*")
LIMIT = 40e9  # multiplications and additions: those of B/16 at 224 px
CUT = 2  # blocks
TOLERANCE = 5e-5
WEIGHTS = ("own", "scaled")
COLUMNS = (
    *("architecture", "name in vitzoo", "kind", "keys", "blocks"),
    *("tokens 1", "logits 1", "tokens 2", "logits 2", "missing part"),
)
CARRIED = "`carry_over`"  # is written instead of the name of a native network without one


@dataclass(frozen=True)
class Row:
    """Row of one architecture.

    Args:
        name: name in timm.
        verdict: `native`, `wrapper` or `no`.
        keys: `timm` if timm's files have the names of vitzoo's tensors, else `renamed`.
        blocks: compared blocks, such as `12` or `2 of 24`.
        differences: of tokens and logits, for both sets of weights.
        why: the layer for which vitzoo has no part.
    """

    name: str
    verdict: str
    keys: str = ""
    blocks: str = ""
    differences: tuple[float, ...] = ()
    why: str = ""

    def ours(self) -> str:
        """Return the name in vitzoo, `CARRIED` where a native network has none."""
        if self.verdict == "native":
            return f"`{names()[self.name]}`" if self.name in names() else CARRIED
        return f"`timm/{self.name}`" if self.verdict == "wrapper" else ""

    def line(self) -> str:
        """Write the row."""
        numbers = [f"{d:.1e}" if d else "0" for d in self.differences] or [""] * 4
        values = (self.verdict, self.keys, self.blocks, *numbers, self.why)
        cells = (f"`{self.name}`", self.ours(), *values)
        return "| " + " | ".join(cells) + " |"

    @classmethod
    def parse(cls, line: str) -> Row:
        """Read a row."""
        cells = (cell.strip() for cell in line.split("|")[1:-1])
        name, _, verdict, keys, blocks, *numbers, why = cells
        found = tuple(map(float, numbers)) if numbers[0] else ()
        return cls(name.strip("`"), verdict, keys, blocks, found, why)


@cache
def names() -> dict[str, str]:
    """Return the names in vitzoo of timm's architectures, wrappers excluded."""
    return {
        theirs: variant.name
        for variant in vitzoo.variants()
        if variant.builder == CORE_BUILDER
        for library, theirs in variant.known_as
        if library == "timm"
    }


def architectures() -> list[str]:
    """Return the names of all ViT architectures in timm, those of the table."""
    import timm

    return sorted(n for n in timm.list_models() if any(fnmatch.fnmatch(n, f) for f in FAMILIES))


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, as a share of the largest reference value above 1."""
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all()
    return (ours - theirs).abs().max().item() / max(1.0, theirs.abs().max().item())


@torch.inference_mode()
def compare(reference: Any, model: Any) -> tuple[float, float]:
    """Return the differences of tokens and logits on random images of the model's size."""
    images = torch.randn(1, model.patch_embed.in_chans, *model.image_size)
    theirs, ours = reference.forward_features(images), model.forward_features(images)
    tokens = difference(ours, theirs)
    return tokens, difference(model.forward_head(ours), reference.forward_head(theirs))


def measure(name: str, **options: Any) -> tuple[float, ...]:
    """Return the differences of tokens and logits with both sets of weights.

    Args:
        name: of an architecture.
        options: for timm, such as `depth`.
    """
    import timm

    from vitzoo_timm.native import carry_over

    found: list[float] = []
    for weights in WEIGHTS:
        torch.manual_seed(1)
        reference = timm.create_model(name, pretrained=False, **options).eval()
        if weights != "own":
            HELPERS["fill"](reference, weights)
        found += compare(reference, carry_over(reference))
        del reference
        gc.collect()
    return tuple(found)


def verdict(name: str) -> Row:
    """Return the row of an architecture, with its full depth and without numbers."""
    import timm

    from vitzoo_timm.keys import tensors_of
    from vitzoo_timm.native import spec_of

    with torch.device("meta"), HELPERS["unfilled"]():
        model = timm.create_model(name, pretrained=False)
        try:
            ours: Any = vitzoo.create(spec_of(model))
        except (NotNative, UnknownName) as error:
            return Row(name, "wrapper" if wrapped(name) else "no", why=str(error))
    found = tensors_of(model)
    assert {k: t.shape for k, t in found.items()} == {
        k: t.shape for k, t in ours.state_dict().items()
    }, name
    keys = "timm" if found.keys() == model.state_dict().keys() else "renamed"
    cost = (
        2
        * sum(p.numel() for p in ours.parameters())
        * (ours.num_prefix_tokens + ours.grid_size[0] * ours.grid_size[1])
    )
    depth = len(ours.blocks)
    return Row(name, "native", keys, str(depth if cost <= LIMIT else f"{CUT} of {depth}"))


def wrapped(name: str) -> bool:
    """Return whether `timm/NAME` wraps this architecture."""
    try:
        return vitzoo.describe(f"timm/{name}").builder != CORE_BUILDER
    except UnknownName:
        return False


def measured(row: Row, *, full: bool) -> Row:
    """Return the row with its numbers."""
    if row.verdict != "native":
        return row
    depth = int(row.blocks.rpartition(" ")[2])
    if not full and not row.blocks.startswith(f"{CUT} of") and depth != CUT:
        row = Row(row.name, row.verdict, row.keys, f"{CUT} of {depth}")
    options = {"depth": CUT} if " of " in row.blocks else {}
    options = options | {"num_classes": 10}
    found = measure(row.name, **options)
    if max(found) > TOLERANCE:
        why = "beyond the tolerance"
        return Row(
            row.name, "wrapper" if wrapped(row.name) else "no", row.keys, row.blocks, found, why
        )
    return Row(row.name, row.verdict, row.keys, row.blocks, found)


def rows_of(page: str) -> dict[str, Row]:
    """Return the rows of a page."""
    lines = re.findall(r"^\| `.*\|$", page, re.MULTILINE)
    return {row.name: row for row in map(Row.parse, lines)}


def written(rows: list[Row]) -> str:
    """Write the page."""
    import timm

    kinds = ("native", "wrapper", "no")
    count = {kind: sum(row.verdict == kind for row in rows) for kind in kinds}
    carried = sum(row.ours() == CARRIED for row in rows)
    worst = max((d for row in rows if row.verdict == "native" for d in row.differences), default=0)
    numbers = count | {"named": count["native"] - carried, "carried": carried, "total": len(rows)}
    head = INTRODUCTION.format(version=timm.__version__, worst=f"{worst:.1e}", **numbers)
    table = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([head, *table, *(row.line() for row in rows), ""])


INTRODUCTION = """\
# Parity with timm

How closely the outputs of vitzoo agree with those of timm {version}, for all {total} architectures of timm that are named
`vit_*` (with hybrids of ResNet and ViT), `deit*`, `beit*`, `eva02*`, `eva_*`, `flexivit_*` or `aimv2_*`. Both networks
had the same random weights and images, and every element of tokens and logits was compared. The largest difference is
{worst} of the largest value of timm's output; the tolerance is 5e-5.

| kind | how to create the model | architectures |
|---|---|---|
| native, with a name in vitzoo | `vitzoo.create(NAME)` with the name in the second column | {named} |
| native, without a name | `vitzoo_timm.native.carry_over(timm.create_model(...))` | {carried} |
| wrapper: timm's own network, because vitzoo lacks a part | `vitzoo.create("timm/NAME")` | {wrapper} |
| not available | | {no} |

[timm's networks](families/timm.md) explains `carry_over`, which converts a timm model with its tensors, and `timm/NAME`.

A name in vitzoo has the arithmetic of the network's authors. Two differ from timm's architecture: 20 names of SigLIP have
the tanh GELU instead of the exact one, and DINOv3 has the pool `class` instead of `mean`. The registry states this as
`timm_block` and `timm_pool`. A file in timm's format, or a folder with timm's config, gives the outputs of timm.

`python tests/parity_table.py --full` takes half an hour and writes this page.
`python -m pytest -m parity plugins/vitzoo-timm/tests/test_parity_table.py` compares all of them at a small size, as CI does.

## Columns

| column | meaning |
|---|---|
| name in vitzoo | the name for `vitzoo.create`; `carry_over` if the network has no name |
| keys | `timm`: vitzoo's tensors have the names in timm's files; `renamed`: `carry_over` and the checkpoint formats of the family's plugin rename the tensors |
| blocks | compared blocks. `2 of 24`: only two blocks, because one image costs more in the whole network than in B/16 at 224 px |
| tokens 1, logits 1 | largest difference with timm's own initialisation; 0 means equal bit by bit |
| tokens 2, logits 2 | largest difference with random weights of a realistic size: normals scaled by fan-in, norm gains of 1 +- 0.2, random biases |
| missing part | the layer for which vitzoo has no part |

A difference is divided by the largest absolute value of timm's output if that value is above 1.

## Architectures
"""  # noqa: E501  # lines of a Markdown table


def main(arguments: list[str]) -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pattern", nargs="?", default="*", help="architectures to measure")
    parser.add_argument("--full", action="store_true", help="full depth where it is affordable")
    parser.add_argument("--missing", action="store_true", help="only those without numbers")
    chosen = parser.parse_args(arguments)
    rows = rows_of(PAGE.read_text()) if PAGE.exists() else {}
    for name in architectures():
        known = rows.get(name)
        if not fnmatch.fnmatch(name, chosen.pattern):
            continue
        if chosen.missing and known and (known.differences or known.verdict == "wrapper"):
            continue
        rows[name] = measured(verdict(name), full=chosen.full)
        sys.stdout.write(rows[name].line() + "\n")
        sys.stdout.flush()
        PAGE.write_text(written([rows[name] for name in sorted(rows)]))
    PAGE.write_text(written([rows[name] for name in sorted(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
