"""Results of weights and images per second in registry files, each with its source."""

from __future__ import annotations

import dataclasses
import json

import pytest

import vitzoo
from helpers import refuses, says
from internals import MEASUREMENTS, RESULTS, Entries, Reader, fields, read_manifest, table_of
from plugin_files import FRESH, NET
from plugin_helpers import state
from tables import cases
from vitzoo.errors import RegistryError

SHARED = """
[evaluations.ours]
evaluation = "ImageNet-1k validation"
evaluation_source = "our lab, results.csv"
evaluation_commit = "0123abc"

[measurements.rtx4090]
hardware = "NVIDIA RTX 4090"
precision = "AMP"
mode = "eager"
software = "torch 2.9.1"
batch_size = 256
source = "our lab, speed.csv"
commit = "0123abc"
"""
VARIANT = """
gmacs = 1.25
activations = 4096
throughput = { rtx4090 = 812.5, ours = { images_per_second = 3, hardware = "a TPU", \
precision = "bf16", mode = "compiled", source = "our lab" } }
"""
RESULT_LINES = "".join(f"{name} = {90 - at}.5\n" for at, name in enumerate(RESULTS))
WEIGHTS = f'evaluated = "ours"\nevaluation_size = 192\n{RESULT_LINES}'
PARAMS = "params = 24069\n"


def manifest(*, variant=VARIANT, weights=WEIGHTS, shared=SHARED):
    assert NET.count(PARAMS) == 1
    return NET.replace(PARAMS, PARAMS + variant) + FRESH + weights + shared


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "registry.toml"
        path.write_text(text)
        return read_manifest(path, package="acme").variants[0]

    return read


def test_figures_are_read_with_their_source(read):
    variant = read(manifest())
    (weights,) = variant.weights
    assert [getattr(weights, name) for name in RESULTS] == [90.5 - at for at in range(8)]
    assert weights.evaluation == "ImageNet-1k validation"
    assert weights.evaluation_size == (192, 192)
    assert weights.evaluation_source == "our lab, results.csv"
    assert weights.evaluation_commit == "0123abc"
    assert (variant.gmacs, variant.activations) == (1.25, 4096)
    assert variant.throughput == (
        vitzoo.Throughput(
            name="rtx4090",
            images_per_second=812.5,
            hardware="NVIDIA RTX 4090",
            precision="AMP",
            mode="eager",
            software="torch 2.9.1",
            batch_size=256,
            source="our lab, speed.csv",
            commit="0123abc",
        ),
        vitzoo.Throughput(
            name="ours",
            images_per_second=3.0,
            hardware="a TPU",
            precision="bf16",
            mode="compiled",
            source="our lab",
        ),
    )


def test_an_entry_states_its_own_evaluation_before_the_shared_one(read):
    (weights,) = read(manifest(weights=WEIGHTS + 'evaluation = "a linear probe"\n')).weights
    assert weights.evaluation == "a linear probe"
    assert weights.evaluation_source == "our lab, results.csv"


def test_figures_written_as_a_table_are_read_as_the_same(read):
    variant = read(manifest())
    table = json.loads(json.dumps(table_of(variant)))
    again = Entries("acme").variant(variant.name, Reader(table, variant.name))
    spec = dataclasses.replace(again.spec, variant=variant.spec.variant)
    assert dataclasses.replace(again, spec=spec) == variant


