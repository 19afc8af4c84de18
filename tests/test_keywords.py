"""Unknown keyword arguments: the error, and the unchanged signature of the function."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import pydoc
import sys
import traceback
from functools import partial
from importlib.util import find_spec

import pytest

import vitzoo
from helpers import refuses
from internals import INTERNAL, check_keywords, check_types, short_errors
from tables import cases
from vitzoo.errors import InvalidOption, UnknownOption, VitzooError


def resize(image, size=3, /, mode="RGB", *, method: str = "bicubic", crop_pct=1.0):
    """Resize an image."""
    return image, size, mode, method, crop_pct


checked = check_keywords()(resize)


def belongs_elsewhere(name, _value):
    return f"it is an option of crop={{{name!r}: ...}}" if name == "border" else ""


@check_keywords(belongs_elsewhere)
def hinted(*, method="bicubic"):
    return method


def test_arguments_reach_the_function():
    assert checked("x") == ("x", 3, "RGB", "bicubic", 1.0)
    assert checked("x", 4, mode="L", crop_pct=0.5) == ("x", 4, "L", "bicubic", 0.5)
    assert checked("x", 4, "L", method="box") == ("x", 4, "L", "box", 1.0)
    assert hinted(method="box") == "box"


def test_a_near_name_is_suggested():
    with pytest.raises(UnknownOption) as caught:
        checked("x", crop_pc=1)
    assert str(caught.value) == "resize() has no argument 'crop_pc'; did you mean 'crop_pct'?"


def test_without_a_near_name_all_are_listed():
    with pytest.raises(UnknownOption) as caught:
        checked("x", zzz=1)
    assert str(caught.value).endswith("no argument 'zzz'; it has: mode, method, crop_pct")


@pytest.mark.parametrize("name", ["image", "size"])
def test_a_positional_argument_is_no_keyword(name):
    with pytest.raises(UnknownOption, match=f"'{name}'"):
        checked("x", **{name: 1})


def test_the_first_of_several_is_named():
    with pytest.raises(UnknownOption, match="'b'"):
        checked("x", method="box", b=1, a=2)


def test_a_hint_comes_before_a_suggestion():
    with pytest.raises(UnknownOption) as caught:
        hinted(border=1)
    assert str(caught.value) == (
        "hinted() has no argument 'border'; it is an option of crop={'border': ...}"
    )
    with pytest.raises(UnknownOption, match="did you mean 'method'"):
        hinted(methd=1)


def test_a_positional_argument_that_has_to_be_a_keyword_is_named():
    with refuses(UnknownOption, "takes 3 positional arguments, got 5", "resize(image, size, mode, "
                 "method='box', crop_pct=0.5)"):  # fmt: skip
        checked("x", 4, "L", "box", 0.5)
    with refuses(TypeError, "create(name, pretrained=True)"):
        vitzoo.create("vit_digits", True)
    with refuses(TypeError, "Predictor() takes 1 positional argument, got 2", "(model, weights=3)"):
        vitzoo.Predictor("vit_digits", 3)


def test_it_is_a_type_error_and_a_value_error():
    with pytest.raises(TypeError):
        hinted(methd=1)
    with pytest.raises(ValueError, match="methd"):
        hinted(methd=1)


def test_missing_arguments_are_pythons_own_error():
    with pytest.raises(TypeError, match=r"resize\(\) missing 1 required positional argument"):
        checked()


def test_an_error_of_the_function_is_left_alone():
    @check_keywords()
    def fails(*, name=1):
        return checked.__wrapped__("x", nothing=name)

    with pytest.raises(TypeError, match="nothing") as caught:
        fails()
    assert not isinstance(caught.value, UnknownOption)


def test_signature_and_help_are_the_functions_own():
    assert inspect.signature(checked) == inspect.signature(resize)
    assert (checked.__name__, checked.__doc__) == ("resize", "Resize an image.")
    text = pydoc.render_doc(checked)
    assert "(image, size=3, /, mode='RGB', *, method: 'str' = 'bicubic', crop_pct=1.0)" in text
    assert "Resize an image." in text


def test_it_pickles_by_name():
    assert pickle.loads(pickle.dumps(vitzoo.transform)) is vitzoo.transform
    assert copy.deepcopy(vitzoo.transform) is vitzoo.transform


def test_transform_suggests():
    with pytest.raises(UnknownOption, match=r"transform\(\).*'crop_pc'.*'crop_pct'"):
        vitzoo.transform("vit_digits", crop_pc=1)
    parameters = inspect.signature(vitzoo.transform).parameters.values()
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters)


FURTHER = {  # arguments after the first one
    "convert": ("timm", "x.safetensors"),
    "export": ("onnx", "x"),
    "link": ("x", "timm"),
    "push": ("a/b", "x"),
    "embed": ("x", "y"),
    "predict": (["x"],),
    "probe": ("x",),
    "plot": ("vit_digits",),
    "save": ("x.safetensors",),
    "param_groups": (1e-3,),
    "confusion_figure": ((), ()),
    "require_identity": ("vit_digits",),
}
NO_ARGUMENT = ("plugins", "hookimpl", "register_in_timm")
FUNCTIONS = [
    name
    for name in vitzoo.__all__
    if inspect.isfunction(getattr(vitzoo, name)) and name not in NO_ARGUMENT
]


@cases("name", [*FUNCTIONS, "Predictor"])
def test_a_first_argument_of_a_wrong_type_is_an_error_of_vitzoo(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("x").mkdir()
    more = {"until": "head"} if name == "freeze" else {"dry_run": True} if name == "push" else {}
    further = FURTHER.get(name, ())[: 1 if more else None]
    for wrong in (5, object(), b"x"):
        with pytest.raises(VitzooError):
            getattr(vitzoo, name)(wrong, *further, **more)


TAKES_LONG = (  # each with the arguments that it needs
    partial(vitzoo.bench, "x"),
    partial(vitzoo.convert, "x", "timm", "y"),
    partial(vitzoo.embed, "x", "y", "z"),
    partial(vitzoo.export, "x", "onnx", "y"),
    partial(vitzoo.fetch, "x"),
    partial(vitzoo.plot, "filters", "x"),
    partial(vitzoo.predict, "x", "y"),
    partial(vitzoo.probe, "x", "y"),
    partial(vitzoo.push, "x", "a/b"),
    partial(vitzoo.verify, "x"),
)


@cases(
    ("call", "name", "expected"),
    [
        (lambda: vitzoo.fetch(5), "name", "text"),
        (lambda: vitzoo.fetch("vit_b16", 5), "weights", "text or None"),
        (lambda: vitzoo.fetch("vit_b16", from_hub_cache=5), "from_hub_cache", "a boolean"),
        (lambda: vitzoo.verify(5), "name_or_path", "text or a path or None"),
        (lambda: vitzoo.variants(5), "pattern", "text or an iterable"),
        (lambda: vitzoo.variants(where=5), "where", "text or None"),
        (lambda: vitzoo.synsets(5), "label_set", "text"),
        (lambda: vitzoo.convert("x", "timm", 5), "target", "text or a path"),
        (lambda: vitzoo.convert("x", 5, "y"), "to", "text"),
        (lambda: vitzoo.export("x", "onnx", 5), "folder", "text or a path"),
        (lambda: vitzoo.export("x", "onnx", "y", int8=5), "int8", "an iterable or None"),
        (lambda: vitzoo.link("vit_b16", 5, "timm"), "folder", "text or a path"),
        (lambda: vitzoo.timm_overlay(5), "tag", "text"),
        (lambda: vitzoo.push("x", "a/b", datasets=5), "datasets", "a sequence"),
        (lambda: vitzoo.embed("x", 5, "y"), "sources", "text or a path or an iterable"),
        (lambda: vitzoo.embed("x", "y", "z", shard=5), "shard", "a tuple or None"),
        (lambda: vitzoo.predict("x", 5), "images", "an iterable"),
        (lambda: vitzoo.probe("x", 5), "data", "text or a path"),
        *(
            case
            for call in TAKES_LONG
            for case in (
                (partial(call, on_progress=5), "on_progress", "a function or None"),
                (partial(call, progress=5), "progress", "a boolean"),
            )
        ),
        (lambda: vitzoo.save("x", 5), "path", "text or a path"),
        (lambda: vitzoo.Predictor("x", outputs=5), "outputs", "text or an iterable"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(call, name, expected):
    with refuses(InvalidOption, name, f"must be {expected}", "5 (int)"):
        call()


def test_a_type_is_one_of_the_kinds():
    check_types("read", path=(None, "text or None"), more=(["x"], "text or an iterable"))
    for value, got in ((b"x", "b'x' (bytes)"), (5, "5 (int)")):
        with refuses(InvalidOption, "read(): path must be text or None", got):
            check_types("read", size=("5", "text"), path=(value, "text or None"))
    with refuses(InvalidOption, "pattern must be text or an iterable", "b'x' (bytes)"):
        vitzoo.variants(b"x")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: vitzoo.variants([5]), "variants(): pattern[0] must be text"),
        (lambda: vitzoo.variants(("vit_digits", 5)), "variants(): pattern[1] must be text"),
        (lambda: vitzoo.variants(iter(["*", 5])), "variants(): pattern[1] must be text"),
        (
            lambda: vitzoo.predict(vitzoo.create("vit_digits"), ["x", 5]),
            "predict(): images[1] must be a path, the bytes of an image file, a uint8 array, an",
        ),
        (
            lambda: vitzoo.export("x", "onnx", "y", int8=[5]),
            "export(): int8[0] must be text or a path",
        ),
    ],
)
def test_an_element_of_a_wrong_type_is_named(call, name):
    with refuses(InvalidOption, name, "5 (int)"):
        call()


# Tracebacks


def printed(call):
    """Return the lines that Python prints for the error of a call."""
    with pytest.raises(VitzooError) as caught:
        call()
    error = caught.value
    return "".join(traceback.format_exception(error)).splitlines(), error


MISSING = {
    "create": lambda: vitzoo.create("nope"),
    "create, an argument": lambda: vitzoo.create("vit_digits", num_clases=3),
    "create, a position": lambda: vitzoo.create("vit_digits", True),
    "create, part": lambda: vitzoo.create("vit_digits", pool="nope"),
    "create, weights": lambda: vitzoo.create("vit_b16", weights="nope"),
    "create, repository": lambda: vitzoo.create("hf://acme/nope"),
    "create, offline": lambda: vitzoo.create("vit_b16", pretrained=True),
    "Predictor": lambda: vitzoo.Predictor("nope"),
    "describe": lambda: vitzoo.describe("nope"),
    "variants": lambda: vitzoo.variants(where="depth>"),
    "transform": lambda: vitzoo.transform("nope"),
    "transform, image": lambda: vitzoo.transform("vit_digits")("nope.png"),
    "labels": lambda: vitzoo.labels("nope"),
    "synsets": lambda: vitzoo.synsets("nope"),
    "fetch": lambda: vitzoo.fetch("vit_b16"),
    "verify": lambda: vitzoo.verify("nope"),
    "predict": lambda: vitzoo.predict("nope", "a.png"),
    "plot": lambda: vitzoo.plot("filters", "nope"),
    "backbone": lambda: vitzoo.backbone("nope"),
    "link": lambda: vitzoo.link("nope", "x", "timm"),
    "save": lambda: vitzoo.save(vitzoo.create("vit_digits"), "nope/x.safetensors"),
}


@cases("name", MISSING)
def test_an_error_of_a_public_function_has_no_frames_of_vitzoo(name, monkeypatch):
    lines, _ = printed(MISSING[name])
    assert len(lines) <= 30
    frames = [line for line in lines if line.startswith("  File")]
    assert frames
    assert all(f'"{__file__}"' in line for line in frames)
    assert len([line for line in lines if line.startswith("vitzoo.errors.")]) == 1
    monkeypatch.setenv("VITZOO_DEBUG", "1")
    whole, _ = printed(MISSING[name])
    assert any("registry.py" in line or "keywords.py" in line for line in whole)
    assert len(whole) > len(lines)


def test_the_packages_whose_frames_are_left_out_are_those_that_vitzoo_needs():
    others = INTERNAL - sys.stdlib_module_names
    assert [name for name in others if find_spec(name) is None] == []
    assert {"httpx2", "rtoml"} <= others


def test_every_public_function_has_short_errors():
    bare = [name for name in FUNCTIONS if not hasattr(getattr(vitzoo, name), "__wrapped__")]
    assert bare == []


FAILS = """
def call():
    try:
        json.loads("{")
    except ValueError as error:
        raise VitzooError("the file is no JSON") from error
"""


def test_causes_stay_and_lose_their_internal_frames():
    made = {"__name__": "vitzoo.made", "VitzooError": VitzooError, "json": json}
    exec(FAILS, made)
    lines, error = printed(short_errors(made["call"]))
    assert isinstance(error.__cause__, ValueError)
    assert not any("decoder.py" in line for line in lines)
    assert any("JSONDecodeError" in line for line in lines)


def test_frames_of_plugins_and_of_functions_of_the_user_stay():
    def call():
        try:
            {}["a key"]
        except KeyError:
            raise VitzooError("stop")  # noqa: B904  # the context is what is tested

    lines, _ = printed(short_errors(call))
    assert any("in call" in line for line in lines)
    assert any("KeyError: 'a key'" in line for line in lines)
