"""Weights in several files: the index is strict, and every tensor is exactly where it says."""

import hashlib
import json
import os
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import refuses
from vitzoo import verify
from vitzoo.checkpoint.checkpoint import open_file
from vitzoo.errors import CheckpointError
from vitzoo.files.shard_index import MAX_INDEX, MAX_SHARDS
from vitzoo.foreign.opened import open_described
from vitzoo.inventory import import_file

NAMES = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def right(small, randomise):
    """The tensors of a small network."""
    return dict(randomise(vitzoo.create(small)).state_dict())


@pytest.fixture
def folder(tmp_path, right):
    """A network in three files, with an index that is right."""
    place = tmp_path / "folder"
    place.mkdir()
    for i, name in enumerate(NAMES):
        held = {n: t.contiguous() for n, t in list(right.items())[i::3]}
        safetensors.torch.save_file(held, place / name)
    write(place, {name: NAMES[i % 3] for i, name in enumerate(right)})
    return place


def write(folder, weight_map, **more):
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map} | more)
    (folder / INDEX).write_text(text)


def weight_map(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


@pytest.fixture
def refused(folder, small):
    """Check that the index is refused, with a message that says why."""

    def call(text):
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(CheckpointError, match=text) as caught:
            vitzoo.create(small, weights=folder / INDEX)
        message = str(caught.value)
        assert message.isascii()
        assert message.isprintable()
        assert len(message) < 3000
        assert before == sorted(path.name for path in folder.iterdir())

    return call


# Right ones.


def test_the_tensors_of_all_shards(folder, small, right):
    for path in (folder / INDEX, str(folder / INDEX), folder, f"{folder}/"):
        model = vitzoo.create(small, weights=path)
        assert all(torch.equal(t, right[n]) for n, t in model.state_dict().items())
        assert len(model.load_report.kept) == len(right)
        assert model.load_report.source == str(folder / INDEX)


def test_order_and_types_are_those_of_the_index(folder, right):
    checkpoint = open_file(folder / INDEX)
    tensors = checkpoint.tensors().tensors
    assert list(tensors) == list(checkpoint.header.tensors) == list(right)
    assert {n: t.shape for n, t in checkpoint.skeleton().items()} == {
        n: t.shape for n, t in right.items()
    }


def test_the_sha256_is_that_of_sha256sum(folder, small):
    """One identity for several files, which a user can compute."""
    command = "LC_ALL=C sha256sum *.safetensors | sha256sum"
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
    report = vitzoo.create(small, weights=folder / INDEX).load_report
    assert report.sha256 == done.stdout.split()[0]
    path = folder / NAMES[1]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert vitzoo.create(small, weights=folder / INDEX).load_report.sha256 != report.sha256


def test_symbolic_links_to_shards_are_followed(folder, small, right, tmp_path):
    """The Hub's cache is made of them."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for i, name in enumerate([*NAMES, INDEX]):
        (folder / name).rename(tmp_path / f"blob{i}")
        (snapshot / name).symlink_to(tmp_path / f"blob{i}")
    model = vitzoo.create(small, weights=snapshot / INDEX)
    assert torch.equal(model.cls_token, right["cls_token"])


def test_shards_changed_after_loading(folder, small, right):
    model = vitzoo.create(small, weights=folder / INDEX)
    for name in NAMES:
        (folder / name).write_bytes(b"\xff" * (folder / name).stat().st_size)
    assert all(torch.equal(t, right[n]) for n, t in model.state_dict().items())


def test_config_beside_the_index(folder):
    (folder / "config.json").write_text('{"hidden_act": "gelu_new"}')
    assert open_described(folder / INDEX).stated.config == {"hidden_act": "gelu_new"}


def test_metadata_may_be_left_out(folder, small, right):
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map(folder)}))
    model = vitzoo.create(small, weights=folder / INDEX)
    assert torch.equal(model.cls_token, right["cls_token"])


# Names of shards.

BAD = ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", ""]
BAD += ["C:\\x.safetensors", "x", "x.bin", "x.npz", "x.safetensors\n", "a\0.safetensors", "./x"]
BAD += [".hidden.safetensors", "con.safetensors", "x" * 300 + ".safetensors", "\u202e.safetensors"]
BAD += ["~/x.safetensors", "file://x.safetensors", "%2e%2e.safetensors", None, 1, [], {}, True]


@pytest.mark.parametrize("shard", BAD, ids=lambda shard: ascii(shard)[:20])
def test_unsafe_shard_name_is_refused(folder, refused, shard):
    (folder.parent / "x.safetensors").write_bytes((folder / NAMES[0]).read_bytes())
    write(folder, weight_map(folder) | {"norm.bias": shard})
    refused(r"index\.json.*tensor 'norm\.bias'.*expected.*\.safetensors")


def test_missing_shard_is_refused(folder, refused):
    (folder / NAMES[1]).unlink()
    refused(rf"index\.json.* {NAMES[1]}.*{folder / NAMES[1]}.*no such file")


def test_unknown_shard_in_the_index_is_refused(folder, refused):
    write(folder, weight_map(folder) | {"norm.bias": "other.safetensors"})
    refused(rf"index\.json.*{folder / 'other.safetensors'}.*no such file")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path, 0o600), "not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/nowhere"), "no such file"),
        (lambda path: path.write_bytes(b""), "empty"),
        (
            lambda path: path.write_bytes(b"PK\3\4" + b"\0" * 99),
            "looks like a zip",
        ),
        (
            lambda path: path.write_bytes(b"\x80\x02}." * 9),
            "looks like a pickle",
        ),
        (lambda path: path.write_text('{"weight_map": {}}'), "looks like a JSON"),
    ],
)
def test_shard_of_another_file_kind_is_refused(folder, refused, make, text):
    (folder / NAMES[2]).unlink()
    make(folder / NAMES[2])
    refused(text)


def test_truncated_shard_is_refused(folder, refused):
    size = (folder / NAMES[0]).stat().st_size
    os.truncate(folder / NAMES[0], size - 1)
    refused(rf"{NAMES[0]} .*{size - 1} bytes.* {size}\b.*truncated")


# The index against the shards.


def test_tensor_in_no_shard_is_refused(folder, refused):
    write(folder, weight_map(folder) | {"extra": NAMES[1]})
    refused(rf"'extra' is in no shard.*{NAMES[1]}$")


def test_tensor_in_another_shard_is_refused(folder, refused, right):
    first = next(iter(right))
    write(folder, weight_map(folder) | {first: NAMES[1]})
    refused(rf"'{first}' is in {NAMES[0]},.*{NAMES[1]}$")


def test_tensor_missing_in_the_index_is_refused(folder, refused, right):
    write(folder, {n: shard for n, shard in weight_map(folder).items() if n != "norm.bias"})
    place = NAMES[list(right).index("norm.bias") % 3]
    refused(rf"'norm\.bias' is in {place}, not in the index$")


def test_tensor_in_two_shards_is_refused(folder, refused, right):
    first = next(iter(right))
    held = safetensors.torch.load_file(folder / NAMES[1])
    safetensors.torch.save_file(held | {first: right[first]}, folder / NAMES[1])
    refused(rf"'{first}' is in {NAMES[0]} and {NAMES[1]},.* {NAMES[0]}$")


def test_one_file_under_two_shard_names_is_refused(folder, refused):
    (folder / NAMES[1]).unlink()
    (folder / NAMES[1]).hardlink_to(folder / NAMES[0])
    refused(rf"is in {NAMES[0]} and {NAMES[1]},.* {NAMES[0]};.* is in no shard")


def test_first_ten_disagreements_are_listed(folder, refused):
    write(folder, {f"tensor_{i}": NAMES[0] for i in range(30)})
    refused(r"'tensor_0' .*'tensor_9' is in no shard.*and 31 more$")


# The index itself.


def test_too_many_tensors_in_all_shards_are_refused(folder, refused):
    """Each has what one file may have; together they have more than any network."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    for i in (0, 1):
        header = json.dumps({f"{i}_{n:x}": empty for n in range(10_001)}).encode()
        (folder / NAMES[i]).write_bytes(len(header).to_bytes(8, "little") + header)
    refused(r"index\.json.* 20002 tensors.* 20000\b")


def test_giant_index_is_refused_by_size(folder, refused):
    os.truncate(folder / INDEX, MAX_INDEX + 1)
    refused(rf"index\.json.* {MAX_INDEX + 1} bytes.* {MAX_INDEX}\b")


def test_too_many_shards_are_refused(folder, refused):
    write(folder, {f"t{i}": f"s{i}.safetensors" for i in range(MAX_SHARDS + 1)})
    refused(rf" {MAX_SHARDS + 1} files.* {MAX_SHARDS}\b")


def test_too_many_tensors_in_the_index_are_refused(folder, refused):
    write(folder, {f"{i:x}": NAMES[0] for i in range(20_001)})
    refused(r" 20001 tensors.* 20000\b")


TEXTS = {
    "broken": ('{"weight_map": ', "JSON.*Expecting value"),
    "nothing": ("{}", "JSON.*expected metadata and weight_map"),
    "twice": ('{"weight_map": {"a": "x", "a": "y"}}', "twice"),
    "twice-map": ('{"weight_map": {}, "weight_map": {}}', "twice"),
    "more": ('{"weight_map": {}, "x": 1}', "expected metadata and weight_map"),
    "list": ('{"weight_map": []}', "metadata and weight_map must be"),
    "metadata": ('{"weight_map": {}, "metadata": 1}', "metadata and weight_map must be"),
    "deep": ('{"weight_map":' + "[" * 100_000, "recursion"),
    "digits": ('{"weight_map": ' + "9" * 5000 + "}", "Exceeds the limit"),
    "nan": ('{"weight_map": NaN}', "metadata and weight_map must be"),
    "utf-8": (b'{"weight_map": "\xff"}', "decode"),
    "error": (
        '{"error": "no such repository"}',
        "JSON.*expected metadata and weight_map",
    ),
    "name": ('{"weight_map": {"a\\u001bb": "x.safetensors"}}', " 256 printable"),
    "long": ('{"weight_map": {"%s": "x.safetensors"}}' % ("a" * 300), " 256 printable"),
    "empty": ('{"weight_map": {}}', "unknown.* none"),
}


@pytest.mark.parametrize(("text", "says"), TEXTS.values(), ids=TEXTS)
def test_malformed_index_is_refused(folder, refused, text, says):
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(says)


def test_index_under_another_file_name_is_recognised(folder, small, right):
    (folder / INDEX).rename(folder / "parts.json")
    model = vitzoo.create(small, weights=folder / "parts.json")
    assert torch.equal(model.cls_token, right["cls_token"])


# Folders.


def test_a_folder_with_one_file(tmp_path, small, right):
    place = tmp_path / "own"
    place.mkdir()
    safetensors.torch.save_file(right, place / "model.safetensors")
    (place / "config.json").write_text("{}")
    model = vitzoo.create(small, weights=place)
    assert torch.equal(model.cls_token, right["cls_token"])
    assert model.load_report.source == str(place / "model.safetensors")


def test_a_folder_with_none_or_several(tmp_path, small):
    place = tmp_path / "own"
    place.mkdir()
    with pytest.raises(CheckpointError, match="own is a folder without weights"):
        vitzoo.create(small, weights=place)
    (place / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="own is a folder without weights"):
        vitzoo.create(small, weights=place)
    for i in range(12):
        safetensors.torch.save_file({"a": torch.ones(1)}, place / f"{i:02}.safetensors")
    listed = ", ".join(f"{i:02}.safetensors" for i in range(10))
    text = f" {listed} and 2 more$"
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(small, weights=place)
    for name in ("a", "b"):
        (place / f"{name}{INDEX[5:]}").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r" a\.safetensors\.index\.json, b\.safetensors\.index\.json$"
    ):
        vitzoo.create(small, weights=f"{place}/")


