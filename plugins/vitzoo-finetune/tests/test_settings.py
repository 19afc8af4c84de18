"""Settings: defaults by method and size of the data, and values that are refused."""

import re

import pytest

from helpers import refuses
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo_finetune.settings import NAMES, Settings, read_run

MODEL = {"model": "vit_digits"}


@cases(
    ("count", "batch_size", "epochs", "drop_path"),
    [(10, 4, 100, 0.0), (300, 16, 54, 0.0), (1000, 64, 64, 0.1), (100_000, 64, 10, 0.1)],
)
def test_defaults_depend_on_the_number_of_images(count, batch_size, epochs, drop_path):
    found = Settings.complete(MODEL, count, 384)
    assert (found.batch_size, found.epochs, found.drop_path) == (batch_size, epochs, drop_path)


def test_the_rate_scales_with_batch_and_width():
    rate = Settings.complete(MODEL, 1000, 384).lr
    assert Settings.complete(MODEL | {"batch_size": 128}, 1000, 384).lr == 2 * rate
    assert Settings.complete(MODEL | {"batch_size": 128, "accumulate": 4}, 1000, 384).lr == 2 * rate
    assert Settings.complete(MODEL, 1000, 768).lr == rate / 2
    assert Settings.complete(MODEL | {"lr": 1}, 1000, 768).lr == 1.0


def test_the_method_decides_rate_and_layer_decay():
    found = {m: Settings.complete(MODEL | {"method": m}, 2000, 384) for m in ("last:2", "lora")}
    assert found["last:2"].layer_decay == 0.75
    assert (found["lora"].layer_decay, found["lora"].drop_path) == (1.0, 0.0)
    assert found["lora"].lr > found["last:2"].lr


@cases(
    ("given", "parts"),
    [
        ({"method": "lorra"}, ("method", "last:N", "'lorra'", "'lora'")),
        ({"method": "last:"}, ("method", "last:2", "'last:'")),
        ({"augment": "crop,flop"}, ("augment", "rand-m9-mstd0.5-inc1", "'flip'")),
        ({"batch_size": 51}, ("51", "50 training images", "--batch-size")),
        ({"target": "label"}, ("target", "'label'", "'labels'")),
        ({"target": "number", "balance": True}, ("balance", "number", "--balance")),
        ({"target": "number", "mixup": 0.2}, ("mixup", "0.2", "class or labels", "--mixup 0")),
        ({"augment": ["crop"]}, ("augment", "['crop']", "commas")),
        ({"augment": "simple-crop,crop"}, ("'simple-crop,crop'", "two crops")),
        ({"steps": "x"}, ("steps", "whole number", "'x'")),
        ({"image_size": -1}, ("image_size", "px", "-1")),
        ({"momentum": 0.8}, ("momentum is 0.8", "optimizer sgd", "--momentum 0.9")),
        ({"rank": 4}, ("rank is 4", "method lora", "--rank 8")),
        ({"augment": "flip", "crop_scale": 0.3}, ("0.3", "augment crop", "--crop-scale 0.5")),
        ({"ema": 1}, ("ema", "[0, 1)", "1")),
        ({"epochs": 0}, ("epochs", "above 0", "0")),
        ({"lr": "x"}, ("lr", "above 0", "'x'")),
        ({"precision": "8"}, ("precision", "bf16", "'8'")),
    ],
)
def test_values_that_are_not_possible(given, parts):
    with refuses(InvalidOption, *parts):
        Settings.complete(MODEL | given, 50, 384)


def test_settings_are_shown_that_the_run_uses():
    names = {"momentum", "rank", "crop_scale"}
    assert names & Settings.complete(MODEL, 50, 384).used().keys() == {"crop_scale"}
    given = MODEL | {"optimizer": "sgd", "method": "lora", "augment": "none", "momentum": 0.8}
    found = Settings.complete(given, 50, 384).used()
    assert names & found.keys() == {"momentum", "rank"}
    assert {"weights", "recipe"}.isdisjoint(found)


def test_another_file_is_no_run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[settings]\nmodel = 'x'\n")
    with refuses(InvalidOption, path, "run.toml", "finished run"):
        read_run(path)
    with pytest.raises(InvalidOption):
        read_run(tmp_path / "none.toml")


def test_the_help_fits_in_a_terminal(run):
    code, text, _ = run("finetune", "--help")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    options = set(re.findall(r"--([a-z-]+)", text))
    assert {name.replace("_", "-") for name in NAMES} - {"model"} <= options
