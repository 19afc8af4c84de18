"""`vitzoo registry add --plugin`: a weights file becomes bundled weights of a plugin."""

from __future__ import annotations

import errno
import hashlib
import os
import tomllib

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import fill, says
from tables import cases
from vitzoo.testing import Hub

PROJECT = """\
[project]
name = "acme-vit"

[project.entry-points.vitzoo]
acme = "acme:registry.toml"
"""
MANIFEST = """\
# ours
api = 1

[heads.flat]  # kept
target = "acme.parts:Flat"
summary = "a head"

[variants.digits]
summary = "digits of Acme"
embed_dim = 64
depth = 4
num_heads = 4
mlp_dim = 256
patch_size = 7
image_size = 28
in_chans = 1
num_classes = 10
params = 205066
source = "made up"

[aliases]
former = "digits"
"""
GIVEN = ("--license", "mit", "--source", "run 7", "--plugin", "site")
INPUTS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def project(install, tmp_path, monkeypatch):
    """The project of a plugin in the folder `site`, installed as `pip install -e site` does.

    vitzoo uses no plugin in the working folder.
    """
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    files = {"acme/__init__.py": "", "acme/registry.toml": MANIFEST, "pyproject.toml": PROJECT}
    folder = install("acme-vit", "acme = acme:registry.toml", files)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def add(add_with):
    """Run `vitzoo registry add` with a license, a source and the project."""
    return lambda *args, given=GIVEN: add_with(*args, *given)


@pytest.fixture
def weights(tmp_path):
    """The file of a network that was fine-tuned to four classes, and the network."""
    model = fill(vitzoo.create("vit_digits", num_classes=4))
    model.labels = ("a", "b", "c", "d")
    return vitzoo.save(model, tmp_path / "weights.safetensors"), model.eval()


def manifest(project):
    return project / "acme" / "registry.toml"


