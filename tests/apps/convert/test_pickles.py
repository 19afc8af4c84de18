"""Which tensors of a pickle are converted, and the options of `convert --from-pickle`."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
import functools
import importlib
import json
import os
import sys
import types
import typing
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitzoo
from helpers import fill, message, refuses, same, says
from internals import main
from tables import cases
from vitzoo.apps.convert.conversion import convert_pickle
from vitzoo.apps.convert.pickle_worker import chosen, load
from vitzoo.checkpoint.writers import write_safetensors
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.files.safetensors import POINTER

TABLE = {"a": torch.ones(2), "b": torch.zeros(1)}
OTHER = {"c": torch.ones(1)}
NESTED = {
    "": TABLE,
    "state_dict": {"state_dict": TABLE, "epoch": 3},
    "model": {"model": TABLE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}},
    "teacher": {"teacher": TABLE, "args": None, "loss": torch.ones(1)},
    "model.module": {"model": {"module": TABLE}},
}


@pytest.mark.parametrize("place", NESTED)
def test_the_tensors_of_a_usual_entry_are_found(place):
    found, entry = chosen(NESTED[place], None)
    assert (found, entry) == (TABLE, place)


def test_a_named_entry_is_taken():
    data = {"student": TABLE, "teacher": {"module": OTHER}, "best": OTHER}
    assert chosen(data, "teacher") == (OTHER, "teacher.module")
    assert chosen(data, "best") == (OTHER, "best")
    assert chosen(data, "teacher.module") == (OTHER, "teacher.module")


REFUSED = {
    "two": ({"student": TABLE, "teacher": OTHER}, None, ["teacher, student", "--key teacher"]),
    "an average": ({"model": TABLE, "model_ema": OTHER}, None, ["model, model_ema", "--key model"]),
    "two inside": ({"model": {"net": TABLE, "ema": OTHER}}, None, ["model.net, model.ema"]),
    "numbers": (
        {"a": torch.ones(1), "epoch": 3},
        None,
        ["epoch (int)", "of 2; expected"],
    ),
    "unusual": ({"weights": TABLE}, None, ["weights (dict)", "--key"]),
    "number keys": ({0: torch.ones(1)}, None, ["0 (no text)", "table of tensors"]),
    "empty": ({}, None, ["none, of 0", "table of tensors"]),
    "a list": ([torch.ones(1)], None, ["found a list", "table of tensors"]),
    "a tensor": (torch.ones(1), None, ["found a Tensor", "table of tensors"]),
    "no such entry": ({"model": TABLE}, "ema", ["no entry 'ema'", "model (dict)"]),
    "below tensors": ({"model": TABLE}, "model.a.b", ["no entry 'model.a.b'", "found a Tensor"]),
}


@cases("case", REFUSED)
def test_anything_else_is_refused_by_name(case):
    data, key, parts = REFUSED[case]
    says(message(CheckpointError, chosen, data, key), *parts)


def test_a_table_in_itself_is_refused():
    data = {}
    data["model"] = data
    says(message(CheckpointError, chosen, data, None), "model (dict)")


@pytest.mark.slow
def test_a_model_loads_from_the_converted_file(small, tmp_path, capsys):
    """The refusal names the command, which writes what the next call reads."""
    source = fill(vitzoo.create(small))
    path = tmp_path / "my model.pth"
    torch.save({"model": {f"module.{k}": t for k, t in source.state_dict().items()}}, path)
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    out = tmp_path / "my model.safetensors"
    says(text, path, f"`vitzoo convert '{path}' '{out}' --from-pickle`")
    assert main(["convert", str(path), str(out), "--from-pickle"]) == 0
    shown = capsys.readouterr().err
    says(shown, "the entry model", "32 tensors")
    same(vitzoo.create(small, weights=out).state_dict(), source.state_dict())
    with refuses(InvalidOption, out, "--force"):
        convert_pickle(path, out)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.pt", "b.safetensors", "--from-pickle", "--to", "timm"], "without --to"),
        (["a.pt", "b.safetensors", "--from-pickle", "--heads", "2"], "without --heads"),
        (["a.pt", "b.npz", "--from-pickle"], "end in .safetensors"),
        (["a.pt", "b.safetensors", "--to", "timm", "--key", "model"], "--from-pickle"),
        (["a.pt", "b.safetensors"], "--from-pickle"),
    ],
)
def test_options_that_do_not_belong_together(tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    says(capsys.readouterr().err, text)


def test_a_missing_file(tmp_path):
    with refuses(CheckpointError, tmp_path / "a.pt"):
        convert_pickle(tmp_path / "a.pt", tmp_path / "b.safetensors")


@pytest.mark.parametrize(
    ("data", "looks"), [(b"\x80\x02}q\x00.", True), (b"(dp0\n.", True), (b"ustar", True)]
)
def test_a_pickle_is_recognised_by_its_ending(small, tmp_path, data, looks):
    path = tmp_path / "a.ckpt"
    path.write_bytes(data)
    command = f"`vitzoo convert {path} {tmp_path / 'a.safetensors'} --from-pickle`"
    with refuses(CheckpointError, path, command):
        vitzoo.create(small, weights=path)
    assert looks


@pytest.mark.slow
def test_a_pickle_named_as_safetensors_is_written_beside_it(small, tmp_path):
    path = tmp_path / "net.safetensors"
    torch.save(TABLE, path)
    out = tmp_path / "net-tensors.safetensors"
    with refuses(CheckpointError, f"`vitzoo convert {path} {out} --from-pickle`"):
        vitzoo.create(small, weights=path)
    convert_pickle(path, out)
    same(load_file(out), TABLE)


# Several pickles with an index.


def sharded(folder, model, *, ending="bin", misplaced=False):
    """Write the tensors of a network as transformers writes large ones; return the index."""
    folder.mkdir(exist_ok=True)
    tensors = model.state_dict()
    files = [f"pytorch_model-0000{i}-of-00002.{ending}" for i in (1, 2)]
    places = {name: files[i % 2] for i, name in enumerate(tensors)}
    for file in files:
        torch.save({n: t for n, t in tensors.items() if places[n] == file}, folder / file)
    if misplaced:
        places[next(iter(tensors))] = files[1]
    index = folder / f"pytorch_model.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


@pytest.fixture
def here(monkeypatch):
    """Read pickles in this process, which takes less time."""

    def write(fd, _, target, key):
        with os.fdopen(os.dup(fd), "rb") as file:
            tensors, place = chosen(load(file), key)
        write_safetensors(target, tensors, {})
        target.flush()
        return len(tensors), place

    monkeypatch.setattr("vitzoo.apps.convert.conversion.write_tensors", write)


@pytest.mark.slow
def test_an_index_of_pickles_is_converted_whole(small, tmp_path, capsys):
    model = fill(vitzoo.create(small))
    index, out = sharded(tmp_path / "in", model), tmp_path / "out.safetensors"
    before = sorted(tmp_path.rglob("*"))
    assert main(["convert", str(index), str(out), "--from-pickle"]) == 0
    says(capsys.readouterr().err, "the tensors are those of 2 files", "32 tensors")
    same(vitzoo.create(small, weights=out).state_dict(), model.state_dict())
    assert sorted(tmp_path.rglob("*")) == sorted([*before, out])


@pytest.mark.usefixtures("here")
def test_one_of_several_pickles_is_never_converted_alone(small, tmp_path):
    folder, out = tmp_path / "a b", tmp_path / "out.safetensors"
    index = sharded(folder, fill(vitzoo.create(small)))
    (folder / "optimizer.pt").touch()
    command = f"`vitzoo convert '{index}' '{folder / 'pytorch_model.safetensors'}' --from-pickle`"
    shard = folder / "pytorch_model-00002-of-00002.bin"
    for weights in (folder, index, shard):
        with refuses(CheckpointError, command):
            vitzoo.create(small, weights=weights)
    with refuses(CheckpointError, command):
        vitzoo.create(index)
    with refuses(CheckpointError, shard, "one of several files", f"convert {index}"):
        convert_pickle(shard, out)
    index.unlink()
    with refuses(CheckpointError, command):
        vitzoo.create(small, weights=folder)
    with refuses(CheckpointError, index):
        convert_pickle(index, out)
    assert not out.exists()


@pytest.mark.usefixtures("here")
def test_an_index_of_pickles_that_lies_is_refused(small, tmp_path):
    index, out = (
        sharded(tmp_path, fill(vitzoo.create(small)), misplaced=True),
        tmp_path / "o.safetensors",
    )
    with refuses(CheckpointError, index, "disagree", "pytorch_model-00001-of-00002.bin"):
        convert_pickle(index, out)
    index.write_text(json.dumps({"weight_map": {"a": "../a.bin"}}))
    with refuses(CheckpointError, index, "../a.bin"):
        convert_pickle(index, out)
    assert not out.exists()


@pytest.mark.usefixtures("here")
def test_an_index_of_pickles_on_the_hub(monkeypatch, small, tmp_path):
    """Each file is asked for at the revision of the index."""
    index = sharded(tmp_path / "in", fill(vitzoo.create(small)))
    asked = []

    def obtain(file, note):  # noqa: ARG001
        asked.append(file.address)
        return os.open(index.with_name(file.name), os.O_RDONLY), ""

    monkeypatch.setattr("vitzoo.apps.convert.conversion.obtain.obtain", obtain)
    address, out = "hf://acme/net@v1/sub/", tmp_path / "out.safetensors"
    convert_pickle(f"{address}{index.name}", out)
    assert sorted(asked) == sorted(address + path.name for path in (tmp_path / "in").iterdir())
    same(load_file(out), load_file(convert_pickle(index, tmp_path / "b.safetensors").target))
    shard = f"{address}pytorch_model-00001-of-00002.bin"
    with refuses(CheckpointError, f"convert {address}{index.name}"):
        convert_pickle(shard, tmp_path / "c.safetensors")


def test_a_pointer_is_no_pickle(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(POINTER + b".github.com/spec/v1\noid sha256:0\nsize 9\n")
    with refuses(CheckpointError, path, "a Git LFS pointer", f"`git -C {tmp_path} lfs pull`"):
        convert_pickle(path, tmp_path / "out.safetensors")


def test_a_safetensors_file_is_no_pickle(tmp_path):
    save_file({"a": torch.zeros(2)}, path := tmp_path / "model.safetensors")
    with refuses(CheckpointError, path, "a safetensors file", "omit --from-pickle"):
        convert_pickle(path, tmp_path / "out.safetensors")


def test_a_torch_whose_loader_runs_code_reads_no_pickle(tmp_path, monkeypatch):
    path = tmp_path / "model.bin"
    torch.save({"a": torch.zeros(2)}, path)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu130")
    with path.open("rb") as file, refuses(CheckpointError, "2.9.1+cu130", "torch>=2.10"):
        load(file)
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    with path.open("rb") as file:
        same(load(file), {"a": torch.zeros(2)})


# Classes that a .ckpt names.


class _Config:
    """As OmegaConf's DictConfig: its state names types, and another class."""

    def __init__(self, content):
        self.metadata = _Metadata()
        self.__dict__["_content"] = content

    def __setstate__(self, state):
        self.__dict__.update(state)


