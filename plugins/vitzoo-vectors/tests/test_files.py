"""`vitzoo check-vectors` of files: its answers, exit codes and errors."""

import io
import json
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.numpy import save_file

import vitzoo
from helpers import refuses, says
from vitzoo.errors import InvalidOption, StoreError
from vitzoo_vectors import check_vectors, write_sidecar
from vitzoo_vectors.stores import MARKS, SECRETS, STORES, Points

DIGITS = Path("docs/examples/digits")
OTHER = f"vz1:other:{'a' * 26}:{'b' * 26}"


@pytest.fixture(scope="module")
def predictor():
    return vitzoo.Predictor("vit_digits")


@pytest.fixture(scope="module")
def files():
    return sorted(DIGITS.glob("*.png"))


@pytest.fixture(scope="module")
def identity(predictor):
    return vitzoo.identity(predictor)


@pytest.fixture(scope="module")
def vectors(predictor, files):
    return np.stack([row.outputs["pooled"] for row in predictor(files)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("embedded") / "out"
    vitzoo.embed("vit_digits", [DIGITS], out=out)
    return out


def edit(folder, tmp_path, **values):
    """Return a copy of a folder of `embed` with other values in its manifest and its parts."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        copy.joinpath(path.name).write_bytes(path.read_bytes())
    manifest = copy / "_manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | values))
    if identity := values.get("identity"):
        state(copy / "part-000000.parquet", identity)
    return copy


def state(part, identity):
    """Let a part state identities."""
    table = parquet.read_table(part)
    metadata = table.schema.metadata | {b"vitzoo.identity": json.dumps(identity, sort_keys=True)}
    parquet.write_table(table.replace_schema_metadata(metadata), part)


def write(path, vectors, keys, metadata):
    """Write vectors in the format of the suffix."""
    if path.suffix == ".npy":
        np.save(path, vectors)
        return write_sidecar(path, metadata["vitzoo.identity"]) if metadata else None
    if path.suffix == ".safetensors":
        return save_file({"pooled": vectors}, path, metadata)
    rows = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    table = pa.table({"key": list(map(str, keys)), "v": rows}).replace_schema_metadata(metadata)
    return parquet.write_table(table, path)


def test_a_folder_of_embed_is_of_its_network(run, folder, tmp_path, identity):
    assert check_vectors(folder).answer == "stated"
    code, out, err = run("check-vectors", folder, "vit_digits", "--strict", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)
    assert row["answer"] == "same network, same numbers"
    assert row["stored"] == row["now"] == identity
    (part,) = folder.glob("part-*.parquet")
    assert check_vectors(part, "vit_digits").answer == row["answer"]
    code, out, err = run("check-vectors", edit(folder, tmp_path, identity={}), "vit_digits")
    assert (code, "not stated" in out) == (1, True)
    says(err, "vitzoo.identity", "'pooled'", "--images")


def test_the_text_of_an_identity_stands_for_the_network(run, folder, identity):
    for text, answer in (
        (identity, "same network, same numbers"),
        (f"{identity[:-26]}{'b' * 26}", "same network, other numerics"),
        (OTHER, "another network"),
    ):
        found = check_vectors(folder, text)
        assert (found.answer, found.now, found.stored) == (answer, text, identity)
    assert run("check-vectors", folder, OTHER)[0] == 3
    for model, options, parts in (
        (identity[:-1], (), ("vz1:vit_digits", "vz1:LABEL")),
        (identity, ("--images", DIGITS), ("--images", "vz1:vit_digits", "name one")),
        (identity, ("--dtype", "float16"), ("dtype", "name the network")),
    ):
        code, out, err = run("check-vectors", folder, model, *options)
        assert (code, out) == (2, "")
        says(err, *parts)


def test_other_numerics_say_how_far_they_are(run, folder, tmp_path, identity):
    stored = {"pooled": f"{identity[:-26]}{'b' * 26}"}
    data = vitzoo.Canary.of(vitzoo.Predictor("vit_digits", dtype=torch.float16))
    canary = {"pooled": data.to_data()}
    copy = edit(folder, tmp_path, identity=stored, canary=canary)
    code, out, _ = run("check-vectors", copy, "vit_digits", "--json")
    (row,) = json.loads(out)
    assert (code, row["answer"]) == (0, "same network, other numerics")
    assert 1e-5 < row["distance"] < 1e-2
    assert run("check-vectors", copy, "vit_digits", "--strict")[0] == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_a_file_of_another_network_is_refused(run, name, tmp_path, vectors, files, identity):
    path = tmp_path / name
    write(path, vectors, files, {"vitzoo.identity": OTHER})
    code, out, _ = run("check-vectors", path, "vit_digits")
    assert (code, "another network" in out, OTHER in out) == (3, True, True)
    write(path, vectors, files, {"vitzoo.identity": identity})
    assert run("check-vectors", path, "vit_digits")[0] == 0


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_vectors_without_identity_are_compared(name, tmp_path, vectors, files):
    def answer(changed, **options):
        write(tmp_path / name, changed, files, None)
        found = check_vectors(tmp_path / name, "vit_digits", images=files, **options)
        return found.answer, found.compared

    assert answer(3 * vectors) == ("same vectors", 10)  # stores normalise
    assert answer(vectors, rows=4) == ("same vectors", 4)
    assert answer(vectors.astype(np.float16).astype(np.float32)) == ("not told apart", 10)
    other = "another network" if name == "a.parquet" else "same vectors"  # by name, or by order
    assert answer(vectors[::-1].copy()) == (other, 10)
    assert answer(-vectors) == ("another network", 10)
    assert answer(vectors[:, 1:].copy()) == ("another network", 0)


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_fewer_vectors_are_evenly_spread(name, tmp_path, vectors, files):
    changed = -vectors
    changed[[0, 3, 6, 9]] = vectors[[0, 3, 6, 9]]
    write(tmp_path / name, changed, files, None)
    found = check_vectors(tmp_path / name, "vit_digits", images=files, rows=4)
    assert (found.answer, found.compared) == ("same vectors", 4)


def test_vectors_of_several_row_groups_and_missing_ones(tmp_path, vectors, files):
    path, column = tmp_path / "a.parquet", [None, *vectors.tolist()[1:]]
    table = pa.table({"v": pa.array(column, pa.list_(pa.float32())), "file": list(map(str, files))})
    parquet.write_table(table, path, row_group_size=3)
    found = check_vectors(path, "vit_digits", images=files)
    assert (found.answer, found.compared, found.vectors) == ("same vectors", 9, 10)
    says(found.note, "1 of 10 stored vectors", "missing or not finite", files[0])


def test_vectors_that_are_not_finite_or_have_no_length(tmp_path, vectors, files):
    vectors = vectors.copy()
    vectors[0], vectors[1], vectors[2] = np.nan, 0, -vectors[2]
    write(tmp_path / "a.npy", vectors, files, None)
    found = check_vectors(tmp_path / "a.npy", "vit_digits", images=files)
    assert (found.answer, found.compared, found.distance) == ("not told apart", 9, 2)
    says(found.note, "2 of the vectors are farther than 0.3", "1 of 10 stored vectors")


def test_vectors_of_float16_are_not_told_apart(tmp_path, vectors, files):
    write(tmp_path / "a.npy", vectors.astype(np.float16), files, None)
    found = check_vectors(tmp_path / "a.npy", "vit_digits", images=files)
    assert found.answer == "not told apart"
    assert 1e-5 < found.distance < 1e-3


@pytest.mark.parametrize("stored", [5, "a" * 10**6, f"vz1:\x1b[31m:{'a' * 26}:{'b' * 26}", [], "{"])
def test_a_hostile_identity_is_not_stated(run, tmp_path, folder, stored):
    copy = edit(folder, tmp_path, identity={"pooled": stored}, canary=["pooled"])
    code, out, err = run("check-vectors", copy, "vit_digits")
    assert (code, "not stated" in out) == (1, True)
    says(err, "vz1:LABEL:NETWORK:NUMBERS", "vitzoo.identity(model)")
    assert len(err) < 500
    assert "\x1b" not in out + err


def test_a_damaged_canary_is_a_note(run, tmp_path, folder, identity):
    stored = {"pooled": f"{identity[:-26]}{'b' * 26}"}
    copy = edit(folder, tmp_path, identity=stored, canary={"pooled": "AAAA"})
    code, out, err = run("check-vectors", copy, "vit_digits")
    assert (code, "other numerics" in out) == (0, True)
    says(err, "a canary must have numerics", "'AAAA'", "write the vectors again")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_what_is_stated_is_read_without_torch(name, tmp_path, vectors, files, identity):
    write(tmp_path / name, vectors, files, {"vitzoo.identity": identity})
    code = (
        "import sys; from vitzoo.cli.main import main; main(sys.argv[1:]);"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "check-vectors", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, identity in done.stdout) == (0, True), done.stderr


def test_vectors_are_compared_by_the_names_of_their_images(tmp_path, vectors, files):
    path, order = tmp_path / "a.parquet", np.arange(10)[::-1]
    keys = [f"elsewhere/digits/{files[i].name}" for i in order]
    write(path, vectors[order], keys, None)
    found = check_vectors(path, "vit_digits", images=files[:7])
    assert (found.answer, found.compared, found.vectors) == ("same vectors", 7, 10)
    says(found.note, "3 of 10 vectors name no image")
    write(path, vectors, [f"{i}" for i in range(10)], None)
    found = check_vectors(path, "vit_digits", images=files)
    assert found.answer == "not stated"
    says(found.note, "10 of 10 vectors", "key, path", "--key")
    np.save(tmp_path / "a.npy", vectors[1:])
    found = check_vectors(tmp_path / "a.npy", "vit_digits", images=files)
    assert found.answer == "not stated"
    says(found.note, "9 vectors and 10 images", "by order")


def test_images_are_named_by_the_column_of_the_user(run, tmp_path, vectors, files):
    path = tmp_path / "a.parquet"
    rows = pa.FixedSizeListArray.from_arrays(vectors[::-1].copy().ravel(), vectors.shape[1])
    parquet.write_table(pa.table({"photo": list(map(str, files[::-1])), "v": rows}), path)
    found = check_vectors(path, "vit_digits", images=files, key="photo")
    assert (found.answer, found.compared) == ("same vectors", 10)
    code, out, err = run("check-vectors", path, "vit_digits", "--images", DIGITS, "--key", "a")
    assert (code, out) == (2, "")
    says(err, path, "--key", "photo, v", "'a'")


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy"])
def test_a_file_without_names_has_no_key(run, tmp_path, vectors, files, name):
    write(tmp_path / name, vectors, files, None)
    code, out, err = run("check-vectors", tmp_path / name, "--key", "photo")
    assert (code, out) == (2, "")
    says(err, "--key", "'photo'", "leave it out")


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_vectors_of_another_length_are_of_another_network(run, tmp_path, name, vectors, identity):
    path, stated = tmp_path / name, {"vitzoo.identity": identity}
    write(path, vectors[:, :32].copy(), range(10), stated)
    for more in ((), ("--images", DIGITS)):
        code, out, err = run("check-vectors", path, "vit_digits", *more)
        assert (code, "another network" in out) == (3, True)
        says(err, "32 numbers", "64", "--column")


def test_nothing_compared_is_no_success(run, tmp_path, vectors, identity):
    path, stated = tmp_path / "a.parquet", {"vitzoo.identity": identity}
    for some, said in ((vectors, "10 of 10 vectors"), (vectors[:0], "no vectors")):
        write(path, some, range(len(some)), stated)
        assert run("check-vectors", path, "vit_digits")[0] == 0
        code, out, err = run("check-vectors", path, "vit_digits", "--images", DIGITS, "--json")
        (row,) = json.loads(out)
        assert (code, row["compared"]) == (1, 0)
        assert row["answer"] == "same network, same numbers"
        says(err, said)


def test_vectors_that_are_stored_in_float16_are_those_of_their_identity(
    tmp_path, vectors, files, identity
):
    path, half = tmp_path / "a.safetensors", vectors.astype(np.float16)
    for stored, stated, answer in (
        (half, {"vitzoo.identity": identity}, "same network, same numbers"),
        (half.astype(np.float32), {"vitzoo.identity": identity}, "same network, same numbers"),
        (half, None, "not told apart"),
        (vectors * (1 + 5e-4 * np.sign(vectors)), {"vitzoo.identity": identity}, "not told apart"),
        (np.roll(half, 1, axis=1), {"vitzoo.identity": identity}, "another network"),
    ):
        write(path, stored, files, stated)
        assert check_vectors(path, "vit_digits", images=files).answer == answer


def test_options_without_effect_are_refused(run, tmp_path, vectors):
    np.save(tmp_path / "a.npy", vectors)
    for options, said in (
        (["vit_digits", "--all"], "--images"),
        (["vit_digits", "--rows", 3], "--images"),
        (["vit_digits", "--images", DIGITS, "--rows", 3, "--all"], "one"),
        (["--strict"], "MODEL"),
    ):
        code, out, err = run("check-vectors", tmp_path / "a.npy", *options)
        assert (code, out) == (2, "")
        says(err, said, "leave")


def test_a_folder_without_rights_is_named(run, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    for place in (tmp_path, f"qdrant:{tmp_path}#c"):
        code, out, err = run("check-vectors", place)
        assert (code, out) == (1, "")
        says(err, tmp_path.name, "Permission denied")


def test_a_name_with_more_folders_comes_first(tmp_path, vectors, files):
    path, keys = (
        tmp_path / "a.parquet",
        [f"{part}/x/{file.name}" for part in "ab" for file in files],
    )
    write(path, np.concatenate([-vectors, vectors]), keys, None)
    for file in files:
        (tmp_path / "b/x").mkdir(parents=True, exist_ok=True)
        (tmp_path / "b/x" / file.name).write_bytes(file.read_bytes())
    found = check_vectors(path, "vit_digits", images=str(tmp_path / "b"))
    assert (found.answer, found.compared) == ("same vectors", 10)


def test_images_are_compared_whatever_is_stated(run, tmp_path, vectors, files, identity):
    path = tmp_path / "a.safetensors"
    write(path, -vectors, files, {"vitzoo.identity": identity})
    assert run("check-vectors", path, "vit_digits")[0] == 0
    code, out, err = run("check-vectors", path, "vit_digits", "--images", DIGITS)
    assert (code, "another network" in out) == (3, True)
    says(err, "10 of the vectors are farther than 0.3", "in their order")
    write(path, vectors, files, {"vitzoo.identity": identity})
    found = check_vectors(path, "vit_digits", images=DIGITS)
    assert (found.answer, found.compared) == ("same network, same numbers", 10)


def test_an_image_that_cannot_be_compared_changes_the_exit_code(run, tmp_path, vectors, files):
    write(tmp_path / "a.npy", vectors, files, None)
    for file in files:
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "photos" / files[3].name).write_bytes(b"x")
    code, out, err = run(
        "check-vectors", tmp_path / "a.npy", "vit_digits", "--images", tmp_path / "photos"
    )
    assert (code, "same vectors" in out) == (1, True)
    says(err, "1 of 10 images", files[3].name)


def test_parts_of_a_folder_must_state_what_its_manifest_states(run, folder, tmp_path):
    copy = edit(folder, tmp_path)
    part = copy / "part-000000.parquet"
    (copy / "part-000001.parquet").write_bytes(part.read_bytes())
    state(part, {"pooled": OTHER})
    for first in ("part-000001.parquet", "part-000000.parquet"):
        code, out, err = run("check-vectors", copy, "vit_digits")
        assert (code, out) == (1, "")
        says(err, first, "another identity")
        (copy / "part-000001.parquet").unlink(missing_ok=True)


def test_a_damaged_manifest_is_named(run, folder, tmp_path):
    for i, ranges in enumerate([[1], [{"x": 1}], [{"inputs": "a"}], [{"inputs": 1.5}], 5]):
        (tmp_path / str(i)).mkdir()
        copy = edit(folder, tmp_path / str(i), ranges=ranges)
        code, out, err = run("check-vectors", copy)
        assert (code, out) == (1, "")
        says(err, "_manifest.json", "write it again")


def test_deep_metadata_state_nothing(run, tmp_path, vectors, files):
    for text in ("[" * 200_000, '{"a":' * 200_000):
        write(tmp_path / "a.safetensors", vectors, files, {"vitzoo.identity": text})
        code, _, err = run("check-vectors", tmp_path / "a.safetensors")
        assert code == 1
        says(err, "vz1:LABEL:NETWORK:NUMBERS")


def test_what_is_stated_does_not_hide_other_vectors(tmp_path, vectors, files, identity):
    changed = vectors.copy()
    changed[:3] = -vectors[:3]
    write(tmp_path / "a.parquet", changed, files, {"vitzoo.identity": identity})
    found = check_vectors(tmp_path / "a.parquet", "vit_digits", images=files)
    assert (found.answer, found.compared) == ("not told apart", 10)
    says(found.note, "3 of the vectors")
    other = f"{identity[:-26]}{'b' * 26}"
    near = vectors.astype(np.float16).astype(np.float32)
    write(tmp_path / "a.parquet", near, files, {"vitzoo.identity": other})
    found = check_vectors(tmp_path / "a.parquet", "vit_digits", images=files)
    assert found.answer == "same network, other numerics"


def test_another_order_needs_all_vectors(tmp_path, vectors, files):
    twice, order = [files[0], files[0], *files[1:]], np.arange(10)[::-1]
    for i, file in enumerate(twice):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{i:02}.png").write_bytes(file.read_bytes())
    stored = np.concatenate([-vectors[:1], vectors])
    np.save(tmp_path / "a.npy", stored)
    found = check_vectors(tmp_path / "a.npy", "vit_digits", images=tmp_path / "photos")
    assert found.answer == "not told apart"
    (tmp_path / "photos" / "00.png").write_bytes(b"x")
    np.save(tmp_path / "a.npy", np.concatenate([stored[:1], vectors[order]]))
    found = check_vectors(tmp_path / "a.npy", "vit_digits", images=tmp_path / "photos")
    assert (found.answer, found.compared, found.left_out) == ("same vectors", 10, 1)


def test_a_network_that_fails_is_not_another_one(tmp_path, vectors, files, monkeypatch):
    def fail(*_):
        raise InvalidOption("the results depend on the position in a chunk")

    write(tmp_path / "a.npy", vectors, files, None)
    monkeypatch.setattr(vitzoo.Predictor, "rows", fail)
    with refuses(InvalidOption, "position in a chunk"):
        check_vectors(tmp_path / "a.npy", "vit_digits", images=files)


def test_row_groups_without_vectors_and_ragged_vectors(tmp_path, vectors, files):
    path, names = tmp_path / "a.parquet", list(map(str, files))
    kind = pa.list_(pa.float32())
    column = [None] * 5 + vectors.tolist()[5:]
    parquet.write_table(
        pa.table({"v": pa.array(column, kind), "file": names}), path, row_group_size=5
    )
    found = check_vectors(path, "vit_digits", images=files)
    assert (found.answer, found.compared, found.left_out) == ("same vectors", 5, 5)
    ragged = [[0.0] * 65] * 5 + [[0.0] * 63] * 5
    parquet.write_table(pa.table({"v": pa.array(ragged, kind), "file": names}), path)
    with refuses(StoreError, path, "65", "63"):
        check_vectors(path, "vit_digits", images=files)


def test_wrong_arguments_are_refused(tmp_path, vectors, files):
    write(tmp_path / "a.npy", vectors, files, None)
    for arguments, options in (
        ([5], {}),
        ([tmp_path / "a.npy", "vit_digits"], {"images": files, "rows": 0}),
        ([tmp_path / "a.npy"], {"images": files}),
        (["a" * 5000], {}),
        (["a" * 5000 + ".npy"], {}),
        (["qdrant:" + "a" * 5000 + "#c"], {}),
    ):
        with pytest.raises(InvalidOption):
            check_vectors(*arguments, **options)


def test_points_of_qdrant_call_no_function():
    with pytest.raises(pickle.UnpicklingError, match="no class of points"):
        Points(io.BytesIO(pickle.dumps(print))).load()
    assert Points(io.BytesIO(pickle.dumps([1, "a"]))).load() == [1, "a"]


def test_missing_vectors_of_a_folder_are_counted(run, folder, tmp_path):
    copy = edit(folder, tmp_path, ranges=[{"inputs": 8}, {"inputs": 7}])
    code, _, err = run("check-vectors", copy, "vit_digits")
    assert code == 0
    says(err, "5 of 15 vectors")


@pytest.mark.parametrize("name", ["a.parquet", "a.safetensors", "a.npy"])
def test_a_wrong_column_is_refused_whatever_is_stated(
    run, name, tmp_path, vectors, files, identity
):
    write(tmp_path / name, vectors, files, {"vitzoo.identity": identity})
    code, out, err = run("check-vectors", tmp_path / name, "vit_digits", "--column", "foo")
    assert (code, out) == (2, "")
    says(err, "--column", "foo")


def test_the_command_takes_numerics(run, tmp_path, vectors, files):
    stated = vitzoo.identity("vit_digits", dtype=torch.bfloat16, chunk=4)
    write(tmp_path / "a.npy", vectors, files, {"vitzoo.identity": stated})
    words = ("check-vectors", tmp_path / "a.npy", "vit_digits", "--strict")
    assert run(*words)[0] == 1
    assert run(*words, "--dtype", "bfloat16", "--chunk", "4")[0] == 0


def test_another_output_of_the_network_is_said(run, tmp_path, vectors, files, identity):
    write(tmp_path / "a.npy", vectors, files, {"vitzoo.identity": identity})
    code, _, err = run("check-vectors", tmp_path / "a.npy", "vit_digits", "--normalised")
    assert code == 3
    says(err, "another output, preprocessing or normalisation")


def test_a_sidecar_needs_an_identity_and_a_file(tmp_path, identity):
    with refuses(InvalidOption, "vz1:LABEL:NETWORK:NUMBERS", "nonsense"):
        write_sidecar(tmp_path / "a.npy", "nonsense")
    with refuses(InvalidOption, "no file", "a.npy"):
        write_sidecar(tmp_path / "a.npy", identity)


def test_a_place_that_is_not_there(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").touch()
    for name, said in (
        ("no.npy", "there is none"),
        ("empty", "_manifest.json"),
        ("a.txt", ".faiss"),
        ("qdrant:{}/empty#c", "of qdrant"),
        ("chroma:h:1#c", "http://"),
    ):
        place = name.format(tmp_path) if ":" in name else tmp_path / name
        code, out, err = run("check-vectors", place)
        assert (code, out) == (2, "")
        says(err, said)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_sidecar_is_of_one_file(run, tmp_path, vectors, identity):
    path = tmp_path / "a.npy"
    np.save(path, vectors)
    write_sidecar(path, identity)
    np.save(path, 2 * vectors)
    code, out, err = run("check-vectors", path, "vit_digits")
    assert (code, "not stated" in out) == (1, True)
    says(err, "a.npy.vitzoo.json", "not state the SHA-256", "write_sidecar")


def header(text, data=b""):
    """Return an npy file with a header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


HOSTILE = {
    "large.npy": header("{'descr': '<f4', 'fortran_order': False, 'shape': (2**40, 768)}\n"),
    "negative.npy": header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}\n", b"0" * 64
    ),
    "long.npy": header("{'descr': '<f4', 'shape': (1, 1)," + " " * 60_000 + "}\n"),
    "code.npy": header("{'descr': '<f4', 'shape': (exit(), 1), 'fortran_order': False}\n"),
    "beyond.npy": header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 768)}\n", b"0"
    ),
    "text.npy": header("{'descr': '<U4', 'fortran_order': False, 'shape': (1, 1)}\n", b"0" * 16),
    "zip.npy": b"PK\x03\x04",
    "long.safetensors": (2**40).to_bytes(8, "little") + b"{}",
    "beyond.safetensors": b"\x48"
    + b"\0" * 7
    + b'{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,324]}}'.ljust(72),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(run, tmp_path, name):
    tmp_path.joinpath(name).write_bytes(HOSTILE[name])
    code, out, err = run("check-vectors", tmp_path / name, "vit_digits", "--images", DIGITS)
    assert (code, out) == (1, "")
    says(err, tmp_path / name, "check the file")


