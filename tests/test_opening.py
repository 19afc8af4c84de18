"""Which network a user means: every function and command x every form of a name.

docs/create.md describes the forms. The networks A and B have the same sizes and other weights; A is
the default of `local/net`. A function is asked for the network in each form, and must return what
it returns for the same network as a model or a saved file.
"""

from __future__ import annotations

import json
import os
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.torch
import tomlkit
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from torch import nn

import stored
import vitzoo
from create_helpers import refused
from helpers import SPEC, refuses, says
from internals import Hub
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    Offline,
    UnknownName,
    UnknownOption,
    WeightsUnavailable,
)

A, B, UNTRAINED = "A", "B", "untrained"


def made(seed: int) -> nn.Module:
    """Return a network whose weights, labels and preprocessing depend on the seed."""
    model = vitzoo.create(SPEC)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    model.labels = tuple(f"{seed}{letter}" for letter in "abcde")
    mean = stored.PREPROCESSING["mean"]
    model.preprocessing = vitzoo.Preprocessing(
        **stored.PREPROCESSING | {"mean": [seed / 4, *mean[1:]]}
    )
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A working directory with all files, and the text of a registry file."""
    folder = tmp_path_factory.mktemp("names")
    entries = {}
    for number, name in enumerate((A, B), 1):
        model = made(number)
        vitzoo.save(model, folder / f"{name}.safetensors")
        bare = folder / f"bare_{name}.safetensors"
        safetensors.torch.save_file(model.state_dict(), bare)
        about = {"labels": list(model.labels), "preprocessing": vars(model.preprocessing).copy()}
        entries[name] = stored.entry(bare, default=name == A, **about)
    (folder / "saved").mkdir()
    (folder / "saved" / "net.safetensors").symlink_to(folder / "A.safetensors")
    vitzoo.push(made(1), "acme/net", folder=folder / "config", dry_run=True, license="mit")
    safetensors.torch.save_file(made(1).state_dict(), folder / "config" / "model.safetensors")
    assert (folder / "config" / "config.json").is_file()  # and nothing of vitzoo in the weights
    spec = {"variant": "local/net"}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "spec.toml").write_text(tomlkit.dumps(spec))
    (folder / "images" / "x").mkdir(parents=True)
    (folder / "images" / "y").mkdir()
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "xy"[i % 2] / f"{i}.png")
    own = tomlkit.parse(stored.registry_of(made(1), entries[A]))
    own["variants"]["net"]["weights"] = {"main": entries[A], "other": entries[B]}
    far = {k: v for k, v in entries[A].items() if k != "path"}
    far |= {"repo": "acme/far", "revision": "0" * 40, "file": "model.safetensors"}
    own["variants"]["far"] = own["variants"]["net"].unwrap() | {"weights": {"main": far}}
    return folder, tomlkit.dumps(own)


@pytest.fixture(autouse=True)
def here(files, local_registry, tmp_path, monkeypatch):
    """Work in the directory of `files`, offline, with an own registry file."""
    folder, text = files
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    local_registry(text)
    monkeypatch.chdir(folder)
    return folder


# Functions: each maps the network that it is given to what it computes from it.


class Captured(Exception):
    """The network that a function uses, in place of minutes of work with it."""


def digest(model: nn.Module) -> str:
    """Return the hash of the spec and of the tensors."""
    found = sha256(json.dumps(model.spec.to_data() | {"variant": None}, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.detach().numpy().tobytes())
    return found.hexdigest()


def predictor(model, _, **options):
    network = vitzoo.Predictor(model, **options).model
    return digest(getattr(network, "_orig_mod", network))


def predict(model, _):
    found = vitzoo.predict(model, ["images/x"])  # a compiled model computes in another order
    return [[(i, label, round(p, 6)) for i, label, p in one.classes] for one in found]


def embed(model, folder, **options):
    out = folder / "vectors"
    vitzoo.embed(model, "images/x", out, workers=1, **options)
    return pyarrow.parquet.read_table(next(out.glob("*.parquet")))["pooled"].to_pylist()


def probe(model, folder, **options):
    return vitzoo.probe(model, "images", embeddings=folder, **options).logits.tolist()


def plot(model, _):
    return vitzoo.plot("filters", model).arrays["filters"].tolist()


def captured(function, step, model, monkeypatch, **options):
    def stop(network, *_):
        raise Captured(digest(network))

    monkeypatch.setattr(step, stop)
    with pytest.raises(Captured) as found:
        function(model, **options)
    return str(found.value)


def bench(model, _, monkeypatch, **options):
    step = "vitzoo.apps.bench.bench._write"
    return captured(vitzoo.bench, step, model, monkeypatch, **options)


def export(model, folder, monkeypatch, **options):
    call = partial(vitzoo.export, to="torch", folder=folder / "exported")
    step = "vitzoo.apps.export.export._check_network"
    return captured(call, step, model, monkeypatch, **options)


def push(model, folder):
    out = folder / "pushed"
    vitzoo.push(model, "a/b", folder=out, dry_run=True, license="mit", library="vitzoo")
    return digest(vitzoo.create(out))


def tensors_of(path):
    tensors = safetensors.torch.load_file(path)
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def convert(model, folder):
    vitzoo.convert(model, "timm", folder / "new.safetensors")
    return tensors_of(folder / "new.safetensors")


def link(model, folder, **options):
    done = vitzoo.link(model, folder / "linked", "transformers", **options)
    return tensors_of(done.folder / "model.safetensors")


def transform(model, _):
    return repr(vitzoo.transform(model))


def labels(model, _):
    return vitzoo.labels(model)


def create(model, _, **options):
    network = vitzoo.create(model, **options)
    return digest(network) if network.load_report.sha256 else UNTRAINED


FUNCTIONS = {
    "create": create,
    "transform": transform,
    "labels": labels,
    "Predictor": predictor,
    "predict": predict,
    "embed": embed,
    "probe": probe,
    "plot": plot,
    "bench": bench,
    "export": export,
    "push": push,
    "convert": convert,
    "link": link,
}
WITH_WEIGHTS = ("create", "Predictor", "embed", "probe", "bench", "export", "link")
OF_FILES = ("convert",)  # read a weights file
OF_NAMES = ("link",)  # read a verified file of the registry

# Forms: what is written, the network with the default of all functions, and that of `create`.

FORMS = {
    "name": ("local/net", A, UNTRAINED),
    "name:weights": ("local/net:main", A, A),
    "name:other weights": ("local/net:other", B, B),
    "saved file": ("A.safetensors", A, A),
    "saved file as a path": (Path("B.safetensors"), B, B),
    "saved file from here": ("./A.safetensors", A, A),
    "folder": ("saved", A, A),
    "folder with a slash": ("saved/", A, A),
    "folder with a config": ("config", A, A),
    "address": ("hf://acme/net", A, A),
    "address of a file": ("hf://acme/net@main/B.safetensors", B, B),
    "mapping": ({"variant": "local/net"}, A, UNTRAINED),
    "file of a spec": ("spec.json", A, UNTRAINED),
    "other file of a spec": (Path("spec.toml"), A, UNTRAINED),
    "model": (partial(made, 2), B, InvalidOption),
    "compiled model": (lambda: torch.compile(made(2), backend="eager"), B, InvalidOption),
    "wrapped model": (lambda: nn.DataParallel(made(2)), B, InvalidOption),
}
NO_FILE = (
    "mapping",
    "file of a spec",
    "other file of a spec",
    "model",
    "compiled model",
    "wrapped model",
)
SLOW = ("embed", "probe")  # they pass the network on to `Predictor`
FEW = ("name", "name:other weights", "saved file as a path", "mapping", "compiled model", "model")
REGISTERED = ("name", "name:weights", "name:other weights")


@pytest.fixture
def hub(monkeypatch, here):
    """A Hub with the two saved files."""
    with Hub() as hub:
        for file, name in (("model.safetensors", A), ("B.safetensors", B)):
            hub.add("acme/net", file, (here / f"{name}.safetensors").read_bytes())
        for name, value in hub.environment(Path(os.environ["VITZOO_HOME"])).items():
            monkeypatch.setenv(name, value)
        yield hub


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call a function of the table in a new folder."""

    def call(name, model, **options):
        folder = tmp_path / f"call-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        extra = {"monkeypatch": monkeypatch} if name in ("bench", "export") else {}
        return FUNCTIONS[name](model, folder, **extra, **options)

    return call


@pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")
@pytest.mark.parametrize(
    ("function", "form"),
    [(name, form) for name in FUNCTIONS for form in (FEW if name in SLOW else FORMS)],
)
def test_every_function_takes_every_form(function, form, call, request):
    written, network, of_create = FORMS[form]
    name = written() if callable(written) else written
    if form.startswith("address"):
        request.getfixturevalue("hub")
    of = of_create if function == "create" else network
    if function == "embed" and form == "compiled model":
        of = InvalidOption  # other processes could not compute the same numbers
    if (function in OF_FILES and form in NO_FILE) or (
        function in OF_NAMES and form not in REGISTERED
    ):
        of = CheckpointError if function in OF_FILES and "spec" in form else InvalidOption
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


def test_weights_that_are_named_are_loaded():
    assert digest(vitzoo.create("local/net", pretrained=True)) == digest(
        vitzoo.create("A.safetensors")
    )
    with refuses(InvalidOption, "'main'", "pretrained=False", "the variant alone"):
        vitzoo.create("local/net:main", pretrained=False)
    with refuses(InvalidOption, "'main'", "--untrained", "the variant alone"):
        vitzoo.bench("local/net:main", untrained=True)


# Errors: what is written, the error, and parts of its message.

WRONG = {
    "misspelt name": ("local/nett", UnknownName, ("unknown variant 'local/nett'", "'local/net'")),
    "misspelt name:weights": ("local/nett:main", UnknownName, ("'local/nett'", "'local/net'")),
    "wrong weights": (
        "local/net:nope",
        WeightsUnavailable,
        ("local/net has no weights 'nope'", "main"),
    ),
    "no weights": ("local/net:", WeightsUnavailable, ("local/net has no weights ''",)),
    "missing file": (
        "gone.safetensors",
        CheckpointError,
        ("gone.safetensors: there is no such file",),
    ),
    "missing folder": ("./gone", CheckpointError, ("gone: there is no such file",)),
    "missing path": (Path("gone"), CheckpointError, ("gone: there is no such file",)),
    "missing spec": (
        "gone.toml",
        (InvalidOption, CheckpointError),
        ("gone.toml: there is no such file",),
    ),
    "missing pickle": ("gone.pt", CheckpointError, ("gone.pt: there is no such file",)),
    "drive letter": ("C:\\net", CheckpointError, ("C:\\net: there is no such file",)),
    "offline": ("hf://acme/gone", Offline, ("hf://acme/gone", "offline")),
    "malformed address": ("hf://acme", InvalidOption, ("hf://owner/repo", "'hf://acme'")),
    "nothing": ("", InvalidOption, ("the network is ''", "unset shell variable")),
    "number": (5, InvalidOption, ("registered name", "spec", "path", "got 5 (int)")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_every_function_refuses_with_the_same_message(wrong, here, call):
    name, error, parts = WRONG[wrong]
    said = {}
    for function in FUNCTIONS:
        if function in OF_NAMES and not isinstance(name, str):
            continue
        if function in OF_NAMES and ("missing" in wrong or wrong in ("drive letter", "offline")):
            error_here, parts_here = InvalidOption, ("name of registered weights", repr(name))
        else:
            error_here, parts_here = error, parts
        with refuses(error_here, *parts_here) as found:
            call(function, name)
        if error_here is error and function != "convert":
            text = str(found.value).replace(f"{here}/", "")  # `Predictor` makes paths absolute
            said.setdefault(text, []).append(function)
    assert len(said) == 1, said


@pytest.mark.parametrize("function", FUNCTIONS)
def test_weights_that_are_not_here_are_needed_by_most(function, call):
    if function in ("create", "transform", "labels"):
        assert call(function, "local/far") == call(function, "local/net")
        return
    with refuses(Offline, "local/far:main", "offline"):
        call(function, "local/far")


# Commands

IMAGE = "images/x/0.png"
COMMANDS = {
    "predict": ("predict", "{}", IMAGE, "--json"),
    "plot": ("plot", "filters", "{}", "--out", "{tmp}/a.png", "--force", "--json"),
    "summary": ("summary", "{}", "--json"),
    "embed": ("embed", "{}", IMAGE, "--out", "{tmp}/vectors", "--workers", "1", "--json"),
    "probe": ("probe", "{}", "images", "--embeddings", "{tmp}/vectors", "--json"),
    "push": (
        "push",
        "{}",
        "a/b",
        "--dry-run",
        "--folder",
        "{tmp}/new",
        "--force",
        "--license",
        "mit",
    ),
    "convert": ("convert", "{}", "--to", "timm", "{tmp}/a.safetensors", "--force", "--json"),
    "export": ("export", "{}", "{tmp}/exported", "--to", "torch", "--force", "--json"),
    "bench": ("bench", "{}", "--ways", "eager", "--json"),
    "link": ("link", "{}", "{tmp}/linked", "--for", "transformers", "--force", "--json"),
}
QUICK = ("predict", "plot", "summary", "push")
FORMS_OF_COMMANDS = {form: row for form, row in FORMS.items() if isinstance(row[0], str)}


@pytest.fixture
def command(run, tmp_path):
    """Run a command of the table, and return its exit code, stdout and stderr."""

    def command(name, model):
        texts = [text.replace("{tmp}", str(tmp_path)) for text in COMMANDS[name]]
        return run(*(model if text == "{}" else text for text in texts))

    return command


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


# A registered name is no path


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


# Wrappers

WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "DataParallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    "average": torch.optim.swa_utils.AveragedModel,
    "PEFT": lambda model: get_peft_model(model, LoraConfig(target_modules=["qkv"])),
}


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


# Specs in files


def test_create_reads_a_toml_file(spec, to_toml, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(to_toml(spec.to_data()))
    assert vitzoo.create(path).spec == vitzoo.create(str(path)).spec == spec


def test_create_reads_a_json_file(spec, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(spec.to_data()))
    assert vitzoo.create(path).spec == spec


@pytest.mark.parametrize(
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
