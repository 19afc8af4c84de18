"""Constants of registry files that listings need, and what they mean; torch-free.

No data class is imported here.
"""

from __future__ import annotations

import re
from pathlib import Path

CORE_MANIFEST = Path(__file__).parents[1] / "registry.toml"  # of a wheel
if not CORE_MANIFEST.exists():  # a checkout, also if it is installed editable
    CORE_MANIFEST = Path(__file__).parents[2] / "registry.toml"
MAX_MANIFEST = 16 * 1024 * 1024  # bytes; the core's has 56,000
MAX_PLUGIN_MANIFEST = 1024 * 1024
# These licenses allow any use of a file; every other license is shown before a download.
PERMISSIVE = ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "cc0-1.0", "unlicense")
NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial")  # in the name of a license
# Results of weights, in percent: top-1 on ImageNet-1k validation unless `evaluation` names other
# data, top-5, top-1 on five further test sets, and top-1 of k nearest neighbours of features.
FURTHER_RESULTS = (
    "top5",
    "imagenet_real",
    "imagenet_v2",
    "imagenet_sketch",
    "imagenet_a",
    "imagenet_r",
)
KNN = "knn_top1"
RESULTS = ("top1", *FURTHER_RESULTS, KNN)
# Data sets of the results in papers; VTAB is the mean of its 19 tasks.
RESULT_SETS = ("imagenet", "imagenet_real", "cifar10", "cifar100", "pets", "flowers", "vtab")
LABEL_SETS = {  # of vitzoo, and their numbers of classes
    "imagenet-1k": 1000,
    "imagenet-12k": 11821,
    "imagenet-21k": 21843,
    "imagenet-21k-miil": 11221,
    "imagenet-22k": 21841,
    "imagenet-22k-ms": 21842,
}
PINS = {"confirmed": "confirmed", "reported": "reported", "first-use": "trust on first use"}
TIMM_POOLS = {"token": "class", "avg": "mean", "map": "attention"}  # timm's names, and those here
AVG = {"name": "mean", "norm_first": False}  # timm's "avg" of a ViT: its norm acts after the mean
TOWER = (
    "VisionModel"  # stands for the class of an image tower inside a larger model of transformers
)
# How logits become answers: a softmax of all, a sigmoid of each, or the numbers themselves.
SOFTMAX, SIGMOID, IDENTITY = "softmax", "sigmoid", "identity"
OUTPUT_ACTIVATIONS = (SOFTMAX, SIGMOID, IDENTITY)
CORE_BUILDER = "vitzoo.network.build:build"


def commercial_use(license_: str | None) -> str | None:
    """Tell whether a license allows commercial use: `yes`, `no` or `read` (its terms say).

    >>> commercial_use("Apache-2.0"), commercial_use("CC-BY-NC-4.0"), commercial_use("openrail")
    ('yes', 'no', 'read')
    """
    if not license_:
        return None
    if license_.lower() in PERMISSIVE:
        return "yes"
    return "no" if NON_COMMERCIAL.search(license_.lower()) else "read"