def test_shards_without_their_index_are_no_choice(folder, small, right):
    """One of them is no network."""
    (folder / INDEX).unlink()
    for path in (folder, f"{folder}/"):
        with refuses(
            CheckpointError, folder, "3 safetensors", *NAMES, "expected", f"NAME{INDEX[5:]}"
        ) as caught:
            vitzoo.create(small, weights=path)
        assert "pass one of:" not in str(caught.value)
    first = next(iter(right))  # a tensor in two files: each may be a whole network
    held = safetensors.torch.load_file(folder / NAMES[2])
    safetensors.torch.save_file(held | {first: right[first]}, folder / NAMES[2])
    with refuses(CheckpointError, f"pass one of: {', '.join(NAMES)}"):
        vitzoo.create(small, weights=folder)


@pytest.mark.parametrize("damage", ["link", "pickle", "many"])
def test_files_that_are_not_known_to_be_shards_are_a_choice(folder, small, monkeypatch, damage):
    (folder / INDEX).unlink()
    (folder / NAMES[1]).unlink()
    if damage == "link":
        (folder / NAMES[1]).symlink_to("/nowhere")
    elif damage == "pickle":
        (folder / NAMES[1]).write_bytes(b"\x80" * 99)
    else:
        monkeypatch.setattr("vitzoo.files.shard_index.MAX_SHARDS", 1)
    with refuses(CheckpointError, "pass one of: ", NAMES[0]):
        vitzoo.create(small, weights=folder)


