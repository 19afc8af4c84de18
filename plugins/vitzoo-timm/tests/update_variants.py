"""Writes the variants of the bridge: registry.toml, and the table of families in README.md.

    python plugins/vitzoo-timm/tests/update_variants.py

They are the architectures of timm among the ViTs that vitzoo has no parts for, as
`vitzoo_timm.native.spec_of` says, and those of the families of `PAPERS`. Numbers are read from
timm's modules on `meta`, and weights from timm's configs of pre-trained files; images per second
and results stand in tests/facts of the repository. Pins of the manifest are kept. A test asks
whether the files are up to date, so a new timm that changes a network or publishes a file is seen.
"""

from __future__ import annotations

import fnmatch
import re
import runpy
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

import vitzoo
from vitzoo.network.summary import cost
from vitzoo.registry.label_sets import SETS
from vitzoo_timm.look import NotNative

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "vitzoo_timm" / "registry.toml"
README = ROOT / "README.md"
TESTS = ROOT.parents[1] / "tests"
UNFILLED = runpy.run_path(str(TESTS / "parity" / "conftest.py"))["unfilled"]
FIGURES = runpy.run_path(str(TESTS / "update_figures.py"))
PREDICTED = runpy.run_path(str(TESTS / "helpers" / "predicted.py"))
TABLE = re.compile(r"(<!-- variants -->\n).*?(<!-- end -->)", re.DOTALL)
REQUIRES = "timm>=1.0.31,<1.1"
VITS = ("vit_*", "deit*", "beit*", "eva02*", "aimv2_*")
PAPERS = {
    "cait_*": ("CaiT: class attention", "2103.17239"),
    "convit_*": ("ConViT: gated positional attention", "2103.10697"),
    "crossvit_*": ("CrossViT: two patch sizes", "2103.14899"),
    "eva_*": ("EVA", "2211.07636"),
    "flexivit_*": ("FlexiViT", "2212.08013"),
    "hiera_*": ("Hiera", "2306.00989"),
    "hieradet_*": ("Hiera of SAM 2", "2408.00714"),
    "levit_*": ("LeViT", "2104.01136"),
    "mvitv2_*": ("MViTv2", "2112.01526"),
    "naflexvit_*": ("ViT for any aspect ratio", "2307.06304"),
    "pit_*": ("PiT: pooling between stages", "2103.16302"),
    "pvt_v2_*": ("PVT v2", "2106.13797"),
    "samvit_*": ("image encoder of SAM", "2304.02643"),
    "swin_s3_*": ("Swin found by AutoFormerV2", "2111.14725"),
    "swinv2_*": ("Swin V2", "2111.09883"),
    "swin_*_window*": ("Swin", "2103.14030"),
    "tnt_*": ("TNT: Transformer in Transformer", "2103.00112"),
    "twins_*": ("Twins", "2104.13840"),
    "visformer_*": ("Visformer", "2104.12533"),
    "vitamin_*": ("ViTamin", "2404.02132"),
    "volo_*": ("VOLO: outlook attention", "2106.13112"),
    "xcit_*": ("XCiT: attention between channels", "2106.09681"),
}
OTHERS = {  # among the ViTs
    "vit_*relpos_*": ("ViT with relative positions", "2111.09883"),
    "vit_*18x2*": ("ViT of parallel blocks", "2203.09795"),
    "vit_*sapiens2": ("Sapiens2", "2604.21681"),
    "vit_*dlittle_*": ("ViT with differential attention", "2410.05258"),
    "vit_*d?wee_*": ("ViT with differential attention", "2410.05258"),
    "vit_*dwee_*": ("ViT with differential attention", "2410.05258"),
    "vit_*mci*": ("image encoder of MobileCLIP-B", "2311.17049"),
    "vit_*resnet*": ("ViT on a ResNet-D", "2010.11929"),
}
POOLS = {"avg": "mean", "map": "attention"}  # the spec of a wrapper has the pool `class`
PINNED = ("pin", "revision", "sha256", "size", "predicted_size", "file_seen")  # in this order
PREPROCESSING = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
SPDX = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0"}
TRAINED = {  # objective and data of the pre-training: the first pattern that fits timm's tag
    "mae*": ("self-supervised", "ImageNet-1k"),
    "datacomp1b*": ("image-text", "DataComp-1B"),
    "apple_mclip2_dfndr2b": ("image-text", "DFNDR-2B"),
    "apple_mclip*": ("image-text", "DataCompDR-1B"),
    "v2_webli": ("image-text", "WebLI"),
    "sa1b": ("", "SA-1B"),
    "*in12k*": ("supervised", "ImageNet-12k"),
    "*in22k*": ("supervised", "ImageNet-21k"),
    "*inw21k": ("supervised", "ImageNet-21k"),
    "*in1k": ("supervised", "ImageNet-1k"),
}
HEAD = """\
# timm's networks that are not made of vitzoo's parts. Written by tests/update_variants.py.
# Every key is described in docs/registry.md of vitzoo. A name that has been released keeps its
# meaning for ever (tests/released.json freezes it).

api = 1
summary = "Networks that run the code of timm, such as Swin, MViTv2, XCiT and CaiT"
"""