class _Metadata:
    def __init__(self):
        self.ref_type, self.key_type, self.flags = typing.Any, dict, {}
        self.cache = collections.defaultdict(dict, {"a": {"b": 1}})


class _Attributes(dict):
    """As Lightning's AttributeDict."""


class _Stage(enum.Enum):
    FIT = "fit"


class _Callback:
    __slots__ = ("best", "where")

    def __init__(self):
        self.best, self.where = torch.ones(1), Path("last.ckpt")


FOREIGN = {  # a class, and its names in pickles
    _Config: ("omegaconf.dictconfig", "DictConfig"),
    _Metadata: ("omegaconf.base", "Metadata"),
    _Attributes: ("lightning_fabric.utilities.data", "AttributeDict"),
    _Stage: ("__main__", "Stage"),
    _Callback: ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
}


@pytest.fixture
def foreign(monkeypatch):
    """Let pickles of the classes name modules that no process has."""
    for kind, (module, name) in FOREIGN.items():
        packages = module.split(".")
        for end in range(1, len(packages) + 1):
            package = ".".join(packages[:end])
            holder = sys.modules.get(package) or types.ModuleType(package)
            monkeypatch.setitem(sys.modules, package, holder)
        monkeypatch.setattr(holder, name, kind, raising=False)
        kind.__module__, kind.__qualname__ = module, name
    yield
    for kind in FOREIGN:
        kind.__module__, kind.__qualname__ = __name__, kind.__name__


