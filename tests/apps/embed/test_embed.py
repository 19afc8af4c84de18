"""`embed`: every input is a row, in order; a call completes what is missing, and nothing else."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import fill, message, refuses, says
from tables import cases
from vitzoo import Predictor, embed
from vitzoo.apps.embed.embed import Total, Work, shard_of
from vitzoo.apps.embed.folder import locked, rows_of_part
from vitzoo.apps.embed.part_file import Form
from vitzoo.apps.identity.canary import SAME_VECTORS, Canary, canaries
from vitzoo.apps.identity.hashes import identities
from vitzoo.errors import ImageError, InvalidOption, StoreError, VitzooError

SPEC = {
    "image_size": 16,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
MANIFEST = "_manifest.json"


@pytest.fixture(scope="module")
def data(once):
    """A folder of 150 images, two of them broken, and the file of a small model."""
    return once("embed", write_data)


def write_data(folder):
    (folder / "photos").mkdir()
    draw = np.random.default_rng(0)
    for i in range(150):
        pixels = draw.integers(0, 256, (16 + i % 5, 18, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i:03}.png", compress_level=1)
    (folder / "photos" / "007.png").write_bytes(b"no image")
    (folder / "photos" / "100.png").write_bytes(b"")
    model = fill(vitzoo.create(SPEC))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    vitzoo.save(model, folder / "net.safetensors")


@pytest.fixture(scope="module")
def predictor(data):
    return Predictor(data / "net.safetensors")


@pytest.fixture(scope="module")
def single(data, predictor, once):
    """The folder that one process writes."""

    def write(folder):
        embed(predictor, data / "photos", folder / "out", workers=1, batch_size=5)

    return once("embed-single", write) / "out"


def bytes_of(folder):
    """Return the files of a result."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def test_every_input_is_a_row_in_order_with_the_outputs_of_the_predictor(data, predictor, single):
    table = pq.read_table(single)
    files = sorted((data / "photos").iterdir())
    assert table.column_names == ["key", "error", "width", "height", "sha256", "pooled"]
    assert table["key"].to_pylist() == [str(path) for path in files]
    for got, row in zip(table.to_pylist(), predictor(files), strict=True):
        assert got["width"] == (row.width or None)
        assert got["height"] == (row.height or None)
        if row.error:
            assert np.isnan(got["pooled"]).all()
            assert got["error"]
        else:
            assert got["error"] is None
            assert got["sha256"] == row.sha256
            assert (
                np.asarray(got["pooled"], np.float32).tobytes() == row.outputs["pooled"].tobytes()
            )
    errors = {row["key"][-7:]: row for row in table.to_pylist() if row["error"]}
    assert list(errors) == ["007.png", "100.png"]
    assert len(errors["007.png"]["sha256"]) == 64
    assert errors["100.png"]["sha256"] is None


def test_the_end_of_each_file_and_the_manifest_say_what_made_them(predictor, single):
    expected = predictor.fingerprint().to_data()
    manifest = json.loads((single / MANIFEST).read_text())
    assert manifest["fingerprint"] == expected
    assert (manifest["complete"], manifest["inputs"], manifest["errors"]) == (True, 150, 2)
    files = sorted(single.glob("*.parquet"))
    assert len(files) == manifest["parts"] == 3
    for path in files:
        schema = pq.read_schema(path)
        assert json.loads(schema.metadata[b"vitzoo.fingerprint"]) == expected
        assert b"vitzoo.license" in schema.metadata
        assert json.loads(schema.field("pooled").metadata[b"shape"]) == [32]
        assert schema.field("pooled").type.list_size == 32


def test_the_manifest_and_each_file_have_identity_and_canary(data, tmp_path):
    names = ("pooled", "logits", "labels", "blocks.1")
    predictor = Predictor(data / "net.safetensors", outputs=names)
    embed(predictor, data / "photos" / "000.png", tmp_path, workers=1)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    metadata = pq.read_schema(tmp_path / "part-000000.parquet").metadata
    expected = identities(predictor, names[:2])  # the others are no vectors
    assert manifest["identity"] == json.loads(metadata[b"vitzoo.identity"]) == expected
    for name in expected:
        assert vitzoo.require_identity(metadata, predictor, name) == "same network, same numbers"
    with refuses(InvalidOption, "no blocks.1", "vz1:LABEL:NETWORK:NUMBERS"):
        vitzoo.require_identity(metadata, predictor, "blocks.1")
    stored = {name: Canary.from_data(one) for name, one in manifest["canary"].items()}
    assert stored["pooled"].compared(canaries(predictor, ["pooled"])["pooled"]) == SAME_VECTORS
    assert json.loads(metadata[b"vitzoo.canary"]) == {k: v.sha256 for k, v in stored.items()}
    assert stored["logits"].vectors.shape == (10, predictor.shapes["logits"][0])


