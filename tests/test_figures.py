"""Results, images per second and GMACs in the manifests, against the published tables."""

from __future__ import annotations

import csv
import re
import runpy
import shutil
from pathlib import Path

import pytest

import vitzoo
from internals import FURTHER_RESULTS, RESULTS
from tables import cases

TESTS = Path(__file__).parent
UPDATE = runpy.run_path(str(TESTS / "update_figures.py"))
CORE = TESTS.parent / "registry.toml"
VARIANTS = vitzoo.variants()
COLUMNS = (
    "imagenet_top1",
    "imagenet_top5",
    "real_top1",
    "v2_top1",
    "sketch_top1",
    "a_top1",
    "r_top1",
)
SPEEDS = {
    "rtx4090": "rtx4090_amp_eager",
    "rtx4090_compiled": "rtx4090_amp_compiled",
    "pro6000_compiled": "pro6000_bf16_compiled",
    "i9_10940x_compiled": "i9_10940x_fp32_compiled",
    "i7_12700h_compiled": "i7_12700h_fp32_compiled",
}


def table(name, key):
    """Return the rows of a table by the key and the size of square images in px."""
    _, *lines = (TESTS / "facts" / name).read_text().splitlines()  # the first states the source
    return {(row[key], (int(row["img_size"]),) * 2): row for row in csv.DictReader(lines)}


EVALUATED = table("results.csv", "timm_tag")
MEASURED = table("throughput.csv", "timm_architecture")


def measured(variant):
    return MEASURED.get((dict(variant.known_as).get("timm"), variant.spec.image_size))


def weights_and_rows():
    for variant in VARIANTS:
        for weights in variant.weights:
            owner, _, tag = weights.repo.partition("/")
            key = (tag, variant.spec.image_size)
            yield weights, EVALUATED.get(key) if owner == "timm" else None


def test_results_are_those_of_the_published_tables():
    evaluated = [(weights, row) for weights, row in weights_and_rows() if row]
    assert len(evaluated) >= 28  # of the core alone
    for weights, row in evaluated:
        stated = {name: getattr(weights, name) for name in RESULTS[:7]}
        published = {name: float(row[c]) for name, c in zip(RESULTS[:7], COLUMNS, strict=True)}
        assert stated == published, weights.repo
        assert weights.evaluation == "ImageNet-1k validation"
        assert weights.evaluation_size == (int(row["img_size"]),) * 2
        assert weights.evaluation_commit == "aa4b5850"
        shown = weights.preprocessing
        assert (shown.crop_pct, shown.interpolation) == (
            float(row["crop_pct"]),
            row["interpolation"],
        )


def test_a_file_that_nobody_evaluated_has_no_results():
    for weights, row in weights_and_rows():
        if row is None:
            assert {getattr(weights, name) for name in FURTHER_RESULTS} == {None}, weights
            assert weights.evaluation_source == "" or weights.knn_top1, weights


def test_images_per_second_are_those_of_the_published_table():
    found = 0
    for variant in VARIANTS:
        row = measured(variant) or {}
        published = {name: float(row[c]) for name, c in SPEEDS.items() if row.get(c)}
        stated = {item.name: item.images_per_second for item in variant.throughput}
        assert stated == published, variant.name
        found += bool(published)
    assert found >= 18  # of the core alone


def test_images_per_second_state_hardware_and_source():
    for item in {item.name: item for v in VARIANTS for item in v.throughput}.values():
        model = re.search(r"\d{4,}[a-z]?", item.name)[0]
        assert model in item.hardware.lower(), item
        assert item.mode == ("compiled" if item.name.endswith("_compiled") else "eager")
        assert item.batch_size == (1 if "Intel" in item.hardware else None)
        assert item.source.startswith("timm, results/benchmark-infer-"), item
        assert item.precision.lower() in item.source
        assert item.commit == "aa4b5850"


def test_every_variant_states_what_it_takes():
    for variant in VARIANTS:
        assert variant.gmacs, variant
        assert variant.activations, variant


# timm multiplies the values once, with the difference of two attention maps; its fused attention,
# which is what runs, multiplies them with each map.
DIFFERENTIAL = re.compile(r"timm/vit_(dlittle|dwee|dpwee)_")


@cases("variant", [v for v in VARIANTS if measured(v)], ids=lambda v: v.name)
def test_gmacs_agree_with_those_of_timm(variant):
    # timm also counts norms and pooling, and rounds to two digits.
    published = float(measured(variant)["gmacs"])
    below, above = (0.03, 0.0) if not DIFFERENTIAL.match(variant.name) else (0.0, 0.07)
    rounding = 0.0051
    assert published * (1 - below) - rounding < variant.gmacs < published * (1 + above) + rounding


