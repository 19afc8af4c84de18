"""Which network a user means: what opens a network takes every form of a name.

docs/create.md describes the forms. The functions that open a network in a way of their own are
tested with each form. The others pass their arguments on to `open_network`, `opened` or
`Predictor`, and the commands to a function: a spy notes what arrives there, and opens another
network, whose results they must return. `test_opening_whole.py` tests every function and command
with every form.
"""

from __future__ import annotations

import json
from importlib import import_module
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import vitzoo
from create_helpers import refused
from helpers import SPEC, refuses, says
from internals import LinearClassifier
from openings import (
    CALLED,
    COMMANDS,
    FORMS,
    FORMS_OF_COMMANDS,
    IMAGE,
    OF_NAMES,
    REGISTERED,
    UNTRAINED,
    WITH_WEIGHTS,
    WRAPPERS,
    WRONG,
    A,
    B,
    call as call,
    command as command,
    digest,
    expect_one_message,
    files as files,
    here as here,
    hub as hub,
    made,
    meant,
)
from tables import cases
from vitzoo.cli.networks import check
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    Offline,
    UnknownName,
    UnknownOption,
    WeightsUnavailable,
)

pytestmark = pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")

WAYS = ("open_network", "create", "labels", "Predictor", "convert", "link")
ADDRESSES = [form for form in FORMS if form.startswith("address")]
PREDICTOR = "vitzoo.apps.predict.predictor:Predictor.__init__"
OPENERS = {  # where a function looks up what opens its network
    "predict": "vitzoo.apps.predict.predict:opened",
    "plot": "vitzoo.apps.plot.plot:opened",
    "push": "vitzoo.apps.publish.push:open_network",
    "bench": "vitzoo.apps.bench.bench:open_network",
    "export": "vitzoo.apps.export.export:open_network",
    "embed": PREDICTOR,
    "probe": PREDICTOR,
    "transform": "vitzoo.known:known",
}
GIVEN = {
    "name": "local/net",
    "path": Path("A.safetensors"),
    "mapping": {"variant": "local/net"},
}
OPTIONS = [
    *((name, {"weights": "other"}) for name in ("embed", "probe", "bench", "export")),
    ("bench", {"untrained": True}),
]
CALLS = {  # where a command looks up what it calls with the name of the network
    "predict": "vitzoo.apps.predict.given:opened",
    "plot": "vitzoo.apps.predict.given:opened",
    "summary": "vitzoo.known:summary",
    "embed": "vitzoo.apps.embed.embed:embed",
    "probe": "vitzoo.apps.probe.probe:probe",
    "push": "vitzoo.apps.publish.push:push",
    "convert": "vitzoo.apps.convert.conversion:convert",
    "export": "vitzoo.apps.export.export:export",
    "bench": "vitzoo.apps.bench.bench:bench",
    "link": "vitzoo.apps.publish.link:link",
}
MODULES = {  # of the commands, unless it is `command` in the folder of what they call
    "plot": "vitzoo.apps.plot.command",
    "summary": "vitzoo.cli.summary",
}
WRITTEN = [  # the name of a network, and `--weights`
    *((name, given, None) for name in CALLS for given in ("local/net:other", "hf://acme/net")),
    *((name, "saved/", None) for name in CALLS),
    *((name, "local/net", "other") for name in CALLS if name not in ("summary", "push", "convert")),
]


class Wrapped(nn.Module):
    """A model as torch.compile or PEFT wraps it, without their imports, which take seconds."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(next(self.children()), name)

    def forward(self, images):
        return next(self.children())(images)


class OptimizedModule(Wrapped):
    __module__ = "torch._dynamo.eval_frame"

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


class PeftModel(Wrapped):
    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def get_base_model(self):
        return self.base_model


QUICK_FORMS = FORMS | {"compiled model": (lambda: OptimizedModule(made(2)), B, InvalidOption)}
QUICK_WRAPPERS = WRAPPERS | {
    "compile": OptimizedModule,
    "both": lambda model: nn.DataParallel(OptimizedModule(model)),
    "PEFT": PeftModel,
}


@pytest.fixture(autouse=True)
def _quick_classifier(monkeypatch):
    """Classify with the mean of each class: scikit-learn's import alone takes seconds."""

    def means(train, classes, **_):
        weight = np.stack([train[classes == one].mean(axis=0) for one in np.unique(classes)])
        return LinearClassifier(weight, np.zeros(len(weight)), 1.0, (), converged=True)

    monkeypatch.setattr("vitzoo.apps.probe.probe.logistic", means)