def names() -> list[str]:
    """Return the architectures of the bridge."""
    import timm

    found = {n for pattern in PAPERS for n in fnmatch.filter(timm.list_models(), pattern)}
    vits = [n for pattern in VITS for n in fnmatch.filter(timm.list_models(), pattern)]
    return sorted(found | {n for n in vits if not is_native(n)})


def is_native(name: str) -> bool:
    """Tell whether vitzoo has parts for an architecture."""
    from vitzoo_timm.native import spec_of

    try:
        spec_of(plain(name))
    except NotNative:
        return False
    return True


@cache
def plain(name: str) -> Any:
    """Return timm's network as it is."""
    return made(name)


def made(name: str, **options: Any) -> Any:
    """Return timm's network on `meta`."""
    import timm

    with torch.device("meta"), UNFILLED():
        return timm.create_model(name, pretrained=False, **options)


@cache
def accepts(cls: type, name: str) -> tuple[str, ...]:
    """Return which fields of a spec a class of timm's can honour, tried on one architecture."""
    from vitzoo_timm.build import parameters

    known = parameters(cls)
    found = [field for field, options in TRIED.items() if builds(name, options)]
    if "img_size" in known and builds(name, {"img_size": [2 * n for n in size_of(plain(name))]}):
        found.append("image_size")
    found += ["drop_path"] if "drop_path_rate" in known else []
    return (*found, "dropout") if "proj_drop_rate" in known else tuple(found)


TRIED = {"num_classes": {"num_classes": 7}, "in_chans": {"in_chans": 1}}


def builds(name: str, options: dict[str, Any]) -> bool:
    """Tell whether timm builds an architecture with options."""
    try:
        made(name, **options)
    except (TypeError, AssertionError, RuntimeError, ValueError):
        return False
    return True


def size_of(model: Any) -> list[int]:
    """Return the (h, w) px of the images of a network."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return list(size or model.pretrained_cfg["input_size"][1:])


def patch_of(model: Any) -> list[int]:
    """Return the (h, w) px of its patches, 16 where it has none of its own."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    patch = patch if isinstance(patch, tuple | list) else (16, 16)
    return [max(1, int(n)) for n in patch]


def row(name: str, first: dict[type, str]) -> str:
    """Return the table of a variant.

    Args:
        name: of the architecture.
        first: the architecture that stands for each class.
    """
    import timm

    model = plain(name)
    title, paper = next(v for k, v in {**OTHERS, **PAPERS}.items() if fnmatch.fnmatch(name, k))
    cls = type(model)
    taken = cost(model, torch.empty(1, 3, *size_of(model), device="meta"))
    values: dict[str, Any] = {
        "summary": f"{title}; timm's {cls.__name__}",
        "builder": "vitzoo_timm.build:build",
        "accepts": list(accepts(cls, first.setdefault(cls, name))),
        "requires": [REQUIRES],
        "image_size": size_of(model),
        "patch_size": patch_of(model),
        "num_classes": model.num_classes,
        "params": sum(p.numel() for p in model.parameters()),
        "gmacs": taken.macs / 10**9,
        "activations": taken.activations,
        "paper": f"arXiv:{paper}",
        "source": f"timm {timm.__version__}, {cls.__module__.removeprefix('timm.')}",
    }
    if pool := POOLS.get(getattr(model, "global_pool", None)):
        values["timm_pool"] = pool  # so that a config with this pool states no change
    lines = [f"[variants.{name}]", *(f"{k} = {toml(v)}" for k, v in values.items())]
    lines.append(f"known_as = {toml({'timm': name})}")
    for tag in tags(name):
        lines += ["", f"[variants.{name}.weights.{tag}]"]
        lines += [f"{k} = {toml(v)}" for k, v in weights(name, tag, paper).items()]
    return "\n".join(lines)


