"""An error gets the rest of its text from its values, once."""

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import registry
from tables import cases
from vitzoo.errors import CheckpointError, UnknownName, WeightsUnavailable

PACKAGE = Path(vitzoo.__file__).parent
advice = importlib.import_module("vitzoo.advice")


def given() -> set[str]:
    """Return the classes of values that code gives to errors: `error.of(Values(...))`."""
    calls = (
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "of" and node.args
        if not isinstance(node.func.value, ast.Name) or node.func.value.id == "error"
    )
    values = (call.args[0] for call in calls)
    return {value.func.id for value in values if isinstance(value, ast.Call)}


def test_every_class_of_values_has_a_writer():
    assert given() == advice.WRITERS.keys()
    for module, function in advice.WRITERS.values():
        assert callable(getattr(importlib.import_module(f"vitzoo.advice.{module}"), function))


def unknown() -> UnknownName:
    with pytest.raises(UnknownName) as caught:
        registry().variant("vit_b61")
    return caught.value


def test_the_text_is_made_when_it_is_shown_and_stays():
    error = unknown()
    assert (error.args, error.about.name) == ((), "vit_b61")
    text = str(error)
    assert "did you mean 'vit_b16'" in text
    assert (error.args, error.about, str(error)) == ((text,), None, text)


def test_further_lines_follow_those_of_the_error():
    with pytest.raises(WeightsUnavailable) as caught:
        vitzoo.fetch("vit_b16", "nope")
    lines = str(caught.value).splitlines()
    names = [row.name for row in vitzoo.describe("vit_b16").weights]
    assert [line.strip().partition(":")[0] for line in lines[1:]] == names


def test_a_pickled_error_has_its_text():
    copy = pickle.loads(pickle.dumps(unknown()))
    assert copy.about is None
    assert copy.args == (str(unknown()),)


@cases("weights", [None, "nope"])
def test_a_public_function_completes_its_errors(weights):
    with pytest.raises((WeightsUnavailable, UnknownName)) as caught:
        vitzoo.create("vit_ti16" if weights else "vit_b61", weights=weights)
    assert caught.value.about is None
    assert caught.value.args


def test_the_call_of_create_is_repeated_whoever_makes_it(tmp_path):
    path = vitzoo.save(vitzoo.create("vit_ti16", image_size=64), tmp_path / "net.safetensors")
    call = f"vitzoo.create('vit_ti16', weights={str(path)!r}, image_size=64)"
    for function in (vitzoo.create, vitzoo.Predictor):
        with refuses(CheckpointError, f"pass image_size=64: {call}"):
            function("vit_ti16", weights=path)


@pytest.mark.slow
def test_loading_imports_no_texts():
    code = (
        "import sys, vitzoo; vitzoo.create('vit_digits', pretrained=True);"
        "print(*(name for name in sys.modules if name.startswith('vitzoo.advice')))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