def test_a_damaged_identity_is_refused(data, tmp_path):
    arguments = (data / "net.safetensors", data / "photos" / "000.png", tmp_path)
    embed(*arguments, workers=1)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    for key, part in (("identity", "vz1:LABEL"), ("canary", "a canary must have")):
        (tmp_path / MANIFEST).write_text(json.dumps(manifest | {key: {"pooled": "a"}}))
        with refuses(StoreError, str(tmp_path / MANIFEST), part, "choose another --out"):
            embed(*arguments, workers=1)


def test_a_license_is_stored(data, tmp_path):
    embed("vit_digits", data / "photos" / "000.png", tmp_path / "out", workers=1)
    (path,) = (tmp_path / "out").glob("*.parquet")
    expected = vitzoo.describe("vit_digits").default_weights.license
    assert pq.read_schema(path).metadata[b"vitzoo.license"].decode() == expected
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["license"] == expected


def test_several_outputs_tokens_half_precision_and_labels(data, tmp_path):
    names = ["pooled", "logits", "blocks.1", "labels"]
    predictor = Predictor(data / "net.safetensors", outputs=names, top=2)
    files = [data / "photos" / f"{i:03}.png" for i in (3, 7, 9)]
    embed(predictor, files, tmp_path / "out", vectors="float16", workers=1)
    table = pq.read_table(tmp_path / "out")
    assert table.schema.field("blocks.1").metadata[b"shape"] == b"[5, 32]"
    first, broken, last = table.to_pylist()
    for name in names:
        assert broken[name] is None if name == "labels" else np.isnan(broken[name]).all()
    for got, row in zip((first, last), predictor(files)[::2], strict=True):
        for name in names[:3]:
            value = row.outputs[name].astype(np.float16)
            assert np.asarray(got[name], np.float16).tobytes() == value.tobytes()
        labels = [tuple(one.values()) for one in got["labels"]]
        assert [one[:2] for one in labels] == [one[:2] for one in row.outputs["labels"]]
        assert np.allclose([p for *_, p in labels], [p for *_, p in row.outputs["labels"]])


def grey_images(folder, *values):
    """Write images of one colour each, and return their paths."""
    folder.mkdir()
    paths = [folder / f"{i}.png" for i in range(len(values))]
    for path, value in zip(paths, values, strict=True):
        Image.new("RGB", (16, 16), (value,) * 3).save(path)
    return paths


def bright_is_large(factor):
    """Return a model whose first patch vector is the brightness times a factor, black is 0."""
    model = fill(vitzoo.create(SPEC))
    with torch.no_grad():
        model.patch_embed.proj.weight[0] = factor / model.patch_embed.proj.weight[0].numel()
        model.patch_embed.proj.bias[0] = 0
    model.preprocessing = vitzoo.Preprocessing(mean=(0,) * 3, std=(1,) * 3)
    return model


