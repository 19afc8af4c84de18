"""The folder of `embed`: what is wrong with its manifest and its files, before anything is written.

Every call runs in one child process with limits of time and memory, because faults hang.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitzoo
from helpers import fill, refuses, says
from limited import run_limited
from vitzoo import embed
from vitzoo.errors import InvalidOption, StoreError

SPEC = {"image_size": 16, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 1}
MANIFEST, PART = "_manifest.json", "part-000000.parquet"
LEFT = f".{PART}.123.1234567890123456789"
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no bytes
READ = """
import json
from vitzoo.apps.embed.embed import embed
from vitzoo.apps.predict.predictor import Predictor

predictor = Predictor(network)

def read(argument):
    found = embed(predictor, photos, workers=1, **json.loads(argument))
    return found.inputs, found.errors
"""


@pytest.fixture(scope="module")
def data(once):
    """Three images, a network, and the folder of their vectors."""
    return once("embed-folder", write_data)


def write_data(folder):
    (folder / "photos").mkdir()
    for i in range(3):
        image = Image.fromarray(np.full((16, 16, 3), 60 * i, np.uint8))
        image.save(folder / "photos" / f"{i}.png")
    model = fill(vitzoo.create(SPEC | {"num_heads": 2, "mlp_dim": 64}))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    vitzoo.save(model, folder / "net.safetensors")
    embed(folder / "net.safetensors", folder / "photos", folder / "whole", workers=1)


def contents(folder):
    """Return what a folder has, apart from locks."""
    paths = [path for path in folder.iterdir() if path.suffix != ".lock"]
    return {path.name: path.is_file() and path.read_bytes() for path in paths}


def outcomes(data, tmp_path, cases, **options):
    """Change a copy of the folder in each way, call `embed`, and check that refusals wrote nothing.

    Args:
        data: the fixture.
        tmp_path: for the copies.
        cases: by name, a function that changes a folder.
        options: of `embed`.
    """
    arguments, before = [], []
    for number, change in enumerate(cases.values()):
        out = tmp_path / str(number)
        shutil.copytree(data / "whole", out)
        change(out)
        before.append(contents(out))
        arguments.append(json.dumps({"out": str(out)} | options))
    names = {"network": str(data / "net.safetensors"), "photos": str(data / "photos")}
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + READ
    found = dict(zip(cases, run_limited(code, arguments), strict=True))
    for number, (name, outcome) in enumerate(found.items()):
        if outcome.kind != "value":
            assert contents(tmp_path / str(number)) == before[number], name
    return found


def stating(**changes):
    """Return a function that changes the manifest and removes the part."""

    def change(folder):
        table = json.loads((folder / MANIFEST).read_text())
        for path, value in changes.items():
            *outer, key = path.split("__")
            inner = table
            for name in outer:
                inner = inner[name]
            inner[key] = value
        (folder / MANIFEST).write_text(json.dumps(table))
        (folder / PART).unlink()

    return change


@pytest.mark.slow
def test_a_manifest_is_compared_with_the_model_and_the_sources(data, tmp_path):
    table = json.loads((data / "whole" / MANIFEST).read_text())
    sha256, chunk = table["ranges"][0]["sha256"], table["fingerprint"]["chunk"]
    own = {"inputs": 3, "sha256": sha256}
    other = "has vectors of another model or other settings"
    expected = {
        "no outputs": (stating(outputs={}), "outputs.pooled is None", "[32] now"),
        "another shape": (stating(outputs={"pooled": [16]}), "[16] in it and [32] now", other),
        "a huge shape": (stating(outputs={"pooled": [2**31 - 1] * 50}), "[32] now", other),
        "a second": (stating(outputs={"pooled": [32], "a": [1]}), "outputs.a is [1]", other),
        "a name": (stating(outputs={"\ud800": [32]}), r"outputs.\ud800", other),
        "8.0": (stating(fingerprint__chunk=[8.0, *chunk[1:]]), "[8.0, 3", "[8, 3", other),
        "null": (stating(fingerprint__settings=None), "fingerprint.settings", other),
        "no table": (stating(fingerprint={}), "fingerprint is {}", other),
        "license": (stating(license="\ud800"), "license must be printable", r"'\ud800'"),
        "errors": (stating(errors=-5), "errors must be a whole number from 0", "-5"),
        "digits": (stating(format=10**4000), "has format 1000", "expected 1"),
        "2**52": (stating(ranges=[own | {"inputs": 2**52}]), "4503599627370496", "have 3"),
        "a second range": (
            stating(ranges=[own, {"inputs": 2**52, "sha256": NOTHING}]),
            "4503599627370499 are in it",
            "the sources have 3",
        ),
        "a long text": (stating(vectors="x" * 10**7), "vectors is 'xxx", "'float32' now", other),
    }
    cases = {name: change for name, (change, *_) in expected.items()}
    for extend in (False, True):
        (tmp_path / str(extend)).mkdir()
        found = outcomes(data, tmp_path / str(extend), cases, extend=extend)
        for name, (_, *parts) in expected.items():
            assert found[name].kind in ("InvalidOption", "StoreError"), name
            assert len(found[name].text) < 1000, name
            assert all(part in found[name].text for part in parts), found[name].text


def placed(name, make):
    """Return a function that puts something that is no file at a name."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def with_leftover(name, make):
    """Return a function that also adds an unfinished part, which is removed under a lock."""

    def change(folder):
        placed(name, make)(folder)
        (folder / LEFT).touch()

    return change