def identity(path):
    """Which file it is and when it was written; reading it changes the time of its last read."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_nlink, found.st_mode, found.st_mtime_ns


def bundled(project):
    return {path.name for path in (project / "acme").glob("data/*")}


def test_a_new_variant_gets_bundled_weights(add, project, weights):
    path, model = weights
    code, out, err = add("acme/letters", path)
    assert code == 0, err
    copy = project / "acme" / "data" / "letters.main.safetensors"
    says(out, "acme/letters", 4, "timm")
    says(err, f"wrote {manifest(project)}", copy)
    assert "VITZOO_REGISTRY" not in err
    assert copy.read_bytes() == path.read_bytes()
    text = manifest(project).read_text()
    assert text.startswith(MANIFEST)
    table = tomllib.loads(text)["variants"]["letters"]
    row = table.pop("weights")["main"]
    assert "variant" not in table  # a manifest has no base
    assert (table["num_classes"], table["embed_dim"]) == (4, 64)
    assert row == {
        "default": True,
        "file": copy.name,
        "pin": "confirmed",
        "size": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "format": "timm",
        "license": "mit",
        "source": "run 7",
        "labels": ["a", "b", "c", "d"],
        "preprocessing": row["preprocessing"],
    }
    assert vitzoo.verify("acme/letters")[0].state == "ok"
    with torch.inference_mode():
        found = vitzoo.create("acme/letters", pretrained=True).eval()(INPUTS)
        assert torch.equal(found, model(INPUTS))


def test_a_variant_of_the_manifest_gets_weights(add, project, tmp_path):
    """The entry states what the weights have besides the network of the variant."""
    first = fill(vitzoo.create("vit_digits", pool="mean", num_classes=3, drop_path=0.1))
    path = vitzoo.save(first, tmp_path / "first.safetensors")
    code, _, err = add("digits:v1", path)
    assert code == 0, err
    text = manifest(project).read_text()
    assert text.startswith(MANIFEST)
    assert "[variants.digits]" not in text[len(MANIFEST) :]
    row = tomllib.loads(text)["variants"]["digits"]["weights"]["v1"]
    assert (row["default"], row["num_classes"], row["pool"]) == (True, 3, "mean")
    again = vitzoo.create("acme/digits", pretrained=True).eval()
    with torch.inference_mode():
        assert torch.equal(again(INPUTS), first.eval()(INPUTS))
    second = vitzoo.save(fill(vitzoo.create("vit_digits")), tmp_path / "second.safetensors")
    code, out, err = add("digits:v2", second)
    assert code == 0, err
    says(out, "acme/digits:v2", 10)
    entries = tomllib.loads(manifest(project).read_text())["variants"]["digits"]["weights"]
    assert entries["v1"] == row  # stays the default
    assert "default" not in entries["v2"]
    assert bundled(project) == {"digits.v1.safetensors", "digits.v2.safetensors"}


def test_weights_are_replaced_only_by_force(add, project, weights, tmp_path):
    assert add("digits:v1", weights[0])[0] == 0
    other = vitzoo.save(fill(vitzoo.create("vit_digits")), tmp_path / "other.safetensors")
    assert add("digits:v2", other)[0] == 0
    before, (kept,) = manifest(project).read_text(), {"digits.v2.safetensors"}
    code, _, err = add("digits:v1", other)
    assert code == 1
    says(err, manifest(project), "digits:v1 already", "choose another name", "--force")
    assert manifest(project).read_text() == before
    code, _, err = add("digits:v1", other, "--force")
    assert code == 0, err
    text = manifest(project).read_text()
    assert text.startswith(MANIFEST)
    entries = tomllib.loads(text)["variants"]["digits"]["weights"]
    assert entries["v2"] == tomllib.loads(before)["variants"]["digits"]["weights"]["v2"]
    assert entries["v1"]["default"]
    assert [found.state for found in vitzoo.verify("acme/digits")] == ["ok", "ok"]
    code, _, err = add("digits", other)
    assert code == 1
    says(err, "variant 'digits' already", "digits:WEIGHTS", "--force")
    code, _, err = add("digits", other, "--force")
    assert code == 0, err
    assert [*tomllib.loads(manifest(project).read_text())["variants"]["digits"]["weights"]] == [
        "main"
    ]
    assert kept in bundled(project)


def test_a_file_in_the_package_stays_where_it_is(add, project, weights):
    place = project / "acme" / "data" / "own.safetensors"
    place.parent.mkdir()
    weights[0].rename(place)
    before = identity(place)
    code, _, err = add("digits:v1", place)
    assert code == 0, err
    row = tomllib.loads(manifest(project).read_text())["variants"]["digits"]["weights"]["v1"]
    assert row["file"] == place.name
    assert identity(place) == before
    assert bundled(project) == {place.name}


def test_a_file_of_the_hub_is_not_bundled(add, project, weights, monkeypatch, tmp_path):
    with Hub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        hub.add("acme/digits", "model.safetensors", weights[0].read_bytes())
        with pytest.warns(vitzoo.FirstUseWarning):
            code, _, err = add("digits:v1", "hf://acme/digits")
    assert code == 0, err
    row = tomllib.loads(manifest(project).read_text())["variants"]["digits"]["weights"]["v1"]
    assert (row["repo"], row["file"]) == ("acme/digits", "model.safetensors")
    assert bundled(project) == set()


@pytest.mark.parametrize("place", ["", "pyproject.toml", "src/acme/registry.toml"])
def test_the_project_may_have_a_folder_src(add, project, weights, place):
    project.joinpath("src").mkdir()
    project.joinpath("acme").rename(project / "src" / "acme")
    given = (*GIVEN[:4], "--plugin", f"site/{place}")
    code, out, err = add("letters", weights[0], "--dry-run", given=given)
    assert code == 0, err
    assert tomllib.loads(out)["variants"]["letters"]["weights"]["main"]["default"] is True
    code, _, err = add("letters", weights[0], given=given)
    assert code == 0, err
    says(err, project / "src" / "acme" / "registry.toml")


# What is refused, and leaves the project as it is.

OTHER = PROJECT + 'more = "acme:more.toml"\n'
REFUSED = {
    "name": (("Digits", "W"), 2, ("'Digits'", "lower-case")),
    "weights": (("digits:V 1", "W"), 2, ("'V 1'", "lower-case")),
    "nameless": (("digits:", "W"), 2, ("''", "lower-case")),
    "former-name": (("former", "W"), 1, ("'former'", "former name", "choose another")),
    "variant": (("digits", "W"), 1, ("'digits'", "digits:WEIGHTS", "--force")),
    "network": (
        ("digits:v1", "SMALL"),
        1,
        ("small.safetensors", "depth = 2, not 4", "name of a new variant"),
    ),
    "file": (("letters", "W", "--file", "own.toml"), 2, ("--plugin site", "own.toml", "leave out")),
    "no-project": (
        ("letters", "W", "--plugin", "."),
        2,
        ("no pyproject.toml at .,", "folder of a plugin's project", "vitzoo plugins new"),
    ),
    "several": (
        ("letters", "W"),
        2,
        ("2 manifests", "expected one", "acme/registry.toml", "acme/more.toml"),
    ),
    "another-file": (
        ("letters", "W", "--plugin", "site/acme/other.toml"),
        2,
        ("no manifest at site/acme/other.toml", "[project.entry-points.vitzoo]"),
    ),
    "module": (
        ("letters", "W"),
        2,
        ("no manifest", 'acme = "acme_vit:registry.toml"', "vitzoo plugins compile"),
    ),
    "no-toml": (("letters", "W"), 2, ("pyproject.toml cannot be read", "Invalid")),
    "there": (("letters", "W"), 2, ("letters.main.safetensors exists", "--force")),
}
PROJECTS = {"several": OTHER, "module": PROJECT.replace(":registry.toml", ".hooks"), "no-toml": "["}


@cases("case", REFUSED)
def test_what_does_not_fit_is_refused(add, project, weights, tmp_path, case):
    args, expected, words = REFUSED[case]
    project.joinpath("acme", "more.toml").write_text("api = 1\n")
    project.joinpath("acme", "other.toml").write_text("api = 1\n")
    project.joinpath("pyproject.toml").write_text(PROJECTS.get(case, PROJECT))
    if case == "there":
        project.joinpath("acme", "data").mkdir()
        project.joinpath("acme", "data", "letters.main.safetensors").write_text("another")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    spec = {"variant": "vit_digits", "depth": 2}
    small = vitzoo.save(fill(vitzoo.create(spec)), tmp_path / "small.safetensors")
    args = [{"W": weights[0], "SMALL": small}.get(arg, arg) for arg in args]
    code, out, err = add(*args, given=GIVEN if "--plugin" not in args else GIVEN[:4])
    assert (code, out) == (expected, ""), err
    says(err, *words)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


BUILDER = """\
import vitzoo