@pytest.fixture(scope="module")
def computed():
    """What functions compute for a network that is named as a file."""
    return {}


@pytest.fixture
def expected(call, computed, here):
    """Return what a function computes for network A or B, and compute it once."""

    def expected(function, network):
        if (function, network) not in computed:
            name = f"local/net:{'main' if network == A else 'other'}"
            file = here / f"{network}.safetensors"
            computed[function, network] = call(function, name if function in OF_NAMES else file)
        return computed[function, network]

    return expected


@pytest.fixture
def takes(call, expected):
    """Check which network a function takes for a form, or that it refuses the form."""

    def takes(function, form):
        written, of = QUICK_FORMS[form][0], meant(function, form)
        name = written() if callable(written) else written
        if isinstance(of, type):
            with pytest.raises(of):
                call(function, name)
        elif of == UNTRAINED:
            assert call(function, name) == UNTRAINED
        else:
            assert call(function, name) == expected(function, of)

    return takes


# What opens networks


@pytest.mark.parametrize("function", WAYS)
@cases("form", [form for form in FORMS if form not in ADDRESSES])
def test_every_form_is_taken(function, form, takes):
    takes(function, form)


@pytest.mark.usefixtures("hub")
@cases("form", ADDRESSES)
@cases("function", WAYS)
def test_every_address_is_taken(function, form, takes):
    takes(function, form)


@cases("function", WAYS)
def test_the_two_networks_differ(function, expected):
    assert expected(function, A) != expected(function, B)


@cases("function", [name for name in WAYS if name in ("open_network", *WITH_WEIGHTS)])
def test_weights_are_loaded_by_their_name(function, call, expected):
    assert call(function, "local/net", weights="other") == expected(function, B)


@cases("function", ("open_network", *WITH_WEIGHTS))
def test_weights_are_named_once(function, call):
    with refuses(InvalidOption, "local/net:main", "'main'", "weights='other'", "once"):
        call(function, "local/net:main", weights="other")


def test_weights_that_are_named_are_loaded(expected):
    assert digest(vitzoo.create("local/net", pretrained=True)) == expected("create", A)
    with refuses(InvalidOption, "'main'", "pretrained=False", "the variant alone"):
        vitzoo.create("local/net:main", pretrained=False)
    with refuses(InvalidOption, "'main'", "--untrained", "the variant alone"):
        vitzoo.bench("local/net:main", untrained=True)


@cases(
    ("function", "option"),
    [("open_network", "weights"), ("Predictor", "weights"), ("bench", "untrained")],
)
def test_a_model_has_its_weights(function, option, call):
    value = "other" if option == "weights" else True
    with refuses(InvalidOption, f"{option}={value!r}"):
        call(function, made(1), **{option: value})


@cases("wrong", WRONG)
def test_every_wrong_name_is_refused_with_the_same_message(wrong, here, call):
    expect_one_message(WAYS, wrong, here, call)


@cases("function", WAYS)
def test_weights_that_are_not_here_are_needed_by_most(function, call):
    if function in ("create", "labels"):
        assert call(function, "local/far") == call(function, "local/net")
        return
    with refuses(Offline, "local/far:main", "offline"):
        call(function, "local/far")


# Functions that pass their arguments on


def spied(patch, place, then=None, **instead):
    """Let a function's calls have other arguments, and return the list of those that they had.

    Args:
        patch: of pytest.
        place: where callers look the function up, as MODULE:NAME.
        then: is called instead of the function.
        instead: the other arguments.
    """
    module, names = place.split(":")
    *owners, name = names.split(".")
    owner = import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    real, calls = getattr(owner, name), []

    def spy(*args, **options):
        given = signature(real).bind(*args, **options)
        given.apply_defaults()
        calls.append(dict(given.arguments))
        given.arguments |= {key: instead[key] for key in instead.keys() & given.arguments.keys()}
        return (then or real)(*given.args, **given.kwargs)

    patch.setattr(owner, name, spy)
    return calls


@pytest.fixture
def passes_on(call, expected):
    """Check what a function asks for, and that it computes with B if that is what it gets."""

    def passes_on(function, name, patch, **options):
        names = dict.fromkeys(("model", "name_or_model"), "local/net:other")
        calls = spied(patch, OPENERS[function], **names, weights=None, pretrained=True)
        found = call(function, name, **options)
        (asked,) = calls
        assert asked.get("model", asked.get("name_or_model")) is name
        assert asked.get("weights") == options.get("weights")
        assert asked.get("pretrained", True) == ("untrained" not in options)
        assert not asked.get("options")
        assert found == expected(function, B)

    return passes_on


