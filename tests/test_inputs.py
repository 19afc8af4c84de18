"""How images become inputs where a file of weights does not say it, and what cannot be said."""

import logging

import numpy as np
import pytest
from safetensors.torch import save_file

import vitzoo
from vitzoo.errors import InvalidOption
from vitzoo.images import warn_of_default

ROW = vitzoo.Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1), crop_mode="squash")
DIGITS = vitzoo.describe("vit_digits").default_weights.preprocessing


@pytest.fixture
def bare(tmp_path):
    """Tensors of `vit_digits`, and nothing else."""
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
    assert line.startswith("preprocessing = that of vit_digits: mean [")
    assert line.endswith(f"{DIGITS.interpolation}, crop_pct {DIGITS.crop_pct}, {DIGITS.crop_mode}")
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
    assert warning.startswith("no preprocessing is known for this model; its images are prepared")
    assert "mean=(0.5, 0.5, 0.5)" in warning
    assert "Set model.preprocessing = vitzoo.Preprocessing(...)" in warning
    model.preprocessing = ROW
    assert vitzoo.transform(model).preprocessing == ROW


def test_statistics_that_are_passed_need_no_warning(small, warnings_of):
    vitzoo.transform(vitzoo.create(small), mean=[0.0] * 3, std=[1.0] * 3)
    assert not warnings_of()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_pct": 0}, r"Preprocessing\(\): crop_pct must lie in \(0, 1\], got 0"),
        ({"crop_pct": 1.1}, r"crop_pct must lie in \(0, 1\], got 1.1"),
        ({"crop_pct": float("nan")}, r"crop_pct must lie in \(0, 1\], got nan"),
        ({"crop_pct": "1"}, r"crop_pct must be a number, got '1' \(str\)"),
        ({"crop_mode": "centre"}, "one of center, squash, got 'centre'; did you mean 'center'"),
        ({"crop_mode": None}, "crop_mode must be a string, got None"),
        ({"interpolation": "bicubik"}, "got 'bicubik'; did you mean 'bicubic'"),
        ({"interpolation": 3}, "interpolation must be a string, got 3"),
        ({"mean": (0.5,)}, "need one number per channel"),
        ({"mean": (), "std": ()}, "need one number per channel"),
        ({"mean": 0.5}, r"mean must be a list, got 0.5 \(float\)"),
        ({"mean": (0.5, "a", 0.5)}, "mean must be a list of numbers"),
        ({"mean": (0.5, float("inf"), 0.5)}, "mean must be a list of numbers"),
        ({"mean": np.zeros(3)}, "mean must be a list, got array"),
        ({"std": (0.5, 0.5, 0)}, "std must be positive"),
        ({"std": (0.5, -1, 0.5)}, "std must be positive"),
    ],
    ids=str,
)
def test_preprocessing_checks_itself(options, message):
    with pytest.raises(InvalidOption, match=message):
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
    text = r"must be a vitzoo.Preprocessing or None, got .*; vitzoo.transform\(name\).preprocessing"
    with pytest.raises(InvalidOption, match=text):
        vitzoo.transform(model)
    with pytest.raises(InvalidOption, match=text):
        vitzoo.save(model, tmp_path / "net.safetensors")


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "path"])
def test_transform_and_labels_of_a_saved_file(small, tmp_path, kind):
    model = vitzoo.create(small)
    model.preprocessing, model.labels = ROW, tuple("abcde")
    path = kind(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert vitzoo.transform(path).preprocessing == ROW
    assert vitzoo.transform(path).image_size == (32, 32)
    assert vitzoo.labels(path) == tuple("abcde")
    with pytest.raises(vitzoo.CheckpointError, match="no such file"):
        vitzoo.labels(tmp_path / "gone.safetensors")


@pytest.mark.parametrize(
    ("argument", "way"),
    [
        ("layer_scale", "it is an option of the blocks: block={'layer_scale': ...}"),
        ("init_values", "it is an option of the blocks: block={'layer_scale': ...}"),
        ("norm_eps", "it is an option of the blocks: block={'norm_eps': ...}"),
        ("num_registers", "it stands in a spec: create({'variant': ..., 'num_registers': ...})"),
        ("reg_tokens", "it stands in a spec: create({'variant': ..., 'num_registers': ...})"),
        ("class_token", "it stands in a spec: create({'variant': ..., 'class_token': ...})"),
    ],
)
def test_an_argument_that_belongs_elsewhere_is_told_where(argument, way):
    with pytest.raises(vitzoo.UnknownOption) as caught:
        vitzoo.create("vit_ti16", **{argument: 1})
    assert str(caught.value) == f"create() has no argument {argument!r}; {way}"
