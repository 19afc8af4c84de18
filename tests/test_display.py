"""How results are shown: a short `repr` or a table, and figures in notebooks."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest

import vitzoo
from helpers import says
from internals import (
    LinearClassifier,
    Measurement,
    ResultList,
    ResultTuple,
    Score,
    Work,
    aligned,
    html_table,
)

LONG = "a long text " * 40
MANY = tuple(f"blocks.{i}.norm1.weight" for i in range(150))
IMAGE = np.zeros((28, 28), np.uint8)


def digits():
    return vitzoo.create("vit_digits", pretrained=True)


def probe():
    score = Score.of("k-NN", np.array([0, 1] * 500), np.array([0, 0] * 500), 2)
    classifier = LinearClassifier(np.zeros((2, 3)), np.zeros(2), 1.0, (), True)
    return vitzoo.Probe(
        "vit_digits", "ab", ("a", "b"), MANY, MANY, np.array([0, 0]), True, {}, score,
        classifier, np.zeros((2, 2)), (), 0, 0, "",
    )  # fmt: skip


def from_module(function, name):
    return getattr(inspect.getmodule(inspect.unwrap(getattr(vitzoo, function))), name)


RESULTS = {
    "Variant": lambda: vitzoo.describe("vit_b16"),
    "Variant.weights": lambda: vitzoo.describe("vit_b16").weights,
    "Variant.paper_results": lambda: vitzoo.describe("vit_b16").paper_results,
    "Variant.throughput": lambda: vitzoo.describe("vit_b16").throughput,
    "Weights": lambda: vitzoo.describe("vit_b16").default_weights,
    "Recipe": lambda: vitzoo.describe("vit_ti16").default_weights.recipe,
    "PaperResult": lambda: vitzoo.describe("vit_b16").paper_results[0],
    "Throughput": lambda: vitzoo.describe("vit_b16").throughput[0],
    "Spec": lambda: vitzoo.describe("dinov2/vit_b14").spec,
    "BlockSpec": lambda: vitzoo.describe("dinov2/vit_b14").spec.block,
    "PartSpec": lambda: vitzoo.PartSpec("conv", (("bias", False), ("text", LONG))),
    "Preprocessing": lambda: vitzoo.Preprocessing((0.5,) * 13, (0.5,) * 13, bands=range(13)),
    "variants()": vitzoo.variants,
    "plugins()": vitzoo.plugins,
    "PluginInfo": lambda: vitzoo.PluginInfo("acme", "broken", cause=LONG, fix=LONG, trace=MANY),
    "verify()": lambda: vitzoo.verify("vit_digits"),
    "Verification": lambda: vitzoo.Verification(LONG, "damaged", Path(LONG), 9, "ab" * 32, LONG),
    "LoadReport": lambda: digits().load_report,
    "Transform": lambda: vitzoo.transform("vit_digits"),
    "Predictor": lambda: vitzoo.Predictor("vit_digits"),
    "Fingerprint": lambda: vitzoo.Predictor("vit_digits").fingerprint(),
    "Predictor()()": lambda: vitzoo.Predictor("vit_digits")([IMAGE] * 3),
    "Row": lambda: vitzoo.Predictor("vit_digits")(IMAGE)[0],
    "Predictions": lambda: vitzoo.predict("vit_digits", [IMAGE] * 3),
    "Prediction": lambda: vitzoo.predict("vit_digits", IMAGE, top=10)[0],
    "Embedded": lambda: vitzoo.Embedded(
        Path(LONG), 10**6, 0, 0, 10**6, 9.5, Work(10**6, read=1.0), MANY[:3], MANY[:3]
    ),
    "Probe": probe,
    "Canary": lambda: vitzoo.Canary.of(vitzoo.Predictor("vit_digits")),
    "LabelledImages": lambda: vitzoo.LabelledImages([None] * 10**4, tuple(MANY)),
    "Plot": lambda: vitzoo.plot("filters", "vit_digits"),
    "Backbone": lambda: vitzoo.backbone("vit_digits"),
    "Benchmark": lambda: vitzoo.Benchmark(
        "vit_b16", LONG, "x", "cpu", 1, 6, 0.0, {}, (Measurement(LONG, 8),) * 20, MANY
    ),
    "Linked": lambda: vitzoo.Linked(
        LONG, "timm", Path(LONG), "ab" * 32, True, dict.fromkeys(MANY, (1, "ab")), LONG
    ),
    "Pushed": lambda: vitzoo.Pushed(LONG, "timm", None, dict.fromkeys(MANY, (1, "ab"))),
    "labels()": lambda: vitzoo.labels("imagenet-1k"),
    "synsets()": lambda: vitzoo.synsets("imagenet-1k"),
    "summary()": lambda: vitzoo.summary("vit_digits"),
    "export()": lambda: from_module("export", "Export")(Path(LONG), MANY, "onnx", LONG, (1,), 0),
    "convert()": lambda: from_module("convert", "Conversion")(
        LONG, "timm", LONG, "transformers_vit", 150, 150, notes=MANY
    ),
}  # fmt: skip
# These are networks, parts and what plugins contribute.
NO_RESULTS = {
    "VisionTransformer", "CheckpointFormat", "DropPathPolicy", "Head", "PatchEmbedder", "Pool",
    "PositionEmbedding",
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_table_or_a_few_lines(name):
    found = RESULTS[name]()
    if not hasattr(found, "_repr_html_"):
        lines = repr(found).splitlines()
        assert len(lines) <= 5
        assert max(map(len, lines)) <= (400 if isinstance(found, tuple) else 120)
    elif not isinstance(found, vitzoo.Backbone):  # whose `repr` is that of a module of torch
        assert found._repr_html_().startswith(("<table>", "<b>"))
        assert max(map(len, repr(found).splitlines())) <= 240


def test_every_public_class_of_results_is_tested():
    public = {name: getattr(vitzoo, name) for name in vitzoo.__all__}
    classes = {name for name, value in public.items() if inspect.isclass(value)}
    classes -= {name for name in classes if issubclass(public[name], Exception)}
    assert classes - NO_RESULTS <= RESULTS.keys()


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    size: int = 0
    array: object = None
    __repr__ = vitzoo.Weights.__repr__
    _columns = ("name", "size", "kind_note", "array")

    @property
    def kind_note(self):
        return "" if self.size < 5 else "large"


def test_a_repr_has_the_fields_that_differ_from_their_defaults():
    assert repr(vitzoo.Spec()) == "Spec()"
    spec = vitzoo.Spec(depth=3, block=vitzoo.BlockSpec(layer_scale=1e-5))
    assert repr(spec) == "Spec(depth=3, block=BlockSpec(layer_scale=1e-05))"
    assert repr(Sample("a", array=np.zeros((2, 3)))) == "Sample(name='a', array=<array 2x3>)"
    assert repr(Sample("a", size=np.float32(0.5))).startswith("Sample(name='a', size=")
    assert repr(Sample("x" * 200, array=MANY)) == (
        f"Sample(name='{'x' * 66}..., array=<150 entries>)"
    )


def test_several_results_show_the_columns_that_have_values():
    samples = Sample("a", 1200), Sample("bc")
    assert repr(ResultTuple(samples)).splitlines() == [
        "name   size  kind",
        "a     1,200  large",
        "bc        0",
    ]
    assert "bc" not in repr(ResultList(samples[:1]))
    assert len(repr(ResultList([samples[0]] * 107)).splitlines()) == 102
    assert repr(ResultList()) == "[]"


def test_a_result_of_embed_shows_rounded_numbers_and_no_errors():
    lines = repr(RESULTS["Embedded"]()).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("...")
    assert lines[0].endswith(" inputs: 1,000,000; errors: 0; complete")
    says(lines[1], "computed 1,000,000 in 9.5 s (105,263 images/s)")


def test_a_probe_shows_each_classifier_and_repeated_images():
    found = dataclasses.replace(probe(), duplicates=3)
    first, classifier, note = repr(found).splitlines()
    says(first, "vit_digits: 150 training and 150 test images of 2 classes")
    says(classifier, "k-NN", "50.0%", "46.9% to 53.1%", "500 of 1,000")
    says(note, "3 of 150 test images", "same bytes")
    assert note in found._repr_html_()


@pytest.mark.parametrize("name", ["Predictions", "variants()", "Variant.weights"])
def test_a_part_of_several_results_shows_as_a_table_too(name):
    found = RESULTS[name]()
    assert type(found[:2]) is type(found)
    assert list(found[:2]) == [found[0], found[1]]
    assert len(repr(found[:2]).splitlines()) == 3


def test_several_results_stay_a_list_or_a_tuple():
    variant = vitzoo.describe("vit_b16")
    assert isinstance(variant.weights, tuple)
    assert variant.weights == tuple(variant.weights)
    assert hash(variant.weights) == hash(tuple(variant.weights))
    again = pickle.loads(pickle.dumps(variant))
    assert again == variant
    assert repr(again.weights) == repr(variant.weights)
    data = dataclasses.asdict(variant)
    assert data["weights"][0]["name"] in repr(data)
    assert isinstance(vitzoo.plugins(), list)


def test_every_variant_shows_its_entries_as_tables():
    for variant in vitzoo.variants():
        for entries in (variant.weights, variant.paper_results, variant.throughput):
            assert isinstance(entries, ResultTuple) or not entries, variant.name


def test_numbers_are_aligned_to_the_right():
    assert aligned([["a", "1.5%", "x"], ["b", "12%", ""]]) == ["a  1.5%  x", "b   12%"]
    table = html_table([{"name": "7a", "params": "86.6M", "GMACs": 17.6, "sizes": "224x224"}])
    assert table.count("text-align: right") == 4  # two headings, two cells


@pytest.mark.parametrize("kind", ["plot", "probe"])
def test_a_figure_shows_itself_without_pyplot(kind):
    pytest.importorskip("matplotlib")
    figure = vitzoo.plot("filters", "vit_digits").figure if kind == "plot" else probe().figure()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(b"\x89PNG")