def build(spec):
    model = vitzoo.create("vit_digits")
    model.spec = spec
    return model
"""


def test_a_network_with_a_builder_needs_its_variant(add, project, tmp_path):
    """An entry of a new variant could not name the function."""
    project.joinpath("acme", "nets.py").write_text(BUILDER)
    text = MANIFEST.replace('source = "made', 'builder = "acme.nets:build"\nsource = "made')
    manifest(project).write_text(text)
    save_file(fill(vitzoo.create("vit_digits")).state_dict(), tmp_path / "w.safetensors")
    args = (tmp_path / "w.safetensors", "--variant", "acme/digits", "--preprocessing", "vit_digits")
    code, _, err = add("letters", *args)
    assert code == 2, err
    says(err, "acme/digits", "builder", manifest(project), "VARIANT:WEIGHTS")
    assert manifest(project).read_text() == text
    code, _, err = add("digits:v1", *args)
    assert code == 0, err
    assert vitzoo.create("acme/digits", pretrained=True).load_report.sha256


@pytest.mark.parametrize("fault", ["full", "changed"])
def test_both_files_are_written_or_none(add, project, weights, monkeypatch, fault):
    def copy(_source, file):
        file.write(b"half")
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return "0" * 64

    monkeypatch.setattr("vitzoo.authoring.registry_add.copy_hashed", copy)
    code, _, err = add("letters", weights[0])
    assert code == 1
    expected = {"full": ("letters.main.safetensors", "No space left", "make room")}
    says(err, *expected.get(fault, (weights[0], "was changed", "add it again")))
    assert manifest(project).read_text() == MANIFEST
    assert {path.name for path in project.joinpath("acme").iterdir()} <= {
        "__init__.py", "__pycache__", "data", "registry.toml",
    }  # fmt: skip
    assert not list(project.joinpath("acme", "data").iterdir())
