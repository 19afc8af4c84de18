"""The HTML of the catalogue's pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import vitzoo
from vitzoo import PluginInfo, Variant, Weights
from vitzoo.errors import printable
from vitzoo_site import index_data as index
from vitzoo_site.facts import (
    lines,
    network_facts,
    part_text,
    throughput_facts,
    weights_facts,
)
from vitzoo_site.links import linked, px

FOLDER = Path(__file__).parent
LOCAL = "local"  # the namespace of the user's registry files
PARTS = ("patch_embed", "pos_embed", "block", "pool", "head", "drop_path")
T = TypeVar("T")


def index_page(
    variants: Sequence[Variant], infos: Iterable[PluginInfo], title: str, docs: str = ""
) -> str:
    """Return the HTML of the index; `docs` is the address of the documentation, if it has one."""
    spaces = dict.fromkeys(variant.namespace for variant in variants)
    every = [(variant, weights) for variant in variants for weights in variant.weights]
    stated = {name for _, weights in every for name in index.results(weights)}
    return _environment().get_template("index.html").render(
        title=printable(title),
        root="",
        docs=docs,
        variants=len(variants),
        weights=len(every),
        packages=[_package(info) for info in infos if info.namespace in spaces],
        data=index.index_data(variants),
        families={space: space for space in spaces},
        tasks=_present(index.TASKS, {index.task(*pair) for pair in every}),
        commercial=_present(index.COMMERCIAL, {index.commercial(weights) for _, weights in every}),
        pins=_present(index.PINS, {weights.pin for _, weights in every}),
        licenses=sorted({weights.license_note for _, weights in every} - {""}, key=str.lower),
        patches=_patch_sizes(variants),
        test_sets=_present(index.TEST_SETS, stated),
        gmacs=any(variant.gmacs for variant in variants),
        measurements=index.measurements(variants),
    )  # fmt: skip


def variant_page(variant: Variant, info: PluginInfo, title: str, docs: str = "") -> str:
    """Return the HTML of a variant's page; `docs` is the address of its family's documentation."""
    stated = {name for weights in variant.weights for name in index.results(weights)}
    paper = variant.paper_results
    return _environment().get_template("variant.html").render(
        title=printable(title),
        root="../" * variant_path(variant).count("/"),
        docs=docs,
        name=variant.name,
        namespace=variant.namespace,
        summary=variant.summary,
        package=_package(info),
        create=lines(variant, variant.default_weights),
        default=variant.default_weights,
        network=network_facts(variant),
        parts=[(name, *part_text(getattr(variant.spec, name))) for name in PARTS],
        throughput=throughput_facts(variant),
        weights=[_weights(variant, weights) for weights in variant.weights],
        test_sets=_present(index.TEST_SETS, stated),
        paper_sets=list(dict.fromkeys(name for row in paper for name, _ in row.accuracies)),
        paper_results=[(row, row.cells) for row in paper],
    )  # fmt: skip


def variant_path(variant: Variant) -> str:
    """Return the path of a variant's page in the site."""
    return f"networks/{variant.name}.html"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.globals["version"] = vitzoo.__version__
    environment.filters |= {"linked": linked, "px": px}
    return environment


def _printable(value: Any) -> Any:
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if plain else value


def _present(labels: Mapping[str, T], keys: set[str]) -> dict[str, T]:
    return {key: label for key, label in labels.items() if key in keys}


def _patch_sizes(variants: Sequence[Variant]) -> dict[str, str]:
    sizes = sorted({variant.spec.patch_size for variant in variants})
    return {px(size): px(size) for size in sizes}


def _package(info: PluginInfo) -> str:
    if info.namespace == LOCAL:
        return "the registry files of VITZOO_REGISTRY"
    return f"{info.distribution} {info.version or vitzoo.__version__}"


def _weights(variant: Variant, weights: Weights) -> dict[str, Any]:
    return {
        "entry": weights,
        "use": index.commercial(weights),
        "create": lines(variant, weights),
        "results": index.results(weights),
        "facts": weights_facts(variant, weights),
    }
