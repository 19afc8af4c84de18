"""`transform` and `labels` of weights files that do not state their preprocessing."""

import logging

import numpy as np
import pytest
from safetensors.torch import save_file

import vitzoo
from helpers import refuses, says
from internals import warn_of_default
from tables import cases
from vitzoo.errors import InvalidOption

ROW = vitzoo.Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1), crop_mode="squash")
DIGITS = vitzoo.describe("vit_digits").default_weights.preprocessing


@pytest.fixture
def bare(tmp_path):
    """A file with the tensors of `vit_digits`, without metadata."""
    path = tmp_path / "bare.safetensors"
    save_file(vitzoo.create("vit_digits").state_dict(), path)
    return path


@pytest.fixture
def warnings_of(caplog):
    warn_of_default.cache_clear()
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_bare_file_is_prepared_as_its_variant(bare, warnings_of):
    model = vitzoo.create("vit_digits", weights=bare)
    assert model.preprocessing == vitzoo.transform(model).preprocessing == DIGITS
    (line,) = (line for line in model.load_report.assumed if "preprocessing" in line)
    says(line, "preprocessing", "vit_digits", "mean [", *DIGITS.mean)
    says(line, DIGITS.interpolation, f"crop_pct {DIGITS.crop_pct}", DIGITS.crop_mode)
    assert not warnings_of()


def test_a_random_model_is_prepared_as_its_variant(warnings_of):
    row = vitzoo.describe("vit_b16").default_weights.preprocessing
    model = vitzoo.create("vit_b16", device="meta")
    assert vitzoo.transform(model).preprocessing == row == vitzoo.transform("vit_b16").preprocessing
    assert not model.load_report.assumed
    assert not warnings_of()


def test_other_channels_are_not_prepared_as_the_variant(bare):
    model = vitzoo.create("vit_digits", weights=bare, in_chans=3)
    assert model.preprocessing is None
    assert not any("preprocessing" in line for line in model.load_report.assumed)


def test_a_file_that_says_it_comes_before_the_variant(tmp_path):
    model = vitzoo.create("vit_digits")
    model.preprocessing = vitzoo.Preprocessing(mean=(0.3,), std=(0.2,))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    for again in (vitzoo.create(path), vitzoo.create("vit_digits", weights=path)):
        assert again.preprocessing == model.preprocessing
        assert again.load_report.assumed == ()


def test_where_nothing_is_known_the_log_says_once_what_is_used(small, warnings_of):
    model = vitzoo.create(small)
    for _ in range(2):
        assert vitzoo.transform(model).preprocessing == vitzoo.Preprocessing()
    (warning,) = warnings_of()
    says(warning, "mean=(0.5, 0.5, 0.5)", "model.preprocessing = vitzoo.Preprocessing(...)")
    model.preprocessing = ROW
    assert vitzoo.transform(model).preprocessing == ROW


def test_statistics_that_are_passed_need_no_warning(small, warnings_of):
    vitzoo.transform(vitzoo.create(small), mean=[0.0] * 3, std=[1.0] * 3)
    assert not warnings_of()


@cases(
    ("options", "parts"),
    [
        ({"crop_pct": 0}, ["crop_pct", "(0, 1]", "0.0"]),
        ({"crop_pct": 1.1}, ["crop_pct", "(0, 1]", 1.1]),
        ({"crop_pct": float("nan")}, ["crop_pct", "(0, 1]", "nan"]),
        ({"crop_pct": "1"}, ["crop_pct", "number", "'1'", "(str)"]),
        ({"crop_mode": "centre"}, ["crop_mode", "center, squash", "'centre'", "'center'"]),
        ({"crop_mode": None}, ["crop_mode", "string", "None"]),
        ({"interpolation": "bicubik"}, ["interpolation", "'bicubik'", "'bicubic'"]),
        ({"interpolation": 3}, ["interpolation", "string", 3]),
        ({"mean": (0.5,)}, ["mean", "std", "one number per channel"]),
        ({"mean": (), "std": ()}, ["mean", "std", "one number per channel"]),
        ({"mean": 0.5}, ["mean", "list", 0.5, "(float)"]),
        ({"mean": (0.5, "a", 0.5)}, ["mean", "list of numbers", "'a'"]),
        ({"mean": (0.5, float("inf"), 0.5)}, ["mean", "list of numbers", "inf"]),
        ({"mean": np.zeros(3)}, ["mean", "list", "array"]),
        ({"std": (0.5, 0.5, 0)}, ["std", "positive"]),
        ({"std": (0.5, -1, 0.5)}, ["std", "positive"]),
    ],
    ids=str,
)
def test_preprocessing_checks_itself(options, parts):
    with refuses(InvalidOption, "Preprocessing()", *parts):
        vitzoo.Preprocessing(**options)


def test_preprocessing_holds_tuples_of_floats():
    row = vitzoo.Preprocessing(mean=[0, 0, 1], std=[1, 1, 1], crop_pct=1)
    assert row.mean == (0.0, 0.0, 1.0)
    assert [type(v) for v in (*row.mean, *row.std, row.crop_pct)] == [float] * 7
    assert hash(row) == hash(vitzoo.Preprocessing((0.0, 0.0, 1.0), (1.0, 1.0, 1.0), crop_pct=1.0))


@pytest.mark.parametrize("wrong", [{"mean": 0.5}, "vit_b16", lambda image: image])
def test_something_else_than_preprocessing(small, tmp_path, wrong):
    model = vitzoo.create(small)
    model.preprocessing = wrong
    parts = ("vitzoo.Preprocessing", "None", wrong, "vitzoo.transform(name).preprocessing")
    with refuses(InvalidOption, *parts):
        vitzoo.transform(model)
    with refuses(InvalidOption, *parts):
        vitzoo.save(model, tmp_path / "net.safetensors")


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "path"])
def test_transform_and_labels_of_a_saved_file(small, tmp_path, kind):
    model = vitzoo.create(small)
    model.preprocessing, model.labels = ROW, tuple("abcde")
    path = kind(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert vitzoo.transform(path).preprocessing == ROW
    assert vitzoo.transform(path).image_size == (32, 32)
    assert vitzoo.labels(path) == tuple("abcde")
    with refuses(vitzoo.CheckpointError, "gone.safetensors"):
        vitzoo.labels(tmp_path / "gone.safetensors")


@pytest.mark.parametrize(
    ("argument", "fix"),
    [
        ("layer_scale", "block={'layer_scale': ...}"),
        ("init_values", "block={'layer_scale': ...}"),
        ("norm_eps", "block={'norm_eps': ...}"),
        ("num_registers", "create({'variant': ..., 'num_registers': ...})"),
        ("reg_tokens", "create({'variant': ..., 'num_registers': ...})"),
        ("class_token", "create({'variant': ..., 'class_token': ...})"),
    ],
)
def test_an_argument_that_belongs_elsewhere_is_told_where(argument, fix):
    with refuses(vitzoo.errors.UnknownOption, "create()", repr(argument), fix):
        vitzoo.create("vit_ti16", **{argument: 1})