def others():
    """Return what checkpoints of training have beside the tensors, by kind."""
    attributes = _Attributes(lr=0.1)
    attributes.extra = "kept in its __dict__"
    return {
        "DictConfig": _Config({"model": {"name": "vit"}}),
        "AttributeDict": _Attributes(lr=0.1, path=Path("data")),
        "AttributeDict with a state": attributes,
        "PosixPath": PurePosixPath("runs/1"),
        "callback": {"ModelCheckpoint{}": _Callback()},
        "Enum": {_Stage.FIT: 3},
        "Namespace": argparse.Namespace(lr=0.1, out=Path("out")),
        "defaultdict": collections.defaultdict(list, {"a": [1]}),
        "deque": collections.deque([1.0, 2.0], maxlen=3),
        "Counter": collections.Counter("aab"),
        "datetime": [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.timedelta(1)],
        "partial": functools.partial(_Config, {}),
        "NumPy": [np.float64(0.5), np.arange(3), np.dtype("f4")],
        "types": [dict, int, typing.Any, frozenset({1}), slice(1, 2)],
    }


KINDS = tuple(others())


def loaded(data, path, **options):
    """Save an object, and load it as the process does that reads pickles."""
    torch.save(data, path, **options)
    with path.open("rb") as file:
        return load(file)


