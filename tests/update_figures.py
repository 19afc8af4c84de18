"""Writes results, images per second, GMACs and activation memory into the manifests.

    python tests/update_figures.py [--check] [NAMESPACE]...

Results go to the entries of timm's own files (`timm/TAG` on the Hub) at the entry's image size, and
images per second to the variants that timm knows, from the tables in tests/facts. GMACs and
activations are computed (`vitzoo.network.summary.cost`). Everything else in a manifest is kept,
comments and order included. With --check nothing is computed or written, and the exit code is 1
where a manifest and the tables differ; `vitzoo registry check` compares the computed numbers.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import vitzoo

FACTS = Path(__file__).with_name("facts")
COMMIT = "aa4b5850"  # of the tables, as their first lines state
EVALUATION = {
    "evaluation": "ImageNet-1k validation",
    "evaluation_source": "timm, results/results-imagenet*.csv and results-sketch.csv",
    "evaluation_commit": COMMIT,
}
RESULTS = {  # keys of weights, and their columns
    "top1": "imagenet_top1",
    "top5": "imagenet_top5",
    "imagenet_real": "real_top1",
    "imagenet_v2": "v2_top1",
    "imagenet_sketch": "sketch_top1",
    "imagenet_a": "a_top1",
    "imagenet_r": "r_top1",
}
GPU = {"software": "torch 2.9.1"}
CPU = {"precision": "fp32", "mode": "compiled", "batch_size": 1, "software": "torch 2.4.0"}
MEASUREMENTS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name, column, file of timm, keys
    "rtx4090": (
        "rtx4090_amp_eager",
        "amp-nchw-pt291-cu128-4090",
        {"hardware": "NVIDIA RTX 4090", "precision": "AMP", "mode": "eager", **GPU},
    ),
    "rtx4090_compiled": (
        "rtx4090_amp_compiled",
        "amp-nchw-pt291-cu128-4090-dynamo",
        {"hardware": "NVIDIA RTX 4090", "precision": "AMP", "mode": "compiled", **GPU},
    ),
    "pro6000_compiled": (
        "pro6000_bf16_compiled",
        "bf16-nchw-pt291-cu130-pro6000maxq-dynamo",
        {
            "hardware": "NVIDIA RTX Pro 6000 Max-Q",
            "precision": "bf16",
            "mode": "compiled",
            **GPU,
        },
    ),
    "i9_10940x_compiled": (
        "i9_10940x_fp32_compiled",
        "fp32-nchw-pt240-cpu-i9_10940x-dynamo",
        {"hardware": "Intel Core i9-10940X", **CPU},
    ),
    "i7_12700h_compiled": (
        "i7_12700h_fp32_compiled",
        "fp32-nchw-pt240-cpu-i7_12700h-dynamo",
        {"hardware": "Intel Core i7-12700H", **CPU},
    ),
}
COMPUTED = ("gmacs", "activations")
OF_VARIANTS = (*COMPUTED, "throughput")
OF_WEIGHTS = (*RESULTS, "evaluated", "evaluation_size", *EVALUATION)
HEADER = re.compile(r"^\[variants\.(?P<variant>\w+)(?:\.weights\.(?P<weights>\w+))?\]$")
KEY = re.compile(r"^\w+ = .*\n", re.MULTILINE)
SOURCES = re.compile(r"^\[(?:evaluations|measurements)\]\n(?:.+\n)+\n", re.MULTILINE)
BY_HAND = "python tests/update_figures.py"
Costs = Mapping[str, tuple[float, int]]  # GMACs and bytes by name of the variant in the manifest


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in tests/facts."""
    lines = FACTS.joinpath(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@cache
def results() -> dict[tuple[str, int], dict[str, str]]:
    """Return the rows of results by tag and size in px."""
    return {(row["timm_tag"], int(row["img_size"])): row for row in table("results.csv")}


@cache
def speeds() -> dict[tuple[str, int], dict[str, str]]:
    """Return the rows of images per second by architecture and size in px."""
    found = table("throughput.csv")
    return {(row["timm_architecture"], int(row["img_size"])): row for row in found}


def rewritten(text: str, costs: Costs | None = None) -> str:
    """Return a manifest with the figures of the tables, and with computed ones if they are given.

    Raises:
        ValueError: timm evaluated a file with other preprocessing than the entry states.
    """
    data = tomllib.loads(text)
    blocks = list(_blocks(text))
    for at, block in enumerate(blocks):
        header = HEADER.match(block[0])
        if header is None:
            continue
        variant = data["variants"][header["variant"]]
        if header["weights"]:
            blocks[at] = _weights(block, variant, variant["weights"][header["weights"]])
        else:
            blocks[at] = _variant(block, variant, (costs or {}).get(header["variant"]))
    return _with_sources("\n".join(line for block in blocks for line in block))


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines of each table, the first of which is its header."""
    block: list[str] = []
    for line in text.split("\n"):
        if line.startswith("["):
            yield block
            block = []
        block.append(line)
    yield block


def _variant(
    block: list[str], variant: dict[str, Any], cost: tuple[float, int] | None
) -> list[str]:
    values: dict[str, Any] = {key: variant[key] for key in COMPUTED if key in variant}
    if cost is not None:
        values = dict(zip(COMPUTED, cost, strict=True))
    row = speeds().get((variant.get("known_as", {}).get("timm", ""), _size(variant)), {})
    measured = {name: row[column] for name, (column, *_) in MEASUREMENTS.items() if row.get(column)}
    lines = [f"{key} = {value}" for key, value in values.items()]
    if measured:
        pairs = ", ".join(f"{name} = {float(value)}" for name, value in measured.items())
        lines.append(f"throughput = {{ {pairs} }}")
    left = _without(block, OF_VARIANTS)
    after = next(at for at, line in enumerate(left) if line.startswith("params = ")) + 1
    return [*left[:after], *lines, *left[after:]]


def _weights(block: list[str], variant: dict[str, Any], weights: dict[str, Any]) -> list[str]:
    size, owner = _size(variant), weights.get("repo", "").partition("/")
    row = results().get((owner[2], size)) if owner[0] == "timm" else None
    if row is None:  # written by hand, unless the table had a row
        return _without(block, OF_WEIGHTS) if "evaluated" in weights else block
    shown = weights["preprocessing"]
    wanted = (float(row["crop_pct"]), row["interpolation"])
    if (shown.get("crop_pct", 1.0), shown["interpolation"]) != wanted:
        raise ValueError(f"{weights['repo']}: timm evaluated with {wanted}, the entry has {shown}")
    values = {key: float(row[column]) for key, column in RESULTS.items() if row[column]}
    lines = [f"{key} = {value}" for key, value in values.items()]
    lines += ['evaluated = "timm"', f"evaluation_size = {size}"]
    left = _without(block, OF_WEIGHTS)
    after = max(at for at, line in enumerate(left) if line and not line.startswith("#")) + 1
    return [*left[:after], *lines, *left[after:]]


def _without(block: list[str], keys: tuple[str, ...]) -> list[str]:
    return [line for line in block if line.partition(" = ")[0] not in keys]


def _size(variant: dict[str, Any]) -> int:
    """Return the size of square images in px, 0 for others."""
    size = variant.get("image_size", 224)
    return size if isinstance(size, int) else 0


def _with_sources(text: str) -> str:
    """Return a manifest with the sources of its figures before its first table."""
    measured = " ".join(re.findall(r"^throughput = (.*)", text, re.MULTILINE))
    used = [name for name in MEASUREMENTS if f" {name} = " in measured]
    added = []
    if 'evaluated = "timm"' in text:
        added += ["[evaluations]", f"timm = {_inline(EVALUATION)}", ""]
    if used:
        added.append("[measurements]")
        for name in used:
            _, file, keys = MEASUREMENTS[name]
            source = {"source": f"timm, results/benchmark-infer-{file}.csv", "commit": COMMIT}
            added.append(f"{name} = {_inline(keys | source)}")
        added.append("")
    text = SOURCES.sub("", text)
    *_, last = KEY.finditer(text[: text.index("\n[")])  # the keys before the first table
    place = last.end() + 1
    return text[:place] + "".join(f"{line}\n" for line in added) + text[place:]


def _inline(values: Mapping[str, Any]) -> str:
    pairs = (
        f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"'
        for key, value in values.items()
    )
    return f"{{ {', '.join(pairs)} }}"


def manifests(namespaces: list[str]) -> dict[str, Path]:
    """Return the manifests of the core and of the first-party plugins by namespace."""
    root = Path(__file__).parents[1]
    found = {"core": root / "registry.toml"}
    for info in vitzoo.plugins():
        if Path(info.location).is_relative_to(root / "plugins"):
            found[info.namespace] = Path(info.location)
    return {name: path for name, path in found.items() if not namespaces or name in namespaces}


def computed(namespace: str) -> Costs:
    """Return GMACs and activation memory of the variants of a namespace."""
    import torch

    from vitzoo.network.summary import cost

    found = {}
    for variant in vitzoo.variants(namespace=namespace):
        model = vitzoo.create(variant.name, device="meta")
        spec = variant.spec
        taken = cost(model, torch.empty(1, spec.in_chans, *spec.image_size, device="meta"))
        found[variant.name.rpartition("/")[2]] = (taken.macs / 10**9, taken.activations)
    return found


def main(*arguments: str) -> int:
    """Write or check the manifests; 1 if a check failed."""
    check = "--check" in arguments
    wrong = []
    for namespace, path in manifests([name for name in arguments if name != "--check"]).items():
        text = path.read_text(encoding="utf-8")
        new = rewritten(text, None if check else computed(namespace))
        if new != text:
            wrong.append(namespace)
        if not check:
            path.write_text(new, encoding="utf-8")
    if check and wrong:
        sys.stderr.write(f"not as in tests/facts: {', '.join(wrong)}; run {BY_HAND}\n")
    return int(check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
