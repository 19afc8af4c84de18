"""Which network a user means: every function and command x every form of a name.

docs/create.md describes the forms. A function is asked for the network in each form, and must
return what it returns for the same network as a model or a saved file. `test_opening.py` tests the
same with less: the forms by what opens a network, and each function by what it passes on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import vitzoo
from helpers import refuses, says
from openings import (
    COMMANDS,
    FEW,
    FORMS,
    FORMS_OF_COMMANDS,
    FUNCTIONS,
    IMAGE,
    QUICK,
    SLOW,
    UNTRAINED,
    WITH_WEIGHTS,
    WRAPPERS,
    WRONG,
    A,
    call as call,
    command as command,
    digest,
    expect_one_message,
    files as files,
    here as here,
    hub as hub,
    made,
    meant,
    predict,
)
from vitzoo.errors import InvalidOption, Offline

pytestmark = pytest.mark.long


@pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")
@pytest.mark.parametrize(
    ("function", "form"),
    [(name, form) for name in FUNCTIONS for form in (FEW if name in SLOW else FORMS)],
)
def test_every_function_takes_every_form(function, form, call, request):
    written, of = FORMS[form][0], meant(function, form)
    name = written() if callable(written) else written
    if form.startswith("address"):
        request.getfixturevalue("hub")
    if isinstance(of, type):
        with pytest.raises(of):
            call(function, name)
    elif of == UNTRAINED:
        assert call(function, name) == UNTRAINED
    else:
        same = {"link": f"local/net:{'main' if of == A else 'other'}"}
        assert call(function, name) == call(function, same.get(function, f"{of}.safetensors"))


def test_the_two_networks_differ_for_every_function(call):
    for function in FUNCTIONS:
        each = ["local/net:main", "local/net:other"]
        one, other = (call(function, name) for name in each)
        assert one != other, function


@pytest.mark.parametrize("function", WITH_WEIGHTS)
def test_weights_are_named_once(function, call):
    assert call(function, "local/net", weights="other") == call(function, "local/net:other")
    with refuses(InvalidOption, "local/net:main", "'main'", "weights='other'", "once"):
        call(function, "local/net:main", weights="other")


@pytest.mark.parametrize("wrong", WRONG)
def test_every_function_refuses_with_the_same_message(wrong, here, call):
    expect_one_message(FUNCTIONS, wrong, here, call)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_weights_that_are_not_here_are_needed_by_most(function, call):
    if function in ("create", "transform", "labels"):
        assert call(function, "local/far") == call(function, "local/net")
        return
    with refuses(Offline, "local/far:main", "offline"):
        call(function, "local/far")


@pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")
@pytest.mark.parametrize("form", FORMS_OF_COMMANDS)
@pytest.mark.parametrize("name", QUICK)
def test_commands_take_every_form(name, form, command, request, tmp_path):
    written, network, _ = FORMS_OF_COMMANDS[form]
    if form.startswith("address"):
        request.getfixturevalue("hub")
    code, out, err = command(name, written)
    assert code == 0, err
    if name == "push":  # the card names where the weights come from
        assert digest(vitzoo.create(tmp_path / "new")) == digest(
            vitzoo.create(f"{network}.safetensors")
        )
    else:
        assert out == command(name, f"{network}.safetensors")[1]


@pytest.mark.parametrize("wrong", [w for w, row in WRONG.items() if isinstance(row[0], str)])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_as_functions_do(name, wrong, command):
    written, error, parts = WRONG[wrong]
    if name == "link" and wrong == "offline":
        error, parts = InvalidOption, ("name of registered weights",)
    code, _, err = command(name, written)
    errors = error if isinstance(error, tuple) else (error,)
    assert code in {one.exit_code for one in errors}, err
    says(err, *parts)


@pytest.mark.parametrize(
    "name", ["local/net", "local/net:other", "vit_digits", "vit_digits:digits_v1"]
)
@pytest.mark.parametrize("content", ["folder", "file"])
def test_a_registered_name_comes_before_a_path(name, content, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = tmp_path / name
    source = here / ("B.safetensors" if name == "local/net" else "A.safetensors")
    if content == "folder":
        there.mkdir(parents=True)
        (there / "net.safetensors").symlink_to(source)
    else:
        there.parent.mkdir(exist_ok=True)
        there.symlink_to(source)
    expected = {"local/net": "A.safetensors", "local/net:other": "B.safetensors"}.get(name)
    found = vitzoo.Predictor(name).model
    assert found.load_report.source.startswith(name)
    if expected:
        assert digest(found) == digest(vitzoo.create(here / expected))
    if content == "folder":
        assert digest(vitzoo.create(f"./{name}")) == digest(vitzoo.create(source))
        assert digest(vitzoo.Predictor(f"./{name}").model) == digest(vitzoo.create(source))
        assert digest(vitzoo.create(Path(name))) == digest(vitzoo.create(source))


def test_a_folder_with_the_name_of_nothing_is_a_path(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "acme/net", "vit_b61:main", "hf", "a.b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "net.safetensors").symlink_to(here / "B.safetensors")
        assert vitzoo.labels(name) == made(2).labels, name
        assert digest(vitzoo.create(name)) == digest(vitzoo.Predictor(name).model), name


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_functions_find_the_network_in_its_wrappers(wrapper):
    model = made(1)
    wrapped = WRAPPERS[wrapper](made(1))
    assert vitzoo.labels(wrapped) == model.labels
    assert repr(vitzoo.transform(wrapped)) == repr(vitzoo.transform(model))
    assert predict(wrapped, None) == predict(model, None)
    one, other = (vitzoo.Predictor(m)([IMAGE])[0].outputs["pooled"] for m in (wrapped, model))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    one, other = (vitzoo.plot("filters", m).arrays["filters"] for m in (wrapped, model))
    assert (one == other).all()
    assert vitzoo.param_groups(wrapped, 1e-3)
    assert vitzoo.freeze(wrapped, until="head")


def test_what_is_no_network_of_create_is_refused_alike(call):
    said = {}
    for function in FUNCTIONS:
        if function not in ("create", "convert", "link"):
            with refuses(InvalidOption, "Linear has no spec", "vitzoo.create") as found:
                call(function, nn.Linear(1, 1))
            said.setdefault(str(found.value), []).append(function)
    assert len(said) == 1, said