@pytest.mark.slow
@pytest.mark.usefixtures("foreign")
def test_a_checkpoint_of_training_is_converted(tmp_path):
    path, out = tmp_path / "last.ckpt", tmp_path / "out.safetensors"
    data = {"epoch": 3, "hyper_parameters": others(), "state_dict": TABLE, "callbacks": others()}
    torch.save(data, path)
    assert convert_pickle(path, out).notes == ("the tensors are those of the entry state_dict",)
    same(load_file(out), TABLE)


@cases("legacy", [False, True])
@cases("kind", KINDS)
@pytest.mark.usefixtures("foreign")
def test_an_entry_that_names_classes(tmp_path, kind, legacy):
    """In the file format of torch before 1.6, too."""
    data = {"state_dict": TABLE, kind: others()[kind]}
    options = {"_use_new_zipfile_serialization": not legacy}
    same(chosen(loaded(data, tmp_path / "a.ckpt", **options), None)[0], TABLE)


@pytest.mark.slow
def test_what_a_pickle_names_is_not_imported(tmp_path, monkeypatch):
    """Not even if the process that reads the pickle could import it."""
    ran = tmp_path / "ran"
    (tmp_path / "training_code.py").write_text(
        f"class Config:\n    pass\n\nif __import__('os').getpid() != {{}}:\n"
        f"    open({str(ran)!r}, 'w').close()\n".format(os.getpid())
    )
    monkeypatch.syspath_prepend(tmp_path)
    import training_code

    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": TABLE, "config": training_code.Config()}, path)
    convert_pickle(path, tmp_path / "out.safetensors")
    assert not ran.exists()
    (known,) = [value for key, value in vars(training_code).items() if key == "Config"]
    assert type(loaded({"a": known()}, path)["a"]).__name__ == "Inert"


