"""Unknown keyword arguments: the error, and the unchanged signature of the function."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc

import pytest

import vitzoo
from vitzoo.errors import UnknownOption
from vitzoo.keywords import check_keywords


def resize(image, size=3, /, mode="RGB", *, method: str = "bicubic", crop_pct=1.0):
    """Resize an image."""
    return image, size, mode, method, crop_pct


checked = check_keywords()(resize)


def belongs_elsewhere(name):
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
    with pytest.raises(UnknownOption, match=f"no argument '{name}'"):
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
