"""`link` and `timm_overlay`: other libraries load the bytes that vitzoo verified."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import fill, refuses, says
from tables import cases
from vitzoo.apps.publish.checks import LINK_FILES
from vitzoo.apps.publish.libraries import LIBRARIES
from vitzoo.errors import (
    CheckpointError,
    HashMismatch,
    InvalidOption,
    Offline,
    StoreError,
    UnknownName,
)
from vitzoo.files.folder_manifest import MANIFEST

WEIGHTS = ("own", "scaled")


def test_the_file_of_the_library_is_copied_and_shares_nothing_with_the_store(zoo, small, tmp_path):
    zoo.put(fill(vitzoo.create(small, block={"norm_eps": 1e-12})), to="transformers_vit")
    linked = vitzoo.link(zoo.name, tmp_path / "out", "transformers")
    file = tmp_path / "out" / "model.safetensors"
    assert linked.copied
    assert file.read_bytes() == zoo.stored.read_bytes()
    assert not file.is_symlink()
    assert (file.stat().st_nlink, zoo.stored.stat().st_nlink) == (1, 1)
    assert not Path(file).samefile(zoo.stored)
    file.write_bytes(b"changed")
    assert vitzoo.verify(zoo.name)[0].state == "ok"


def test_the_folder_is_checked_before_a_download(zoo, small, tmp_path, monkeypatch):
    zoo.put(fill(vitzoo.create(small)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").touch()
    monkeypatch.setattr("vitzoo.apps.publish.link._opened", None)  # a call raises
    with refuses(InvalidOption, tmp_path / "out", "other"):
        vitzoo.link(zoo.name, tmp_path / "out", "timm")


@pytest.mark.workflows
def test_a_library_without_the_network_names_those_that_have_it(zoo, small, tmp_path):
    zoo.put(fill(vitzoo.create(small, block={"layer_scale": 0.1})))
    for library in ("transformers", "torchvision", "open_clip"):
        with refuses(CheckpointError, library, "local/net:main", "pass one of: timm"):
            vitzoo.link(zoo.name, tmp_path / "out", library)
    zoo.put(fill(vitzoo.create(small, block={"norm_eps": 1e-3})))
    with refuses(CheckpointError, "timm", "block.norm_eps = 0.001", "transformers"):
        vitzoo.link(zoo.name, tmp_path / "out", "timm")
    with refuses(CheckpointError, "torchvision", "block.norm_eps = 0.001", "transformers"):
        vitzoo.link(zoo.name, tmp_path / "out", "torchvision")
    assert not (tmp_path / "out").exists()


def test_merged_tokens_are_no_network_of_another_library(zoo, small, tmp_path):
    """Registered weights in timm's format may have the option; timm computes every token."""
    zoo.put(fill(vitzoo.create(small)))
    zoo.register(vitzoo.create(small, block={"merge": 2}))
    assert vitzoo.create(zoo.name, pretrained=True).spec.block.merge == 2
    for library in ("timm", "transformers", "torchvision"):
        with refuses(CheckpointError, library, "local/net:main", "block.merge = 2"):
            vitzoo.link(zoo.name, tmp_path / "out", library)
    with refuses(CheckpointError, "timm", "block.merge = 2"):
        vitzoo.timm_overlay(zoo.tag())
    assert not (tmp_path / "out").exists()


# Damage.


@pytest.mark.parametrize("offline", ["1", "0"])
@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_flipped_byte_is_an_integrity_error(
    zoo, small, tmp_path, library, stamped, offline, monkeypatch
):
    """`torchvision` has another checkpoint format, so that the file is converted."""
    zoo.put(fill(vitzoo.create(small)))
    zoo.flip(stamped=stamped)
    monkeypatch.setenv("VITZOO_OFFLINE", offline)
    with refuses(HashMismatch, "sha256", zoo.name, "vitzoo fetch local/net:main"):
        vitzoo.link(zoo.name, tmp_path / "out", library)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"home", "own.toml", "weights.safetensors"}


def test_bytes_that_change_while_they_are_copied_are_an_integrity_error(
    zoo, small, tmp_path, monkeypatch
):
    zoo.put(fill(vitzoo.create(small)))
    copied = "vitzoo.apps.publish.link.copy_hashed"
    monkeypatch.setattr(copied, lambda *_: "0" * 64)
    with refuses(HashMismatch, "0" * 64, zoo.entry["sha256"], "try again"):
        vitzoo.link(zoo.name, tmp_path / "out", "timm")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stamped", [False, True])
