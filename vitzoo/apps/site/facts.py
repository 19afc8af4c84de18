"""What the page of a variant says: labels, numbers and texts, the texts as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from vitzoo.apps.site import index_data as index
from vitzoo.apps.site.links import file_address, file_place, link, linked
from vitzoo.schema.kinds import PARTS_OF_WEIGHTS
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import BlockSpec, PartSpec
from vitzoo.schema.terms import CORE_BUILDER, RESULTS
from vitzoo.schema.values import PartFact
from vitzoo.text import px

NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes")
FLAGS = ("class_token", "num_registers", "pre_norm", "final_norm", "dropout")
PIN_MEANS = {
    "confirmed": "a download had this SHA-256",
    "reported": "third parties stated this SHA-256; a download that differs is refused",
    "first-use": "the SHA-256 is not known yet; it is asked from the Hub at the first download, "
    "and every later download must have it",
}
Fact = tuple[str, str, Markup]  # key, label, value as HTML


def lines(variant: Variant, weights: Weights | None) -> tuple[str, str]:
    """Return the two lines that load a network."""
    argument = ""
    if weights is not None:
        argument = ", pretrained=True" if weights.default else f', weights="{weights.name}"'
    return "import vitzoo", f'model = vitzoo.create("{variant.name}"{argument})'


def network_facts(variant: Variant) -> list[Fact]:
    """Return what the page says about a network, besides its parts."""
    spec = variant.spec
    known = {f"known_as_{number}": pair for number, pair in enumerate(variant.known_as)}
    return _facts(
        {
            "params": ("parameters", variant.params),
            "gmacs": ("GMACs", variant.gmacs),
            "activations": ("activations in fp32, bytes", variant.activations),
            "image_size": ("image size, px", px(spec.image_size)),
            "patch_size": ("patch size, px", px(spec.patch_size)),
            **{name: (name, getattr(spec, name)) for name in (*NUMBERS, *FLAGS)},
            "builder": ("builder", _target(variant.builder)),
            "options": ("options of the builder", _options(spec.options)),
            "base": ("changed from", variant.base),
            "paper": ("paper", variant.paper),
            "source": ("source of the numbers", variant.source),
            **{key: (f"name in {library}", name) for key, (library, name) in known.items()},
        }
    )


def throughput_facts(variant: Variant) -> list[tuple[str, str, float, Markup]]:
    """Return the images per second: key, hardware and settings, number, source as HTML."""
    return [
        (row.name, index.measurement(row), row.images_per_second, _from(row.source, row.commit))
        for row in variant.throughput
    ]


def weights_facts(variant: Variant, weights: Weights) -> list[Fact]:
    """Return what the page says about weights, besides their results on ImageNet's test sets."""
    images, use = weights.preprocessing, index.commercial(weights)
    listed = index.results(weights)
    others = {key: getattr(weights, key) for key in RESULTS if key not in listed}
    address, place = file_address(weights), file_place(weights)
    where = "in the package" if weights.bundled else "on a disk of its publisher"
    facts = {
        "license": ("license", weights.license_note),
        "commercial": ("commercial use", index.COMMERCIAL[use]),
        "task": ("task", index.TASKS[index.task(variant, weights)]),
        "num_classes": ("outputs", index.classes(variant, weights)),
        "label_set": ("class names", weights.label_set),
        "pretraining": ("pre-training", weights.pretraining),
        "pretraining_data": ("data of the pre-training", weights.pretraining_data),
        **{key: (f"{index.TEST_SETS[key][0]}, %", value) for key, value in others.items()},
        "evaluation": ("evaluation", weights.evaluation),
        "evaluation_size": ("evaluation, px", px(weights.evaluation_size)),
        "evaluation_source": (
            "source of the results",
            _from(weights.evaluation_source, weights.evaluation_commit),
        ),
        "source": ("source", weights.source),
        "format": ("checkpoint format", weights.format),
        "overrides": ("settings of these weights", _overrides(weights)),
        "mean": ("mean of pixel values", _listed(images.mean)),
        "std": ("standard deviation", _listed(images.std)),
        "interpolation": ("resizing", images.interpolation),
        "crop_pct": ("crop", f"{images.crop_pct} ({images.crop_mode})"),
        "file": ("file", link(address, place) if address else f"{place} ({where})"),
        "revision": ("revision", weights.revision),
        "size": ("size, bytes", weights.size),
        "predicted_size": ("expected size, bytes", weights.predicted_size),
        "sha256": ("SHA-256", weights.sha256),
        "pin": ("pin", f"{weights.pin_note}: {PIN_MEANS[weights.pin]}"),
    }
    return _facts(facts)


def _facts(stated: dict[str, tuple[str, Any]]) -> list[Fact]:
    """Return the facts that are stated, with numbers and texts as HTML."""
    return [
        (key, label, value if isinstance(value, Markup) else linked(_text(value)))
        for key, (label, value) in stated.items()
        if value not in (None, "")
    ]


def _text(value: Any) -> str:
    """Write a number with separators of thousands, and true or false as yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _from(source: str, commit: str) -> Markup:
    return linked(f"{source} (commit {commit})" if source and commit else source)


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(map(str, numbers))


def _target(target: object) -> str:
    """Write the import path of a plugin's builder, which may be the function itself."""
    if isinstance(target, str):
        return "" if target == CORE_BUILDER else target
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"


def part_text(part: PartSpec | BlockSpec) -> tuple[str, str]:
    """Return the name and the options of a part; blocks have no name, and defaults are left out."""
    if isinstance(part, PartSpec):
        return part.name, _options(part.options)
    changed = vars(part).items() - vars(BlockSpec()).items()
    return "", _options(sorted(changed)) or "default options"


def _options(options: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{key}={_setting(value)}" for key, value in options)


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _overrides(weights: Weights) -> str:
    """Write the settings that weights state over those of their variant."""
    stated = [_options((f"block.{key}", value) for key, value in weights.block)]
    for name in PARTS_OF_WEIGHTS:
        part: PartFact = getattr(weights, name)
        if isinstance(part, PartSpec):
            stated.append(" ".join(filter(None, (f"{name}={part.name}", _options(part.options)))))
        else:
            stated.append(_options((f"{name}.{key}", value) for key, value in part))
    if weights.pre_norm is not None:
        stated.append(_options([("pre_norm", weights.pre_norm)]))
    return ", ".join(filter(None, stated))