@cases("function", OPENERS)
def test_each_function_computes_with_its_network(function, call, expected):
    assert call(function, "local/net:other") == expected(function, B)
    assert expected(function, A) != expected(function, B)


@pytest.mark.usefixtures("hub")
@cases("form", ("address", "folder with a config", "mapping"))
@cases("function", ("plot", "push"))  # they read where the weights come from
def test_the_weights_come_from_anywhere(function, form, takes):
    takes(function, form)


@pytest.mark.parametrize("function", OPENERS)
@cases("form", GIVEN)
def test_a_name_is_passed_on(function, form, passes_on, monkeypatch):
    passes_on(function, GIVEN[form], monkeypatch)


@cases("function", [name for name in OPENERS if name != "probe"])  # which resolves it once more
def test_an_address_is_passed_on(function, passes_on, monkeypatch):
    passes_on(function, "hf://acme/net", monkeypatch)


@cases(("function", "options"), OPTIONS)
def test_options_are_passed_on(function, options, passes_on, monkeypatch):
    passes_on(function, "local/net", monkeypatch, **options)


@cases("function", ("bench", "export", "embed", "probe"))  # the others unwrap a model themselves
def test_a_model_is_passed_on(function, passes_on, monkeypatch):
    passes_on(function, made(1), monkeypatch)


@cases("function", ("embed", "probe"))
def test_a_compiled_model_is_taken_or_refused(function, takes):
    takes(function, "compiled model")


@cases("function", OPENERS)
@cases("error", (UnknownName, WeightsUnavailable, CheckpointError, InvalidOption, Offline))
def test_an_error_is_passed_on(function, error, call, monkeypatch):
    raised = error("of the network")

    def stop(*_, **__):
        raise raised

    calls = spied(monkeypatch, OPENERS[function], then=stop)
    with pytest.raises(error) as found:
        call(function, "local/net")
    assert found.value is raised
    assert len(calls) == 1


# Commands


def stop(*_, **__):
    raise InvalidOption("stopped here")


@cases(("name", "given", "weights"), WRITTEN)
def test_a_command_passes_the_name_on(name, given, weights, command, monkeypatch):
    default = f"{CALLS[name].rpartition('.')[0]}.command"
    checks = spied(monkeypatch, f"{MODULES.get(name, default)}:check")
    calls = spied(monkeypatch, CALLS[name], then=stop)
    code, _, err = command(name, given, *(("--weights", weights) if weights else ()))
    assert code == InvalidOption.exit_code
    says(err, "stopped here")
    for (one,) in (checks, calls):
        assert next(iter(one.values())) == given
        assert one.get("weights") == weights
        assert one.get("pretrained", True)


@cases("name", ("predict", "plot"))
def test_a_command_prints_what_it_computes_with_its_network(name, command, monkeypatch):
    monkeypatch.setattr("vitzoo.apps.plot.plot.Plot.save", lambda *_, **__: None)  # 0.5 s
    of_a, of_b = (command(name, f"{one}.safetensors")[1] for one in (A, B))
    assert of_a != of_b
    assert command(name, "local/net:other")[:2] == (0, of_b)
    spied(monkeypatch, CALLS[name], model="local/net:other")
    assert command(name, "local/net")[:2] == (0, of_b)


def test_the_command_summary_is_of_its_network(command, monkeypatch):
    asked = spied(monkeypatch, "vitzoo.known:known", name_or_model=SPEC | {"depth": 1})
    created = spied(monkeypatch, "vitzoo.known:create", then=stop)
    assert command("summary", "local/net")[0] == InvalidOption.exit_code
    assert [one["name_or_model"] for one in asked] == ["local/net"]
    assert [one["name"].depth for one in created] == [1]


@cases("form", FORMS_OF_COMMANDS)
def test_every_form_passes_the_check_of_commands(form):
    named = check(FORMS[form][0])
    assert (named.variant is not None) == (form in REGISTERED)
    assert [bool(one) for one in (named.variant, named.path, named.address)].count(True) == 1


@cases("wrong", [w for w, (name, *_) in WRONG.items() if isinstance(name, str) and w != "offline"])
def test_the_check_of_commands_refuses_as_functions_do(wrong):
    name, error, parts = WRONG[wrong]
    with refuses(error, *parts):
        check(name)