def test_a_file_that_cannot_be_read_is_named(run, tmp_path):
    for name, data in (("a.npy", b"x"), ("a.parquet", b"PAR1"), ("a.safetensors", b"\0" * 9)):
        tmp_path.joinpath(name).write_bytes(data)
        code, out, err = run("check-vectors", tmp_path / name)
        assert (code, out) == (1, "")
        says(err, tmp_path / name, "check the file")
    np.save(tmp_path / "pickle.npy", np.array([print]), allow_pickle=True)
    says(run("check-vectors", tmp_path / "pickle.npy")[2], "pickle.npy", "Python objects")
    code, _, err = run("check-vectors", tmp_path / "a.csv")
    assert code == 2
    says(err, "a.csv", ".parquet", "#COLLECTION")
    save_file(
        {"a": np.zeros((2, 2), "f4"), "b": np.zeros((2, 2), "f4")}, tmp_path / "a.safetensors"
    )
    code, _, err = run("check-vectors", tmp_path / "a.safetensors", "--column", "c")
    assert code == 2
    says(err, "--column", "a, b", "'c'")


@pytest.mark.parametrize(
    "place",
    ["qdrant:http://h:1#c", "chroma:http://h:1#c", "lancedb:db://h#t", "postgresql://h/d#t"],
)
def test_stores_are_not_reached_offline(run, monkeypatch, place):
    def refuse(*_):
        pytest.fail("a client or a socket is used")

    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in STORES:
        monkeypatch.setitem(STORES, name, (refuse, "numpy", "numpy"))
    code, out, err = run("check-vectors", place)
    assert (code, out) == (4, "")
    says(err, place, "VITZOO_OFFLINE")