def test_a_flipped_byte_stops_timm_overlay(zoo, small, stamped):
    zoo.put(fill(vitzoo.create(small, num_classes=1000)))
    tag = zoo.tag()
    zoo.flip(stamped=stamped)
    with refuses(HashMismatch, "vitzoo fetch local/net:main"):
        vitzoo.timm_overlay(tag)
    assert not list((zoo.home / "timm").glob("*"))


def test_verify_sees_what_was_changed_later(zoo, small, tmp_path, run):
    zoo.put(fill(vitzoo.create(small)))
    out = tmp_path / "out"
    vitzoo.link(zoo.name, out, "timm")
    row = next(row for row in vitzoo.verify(out) if row.path.name == "model.safetensors")
    assert (row.state, row.detail) == ("ok", "local/net:main")
    assert run("verify", out)[0] == 0
    for name in ("model.safetensors", "config.json"):
        data = (out / name).read_bytes()
        (out / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        code, text, _ = run("verify", out)
        assert (code, text.count("damaged")) == (3, 1)
        (out / name).write_bytes(data)
    (out / "adapter_config.json").write_text("{}")
    code, text, _ = run("verify", out)
    assert code == 3
    assert "adapter_config.json\tdamaged" in text
    (out / "adapter_config.json").unlink()
    (out / "config.json").unlink()
    code, text, err = run("verify", out)
    assert code == 1
    assert "config.json\tmissing" in text
    assert err == "2 files: 1 ok, 1 missing\n"
    (out / "model.safetensors").write_bytes(b"short")
    (out / "extra.txt").write_text("four")
    code, text, err = run("verify", out)
    assert code == 3
    states = [line.split("\t")[1:3] for line in text.splitlines()[1:]]
    assert states == [["damaged", "5"], ["damaged", "4"], ["missing", "0"]]
    assert err == "3 files: 1 missing, 2 damaged\n"


@cases(
    "text",
    [
        "{", "[]", "{}", '{"api": 9, "files": {}}', '{"api": 1, "files": {"../x": {}}}',
        '{"api": 1, "files": {"x": {"size": -1, "sha256": "%s"}}}' % ("0" * 64),
        '{"api": 1, "files": {"x": {"size": 1, "sha256": "0"}}}', "[" * 9999,
    ],
)  # fmt: skip
def test_a_hostile_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with refuses(CheckpointError, tmp_path / MANIFEST):
        vitzoo.verify(tmp_path)


# Folders.


@pytest.mark.workflows
def test_a_folder_is_replaced_only_if_vitzoo_wrote_it(zoo, small, tmp_path):
    zoo.put(fill(vitzoo.create(small)))
    out = tmp_path / "out"
    vitzoo.link(zoo.name, out, "timm")
    with refuses(InvalidOption, out, "force=True"):
        vitzoo.link(zoo.name, out, "torchvision")
    vitzoo.link(zoo.name, out, "torchvision", force=True)
    assert {path.name for path in out.iterdir()} == {"model.safetensors", MANIFEST}
    (out / "mine.txt").write_text("mine")
    with refuses(InvalidOption, out, "mine.txt"):
        vitzoo.link(zoo.name, out, "timm", force=True)
    assert (out / "mine.txt").read_text() == "mine"
    with refuses(InvalidOption, tmp_path / "no"):
        vitzoo.link(zoo.name, tmp_path / "no" / "out", "timm")
    with refuses(InvalidOption, "weights.safetensors"):
        vitzoo.link(zoo.name, tmp_path / "weights.safetensors", "timm", force=True)
    (tmp_path / "empty").mkdir()
    vitzoo.link(zoo.name, tmp_path / "empty", "timm")


@pytest.mark.parametrize("name", ["thesis.txt", "README.md", "config.json", "model.safetensors"])
def test_a_planted_manifest_deletes_no_file(zoo, small, tmp_path, name):
    """Names that `link` does not write, and files that are not as the manifest states."""
    zoo.put(fill(vitzoo.create(small)))
    text, out = "mine", tmp_path / "out"
    out.mkdir()
    (out / name).write_text(text)
    sha256 = hashlib.sha256(b"" if name in LINK_FILES else text.encode()).hexdigest()
    table = {name: {"size": len(text), "sha256": sha256}}
    (out / MANIFEST).write_text(json.dumps({"api": 1, "files": table}))
    with refuses(InvalidOption, out, name):
        vitzoo.link(zoo.name, out, "timm", force=True)
    assert (out / name).read_text() == text


def test_wrong_arguments(zoo, small, tmp_path):
    zoo.put(fill(vitzoo.create(small)))
    with refuses(InvalidOption, "library", "'tim'", "timm", "torchvision"):
        vitzoo.link(zoo.name, tmp_path / "out", "tim")
    with refuses(UnknownName, "'vit_b17'", "'vit_b16'"):
        vitzoo.link("vit_b17", tmp_path / "out", "timm")
    with refuses(InvalidOption, "'main'", "'other'"):
        vitzoo.link("local/net:main", tmp_path / "out", "timm", weights="other")
    with refuses(vitzoo.WeightsUnavailable, "'other'"):
        vitzoo.link("local/net", tmp_path / "out", "timm", weights="other")
    with refuses(Offline, "vit_b16"):
        vitzoo.link("vit_b16", tmp_path / "out", "timm")
    with refuses(InvalidOption, "own.safetensors", "registered", "vitzoo push", "--folder"):
        vitzoo.link("own.safetensors", tmp_path / "out", "timm")
    with refuses(InvalidOption, "name", 3):
        vitzoo.link(3, tmp_path / "out", "timm")


def test_a_grey_network_for_transformers_brings_a_warning(tmp_path, caplog):
    vitzoo.link("vit_digits", tmp_path / "timm", "timm")
    assert caplog.text == ""
    vitzoo.link("vit_digits", tmp_path / "transformers", "transformers")
    says(caplog.text, "1 channel,", "3", "vitzoo.transform")


def test_the_command(zoo, small, tmp_path, run):
    zoo.put(fill(vitzoo.create(small)))
    out = tmp_path / "out"
    code, text, notes = run("link", zoo.name, out, "--for", "timm")
    assert code == 0
    assert [line.split("\t")[0] for line in text.splitlines()[1:]] == [
        f"{out}/config.json", f"{out}/model.safetensors"
    ]  # fmt: skip
    says(notes, f"copied for timm to {out}")
    assert f'timm.create_model("local-dir:{out}", pretrained=True)' in notes
    assert run("link", zoo.name, out, "--for", "timm")[0] == 2
    code, text, _ = run("link", zoo.name, out, "--for", "timm", "--force", "--json")
    assert json.loads(text)["copied"] is True
    assert run("link", zoo.name, out, "--for", "tim")[0] == 2
    help_ = run("link", "--help")[1]
    assert all(name in help_ for name in LIBRARIES)


# timm's own call with one of its tags.


def test_an_overlay_is_one_copy_that_rm_removes(zoo, small, tmp_path, monkeypatch):
    zoo.put(fill(vitzoo.create(small, num_classes=1000)))
    tag, before = zoo.tag(), os.umask(0o002)
    path = Path(vitzoo.timm_overlay(tag)["file"])
    os.umask(before)
    assert path.read_bytes() == zoo.stored.read_bytes()
    assert not Path(path).samefile(zoo.stored)
    path.write_bytes(b"changed")
    assert Path(vitzoo.timm_overlay(tag)["file"]).read_bytes() == zoo.stored.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    elsewhere = vitzoo.timm_overlay(tag, tmp_path)["file"]
    assert Path(elsewhere).parent == tmp_path
    from vitzoo.inventory import remove

    remove(zoo.name)
    assert not path.exists()
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    with refuses(StoreError, ":memory:", "FOLDER"):
        vitzoo.timm_overlay(tag)


@pytest.mark.usefixtures("zoo")
def test_tags_without_weights_here():
    for tag in ("vit_base_patch16_224", "resnet50.a1_in1k"):
        with refuses(UnknownName, repr(tag), "vitzoo which"):
            vitzoo.timm_overlay(tag)
    with refuses(Offline, "vit_b16:augreg2_in21k_ft_in1k"):
        vitzoo.timm_overlay("vit_base_patch16_224.augreg2_in21k_ft_in1k")


@pytest.mark.workflows
def test_a_process_that_is_killed_leaves_no_folder_of_that_name(zoo, small, tmp_path):
    zoo.put(fill(vitzoo.create(small)))
    code = (
        "import os, vitzoo\nfrom vitzoo.apps.publish import link as m\n"
        "m.write_manifest = lambda *_: os.kill(os.getpid(), 9)\n"
        f"m.link('local/net', {str(tmp_path / 'out')!r}, 'timm')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == -9
    assert not (tmp_path / "out").exists()
    (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".out.")]
    os.utime(left, (1, 1))
    vitzoo.link(zoo.name, tmp_path / "out", "timm")
    assert not left.exists()