def a_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # a path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(path.name)
    os.chdir(here)


@pytest.mark.slow
def test_what_is_no_file_is_named_and_not_waited_for(data, tmp_path):
    kinds = {
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "socket": a_socket,
        "link to itself": lambda path: path.symlink_to(path.name),
        "link to a device": lambda path: path.symlink_to("/dev/zero"),
    }
    cases = {
        f"{name}: {kind}": placed(name, make)
        for name in (PART, MANIFEST)
        for kind, make in kinds.items()
    }
    cases |= {
        f"{LEFT}: folder": placed(LEFT, Path.mkdir),
        ".writing.lock: pipe": with_leftover(".writing.lock", os.mkfifo),
        ".writing.lock: folder": with_leftover(".writing.lock", Path.mkdir),
        ".shard-0-of-1.lock: folder": placed(".shard-0-of-1.lock", Path.mkdir),
        ".manifest.lock: folder": placed(".manifest.lock", Path.mkdir),
    }
    for name, outcome in outcomes(data, tmp_path, cases).items():
        assert outcome.kind == "StoreError", (name, outcome)
        assert name.partition(":")[0] in outcome.text, name
        assert "remove" in outcome.text, (name, outcome)


@pytest.mark.slow
def test_links_and_pipes_that_are_replaced_or_removed(data, tmp_path):
    target = tmp_path / "target"
    target.write_text("of another program")
    cases = {
        f"{name}: {kind}": placed(name, make)
        for name, kind, make in (
            (PART, "link to nothing", lambda path: path.symlink_to("gone")),
            (PART, "link to a file", lambda path: path.symlink_to(target)),
            (LEFT, "link to a file", lambda path: path.symlink_to(target)),
            (LEFT, "pipe", os.mkfifo),
        )
    }
    for number, (name, outcome) in enumerate(outcomes(data, tmp_path, cases).items()):
        assert outcome.kind == "value", (name, outcome)
        assert contents(tmp_path / str(number)) == contents(data / "whole"), name
        assert not (tmp_path / str(number) / PART).is_symlink()
    locks = {
        name: with_leftover(name, lambda path: path.symlink_to(target))
        for name in (".writing.lock", ".manifest.lock")
    }
    (tmp_path / "locks").mkdir()
    for name, outcome in outcomes(data, tmp_path / "locks", locks).items():
        assert outcome.kind == "StoreError", (name, outcome)
        says(outcome.text, name, "remove")
    assert target.read_text() == "of another program"


@pytest.mark.needs("names")
def test_a_folder_whose_name_is_no_utf8_has_the_same_files(data, tmp_path):
    out = tmp_path / os.fsdecode(b"vectors\xff")
    for computed in (3, 0):
        assert embed(data / "net.safetensors", data / "photos", out, workers=1).computed == computed
    assert contents(out) == contents(data / "whole")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a" * 300])
def test_impossible_names_of_the_folder(data, tmp_path, name):
    with refuses(StoreError, tmp_path, "choose another --out"):
        embed(data / "net.safetensors", data / "photos", tmp_path / name, workers=1)
    assert not list(tmp_path.iterdir())


