"""Checking registry files beyond their schema, and pinning their rows."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitzoo.errors import VitzooError, did_you_mean
from vitzoo.plugin.info import TROUBLE
from vitzoo.registry.label_sets import SETS
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.manifest import CORE_BUILDER, CORE_MANIFEST, Manifest, read_manifest
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import PartSpec

HEADER_SLACK = 1024 * 1024  # bytes a safetensors header may take
DTYPE_BYTES = (4, 2)


@dataclass(frozen=True)
class Report:
    """What `check` saw.

    Args:
        counts: of variants, weights and pins.
        problems: each with file and table.
    """

    counts: dict[str, int]
    problems: tuple[str, ...]


def check(file: Path | None = None) -> Report:
    """Validate a registry file, or all that is registered.

    Raises:
        RegistryError: the file breaks the schema.
    """
    found = list(read(file).variants if file else registry().variants.values())
    problems = [problem for variant in found for problem in problems_of(variant)]
    if file is None:
        states = registry().plugins()
        problems += [f"plugin {i.namespace!r}: {i.trouble}" for i in states if i.state in TROUBLE]
    else:
        problems += _unbuilt(file, found)
    problems += _miscounted(found)
    rows = [row for variant in found for row in variant.weights]
    counts = {"variants": len(found), "weights": len(rows)}
    for state in ("confirmed", "reported", "first-use"):
        counts[state] = sum(row.pin == state for row in rows)
    return Report(counts, tuple(problems))


def read(file: Path, *, sized: bool = True) -> Manifest:
    """Read a registry file; without `sized`, weights need not state their size."""
    core = file.exists() and filecmp.cmp(file, CORE_MANIFEST, shallow=False)
    package = "vitzoo" if core else file.resolve().parent.name
    sizes = None if core else registry().host.core.sizes
    return read_manifest(file, package=package, sizes=sizes, sized=sized)


def problems_of(variant: Variant) -> Iterator[str]:
    """Yield what is wrong with the parts and weights that a variant names; nothing is built."""
    zoo = registry()
    for field, kind in KIND_OF_FIELD.items():
        part: PartSpec = getattr(variant.spec, field)
        if part.name not in zoo.parts[kind] and "/" not in part.name:
            near = did_you_mean(part.name, zoo.parts[kind])
            yield f"{variant.name}: there is no {kind} {part.name!r}{near}"
    for row in variant.weights:
        label = f"{variant.name}:{row.name}"
        if row.format not in zoo.parts["checkpoint format"]:
            yield f"{label}: there is no checkpoint format {row.format!r}"
        size = row.size or row.predicted_size or 0
        if row.repo and not _plausible(variant, row, size):
            yield f"{label}: {size} bytes do not fit {variant.params} parameters"
        classes = variant.spec.num_classes if row.num_classes is None else row.num_classes
        if row.labels and len(row.labels) != classes:
            yield f"{label}: {len(row.labels)} labels for another number of classes"
        if problem := _label_problem(row.label_set, classes):
            yield f"{label}: {problem}"


def _label_problem(label_set: str, classes: int) -> str:
    """Say what is wrong with a row's label set; one that vitzoo does not know may be the row's."""
    if label_set not in SETS:
        hint = did_you_mean(label_set, SETS) if label_set else ""
        return f"unknown label set {label_set!r}{hint}" if hint else ""
    if SETS[label_set] == classes:
        return ""
    return f"{label_set} has {SETS[label_set]} classes, the weights have {classes}"


def _unbuilt(file: Path, variants: list[Variant]) -> Iterator[str]:
    """Say which variants have parts that nothing can be said of, since no plugin brings them."""
    lacking = {variant.name: names for variant in variants if (names := _absent(variant))}
    if lacking:
        namespaces = ", ".join(sorted({repr(name) for names in lacking.values() for name in names}))
        yield (
            f"{file}: not built, and not counted: {', '.join(lacking)}; no installed plugin has "
            f"the parts of {namespaces} that this manifest names. Install it (pip install -e .), "
            "then check again"
        )


def _absent(variant: Variant) -> set[str]:
    """Return the namespaces of a variant's parts that no installed plugin has."""
    return set(variant.spec.namespaces) - registry().host.infos.keys()


def _miscounted(variants: list[Variant]) -> Iterator[str]:
    """Build what the core's builder can build, without memory, and count its parameters."""
    import torch

    from vitzoo.build import build

    for variant in variants:
        if variant.builder != CORE_BUILDER or _absent(variant):
            continue
        try:
            with torch.device("meta"):
                model = build(variant.spec, part=registry().part)
        except VitzooError as error:
            yield f"{variant.name}: cannot be built: {error}"
            continue
        params = sum(p.numel() for p in model.parameters())
        if params != variant.params:
            yield f"{variant.name}: params is {variant.params}, the network has {params}"


def _plausible(variant: Variant, row: Weights, size: int) -> bool:
    """Tell whether a size lies between that of the trunk alone and that with any head."""
    spec = variant.spec
    classes = spec.num_classes if row.num_classes is None else row.num_classes
    per_class = spec.embed_dim + 1
    trunk = variant.params - spec.num_classes * per_class - 2 * spec.embed_dim**2
    most = variant.params + classes * per_class + 2 * spec.embed_dim**2
    if _holds_more(row):
        return size >= trunk * min(DTYPE_BYTES)
    return any(trunk * b <= size <= most * b + HEADER_SLACK for b in DTYPE_BYTES)


def _holds_more(row: Weights) -> bool:
    """Tell whether files of a row's layout may hold more than the network, such as a text tower.

    Of the core's layouts those without a classifier may: they were saved in pre-training.
    """
    if row.format not in registry().parts["checkpoint format"]:
        return False
    layout = registry().part("checkpoint format", row.format)
    return bool(layout.ignored) and ("/" in row.format or row.num_classes == 0)