def tags(name: str) -> list[str]:
    """Return the tags of an architecture that have a file, timm's default first."""
    import timm

    default = timm.get_pretrained_cfg(name)
    if default is None or not default.has_weights:
        return []
    found = [tag.partition(".")[2] for tag in timm.list_pretrained(f"{name}.*")]
    return sorted(found, key=lambda tag: (tag != default.tag, tag))


def weights(name: str, tag: str, paper: str) -> dict[str, Any]:
    """Return the entry of a file, as timm's config states it."""
    import timm

    config = timm.get_pretrained_cfg(f"{name}.{tag}")
    owner, classes = config.hf_hub_id.partition("/")[0], config.num_classes
    same = classes == plain(name).num_classes
    network = plain(name) if same else made(name, num_classes=classes)
    place = {"repo": config.hf_hub_id, "file": config.hf_hub_filename or "model.safetensors"}
    account = "" if owner in ("timm", "apple") else f"; on the private account {owner}"
    pretraining, data = trained(config.hf_hub_id, tag)
    prepared = {key: getattr(config, key) for key in PREPROCESSING}
    values = {
        "default": (len(tags(name)) > 1 and tag == tags(name)[0]) or None,
        **place,
        **pinned(name, tag, place, network),
        "format": "timm",
        "num_classes": None if same and classes else classes,
        "label_set": next((key for key, count in SETS.items() if count == classes), None),
        "license": SPDX.get(config.license, config.license),
        "source": f"arXiv:{paper}; timm {timm.__version__} config{account}",
        "pretraining": pretraining or None,
        "pretraining_data": data or None,
        "preprocessing": prepared | {"crop_pct": min(config.crop_pct, 1.0)},  # without padding
    }
    return {key: value for key, value in values.items() if value is not None}


def pinned(name: str, tag: str, place: dict[str, str], network: Any) -> dict[str, Any]:
    """Return what the manifest knows about a file, and its predicted size where it has no size."""
    row = present().get(name, {}).get("weights", {}).get(tag, {})
    row = row if place.items() <= row.items() else {}
    known = {"pin": "first-use"} | row
    if "size" not in row:
        known["predicted_size"] = predicted(network)
    return {key: known[key] for key in PINNED if key in known}


def predicted(network: Any) -> int:
    """Return the bytes of the published file of a network, without metadata."""
    return int(PREDICTED["predicted_size"](PREDICTED["published"](network)))


@cache
def present() -> dict[str, Any]:
    """Return the variants of the manifest as it is."""
    found: dict[str, Any] = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["variants"]
    return found


def trained(repo: str, tag: str) -> tuple[str, str]:
    """Return objective and data of the pre-training; the entry of another plugin may state them."""
    if repo in elsewhere():
        return elsewhere()[repo]
    return next((v for pattern, v in TRAINED.items() if fnmatch.fnmatch(tag, pattern)), ("", ""))


@cache
def elsewhere() -> dict[str, tuple[str, str]]:
    """Return objective and data of the pre-training by repository, as other plugins state them."""
    others = (variant for variant in vitzoo.variants() if variant.namespace != "timm")
    rows = (row for variant in others for row in variant.weights)
    return {row.repo: (row.pretraining, row.pretraining_data) for row in rows}


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        if len(value) == 2 and value[0] == value[1]:  # a square
            return str(value[0])
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def manifest() -> str:
    """Return the manifest."""
    first: dict[type, str] = {}
    text = "\n\n".join([HEAD.rstrip(), *(row(name, first) for name in names())]) + "\n"
    return str(FIGURES["rewritten"](text))


def table(text: str) -> str:
    """Return the rows of README.md: the families of a manifest with patterns of their names."""
    summaries = re.findall(r"^\[variants\.\w+\]\nsummary = \"(.*?);", text, re.MULTILINE)
    patterns: dict[str, list[str]] = {}
    for pattern, (title, _) in {**PAPERS, **OTHERS}.items():
        patterns.setdefault(title, []).append(f"`timm/{pattern}`")
    rows = (
        f"| {title} | {', '.join(patterns[title])} | {count} |"
        for title, count in Counter(summaries).items()
    )
    return "\n".join(["| family | names | networks |", "|---|---|---|", *rows, ""])


def page(text: str) -> str:
    """Return README.md with the table of a manifest."""
    return TABLE.sub(lambda match: match[1] + table(text) + match[2], README.read_text())


if __name__ == "__main__":
    written = manifest()
    MANIFEST.write_text(written)
    README.write_text(page(written))
