"""Folders whose index only the format of a plugin knows: read, written and refused."""

import json
import os

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import fill, refuses
from vitzoo.apps.convert.conversion import convert
from vitzoo.errors import CheckpointError, InvalidOption, PluginError
from vitzoo.files.shard_index import MAX_INDEX, MAX_SHARDS

MANIFEST = """\
api = 1

[checkpoint_formats.mine]
summary = "a format"
target = "acme.code:layout"
"""
CODE = """\
from vitzoo.formats import Format, KeyMap, ShardedFolder

layout = Format(
    "acme/mine",
    keymap=KeyMap({"token": "cls_token", "pos": "pos_embed", "stem.": "patch_embed.proj.",
                   "norm.": "norm.", "top.": "head."},
                  {"n1.": "norm1.", "n2.": "norm2.", "qkv.": "attn.qkv.", "out.": "attn.proj.",
                   "a.": "mlp.fc1.", "b.": "mlp.fc2."}, block="layer.{}."),
    marks=("token", "stem.weight"),
    folder=ShardedFolder("acme.json", "tensors", "part-{number}.safetensors", shard_size=30_000),
)
"""
FILES = {"acme/__init__.py": "", "acme/code.py": CODE, "acme/registry.toml": MANIFEST}


@pytest.fixture
def model(small):
    return fill(vitzoo.create(small))


@pytest.fixture(autouse=True)
def _acme(install):
    install("acme-parts", "acme = acme:registry.toml", FILES)


@pytest.fixture
def folder(model, tmp_path):
    """A network as `convert` writes it."""
    vitzoo.save(model, tmp_path / "net.safetensors")
    convert(tmp_path / "net.safetensors", "acme/mine", tmp_path / "folder")
    return tmp_path / "folder"


def table(folder):
    return json.loads((folder / "acme.json").read_text())


def write(folder, **changes):
    (folder / "acme.json").write_text(json.dumps(table(folder) | changes))


def test_a_folder_is_written_and_read(folder, model, small):
    index = table(folder)
    shards = sorted(set(index["tensors"].values()))
    assert len(shards) > 2
    assert {path.name for path in folder.iterdir()} == {"acme.json", *shards}
    held = {n: t for s in shards for n, t in safetensors.torch.load_file(folder / s).items()}
    assert held.keys() == index["tensors"].keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in held.values())
    for weights in (folder, folder / "acme.json", f"{folder}/"):
        read = vitzoo.create(small, weights=weights)
        assert all(torch.equal(t, model.state_dict()[n]) for n, t in read.state_dict().items())
        assert read.load_report.source == str(folder / "acme.json")
    assert [row.path.name for row in vitzoo.verify(folder)] == shards
    done = convert(folder, "timm", folder.parent / "timm.safetensors")
    assert done.source_format == "acme/mine"


def test_other_keys_of_an_index_are_free(folder, small):
    write(folder, version=3)
    vitzoo.create(small, weights=folder)


def test_a_folder_is_written_whole_or_not_at_all(folder, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with refuses(InvalidOption, folder, "already exists", "--force"):
        convert(tmp_path / "net.safetensors", "acme/mine", folder)
    convert(tmp_path / "net.safetensors", "acme/mine", folder, force=True)
    monkeypatch.setattr("vitzoo.apps.convert.conversion._same", lambda *_: False)
    for force, target in ((True, folder), (False, tmp_path / "new")):
        with refuses(PluginError, target, "does not equal its source"):
            convert(tmp_path / "net.safetensors", "acme/mine", target, force=force)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {p.name for p in tmp_path.iterdir()} == {"folder", "net.safetensors", "site"}


def test_a_format_of_one_file_writes_no_folder(model, tmp_path):
    vitzoo.save(model, tmp_path / "net.safetensors")
    for to in ("timm", "transformers_vit"):
        with refuses(InvalidOption, tmp_path / "new", ".safetensors"):
            convert(tmp_path / "net.safetensors", to, tmp_path / "new")
    with refuses(InvalidOption, "net.bin", ".safetensors", "folder"):
        convert(tmp_path / "net.safetensors", "acme/mine", tmp_path / "net.bin")


def test_the_index_of_no_installed_format_is_named(folder, small):
    (folder / "acme.json").rename(folder / "other.json")
    with refuses(CheckpointError, folder, "other.json", "part-1.safetensors", "plugin") as caught:
        vitzoo.create(small, weights=folder)
    assert "pass one of" not in str(caught.value)


def test_without_an_index_those_of_plugins_are_named(folder, small):
    (folder / "acme.json").unlink()
    with refuses(CheckpointError, folder, "part-1.safetensors", "acme.json"):
        vitzoo.create(small, weights=folder)


def test_one_shard_of_several_is_no_network(folder, small):
    for shard in sorted(set(table(folder)["tensors"].values()))[1:]:
        (folder / shard).unlink()
    with refuses(CheckpointError, folder / "acme.json", "part-2.safetensors", "no such file"):
        vitzoo.create(small, weights=folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"tensors": {}}', '{"tensors": 1}'])
def test_a_broken_index_is_named(folder, small, text):
    (folder / "acme.json").write_text(text)
    with refuses(CheckpointError, folder / "acme.json"):
        vitzoo.create(small, weights=folder)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", 1, "x"])
def test_a_shard_elsewhere_is_refused(folder, small, shard):
    (folder.parent / "x.safetensors").write_bytes((folder / "part-1.safetensors").read_bytes())
    write(folder, tensors=table(folder)["tensors"] | {"token": shard})
    with refuses(CheckpointError, folder / "acme.json", "'token'", "expected", ".safetensors"):
        vitzoo.create(small, weights=folder)


def test_hostile_shards_are_refused(folder, small):
    first, second = (folder / f"part-{i}.safetensors" for i in (1, 2))
    data = second.read_bytes()
    second.unlink()
    with refuses(CheckpointError, folder / "acme.json", second, "no such file"):
        vitzoo.create(small, weights=folder)
    second.symlink_to("/nowhere")
    with refuses(CheckpointError, second, "no such file"):
        vitzoo.create(small, weights=folder)
    second.unlink()
    second.mkdir()
    with refuses(CheckpointError, second, "not a regular file"):
        vitzoo.create(small, weights=folder)
    second.rmdir()
    second.hardlink_to(first)
    with refuses(CheckpointError, "disagree", f"{first.name} and {second.name}"):
        vitzoo.create(small, weights=folder)
    second.unlink()
    second.write_bytes(data)
    vitzoo.create(small, weights=folder)


def test_a_hostile_index_is_refused(folder, small):
    right = table(folder)["tensors"]
    write(folder, tensors={f"t{i}": f"s{i}.safetensors" for i in range(MAX_SHARDS)} | right)
    with refuses(CheckpointError, "acme.json", f"more than the {MAX_SHARDS}"):
        vitzoo.create(small, weights=folder)
    write(folder, tensors=[*right.values()])
    with refuses(CheckpointError, "acme.json", "tensors must be tables"):
        vitzoo.create(small, weights=folder)
    (folder / "acme.json").write_text(json.dumps({"weight_map": right}))
    with refuses(CheckpointError, "acme.json", "expected tensors"):
        vitzoo.create(small, weights=folder)
    os.truncate(folder / "acme.json", MAX_INDEX + 1)
    for weights in (folder / "acme.json", folder):
        with refuses(CheckpointError, "acme.json", MAX_INDEX + 1):
            vitzoo.create(small, weights=weights)