@cases(
    ("changes", "said"),
    [
        ({"imagenet_a = 85.5": "imagenet_a = 100.5"}, ("imagenet_a", "percentage", "100.5")),
        ({"imagenet_r = 84.5": 'imagenet_r = "84.5"'}, ("imagenet_r", "number", "'84.5'")),
        ({"top5 = 89.5": "top5 = nan"}, ("top5", "percentage", "nan")),
        ({'evaluated = "ours"': 'evaluated = "our"'}, ("'our'", "'evaluations'", "'ours'")),
        ({'evaluated = "ours"': ""}, ("top5", "evaluation_source")),
        ({"evaluation_size = 192": ""}, ("top5", "evaluation_size")),
        ({WEIGHTS: "knn_top1 = 83.5\n"}, ("knn_top1", "evaluation_source")),
        ({"knn_top1 = 83.5": "knn_top1 = 835"}, ("knn_top1", "percentage", "835.0")),
        ({"evaluation_size = 192": "evaluation_size = 0"}, ("evaluation_size", "px", "0 (int)")),
        ({'evaluation_commit = "0123abc"': 'evaluation_commit = "main"'}, ("7 to 40", "'main'")),
        ({"gmacs = 1.25": "gmacs = 0"}, ("gmacs", "above 0", "0.0")),
        ({"gmacs = 1.25": "gmacs = inf"}, ("gmacs", "finite", "inf")),
        ({"activations = 4096": "activations = 4.5"}, ("activations", "whole number", "4.5")),
        ({"rtx4090 = 812.5": "rtx409 = 812.5"}, ("'rtx409'", "'measurements'", "'rtx4090'")),
        ({"rtx4090 = 812.5": "rtx4090 = -1"}, ("rtx4090", "above 0", "-1.0")),
        ({"images_per_second = 3,": ""}, ("ours", "'images_per_second'")),
        ({'hardware = "a TPU",': ""}, ("ours", "'hardware'")),
        ({'mode = "compiled"': 'mode = "quick"'}, ("mode", "eager", "compiled", "'quick'")),
        ({'mode = "eager"': 'mode = "eager"\nwatts = 1'}, ("rtx4090", "'watts'")),
        ({"batch_size = 256": "batch_size = 0"}, ("batch_size", "whole number", "0")),
        ({"batch_size = 256": "batch_siz = 256"}, ("'batch_siz'", "did you mean 'batch_size'")),
        ({'speed.csv"\ncommit = "0123abc"': 'speed.csv"\ncommit = "ABC"'}, ("commit", "'ABC'")),
    ],
)
def test_a_wrong_figure_or_source_is_refused(read, changes, said):
    text = manifest()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with refuses(RegistryError, "registry.toml", *said):
        read(text)


def test_listings_have_every_figure(read):
    row = fields(read(manifest(weights=WEIGHTS + 'default = true\nlabel_set = "imagenet-1k"\n')))
    assert [row[name] for name in RESULTS] == [90.5 - at for at in range(8)]
    assert (row["gmacs"], row["activations"], row["rtx4090"]) == (1.25, 4096, 812.5)
    assert [row[name] for name in MEASUREMENTS[1:]] == [None] * 4


def test_results_of_other_classes_are_not_listed(read):
    row = fields(read(manifest(weights=WEIGHTS + 'default = true\nlabel_set = "imagenet-21k"\n')))
    assert {row[name] for name in RESULTS[:-1]} == {None}
    assert row["knn_top1"] == 83.5  # of features, which have no classes


MODULE = """\
import vitzoo
SPEED = vitzoo.Throughput(name="rtx4090", images_per_second=2.5, hardware="NVIDIA RTX 4090",
    precision="AMP", mode="eager", source="our lab")
@vitzoo.hookimpl
def vitzoo_variants():
    spec = vitzoo.describe("vit_ti16").spec
    w = vitzoo.Weights("w", file="x.safetensors", size=1, sha256="a" * 64, WEIGHTS)
    yield vitzoo.Variant("net", "x", spec, 1, weights=(w,), VARIANT)
"""


@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
@pytest.mark.parametrize(
    ("variant", "weights", "said"),
    [
        ("gmacs='1'", "", ("gmacs", "number", "'1' (str)")),
        ("activations=0", "", ("activations", "whole number", "0")),
        ("throughput=(1,)", "", ("throughput", "Throughput objects")),
        ("throughput=(SPEED, SPEED)", "", ("throughput", "same name")),
        ("", "top5=1.0", ("top5", "evaluation_size")),
        ("", "evaluation_size='x'", ("evaluation_size", "px", "'x' (str)")),
        ("gmacs=1.5, throughput=(SPEED,)", "top1=80.0, evaluation_size=(224, 224)", None),
    ],
)
def test_figures_of_a_module_are_checked(install, variant, weights, said):
    code = MODULE.replace("WEIGHTS", weights).replace("VARIANT", variant)
    install("globex-vit", "globex = globex", {"globex.py": code})
    if said is None:
        row = vitzoo.describe("globex/net")
        assert (row.gmacs, row.throughput[0].images_per_second) == (1.5, 2.5)
        assert row.weights[0].evaluation_size == (224, 224)
        return
    with pytest.raises(vitzoo.PluginError):
        vitzoo.describe("globex/net")
    says(state("globex").cause, "net", *said)