def test_labels_that_are_no_utf8_are_stored_as_they_are_shown(data, tmp_path):
    labels = ["\ud800", "byte\udcff", "größe", "both\udcff\ud800", "e"]
    model = vitzoo.create(data / "net.safetensors")
    model.labels = labels
    saved = vitzoo.save(model, tmp_path / "net.safetensors")
    embed(saved, data / "photos", tmp_path / "out", outputs="labels", workers=1)
    rows = pq.read_table(tmp_path / "out")["labels"].to_pylist()
    expected = {r"\ud800", r"byte\xff", "größe", r"both\udcff\ud800", "e"}
    assert [{one["label"] for one in row} for row in rows] == [expected] * 3


def test_labels_have_the_answers_that_the_network_states(data, tmp_path):
    model = vitzoo.create(data / "net.safetensors")
    model.output_activation = "sigmoid"
    saved, photos = vitzoo.save(model, tmp_path / "net.safetensors"), data / "photos"
    options = {"outputs": ["logits", "labels"], "workers": 1}
    embed(saved, photos, tmp_path / "out", **options)
    for row in pq.read_table(tmp_path / "out").to_pylist():
        expected = 1 / (1 + np.exp(-np.array(row["logits"])))
        found = {one["index"]: one["probability"] for one in row["labels"]}
        np.testing.assert_allclose([found[i] for i in range(5)], expected, rtol=0, atol=1e-6)
    with refuses(InvalidOption, "labels is", "Choose another --out"):
        embed(data / "net.safetensors", photos, tmp_path / "out", **options)


def test_a_part_with_other_columns_is_computed_again(data, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(data / "whole", out)
    for table in (pa.table({"a": [1, 2, 3]}), pa.table({"a": [b"\xff"], "error": ["x"]})):
        pq.write_table(table, out / PART)
        assert embed(data / "net.safetensors", data / "photos", out, workers=1).computed == 3
        assert contents(out) == contents(data / "whole")


def test_a_row_with_an_error_has_the_sha256_of_the_file_that_was_named(data, tmp_path):
    secret = tmp_path / "secret.key"
    secret.write_text("1234")
    (tmp_path / "list.txt").write_text(f"{secret}\n")
    pq.write_table(pa.table({"path": [str(secret)]}), tmp_path / "paths.parquet")
    for name in ("list.txt", "paths.parquet"):
        out = tmp_path / name.replace(".", "-")
        assert embed(data / "net.safetensors", tmp_path / name, out, workers=1).errors == 1
        (row,) = pq.read_table(out).to_pylist()
        assert row["sha256"] == hashlib.sha256(b"1234").hexdigest()
        assert "1234" not in row["error"]


# Its device


def with_versions(data, out, **versions):
    """Copy the folder, with other versions in its manifest; return what `embed` gets."""
    shutil.copytree(data / "whole", out)
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["fingerprint"]["versions"] |= versions
    (out / MANIFEST).write_text(json.dumps(manifest))
    return data / "net.safetensors", data / "photos", out


def test_the_manifest_and_the_result_state_the_device(data, tmp_path):
    given = with_versions(data, tmp_path / "out")
    assert json.loads((given[2] / MANIFEST).read_text())["device"] == "cpu"
    assert embed(*given, workers=1).device == "cpu"


def test_a_folder_is_continued_on_its_device(data, tmp_path, placed_on):
    embed(*with_versions(data, tmp_path / "cpu"), workers=1)
    assert placed_on == ["cpu"]
    given = with_versions(data, tmp_path / "gpu", cuda="NVIDIA H100")
    with refuses(InvalidOption, "versions.cuda is 'NVIDIA H100'", "Choose another --out"):
        embed(*given, workers=1)
    with refuses(InvalidOption, "Choose another --out"):
        embed(*given, device="cuda:1", workers=1)
    assert placed_on == ["cpu", "cuda", "cuda:1"]


def test_a_folder_whose_device_is_not_here(data, tmp_path):
    given = with_versions(data, tmp_path / "out", cuda="NVIDIA H100")
    before = contents(given[2])
    parts = "cuda (NVIDIA H100)", "the devices here are cpu", "--out", "--device", "last digits"
    with refuses(InvalidOption, *parts):
        embed(*given, workers=1)
    assert contents(given[2]) == before
