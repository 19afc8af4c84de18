"""Compare every ViT architecture of timm with the vitzoo network that it describes.

    python tests/parity_table.py --full       all, and write docs/parity.md: half an hour
    python tests/parity_table.py 'vit_s*'     some; the other rows of the page stay

Random weights of both sets (timm's own initialisation, and fan-in scaled normals) go from timm's
network to vitzoo's, and every element of tokens and logits is compared. With --full a network is
taken at its full depth where that costs at most `LIMIT` per image, else with two blocks; without
it always with two. The page says which.
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

import timm
import torch

import vitzoo
from vitzoo.errors import UnknownName
from vitzoo_timm.keys import tensors_of
from vitzoo_timm.look import NotNative
from vitzoo_timm.native import carry_over, spec_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "parity.md"
FAMILIES = ("vit_*", "deit*", "beit*", "eva02*")
LIMIT = 40e9  # multiplications and additions: those of B/16 at 224 px
CUT = 2  # blocks
TOLERANCE = 5e-5
WEIGHTS = ("own", "scaled")
COLUMNS = (
    *("architecture", "name in vitzoo", "verdict", "keys", "blocks"),
    *("tokens", "logits", "tokens", "logits", ""),
)
CARRIED = "`carry_over`"  # what stands for the name of a native network without one


@dataclass(frozen=True)
class Row:
    """What the page says of one architecture.

    Args:
        verdict: `native`, `bridge` or `no`.
        keys: `timm` where the file's names are the network's, else `renamed`.
        blocks: compared, `12` or `2 of 24`.
        differences: of tokens and logits, by weights.
        why: what vitzoo has no part for.
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
        return f"`timm/{self.name}`" if self.verdict == "bridge" else ""

    def line(self) -> str:
        """Write the row."""
        numbers = [f"{d:.1e}" if d else "0" for d in self.differences] or [""] * 4
        facts = (self.verdict, self.keys, self.blocks, *numbers, self.why)
        cells = (f"`{self.name}`", self.ours(), *facts)
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
    """Return the names in vitzoo of timm's architectures, as variants state them."""
    return {
        theirs: variant.name
        for variant in vitzoo.variants()
        for library, theirs in variant.known_as
        if library == "timm"
    }


def architectures() -> list[str]:
    """Return the names of all ViT architectures in timm, those of the table."""
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
    fill = runpy.run_path(str(ROOT / "tests" / "parity" / "conftest.py"))["fill"]
    found: list[float] = []
    for weights in WEIGHTS:
        torch.manual_seed(1)
        reference = timm.create_model(name, pretrained=False, **options).eval()
        if weights != "own":
            fill(reference, weights)
        found += compare(reference, carry_over(reference))
        del reference
        gc.collect()
    return tuple(found)


def verdict(name: str) -> Row:
    """Return the row of an architecture, with its full depth and without numbers."""
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
        try:
            ours: Any = vitzoo.create(spec_of(model))
        except (NotNative, UnknownName) as error:
            return Row(name, "bridge" if bridged(name) else "no", why=str(error))
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


def bridged(name: str) -> bool:
    """Tell whether the bridge has an architecture."""
    try:
        return vitzoo.describe(f"timm/{name}").builder != "vitzoo.build:build"
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
            row.name, "bridge" if bridged(row.name) else "no", row.keys, row.blocks, found, why
        )
    return Row(row.name, row.verdict, row.keys, row.blocks, found)


def rows_of(page: str) -> dict[str, Row]:
    """Return the rows of a page."""
    lines = re.findall(r"^\| `.*\|$", page, re.MULTILINE)
    return {row.name: row for row in map(Row.parse, lines)}


def written(rows: list[Row]) -> str:
    """Write the page."""
    count = {kind: sum(row.verdict == kind for row in rows) for kind in ("native", "bridge", "no")}
    carried = sum(row.ours() == CARRIED for row in rows)
    worst = max((d for row in rows if row.verdict == "native" for d in row.differences), default=0)
    numbers = count | {"named": count["native"] - carried, "carried": carried, "total": len(rows)}
    head = INTRODUCTION.format(version=timm.__version__, worst=f"{worst:.1e}", **numbers)
    table = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([head, *table, *(row.line() for row in rows), ""])


INTRODUCTION = """\
# Parity with timm

Written by `python tests/parity_table.py --full`; do not edit.

Counted are the architectures of timm {version} that it calls `vit_*` (hybrids of ResNet and ViT
among them), `deit*`, `beit*` and `eva02*`: {total}.

| what vitzoo has | how to get it | architectures |
|---|---|---|
| native, with a name | `vitzoo.create(NAME)`, the name of the second column | {named} |
| native, without one | `vitzoo_timm.native.carry_over(timm.create_model(...))` | {carried} |
| timm's own network, through the bridge | `vitzoo.create("timm/NAME")` | {bridge} |
| nothing | | {no} |

- **native**: `vitzoo_timm.native.spec_of` reads timm's module and gives the spec of a network made
  of vitzoo's parts, which computes the same from the same weights: every element of tokens and
  logits within 5e-5 of the largest reference value above 1. The largest difference below is
  {worst}. {native} of {total} are. {carried} of these have no name in vitzoo: `carry_over` in the
  second column means that the network is made from [timm's, with its
  tensors](families/timm.md#converting-a-timm-model).
- **bridge**: vitzoo has no part for something in it, which the last column names. `timm/NAME` is
  timm's own network behind vitzoo's weights: [the bridge](families/timm.md).

Differences are shares of the largest reference value where that is above 1; the first two columns
are with timm's own initialisation, the other two with fan-in scaled normals, gains of 1 +- 0.2 and
random biases. `blocks` says how much of the depth was compared: `2 of 24` where all of it costs
more than an image through B/16 at 224 px, images being of the architecture's own size. `keys`:
`timm` where a file of timm's has the network's own names; where `renamed`,
`vitzoo_timm.native.carry_over` renames, and so do the formats of the plugins whose family it is.
"""


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
        if chosen.missing and known and (known.differences or known.verdict == "bridge"):
            continue
        rows[name] = measured(verdict(name), full=chosen.full)
        sys.stdout.write(rows[name].line() + "\n")
        sys.stdout.flush()
        PAGE.write_text(written([rows[name] for name in sorted(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
