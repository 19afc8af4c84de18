"""20 plugins with 2,000 variants and 4,000 weights, beside a bare interpreter and an empty zoo.

The target: `vitzoo list` within 60 bare interpreters; `create` of a core variant as fast as without
plugins; linear growth to 10,000 variants.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo
from internals import _registry
from plugin_files import write_distribution

pytestmark = pytest.mark.benchmark

PLUGINS = 20
VARIANT = """
[variants.{name}]
summary = "ViT-Base/{number} of a made-up report, distilled from a larger network of the same kind"
size = "b"
patch_size = 16
image_size = 224
params = 86567656
paper = "arXiv:2012.12877"
source = "table {number}; timm made_up_base_patch16_224_{number}"
known_as = {{ timm = "made_up_{name}", transformers = "made-up/made-up-base-patch16-{number}" }}
"""
WEIGHTS = """
[variants.{name}.weights.{tag}]
default = {default}
repo = "made-up/made_up_base_patch16_224.{number}_{tag}"
file = "model.safetensors"
pin = "reported"
revision = "80e968688553f219e4a86f940ed945a23709c16f"
size = 346284714
sha256 = "21d4764d94f6c3ffdb6da3581115a0a1ee2d505537d96883b540e54766407c9e"
format = "timm"
num_classes = 1000
label_set = "imagenet-1k"
preprocessing = {{ mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225], interpolation = \
"bicubic", crop_pct = 0.9, crop_mode = "center" }}
license = "Apache-2.0"
source = "arXiv:2012.12877; converted from https://dl.example.org/deit/made_up-a1311bcf-{number}.pth"
top1 = 72.19
evaluation = "ImageNet-1k validation; timm results-imagenet.csv @224 px"
"""


def rows(count: int) -> str:
    """Write rows of real size."""
    text = "api = 1\n"
    for number in range(1, count + 1):
        name = f"vit_b16_{number}"
        text += VARIANT.format(name=name, number=number)
        text += WEIGHTS.format(name=name, number=number, tag="in21k_ft_in1k", default="true")
        text += WEIGHTS.format(name=name, number=number, tag="in1k", default="false")
    return text


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Write as many distributions as asked for, with their variants shared out among them."""

    def write(variants: int) -> Path:
        site = tmp_path_factory.mktemp(f"site{variants}")
        for i in range(PLUGINS if variants else 0):
            package = f"bench_vit_{i}"
            files = {
                f"{package}/__init__.py": "raise ImportError('nobody imports me')",
                f"{package}/registry.toml": rows(variants // PLUGINS),
            }
            write_distribution(
                site, package.replace("_", "-"), f"bench{i} = {package}:registry.toml", files
            )
        return site

    return {variants: write(variants) for variants in (0, 2_000, 10_000)}


def process(site: Path, *args: str, lines: int = 0):
    """Return a function that runs Python with a folder of distributions on its path."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    env = os.environ | {"PYTHONPATH": path, "VITZOO_HOME": ":memory:"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the modules of a user are compiled

    def run():
        done = subprocess.run([sys.executable, *args], check=True, capture_output=True, env=env)
        assert done.stdout.count(b"\n") >= lines

    return run


LIST = ("-m", "vitzoo", "list")
BARE = ("-c", "pass")
WITHIN = 60  # bare interpreters


def check_within(compare, times: float, title: str, sides, rounds: int = 5) -> None:
    """Fail if the first side takes more than so many times as long as the second."""
    result = compare(title, sides, rounds=rounds)
    result.check(result.others[0], at_least=1 / times)


def test_a_listing_of_2000(zoo, compare):
    """Every manifest is parsed once."""
    ours, bare = process(zoo[2_000], *LIST, lines=2_000), process(zoo[2_000], *BARE)
    sides = {"vitzoo": ours, "bare interpreter": bare}
    check_within(compare, WITHIN, "list 2,000", sides)


def test_growth_is_linear(zoo, compare):
    many = process(zoo[10_000], *LIST, lines=10_000)
    few = process(zoo[2_000], *LIST, lines=2_000)
    sides = {"vitzoo, 10,000": many, "vitzoo, 2,000": few}
    check_within(compare, 5 * 1.2, "list 10,000", sides, 3)


def test_one_plugins_name_reads_no_other(zoo, compare):
    one = process(zoo[2_000], "-c", "import vitzoo; vitzoo.describe('bench0/vit_b16_1')")
    every = process(zoo[2_000], "-c", "import vitzoo; vitzoo.plugins()")
    sides = {"vitzoo": one, "vitzoo, all plugins": every}
    check_within(compare, 0.4, "describe one plugin's name", sides)


@pytest.mark.parametrize("variants", [2_000, 10_000])
def test_create_of_the_core_costs_what_it_costs_without_plugins(zoo, compare, variants):
    """Each turn starts from nothing but imported modules: the registry is read anew."""

    def create(site: Path):
        def run():
            sys.path.insert(0, str(site))
            _registry.cache_clear()
            try:
                vitzoo.create("vit_ti16", device="meta")
            finally:
                sys.path.remove(str(site))
                _registry.cache_clear()

        return run

    title = f"create a core variant beside {variants:,}"
    sides = {"vitzoo": create(zoo[variants]), "vitzoo, no plugins": create(zoo[0])}
    check_within(compare, 1.1, title, sides, 41)