@pytest.mark.parametrize(
    ("vectors", "factor", "parts"),
    [
        ("float16", 98_304, ("'patch_embed'", "98304", "65504 in float16", "--vectors float32")),
        ("float16", 65_510, ("'patch_embed'", "65510.1", "65504 in float16", "--vectors float32")),
        ("float16", 1e39, ("'patch_embed'", "inf", "for this image", "another dtype")),
        ("float32", 1e39, ("'patch_embed'", "inf", "for this image", "another dtype")),
        ("float32", 98_304, ()),
        ("float16", 6e4, ()),
    ],
)
def test_a_value_that_cannot_be_stored_is_an_error_of_its_row(tmp_path, vectors, factor, parts):
    files = grey_images(tmp_path / "in", 0, 255, 0)
    predictor = Predictor(bright_is_large(factor), outputs=("patch_embed",))
    done = embed(predictor, tmp_path / "in", tmp_path / "out", vectors=vectors, workers=1)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    bad = rows.pop(1) if parts else None
    assert done.errors == json.loads((tmp_path / "out" / MANIFEST).read_text())["errors"]
    assert done.errors == (bad is not None)
    if bad:
        says(bad["error"], *parts)
        assert (bad["width"], bad["height"]) == (None, None)
        assert len(bad["sha256"]) == 64
        assert np.isnan(bad["patch_embed"]).all()
        files.pop(1)
    for got, row in zip(rows, predictor(files), strict=True):
        assert got["error"] is None
        value = row.outputs["patch_embed"].astype(vectors)
        assert np.asarray(got["patch_embed"], vectors).tobytes() == value.tobytes()


@pytest.mark.parametrize("outputs", ["pooled", "labels"])
def test_not_a_number_is_an_error_of_its_row(tmp_path, outputs):
    grey_images(tmp_path / "in", 0, 255)
    embed(bright_is_large(1e39), tmp_path / "in", tmp_path / "out", outputs=outputs, workers=1)
    black, white = pq.read_table(tmp_path / "out").to_pylist()
    assert black["error"] is None
    says(white["error"], repr(outputs), "nan", "for this image", "another dtype")
    assert white[outputs] is None if outputs == "labels" else np.isnan(white[outputs]).all()


def no_forward(*_):
    raise AssertionError("a forward pass")


def test_a_second_call_computes_only_what_is_missing(
    data, predictor, tmp_path, single, monkeypatch
):
    out = tmp_path / "out"
    first = embed(predictor, data / "photos", out, workers=1)
    assert (first.computed, first.errors, first.missing) == (150, 2, 0)
    assert bytes_of(out) == bytes_of(single)
    monkeypatch.setattr(Predictor, "_compute", no_forward)
    again = embed(predictor, data / "photos", out, workers=1)
    assert (again.computed, again.errors) == (0, 2)
    says(str(again), "inputs: 150; errors: 2; complete", "nothing was left to compute")
    monkeypatch.undo()
    parts = sorted(out.glob("*.parquet"))
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-50])):
        damage(parts[1])
        out.joinpath(f".{parts[1].name}.4711.1700000000000000000").touch()
        done = embed(predictor, data / "photos", out, workers=1)
        assert done.computed == rows_of_part(150, 128)
        assert bytes_of(out) == bytes_of(single)