@pytest.mark.parametrize("name", ["model", "own"])
def test_a_whole_file_comes_before_an_older_index_of_its_name(folder, small, right, name):
    """As in transformers, and in a repository; the shards of the index may be gone."""
    (folder / INDEX).rename(folder / f"{name}{INDEX[5:]}")
    (folder / "config.json").write_text("{}")
    for shard in list(folder.glob("*-of-*"))[1:]:
        shard.unlink()
    whole = {**right, "cls_token": right["cls_token"] + 1}
    safetensors.torch.save_file(whole, folder / f"{name}.safetensors")
    model = vitzoo.create(small, weights=folder)
    assert torch.equal(model.cls_token, whole["cls_token"])
    assert model.load_report.source == str(folder / f"{name}.safetensors")
    (folder / "other.safetensors.index.json").write_text("{}")
    with refuses(CheckpointError, "several", f"{name}.safetensors", "other.safetensors.index.json"):
        vitzoo.create(small, weights=folder)


def test_the_pickle_with_weights_is_named(tmp_path, small):
    """Among what a Trainer of transformers writes beside it."""
    names = ["optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "scaler.pt"]
    for name in (*names, "aa.pt", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"\x80")
    command = f"vitzoo convert {tmp_path}/{{}} {tmp_path}/{{}} --from-pickle"
    with refuses(CheckpointError, command.format("pytorch_model.bin", "pytorch_model.safetensors")):
        vitzoo.create(small, weights=tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with refuses(CheckpointError, command.format("aa.pt", "aa.safetensors")):
        vitzoo.create(small, weights=tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "-00001-of-00002.safetensors"])
def test_too_long_path_is_an_error(tmp_path, small, name):
    with pytest.raises(CheckpointError, match="File name too long"):
        vitzoo.create(small, weights=tmp_path / name)


# One shard alone, and what cannot be.


def test_one_shard_points_to_the_index(folder, small):
    text = rf"{NAMES[0]} \(a shard.* {folder / INDEX}\)"
    with pytest.raises(CheckpointError, match=rf"(?s){text} .* \d+ missing"):
        vitzoo.create(small, weights=folder / NAMES[0])
    safetensors.torch.save_file({"x": torch.ones(1)}, folder / NAMES[1])
    with pytest.raises(CheckpointError, match=r"of-00003\.safetensors \(a shard.*unknown"):
        vitzoo.create(small, weights=folder / NAMES[1])
    (folder / INDEX).unlink()
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(small, weights=folder / NAMES[0])
    assert "a shard" not in str(caught.value)


@pytest.mark.parametrize("name", [INDEX, "net.npz"])
def test_weights_that_do_not_name_their_network(folder, name):
    np.savez(folder / "net.npz", kernel=np.zeros(1))
    with pytest.raises(CheckpointError, match=rf"{name} .*vitzoo\.save.*weights="):
        vitzoo.create(folder / name)


# Verify and import.


def test_verify_hashes_every_shard(folder):
    from hashlib import sha256

    for path in (folder / INDEX, str(folder / INDEX), folder, f"{folder}/"):
        rows = verify(path)
        assert [row.path for row in rows] == [folder / name for name in NAMES]
        assert {row.state for row in rows} == {"unpinned"}
        for row in rows:
            assert row.sha256 == sha256(row.path.read_bytes()).hexdigest()
    (folder / NAMES[0]).unlink()
    assert [row.state for row in verify(folder)] == ["missing", "unpinned", "unpinned"]
    write(folder, {"a": "../x.safetensors"})
    with pytest.raises(CheckpointError, match=r"tensor 'a'.*expected.*\.safetensors"):
        verify(folder / INDEX)
    assert [row.state for row in verify(folder / "not.safetensors.index.json")] == ["missing"]


def test_verify_and_import_of_a_registered_npz(net, tmp_path):
    """Whatever it is called, a file is what its sha256 says."""
    path = tmp_path / "net.npz"
    path.write_bytes(net.data)
    assert [(row.state, row.detail) for row in verify(path)] == [("ok", "faulty/net:main")]
    assert import_file(path) == ["faulty/net:main"]
    net.assert_right(net.create())


def test_import_of_an_index_says_what_to_do(net, folder):
    sha256 = hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()
    with refuses(vitzoo.StoreError, str(folder / INDEX), sha256, "registry", "lock", "weights="):
        import_file(folder / INDEX)
    assert not net.stored.exists()