class _Named:
    """An object whose pickle calls a class of any name."""

    def __init__(self, kind, *arguments):
        self.call = kind, arguments

    def __reduce__(self):
        return self.call


CALLS = {  # a name in a pickle, and a call of it
    "getattr": _Named(getattr, "text", "upper"),
    "eval": _Named(eval, "1"),
    "os.popen": _Named(os.popen, "true"),
    "importlib.import_module": _Named(importlib.import_module, "this"),
    "typing.get_type_hints": _Named(typing.get_type_hints, Path),
    "functools.wraps": _Named(functools.partial, _Named(functools.wraps, len)),
    "torch.hub.load": _Named(torch.hub.load, "a", "b"),
    "torch.nn.modules.linear.Linear": _Named(torch.nn.Linear, 2, 3),
}


@cases("name", CALLS)
def test_names_of_torch_and_of_the_standard_library_are_refused(tmp_path, name):
    with refuses(CheckpointError, f"names {name}, which is not called"):
        loaded({"state_dict": TABLE, "other": CALLS[name]}, tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ({"state_dict": TABLE | {"c": Path("c")}}, ["state_dict", "c (pathlib.", "not imported"]),
        ({"model": collections.deque([1])}, ["model (list)"]),
        (Path("a"), ["found a pathlib.", "not imported"]),
        ({"state_dict": _Named(Path, TABLE)}, ["state_dict (pathlib."]),
    ],
)
def test_an_inert_object_among_the_tensors_is_refused(tmp_path, data, parts):
    data = loaded(data, tmp_path / "a.ckpt")
    says(message(CheckpointError, chosen, data, None), *parts)


def stream(*opcodes):
    """Return a pickle that ends with a table of tensors without any tensor."""
    return b"\x80\x02" + b"".join(opcodes) + b"."


THING, TENSOR = b"cacme\nThing\n", b"ctorch\nTensor\n"
METHOD, OTHER_MODULE = b"cacme\nThing.__class__.mro\n", b"cpathlib\nos.system\n"
REBUILD = b"ctorch._tensor\n_rebuild_from_type_v2\n"
HOSTILE = {
    "an object is called": (stream(THING, b")R", b")R"), "reduce"),
    "a class is changed": (stream(THING, b"}b"), "Can only build"),
    "a method": (stream(METHOD, b")R"), "Thing.__class__.mro, which is not imported"),
    "through another module": (stream(OTHER_MODULE, b")R"), "pathlib.os.system, which is not"),
    "a null character": (stream(b"cac\0me\nThing\n", b")R"), "which is not imported"),
    "a rebuilt object": (stream(REBUILD, b"(", THING, TENSOR, b")}tR"), "as_subclass"),
    "a tensor of the class": (
        stream(REBUILD, b"(", TENSOR, THING, b")}tR"),
        "does not inherit from Tensor",
    ),
    "many classes": (stream(*(b"cacme\nThing%d\n" % i for i in range(600))), "more than 500"),
    "deep": (stream(b"(" * 100_000, THING, b")R", b"t" * 100_000), "found a tuple"),
}


@cases("case", HOSTILE)
def test_hostile_pickles_with_inert_classes(tmp_path, case):
    data, text = HOSTILE[case]
    path = tmp_path / "a.ckpt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/version", b"3\n")
        file.writestr("archive/byteorder", b"little")
    with path.open("rb") as source, refuses(CheckpointError, text):
        chosen(load(source), None)