@cases(
    "variant",
    [v for v in VARIANTS if v.namespace in ("core", "deit") and measured(v)],
    ids=lambda v: v.name,
)
def test_gmacs_and_norms_are_what_timm_publishes(variant):
    spec = variant.spec
    patches = (spec.image_size[0] // spec.patch_size[0]) ** 2
    tokens = patches + spec.class_token + spec.num_registers
    norms = (2 * spec.depth + 1) * tokens * spec.embed_dim
    counted = variant.gmacs + 5 * norms / 10**9  # fvcore counts five operations per element
    assert counted == pytest.approx(float(measured(variant)["gmacs"]), abs=0.0051)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a copy of the core's manifest against a copy of the tables, both after a change."""

    def check(file, old, new):
        for path in (CORE, *(TESTS / "facts").glob("*.csv")):
            shutil.copy(path, tmp_path)
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new, 1))
        update = runpy.run_path(str(TESTS / "update_figures.py"))
        scope = update["main"].__globals__
        monkeypatch.setitem(scope, "FACTS", tmp_path)
        monkeypatch.setitem(scope, "manifests", lambda _: {"core": tmp_path / CORE.name})
        return scope["main"]("--check")

    return check


def test_the_manifests_are_up_to_date(capsys):
    assert UPDATE["main"]("--check") == 0, capsys.readouterr().err


@pytest.mark.slow
@cases(
    ("file", "old", "new"),
    [
        ("registry.toml", "top1 = 75.452", "top1 = 75.453"),
        ("registry.toml", "top5 = 92.858", "top5 = 92.868"),
        ("registry.toml", "imagenet_real = 82.061", "imagenet_real = 82.161"),
        ("registry.toml", "imagenet_v2 = 63.11", "imagenet_v2 = 64.11"),
        ("registry.toml", "imagenet_sketch = 20.46", "imagenet_sketch = 20.4"),
        ("registry.toml", "imagenet_a = 9.053", "imagenet_a = 19.053"),
        ("registry.toml", "imagenet_r = 32.15\n", ""),
        ("registry.toml", "evaluation_size = 224", "evaluation_size = 384"),
        ("registry.toml", "rtx4090 = 18553.34", "rtx4090 = 18553.35"),
        ("registry.toml", ", i7_12700h_compiled = 77.57", ""),
        ("registry.toml", 'hardware = "NVIDIA RTX 4090"', 'hardware = "NVIDIA RTX 4080"'),
        ("registry.toml", 'evaluation_commit = "aa4b5850"', 'evaluation_commit = "aa4b5851"'),
        ("results.csv", "75.452", "75.453"),
        ("results.csv", "vit_tiny_patch16_224.augreg", "vit_tiny_patch16_224.other"),
        ("throughput.csv", "18553.34", "18553.35"),
        ("throughput.csv", "77.57", ""),
    ],
)
def test_a_changed_digit_is_found(check, capsys, file, old, new):
    assert check(file, old, old) == 0
    assert check(file, old, new) == 1
    assert "tests/update_figures.py" in capsys.readouterr().err


def test_an_entry_with_other_preprocessing_gets_no_results(check):
    with pytest.raises(ValueError, match=r"timm evaluated with \(0\.95,"):
        check("results.csv", "augreg_in21k_ft_in1k,224,0.900", "augreg_in21k_ft_in1k,224,0.950")


ROOT = TESTS.parent
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
BY_NAME = {variant.name: variant for variant in VARIANTS}


PERCENT = re.compile(r"\b(\d\d\.\d\d) %")


def accuracies(variants):
    """Return the accuracies of all weights as a page writes them."""
    return {f"{w.top1:.2f}" for v in variants for w in v.weights if w.top1 is not None}


@cases("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_accuracies_on_a_page_are_those_of_the_registry(page):
    text = page.read_text(encoding="utf-8")
    for line in filter(PERCENT.search, text.splitlines()):  # of the families that the line names
        spaces = set(re.findall(r"[\"`](\w+)/", line))
        known = accuracies(v for v in VARIANTS if v.namespace in spaces)
        assert not spaces or set(PERCENT.findall(line)) <= known, line
    rows = re.findall(r"^\| `([\w/]+)` \|(.*)", text, re.MULTILINE)
    if not any(re.search(r"`\w+` \d\d\.\d\d", row) for _, row in rows):
        return  # it lists no accuracies behind the names of weights
    for name, row in rows:
        for weights in BY_NAME[name].weights if name in BY_NAME else ():
            wanted = f"`{weights.name}`" + (f" {weights.top1:.2f}" if weights.top1 else "")
            found = re.findall(rf"`{weights.name}`(?: \d\d\.\d\d)?", row)
            assert set(found) <= {wanted}, name