def test_the_errors_are_counted_again_when_a_part_is(data, predictor, tmp_path):
    """Also by a process that finds the part of another shard missing."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    shutil.copytree(data / "photos", photos)
    embed(predictor, photos, out, workers=1)
    (photos / "080.png").write_bytes(b"no image")
    (out / "part-000001.parquet").unlink()
    other = embed(predictor, photos, out, shard=(0, 2), workers=1)
    assert (other.errors, other.missing) == (None, 1)
    says(str(other), "missing parts: 1, which other shards compute")
    assert not json.loads((out / MANIFEST).read_text())["complete"]
    with pytest.raises(KeyboardInterrupt):
        embed(predictor, photos, out, workers=1, on_progress=interrupt)
    for computed in (rows_of_part(150, 128), 0):
        done = embed(predictor, photos, out, workers=1)
        assert (done.computed, done.errors) == (computed, 3)
        manifest = json.loads((out / MANIFEST).read_text())
        assert (manifest["complete"], manifest["errors"]) == (True, 3)
        says(str(done), "errors: 3; complete")


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_complete_folder_is_not_complete_while_a_part_is_computed(data, predictor, tmp_path):
    out = tmp_path / "out"
    embed(predictor, data / "photos", out, workers=1)
    (out / "part-000001.parquet").unlink()
    with pytest.raises(KeyboardInterrupt):
        embed(predictor, data / "photos", out, workers=1, on_progress=interrupt)
    manifest = json.loads((out / MANIFEST).read_text())
    assert (manifest["complete"], manifest["errors"]) == (False, None)


def test_a_part_with_another_number_of_rows_is_computed_again(data, predictor, tmp_path, single):
    """As one of another folder, copied by mistake."""
    few, out = tmp_path / "few.txt", tmp_path / "out"
    few.write_text("\n".join(str(data / "photos" / f"{i:03}.png") for i in range(9)))
    embed(predictor, few, tmp_path / "few", workers=1)
    shutil.copytree(single, out)
    shutil.copy(tmp_path / "few" / "part-000000.parquet", out / "part-000001.parquet")
    done = embed(predictor, data / "photos", out, workers=1)
    assert done.computed == rows_of_part(150, 128)
    assert bytes_of(out) == bytes_of(single)


def test_a_shard_leaves_the_unfinished_files_of_others(data, predictor, tmp_path):
    out = tmp_path / "out"
    embed(predictor, data / "photos", out, shard=(2, 3), workers=1)
    left = [out / f".part-{index:06}.parquet.4711.1700000000000000000" for index in range(2)]
    for path in left:
        path.touch()
    embed(predictor, data / "photos", out, shard=(0, 3), workers=1)
    assert [path.exists() for path in left] == [False, True]


def test_shards_write_their_own_parts_and_the_last_one_the_manifest(
    data, predictor, tmp_path, single
):
    out = tmp_path / "out"
    seen = set()
    for index in (2, 0, 1):
        done = embed(predictor, data / "photos", out, shard=(index, 3), workers=1)
        new = {path.name for path in out.glob("*.parquet")} - seen
        assert new == {f"part-{index:06}.parquet"}
        assert json.loads((out / MANIFEST).read_text())["complete"] == (index == 1)
        assert done.missing == (0 if index == 1 else 2 - len(seen))
        seen |= new
    assert bytes_of(out) == bytes_of(single)


@cases(
    ("env", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"RANK": "3"}, (0, 1)),
        ({"SLURM_ARRAY_TASK_ID": "7"}, None),
        ("7 5 9 5 1", (2, 5)),
        ("9 5 9 3 2", (2, 3)),
        ("5 5 9 3 2", (0, 3)),
        ("7 5 9 2 1", None),
        ("6 5 9 3 2", None),
        ({"RANK": "4", "WORLD_SIZE": "4"}, None),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "", "WORLD_SIZE": "4"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, None),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, None),
        ({"RANK": "0", "WORLD_SIZE": "9" * 4000}, None),
        ({"RANK": "0", "WORLD_SIZE": "1" + "0" * 9}, (0, 10**9)),
        (f"0 0 {'9' * 4000} 1{'0' * 4000} 1", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_shard_of_torchrun_and_slurm(env, expected):
    if isinstance(env, str):
        names = ("ID", "MIN", "MAX", "COUNT", "STEP")
        values = dict(zip(names, env.split(), strict=True))
        env = {f"SLURM_ARRAY_TASK_{name}": value for name, value in values.items()}
    if expected:
        assert shard_of(None, env) == expected
        assert shard_of((0, 2), env) == (0, 2)
    else:
        with refuses(InvalidOption, "--shard INDEX/COUNT"):
            shard_of(None, env)


def test_another_model_or_another_type_in_the_folder_is_an_error(data, single):
    other = vitzoo.create(data / "net.safetensors")
    with torch.no_grad():
        other.norm.bias[0] += 1
    before, now = Predictor(data / "net.safetensors"), Predictor(other)
    files = bytes_of(single)
    for predictor, options, *parts in (
        (now, {}, before.fingerprint().weights[:50], now.fingerprint().weights[:50]),
        (
            Predictor(before.model, outputs="logits"),
            {},
            "fingerprint.outputs",
            "['pooled']",
            "['logits']",
        ),
        (before, {"vectors": "float16"}, "vectors is 'float32' in it and 'float16' now"),
    ):
        text = message(
            InvalidOption, embed, predictor, data / "photos", single, workers=1, **options
        )
        assert all(part in text for part in (*parts, "Choose another --out")), text
    assert bytes_of(single) == files


@pytest.mark.slow  # it needs pandas
def test_inputs_that_were_appended_are_added_on_request(data, predictor, tmp_path, single):
    import pandas as pd

    out, every = tmp_path / "out", [data / "photos" / f"{i:03}.png" for i in range(150)]
    embed(predictor, every[:70], out, workers=1)
    old = bytes_of(out)
    with refuses(InvalidOption, "150 inputs", "first 70", "--extend"):
        embed(predictor, every, out, workers=1)
    done = embed(predictor, every, out, extend=True, workers=1)
    assert (done.inputs, done.computed) == (150, 80)
    assert {name: data for name, data in bytes_of(out).items() if name in old} | {
        MANIFEST: old[MANIFEST]
    } == old
    frames = pd.read_parquet(out), pd.read_parquet(single)
    pd.testing.assert_frame_equal(*frames, check_exact=True)  # vectors of NaN are equal here
    assert embed(predictor, every, out, workers=1).computed == 0
    new = tmp_path / "new.png"
    new.touch()
    for sources, difference in (
        (every[:70], f"Row 70 of it, {every[70]}, is not in the sources, which end before it"),
        (every[:9] + every[10:], f"Row 9 of it, {every[9]}, is not in the sources, which have"),
        ([*every[1:], every[0]], f"Row 0 of it is {every[0]}, in the sources {every[1]}"),
        ([every[3], *every], f"Row 0 of it is {every[0]}, in the sources {every[3]}"),
        ([every[0], new, *every[1:]], f"{new} is new, before row 1"),
    ):
        text = message(InvalidOption, embed, predictor, sources, out, extend=True, workers=1)
        says(text, "has other inputs", difference, "choose another --out")
        assert "--extend" not in text


def test_a_list_with_a_file_in_several_lines_that_has_become_shorter(data, predictor, tmp_path):
    names, line = tmp_path / "names.txt", str(data / "photos" / "003.png")
    names.write_text("\n".join([line] * 3))
    embed(predictor, names, tmp_path / "out", workers=1)
    names.write_text("\n".join([line] * 2))
    with refuses(InvalidOption, f"Row 2 of it, {line}", "which end before it", "another --out"):
        embed(predictor, names, tmp_path / "out", workers=1)


def test_a_difference_that_the_keys_do_not_show_is_described(data, predictor, tmp_path):
    out, tar = tmp_path / "out", tmp_path / "a.tar"
    names = [f"{i:03}.png" for i in range(3)]
    for order, expected in ((names, None), (names, "The keys are the same, but an archive")):
        with tarfile.open(tar, "w") as archive:
            if expected:
                archive.addfile(tarfile.TarInfo("first.txt"))
            for name in order:
                archive.add(data / "photos" / name, arcname=name)
        if expected is None:
            embed(predictor, tar, out, workers=1)
            continue
        with refuses(InvalidOption, "has other inputs", expected, "choose another --out"):
            embed(predictor, tar, out, workers=1)
    (out / "part-000000.parquet").unlink()
    with refuses(InvalidOption, "in a part that is not there yet", "choose another --out"):
        embed(predictor, tar, out, workers=1)


def test_the_first_errors_come_before_any_work(data, predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "_compute", no_forward)
    out = tmp_path / "out"
    for error, options, *parts in (
        (ImageError, {"sources": [data / "photos", "gone.tar"]}, "no file gone.tar"),
        (InvalidOption, {"vectors": "int8"}, "float32, float16", "int8"),
        (InvalidOption, {"workers": 0}, "workers must be from 1", "0"),
        (InvalidOption, {"batch_size": True}, "batch_size must be", "True"),
        (InvalidOption, {"shard": (2, 2)}, "(2, 2)", "index from 0"),
        (InvalidOption, {"shard": (0, 10**9 + 1)}, "(0, 1000000001)", "at most 1000000000"),
        (InvalidOption, {"shard": (0, 10**5000)}, "tuple", "at most 1000000000"),
        (InvalidOption, {"outputs": "pooled"}, "Predictor", "outputs"),
    ):
        given = {"sources": data / "photos"} | options
        with refuses(error, *parts):
            embed(predictor, given.pop("sources"), out, **given)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["source", "source by another path", "pushed", "file", "below"])
def test_an_out_that_embed_did_not_write_stays_as_it_is(data, predictor, tmp_path, kind):
    photos, out, parts = tmp_path / "photos", tmp_path / "out", ("README.md", MANIFEST)
    photos.mkdir()
    shutil.copy(data / "photos" / "000.png", photos)
    if kind == "pushed":
        out.mkdir()
        (out / "README.md").write_text("a model")
    elif kind in ("file", "below"):
        out.write_text("a list")
        out, parts = (out if kind == "file" else out / "vectors"), (str(out), "is not a folder")
    else:
        (photos / MANIFEST).write_text("{}")
        out, parts = photos, ("is the source", str(photos))
        if kind != "source":
            out = tmp_path / "link"
            out.symlink_to(photos)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with refuses(InvalidOption, *parts, "choose another --out"):
        embed(predictor, photos, out, workers=1)
    after = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    assert before == after


def test_a_folder_with_other_files_and_a_damaged_manifest(data, predictor, tmp_path):
    (tmp_path / "part-000000.parquet").touch()
    with refuses(InvalidOption, "part-000000.parquet", "choose another --out"):
        embed(predictor, data / "photos", tmp_path)
    for text in ("", "[]", "{}", '{"format": 2}', '{"format": 1, "ranges": [3]}', "{" * 9999):
        (tmp_path / MANIFEST).write_text(text)
        with refuses(StoreError, MANIFEST):
            embed(predictor, data / "photos", tmp_path)
    (tmp_path / MANIFEST).unlink()
    (tmp_path / MANIFEST).mkdir()
    with refuses(StoreError, MANIFEST):
        embed(predictor, data / "photos", tmp_path)


def test_a_part_of_another_model_is_an_error(data, tmp_path, single):
    other = Predictor(vitzoo.create(data / "net.safetensors", num_classes=3))
    out = tmp_path / "out"
    embed(other, data / "photos", out, workers=1)
    out.joinpath("part-000001.parquet").write_bytes((single / "part-000001.parquet").read_bytes())
    with refuses(InvalidOption, "part-000001.parquet", "another model", "remove the file"):
        embed(other, data / "photos", out, workers=1)


def test_two_processes_of_one_shard_do_not_both_write(data, predictor, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with locked(out, "shard-0-of-1"), refuses(StoreError, "another process writes", "--shard"):
        embed(predictor, data / "photos", out, workers=1)
    assert embed(predictor, data / "photos", out, workers=1).errors == 2


def test_a_full_disk_leaves_no_part(data, predictor, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitzoo.files.platform.files.sync", full)
    with refuses(StoreError, "No space left on device", "make room"):
        embed(predictor, data / "photos", out, workers=1)
    monkeypatch.undo()
    assert not list(out.glob("*part*"))
    assert embed(predictor, data / "photos", out, workers=1).computed == 150


def test_decoding_runs_beside_the_model(data, predictor, tmp_path, monkeypatch):
    """Images are decoded in other threads, at most `batch_size` ahead."""
    monkeypatch.setattr("vitzoo.apps.embed.embed.canaries", lambda *_: {})  # other images
    decode, start = Predictor.decode, Predictor._compute
    threads, decoded, computed = set(), [], []
    monkeypatch.setattr(
        Predictor,
        "decode",
        lambda *args: (threads.add(threading.get_ident()), decoded.append(1), decode(*args))[-1],
    )

    def counted(self, images):
        inputs = [image.tensor for image in images if not image.error]
        assert len(inputs) <= 8
        assert len(decoded) <= len(computed) + 8 + 24 + 2
        computed.extend(inputs)
        return start(self, images)

    monkeypatch.setattr(Predictor, "_compute", counted)
    seen = []
    done = embed(
        predictor, data / "photos", tmp_path, workers=1, batch_size=24,
        on_progress=lambda *report: seen.append(report),
    )  # fmt: skip
    assert threading.get_ident() not in threads
    assert len(computed) == 148
    assert [total for _, total, _ in seen] == [150] * len(seen)
    assert seen[-1][0] == 150
    assert seen[-1][2] == f"waits for {done.work.bottleneck}"
    assert min(done.work.read, done.work.decode, done.work.model) > 0


def test_the_bottleneck_is_named():
    assert Work(model=2.0, wait=1.0, decode=9.0).bottleneck == "model"
    assert Work(model=1.0, wait=2.0, decode=3.0, read=2.0).bottleneck == "decode"
    assert Work(model=1.0, wait=2.0, decode=3.0, read=4.0).bottleneck == "read"


@pytest.mark.parametrize(
    ("count", "row_bytes", "expected"),
    [(1, 768, 64), (1797, 256, 112), (20_000, 768, 1024), (10**7, 605_184, 440), (10**9, 2**40, 8)],
)
def test_parts_are_whole_chunks_of_limited_size(count, row_bytes, expected):
    assert rows_of_part(count, row_bytes) == expected


@pytest.mark.parametrize(("vectors", "size"), [("float32", 4), ("float16", 2)])
def test_the_size_of_a_row_is_that_of_all_outputs(vectors, size):
    form = Form({}, vectors, {"pooled": [192], "tokens": [17, 192], "labels": []}, "")
    assert form.row_bytes == size * (192 + 17 * 192 + 1)


def test_the_command(data, tmp_path, run):
    model, out = data / "net.safetensors", tmp_path / "out"
    command = ("embed", model, data / "photos", "--out", out, "--workers", 1)
    code, stdout, stderr = run(*command, "--shard", "1/3")
    assert code == 0
    says(
        stderr, "inputs: 150; missing parts: 2, which other shards compute", "on cpu", "bottleneck"
    )
    code, stdout, stderr = run(*command, "--json")
    assert code == 0
    row = json.loads(stdout)
    assert (row["inputs"], row["errors"], row["missing"], row["computed"]) == (150, 2, 0, 86)
    assert sum(row["shares"].values()) == pytest.approx(1)
    code, stdout, stderr = run(*command)
    assert stdout.splitlines()[1].split("\t")[1:] == ["150", "2", "0", "0"]
    says(stderr, "nothing was left to compute")
    assert run(*command, "--shard", "3/3")[0] == 2
    code, _, stderr = run(*command, "--shard", "x")
    assert code == 2
    says(stderr, "INDEX/COUNT", "'x'")
    assert run("embed", model, "gone/", "--out", out)[0] == 1


def test_the_summary_on_a_terminal_names_broken_images_with_the_whole_error(
    data, tmp_path, run, monkeypatch
):
    monkeypatch.chdir(data)
    for name in ("command.on_terminal", "command.is_terminal"):
        monkeypatch.setattr(f"vitzoo.apps.embed.{name}", lambda *_: True)
    out = os.path.relpath(tmp_path / "out")
    command = ("embed", "net.safetensors", "photos", "--out", out, "--workers", 1)
    for expected in (
        "photos/100.png: photos/100.png is empty, expected an image file",
        "nothing was left to compute",
    ):
        code, stdout, stderr = run(*command)
        assert (code, stdout) == (0, "")
        says(stderr, "inputs: 150", "errors: 2; complete", expected)
        lines = stderr.replace(out, "out").splitlines()
        assert max(len(line) for line in lines if not line.startswith("error:")) <= 80


def test_an_error_of_on_progress_is_raised_as_it_is(data, predictor, tmp_path):
    def raise_one(*_):
        raise BrokenPipeError("the terminal is closed") from cause

    cause = ValueError("its cause")
    with pytest.raises(BrokenPipeError, match="the terminal is closed") as caught:
        embed(predictor, data / "photos", tmp_path / "out", workers=1, on_progress=raise_one)
    assert caught.value.__cause__ is cause


def test_an_interrupted_command_says_that_the_same_one_continues(data, tmp_path, run, monkeypatch):
    def interrupt(total, work):
        count(total, work)
        if total.work.images > patched["most"]:
            raise KeyboardInterrupt

    patched: dict[str, int] = {}
    count, out = Total.__call__, tmp_path / "out"
    command = ["embed", data / "net.safetensors", data / "photos", "--out", out, "--workers", 1]
    rows = rows_of_part(150, 128)
    for most, finished in ((-1, "0 of 150 images (0 of "), (rows, f"{rows} of 150")):
        patched["most"] = most
        with monkeypatch.context() as patch:
            patch.setattr(Total, "__call__", interrupt)
            code, stdout, stderr = run(*command)
        assert (code, stdout) == (130, "")
        says(stderr, "interrupted", f"{out} has {finished}", "the same command continues")
    code, _, stderr = run(*command)
    assert code == 0
    says(stderr, "inputs: 150", f"computed {150 - rows}")


def test_few_inputs_with_an_error_are_named(data, predictor, tmp_path):
    broken, files = str(data / "photos" / "007.png"), tmp_path / "files.txt"
    files.write_text("\n".join([broken] * 5))
    done = embed(predictor, files, tmp_path / "out", workers=1)
    assert (done.errors, done.broken) == (5, (broken,) * 3)
    assert len(done.reasons) == 3
    says(str(done), f"error: {broken}: the data is not an image")
    says(str(done), "the column error has all of them")


@pytest.fixture
def long_list(data, tmp_path):
    """A list of 4,000 inputs, and the folder that one process writes for it."""
    files = sorted((data / "photos").iterdir())
    listed = tmp_path / "long.txt"
    listed.write_text("\n".join(str(files[i % 150]) for i in range(4_000)))
    return listed


@pytest.mark.workflows
def test_several_workers_write_the_same_bytes_and_a_killed_one_is_an_error(
    data, long_list, tmp_path
):
    def kill_one(*_):
        children = Path("/proc/self/task").glob("*/children")
        for pid in " ".join(path.read_text() for path in children).split():
            with suppress(ProcessLookupError):  # killed at the call before
                os.kill(int(pid), signal.SIGKILL)

    model = data / "net.safetensors"
    embed(model, long_list, tmp_path / "one", workers=1)
    with refuses(
        VitzooError, "a worker process ended with signal SIGKILL", "run the command again"
    ):
        embed(model, long_list, tmp_path / "three", workers=3, on_progress=kill_one)
    done = embed(model, long_list, tmp_path / "three", workers=3)
    assert 0 < done.computed < 4_000
    assert bytes_of(tmp_path / "three") == bytes_of(tmp_path / "one")


@pytest.mark.long
@pytest.mark.workflows
def test_workers_end_with_the_process_that_started_them(data, long_list, tmp_path):
    """They hold its stderr open as long as they live."""
    command = [sys.executable, "-m", "vitzoo", "embed", data / "net.safetensors", long_list]
    process = subprocess.Popen(
        [*command, "--out", tmp_path / "out", "--workers", "2"],
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(vitzoo.__file__).parents[1])},
    )
    while not list(tmp_path.glob("out/*.parquet")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    embed(data / "net.safetensors", long_list, tmp_path / "out", workers=1)
    assert pq.read_metadata(next(tmp_path.glob("out/*.parquet"))).num_rows == 248
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["complete"]
    assert not list(tmp_path.glob("out/.part*"))


@pytest.mark.one_in(2)
@pytest.mark.workflows
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["vit_digits", pytest.param("vit_ti16", marks=pytest.mark.long)])
def test_a_vector_depends_on_the_image_alone(data, tmp_path, name, dtype):
    """50 positions, read-ahead sizes and shards: one value, bit for bit."""
    import pandas as pd

    draw = random.Random(3)
    if name == "vit_ti16":
        name = vitzoo.save(fill(vitzoo.create(name, image_size=32)), tmp_path / "net.safetensors")
    predictor = Predictor(name, dtype=dtype)
    target, values = str(data / "photos" / "011.png"), set()
    for i in range(50):
        others = [
            data / "photos" / f"{draw.randrange(150):03}.png" for _ in range(draw.randrange(40))
        ]
        files = list(map(str, others))
        files.insert(draw.randrange(len(files) + 1), target)
        listed = tmp_path / f"{i}.txt"
        listed.write_text("\n".join(files))
        count = draw.randrange(1, 4)
        for index in range(count):
            batch_size = draw.randrange(1, 60)
            shard = (index, count)
            embed(
                predictor, listed, tmp_path / f"{i}", shard=shard, batch_size=batch_size, workers=1
            )
        table = pd.read_parquet(tmp_path / f"{i}")
        assert table["key"].tolist() == files
        values |= {value.tobytes() for value in table.loc[table["key"] == target, "pooled"]}
    (value,) = values
    (row,) = predictor([target])
    assert value == row.outputs["pooled"].tobytes()


def test_swapped_arguments_of_the_command_are_named(data, tmp_path, run):
    photo = data / "photos" / "000.png"
    code, _, stderr = run("embed", photo, "vit_digits", "--out", tmp_path / "out")
    assert code
    says(stderr, "000.png is an image", "expected a network")