@cases(
    ("name", "weights", "error", "parts"),
    [
        ("local/net", "nope", WeightsUnavailable, ["local/net has no weights 'nope'", "main"]),
        ("local/net:main", "other", InvalidOption, ["'main'", "weights='other'", "once"]),
        ("local/net", "gone.safetensors", CheckpointError, ["gone.safetensors", "no such file"]),
    ],
)
def test_the_check_of_commands_refuses_weights(name, weights, error, parts):
    assert check("local/net", "other").weights.name == "other"
    assert check("local/net", "B.safetensors") == check("local/net")
    with refuses(error, *parts):
        check(name, weights)


@cases("wrong", ("missing file", "offline"))  # the first is refused by the check
@cases("name", COMMANDS)
def test_commands_refuse_as_functions_do(name, wrong, command):
    written, error, parts = WRONG[wrong]
    if name == "link" and wrong == "offline":
        error, parts = InvalidOption, ("name of registered weights",)
    code, _, err = command(name, written)
    assert code == error.exit_code, err
    says(err, *parts)


# A registered name is no path


@cases("name", ["local/net", "local/net:other", "vit_digits", "vit_digits:digits_v1"])
@cases("content", ["folder", "file"])
def test_a_registered_name_comes_before_a_path(
    name, content, here, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    of_name = {"local/net": A, "local/net:other": B}.get(name)
    of_path = B if name == "local/net" else A
    there, source = tmp_path / name, here / f"{of_path}.safetensors"
    if content == "folder":
        there.mkdir(parents=True)
        (there / "net.safetensors").symlink_to(source)
    else:
        there.parent.mkdir(exist_ok=True)
        there.symlink_to(source)
    found = vitzoo.Predictor(name).model
    assert found.load_report.source.startswith(name)
    if of_name:
        assert digest(found) == expected("create", of_name)
    if content == "folder":
        assert digest(vitzoo.create(f"./{name}")) == expected("create", of_path)
        assert digest(vitzoo.create(Path(name))) == expected("create", of_path)


def test_a_folder_with_the_name_of_nothing_is_a_path(here, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "acme/net", "vit_b61:main", "hf", "a.b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "net.safetensors").symlink_to(here / "B.safetensors")
        assert digest(vitzoo.create(name)) == expected("create", B), name
    assert vitzoo.labels("mine") == expected("labels", B)
    assert digest(vitzoo.Predictor("mine").model) == expected("create", B)


# Wrappers


@cases("wrapper", QUICK_WRAPPERS)
def test_functions_find_the_network_in_its_wrappers(wrapper, call, expected):
    wrapped = QUICK_WRAPPERS[wrapper](made(1))
    for function in ("labels", "transform", "predict", "plot", "bench", "export", "push"):
        assert call(function, wrapped) == expected(function, A), function
    each = (wrapped, "A.safetensors")
    one, other = (vitzoo.Predictor(m)([IMAGE])[0].outputs["pooled"] for m in each)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert vitzoo.param_groups(wrapped, 1e-3)
    assert vitzoo.freeze(wrapped, until="head")


def test_what_is_no_network_of_create_is_refused_alike(call):
    said = {}
    for function in CALLED:
        if function not in ("create", "convert", "link"):
            with refuses(InvalidOption, "Linear has no spec", "vitzoo.create") as found:
                call(function, nn.Linear(1, 1))
            said.setdefault(str(found.value), []).append(function)
    assert len(said) == 1, said


# Specs in files


def test_create_reads_a_toml_file(spec, to_toml, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(to_toml(spec.to_data()))
    assert vitzoo.create(path).spec == vitzoo.create(str(path)).spec == spec


def test_create_reads_a_json_file(spec, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(spec.to_data()))
    assert vitzoo.create(path).spec == spec


@cases(
    ("file", "text", "parts"),
    [
        ("net.toml", "depth = ", ["TOML", "line 1"]),
        ("net.json", "{", ["JSON", "line 1"]),
        ("net.json", "[]", ["table", "[]", "(list)"]),
        ("net.json", "[" * 100_000, ["JSON"]),
        ("net.toml", 'head = "os:system"', ["head", "'os:system'", "registered name"]),
    ],
)
def test_a_spec_file_that_is_wrong_names_itself(tmp_path, file, text, parts):
    tmp_path.joinpath(file).write_text(text)
    says(refused(InvalidOption, tmp_path / file), tmp_path / file, *parts)


def test_a_spec_file_with_an_unknown_key_names_itself(tmp_path):
    tmp_path.joinpath("net.toml").write_text("depht = 2")
    says(refused(UnknownOption, tmp_path / "net.toml"), "net.toml", "'depht'", "'depth'")
