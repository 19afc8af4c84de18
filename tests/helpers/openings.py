"""Networks, the forms in which a user names them, and the functions and commands that open them.

`tests/test_opening.py` and `tests/test_opening_whole.py` use them. The networks A and B have the
same sizes and other weights; A is the default of `local/net`.
"""

from __future__ import annotations

import json
import os
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import tomlkit
import torch
from PIL import Image
from torch import nn

import stored
import vitzoo
from helpers import SPEC, refuses
from internals import Hub
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    Offline,
    UnknownName,
    WeightsUnavailable,
)
from vitzoo.factory import open_network

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
def files(once):
    """A working directory with all files and an own registry file, which no test changes."""
    return once("openings", write_files)


def write_files(folder):
    """Write what `files` has."""
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
    (folder / "own.toml").write_text(tomlkit.dumps(own))


@pytest.fixture(autouse=True)
def here(files, tmp_path, monkeypatch):
    """Work in the directory of `files`, offline, with its registry file."""
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_REGISTRY", str(files / "own.toml"))
    monkeypatch.chdir(files)
    return files


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
    import pyarrow.parquet

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
    call = partial(vitzoo.bench, ways=["eager"])
    return captured(call, "vitzoo.apps.bench.bench.samples", model, monkeypatch, **options)


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


def opened(model, _, **options):
    return digest(open_network(model, **options))


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
CALLED = {"open_network": opened, **FUNCTIONS}
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


def meant(function: str, form: str) -> str | type[Exception]:
    """Return the network that a function takes for a form, or the error that it raises."""
    _, network, of_create = FORMS[form]
    if function in OF_NAMES and form not in REGISTERED:
        return InvalidOption
    if function in OF_FILES and form in NO_FILE:
        return CheckpointError if "spec" in form else InvalidOption
    if function == "embed" and form == "compiled model":
        return InvalidOption  # other processes could not compute the same numbers
    return of_create if function == "create" else network


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
    """Call a function of the tables in a new folder."""

    def call(name, model, **options):
        folder = tmp_path / f"call-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        extra = {"monkeypatch": monkeypatch} if name in ("bench", "export") else {}
        return CALLED[name](model, folder, **extra, **options)

    return call


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
    "missing folder with a slash": ("gone/", CheckpointError, ("gone: there is no such file",)),
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


def expect_one_message(functions, wrong, here, call):
    """Check that all functions refuse a wrong name with one message."""
    name, error, parts = WRONG[wrong]
    said = {}
    for function in functions:
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


@pytest.fixture
def command(run, tmp_path):
    """Run a command of the table, and return its exit code, stdout and stderr."""

    def command(name, model, *options):
        texts = [text.replace("{tmp}", str(tmp_path)) for text in COMMANDS[name]]
        return run(*(model if text == "{}" else text for text in texts), *options)

    return command


# Wrappers


def with_peft(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(target_modules=["qkv"]))


WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "DataParallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
    "average": torch.optim.swa_utils.AveragedModel,
    "PEFT": with_peft,
}