@pytest.mark.parametrize(
    ("place", "client"),
    [
        ("qdrant:{}#c", "qdrant-client"),
        ("chroma:{}#c", "chromadb"),
        ("lancedb:{}#c", "lancedb"),
        ("postgresql://u:secret@h/d?sslmode=secret#t", "psycopg[binary]"),
    ],
)
def test_a_missing_client_is_named_and_no_password_is_shown(
    run, monkeypatch, tmp_path, place, client
):
    monkeypatch.delenv("VITZOO_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name, (read, _, distribution) in STORES.items():
        monkeypatch.setitem(STORES, name, (read, "no_such_module", distribution))
    place = place.format(tmp_path)
    for name in MARKS.values():
        (tmp_path / name).touch()
    code, out, err = run("check-vectors", place)
    assert (code, out) == (1, "")
    says(
        err, f"pip install {client}", place.replace("u:secret@", "").replace("?sslmode=secret", "")
    )
    assert "secret" not in err
    # Commands of vitzoo repeat their arguments in the error about a name of timm.
    code, out, err = run("check-vectors", place, "vit_base_patch16_224")
    assert (code, out) == (1, "")
    says(err, "vit_base_patch16_224", "vit_b16")
    assert "secret" not in err


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://u:secret@h/d",
        "mysql://u:secret@h/d#t",
        "qdrant:http://u:secret@[h#c",
        "qdrant:http://u:secret@h:port#c",
        "postgresql://u:secret#secret@h/d#t",
        "postgresql://u:secret/secret@h/d#t",
        "postgresql://u:secret@secret@h/d#t",
        "postgresql:/u:secret@h/d#t",
        "host=h password=secret dbname=d#t",
        "qdrant:secret",
    ],
)
def test_a_wrong_address_shows_no_password(run, place):
    code, out, err = run("check-vectors", place)
    assert (code, out) == (2, "")
    says(err, "STORE:ADDRESS#COLLECTION")
    assert "secret" not in err


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("qdrant:https://:pass%21@h:1/?password=mine#c", "qdrant:https://h:1/#c"),
        ("chroma:https://u:pass%21@h:1/?token=mine#c", "chroma:https://h:1/#c"),
        ("lancedb:db://u:pass%21@h/?api_key=mine#c", "lancedb:db://h/#c"),
        ("postgresql://u:pass%21@h:1/d?password=mine#c", "postgresql://h:1/d#c"),
        ("postgresql://u:pass%21@h:1/d?password=mine%zz#c", "postgresql://h:1/d#c"),
    ],
)
def test_a_client_that_fails_shows_no_password(run, monkeypatch, place, shown):
    def fail(address, *_):
        raise OSError(f"cannot connect to {address.where} with pass! and of the environment")

    monkeypatch.delenv("VITZOO_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in SECRETS:
        monkeypatch.setenv(name, "of the environment")
    for name in STORES:
        monkeypatch.setitem(STORES, name, (fail, "numpy", "numpy"))
    code, out, err = run("check-vectors", place)
    assert (code, out) == (4, "")
    says(err, shown, "OSError", "check the address")
    secrets = ("pass%21", "pass!", "mine", "of the environment")
    assert [secret for secret in secrets if secret in err] == []


@pytest.mark.parametrize("where", ["{}", "http://h:1"])
def test_the_telemetry_of_chroma_is_off(run, monkeypatch, tmp_path, where):
    """The other clients have none."""
    made = []

    def client(*_, settings, **__):
        made.append(settings)
        return SimpleNamespace(list_collections=list)

    names = ("HttpClient", "PersistentClient")
    (tmp_path / MARKS["chroma"]).touch()
    monkeypatch.setitem(sys.modules, "chromadb", SimpleNamespace(**dict.fromkeys(names, client)))
    monkeypatch.setitem(sys.modules, "chromadb.config", SimpleNamespace(Settings=dict))
    monkeypatch.setitem(STORES, "chroma", (STORES["chroma"][0], "numpy", "numpy"))
    monkeypatch.delenv("VITZOO_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    code, _, err = run("check-vectors", f"chroma:{where.format(tmp_path)}#c")
    assert code == 2
    says(err, "the store has no collection")
    assert made == [{"anonymized_telemetry": False}]
