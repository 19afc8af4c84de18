"""`vitzoo registry add`: a weights file becomes an entry of the user's registry file."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitzoo
from helpers import fill, says
from internals import COMMIT
from vitzoo.testing import Hub

EMPTY = "# mine\napi = 1\n"
GIVEN = ("--license", "proprietary", "--source", "run 7")
INPUTS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def add(add_with, tmp_path, monkeypatch):
    """Run `vitzoo registry add` with a license, a source and the registry file `own.toml`."""
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "own.toml"))
    (tmp_path / "own.toml").write_text(EMPTY)
    monkeypatch.chdir(tmp_path)

    return lambda *args, given=GIVEN: add_with(*args, *given)


@pytest.fixture
def tuned():
    """A network that was fine-tuned to four classes."""
    return fill(vitzoo.create("vit_digits", num_classes=4))


def entry(path, name="products"):
    return tomllib.loads(path.read_text())["variants"][name]


def assert_same(model, name="local/products", inputs=INPUTS):
    """Check that the registered weights give the outputs of a model."""
    again = vitzoo.create(name, pretrained=True).eval()
    assert again.load_report.reinitialised == ()
    with torch.inference_mode():
        assert torch.equal(again(inputs), model.eval()(inputs))


def test_a_saved_file_states_everything(add, tmp_path):
    """Network, class names and preprocessing come from the metadata."""
    model = vitzoo.create("vit_digits", num_classes=4, block={"norm_eps": 1e-3}, pool="mean")
    fill(model).labels = ("a", "b", "c", "d")
    model.output_activation = "sigmoid"
    model.preprocessing = vitzoo.Preprocessing(mean=(0.25,), std=(0.75,), crop_pct=0.8)
    path = vitzoo.save(model, tmp_path / "weights.safetensors")
    code, out, err = add("products", "weights.safetensors")
    assert code == 0, err
    says(out, "local/products", "vit_digits", 4, "timm", "F32", path.stat().st_size)
    table = entry(tmp_path / "own.toml")
    row = table["weights"]["main"]
    assert row["path"] == "weights.safetensors"  # beside the registry file
    assert row["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (row["labels"], row["output_activation"]) == (["a", "b", "c", "d"], "sigmoid")
    again = vitzoo.create("local/products", pretrained=True)
    assert (again.labels, again.output_activation) == (model.labels, "sigmoid")
    assert table["params"] == sum(p.numel() for p in model.parameters())
    assert_same(model)
    variant = vitzoo.describe("local/products")
    assert variant.base == "vit_digits"
    assert variant.default_weights.preprocessing == model.preprocessing
    assert variant.default_weights.license == "proprietary"


def test_a_file_of_tensors_needs_a_variant(add, tuned, tmp_path):
    save_file(tuned.state_dict(), tmp_path / "weights.safetensors")
    code, _, err = add("products", "weights.safetensors")
    assert code == 2
    says(err, "weights.safetensors", "--variant", "shapes")
    assert (tmp_path / "own.toml").read_text() == EMPTY
    code, out, err = add("products", "weights.safetensors", "--variant", "vit_digits")
    assert code == 0, err
    says(out, "that of vit_digits")  # the preprocessing
    assert_same(tuned)
    assert vitzoo.verify("local/products")[0].state == "ok"


CONFIG = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-2,
    "id2label": {str(i): f"class {i}" for i in range(4)},
}


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, CONFIG], ids=["format", "config"])
def test_settings_that_no_tensor_shows_are_kept(add, tmp_path, config):
    """The norm epsilon is that of transformers or of a config; both differ from vit_ti16's."""
    folder = tmp_path / "hf"
    folder.mkdir()
    source = vitzoo.save(fill(vitzoo.create("vit_ti16", num_classes=4)), tmp_path / "a.safetensors")
    vitzoo.convert(source, "transformers_vit", folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
        model = vitzoo.create(folder)
    else:
        (folder / "config.json").unlink(missing_ok=True)
        file = folder / "model.safetensors"
        model = vitzoo.create("vit_ti16", weights=file, num_classes=4)
    assert model.spec.block.norm_eps == (1e-2 if config else 1e-12)
    variant = () if config else ("--variant", "vit_ti16")
    code, _, err = add("products", folder, *variant, "--preprocessing", "vit_b16")
    assert code == 0, err
    row = entry(tmp_path / "own.toml")["weights"]["main"]
    assert row["format"] == "transformers_vit"
    assert row.get("labels") == (list(CONFIG["id2label"].values()) if config else None)
    assert row.get("block") == ({"norm_eps": 1e-2} if config else None)
    assert_same(model, inputs=torch.randn(1, 3, 224, 224))


def test_a_network_without_a_name_is_written_whole(add, small, tmp_path):
    model = fill(vitzoo.create(small | {"pool": "mean", "block": {"layer_scale": 1e-5}}))
    model.preprocessing = vitzoo.Preprocessing()
    vitzoo.save(model, tmp_path / "weights.safetensors")
    code, _, err = add("products", "weights.safetensors")
    assert code == 0, err
    assert "variant" not in entry(tmp_path / "own.toml")
    assert_same(model, inputs=torch.randn(2, 3, 32, 32))


def test_a_file_without_classifier_gives_features(add, tmp_path):
    model = fill(vitzoo.create("vit_digits", num_classes=0))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    code, _, err = add("products", "weights.safetensors", "--variant", "vit_digits")
    assert code == 0, err
    assert vitzoo.describe("local/products").spec.num_classes == 0
    assert_same(model)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with Hub() as server:
        for name, value in server.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.slow
def test_a_repository_of_the_hub_is_pinned_by_its_commit(add, tuned, hub, tmp_path):
    path = vitzoo.save(tuned, tmp_path / "weights.safetensors")
    sha256 = hub.add("acme/products", "model.safetensors", path.read_bytes())
    with pytest.warns(vitzoo.FirstUseWarning):
        code, _, err = add("products", "hf://acme/products")
    assert code == 0, err
    row = entry(tmp_path / "own.toml")["weights"]["main"]
    assert (row["repo"], row["file"], row["revision"]) == (
        "acme/products",
        "model.safetensors",
        COMMIT,
    )
    assert (row["pin"], row["sha256"], row["size"]) == ("confirmed", sha256, path.stat().st_size)
    assert_same(tuned)


# What is refused, and leaves the registry file as it is.


@pytest.fixture
def weights(tuned, tmp_path):
    save_file(tuned.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_a_name_is_replaced_only_by_force(add, weights, tmp_path):
    file = tmp_path / "own.toml"
    head = "# ours\r\napi = 1\r\n\r\n[variants.other] # kept\r\nvariant = 'vit_digits'\r\n"
    head += "summary = 'x'\r\nsource = 'x'\r\n"
    file.write_bytes(head.encode())
    assert add("products", weights, "--variant", "vit_digits")[0] == 0
    assert file.read_bytes().startswith(head.encode())
    assert b"\n" not in file.read_bytes().replace(b"\r\n", b"")
    before = file.read_bytes()
    code, _, err = add("products", weights, "--variant", "vit_digits")
    assert code == 1
    says(err, file, "'products'", "--force")
    assert file.read_bytes() == before
    code, _, err = add("products", weights, "--variant", "vit_digits", "--force", "--summary", "v2")
    assert code == 0, err
    assert entry(file)["summary"] == "v2"
    assert file.read_bytes().startswith(head.encode())
    assert file.read_bytes().count(b"[variants.products]") == 1


@pytest.mark.slow
def test_a_dry_run_prints_the_tables(add, weights, tmp_path):
    code, out, _ = add("local/products", weights, "--variant", "vit_digits", "--dry-run")
    assert code == 0
    table = tomllib.loads(out)["variants"]["products"]
    assert (table["variant"], table["num_classes"]) == ("vit_digits", 4)
    assert (tmp_path / "own.toml").read_text() == EMPTY
    code, out, _ = add("products", weights, "--variant", "vit_digits", "--dry-run", "--json")
    assert json.loads(out)["sha256"] == table["weights"]["main"]["sha256"]


def test_a_new_registry_file_is_written_and_named(add, weights, tmp_path, monkeypatch):
    monkeypatch.delenv("VITZOO_REGISTRY")
    code, _, err = add("products", weights, "--variant", "vit_digits")
    assert code == 2
    says(err, "VITZOO_REGISTRY", "--file", "vitzoo.toml")
    file = tmp_path / "team" / "zoo.toml"
    file.parent.mkdir()
    code, _, err = add("products", weights, "--variant", "vit_digits", "--file", file)
    assert code == 0, err
    says(err, f"export VITZOO_REGISTRY={file}")
    assert entry(file)["weights"]["main"]["path"] == str(weights)  # not below its folder
    monkeypatch.setenv("VITZOO_REGISTRY", str(file))
    assert vitzoo.verify("local/products")[0].state == "ok"
    new = tmp_path / "new.toml"
    monkeypatch.setenv("VITZOO_REGISTRY", f"{new}{os.pathsep}{file}")
    code, _, err = add("b", weights, "--variant", "vit_digits", "--dry-run")
    assert (code, new.exists()) == (0, False), err
    code, _, err = add("b", weights, "--variant", "vit_digits")
    assert code == 0, err
    assert "export" not in err
    assert [row.name for row in vitzoo.variants("local/*")] == ["local/b", "local/products"]


def test_a_name_in_another_file_is_refused(add, weights, tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    assert add("products", weights, "--variant", "vit_digits", "--file", other)[0] == 0
    file = tmp_path / "own.toml"
    monkeypatch.setenv("VITZOO_REGISTRY", f"{file}{os.pathsep}{other}")
    code, _, err = add("products", weights, "--variant", "vit_digits", "--force")
    assert code == 1
    says(err, "local/products")
    assert file.read_text() == EMPTY
    folder = tmp_path / "none" / "own.toml"
    code, _, err = add("b", weights, "--variant", "vit_digits", "--file", folder)
    assert code == 2
    says(err, folder.parent)


FILE = ("products", "weights.safetensors", "--variant", "vit_digits")
REFUSED = {
    "name": (("Products", "weights.safetensors"), 2, ("'Products'", "lower-case")),
    "missing": (("products", "none.safetensors", *FILE[2:]), 1, ("none.safetensors",)),
    "unknown-variant": ((*FILE[:3], "vit_digit"), 1, ("vit_digits",)),
    "other-variant": ((*FILE[:3], "vit_ti16"), 1, ("fit",)),
    "hash-of-a-file": ((*FILE, "--sha256", "0" * 64), 2, ("--sha256", "https")),
    "unknown-labels": ((*FILE, "--label-set", "x"), 2, ("'x'", "imagenet-1k")),
    "other-labels": ((*FILE, "--label-set", "imagenet-1k"), 2, ("imagenet-1k", "1000", "4")),
    "channels": ((*FILE, "--preprocessing", "vit_b16"), 2, ("3 means", "--preprocessing")),
    "http": (("products", "http://h.example/x.npz"), 2, ("https address",)),
    "password": (
        ("products", "https://u:s3cret@h.example/x.npz"),
        2,
        ("https address", "password"),
    ),
    "no-hash": (("products", "https://h.example/x.npz?s3cret"), 2, ("--sha256", "sha256sum")),
    "bad-hash": (("products", "https://h.example/x.npz", "--sha256", "AB"), 2, ("'AB'", "64")),
}


TWIG = """\
from torch import nn

class Twig(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        super().__init__()
        self.num_classes, self.pre_logits_dim = num_classes, in_dim
        self.twig = nn.Linear(in_dim, num_classes) if num_classes else nn.Identity()

    def forward(self, x, pre_logits=False):
        return x if pre_logits else self.twig(x)

    def reset(self, num_classes):
        return Twig(in_dim=self.pre_logits_dim, num_classes=num_classes)

def mixer(spec):
    patches = nn.Conv2d(spec.in_chans, 16, spec.patch_size, spec.patch_size)
    pool = nn.AdaptiveAvgPool1d(1)
    classifier = nn.Linear(16, spec.num_classes)
    return nn.Sequential(patches, nn.Flatten(2), pool, nn.Flatten(), classifier)
"""
PLUGIN = """\
api = 1
[heads.twig]
target = "acme.parts:Twig"
summary = "a head"
[variants.parts]
summary = "digits"
embed_dim = 64
depth = 1
num_heads = 4
mlp_dim = 256
patch_size = 7
image_size = 28
in_chans = 1
num_classes = 10
head = "acme/twig"
params = 55114
source = "made up"
[variants.built]
summary = "a mixer"
builder = "acme.parts:mixer"
accepts = ["num_classes"]
patch_size = 7
image_size = 28
in_chans = 1
num_classes = 10
params = 970
source = "made up"
"""


@pytest.mark.parametrize("name", ["parts", "built"])
@pytest.mark.parametrize("num_classes", [10, 4])
def test_a_classifier_has_any_name(add, install, tmp_path, name, num_classes):
    """The names are those of the network that `create` builds, of parts or by a builder."""
    files = {"acme/__init__.py": "", "acme/parts.py": TWIG, "acme/registry.toml": PLUGIN}
    install("acme-parts", "acme = acme:registry.toml", files)
    model = fill(vitzoo.create(f"acme/{name}", num_classes=num_classes))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    arguments = ("--variant", f"acme/{name}", "--preprocessing", "vit_digits")
    code, out, err = add("products", "weights.safetensors", *arguments)
    assert code == 0, err
    says(out, f"acme/{name}", num_classes)
    assert entry(tmp_path / "own.toml").get("num_classes", 10) == num_classes
    assert_same(model)


@pytest.mark.parametrize(("args", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(add, weights, tmp_path, args, code, words):
    assert weights.exists()
    found, _, err = add(*args)
    assert found == code, err
    says(err, *words)
    assert "s3cret" not in err
    assert (tmp_path / "own.toml").read_text() == EMPTY


@pytest.mark.parametrize("given", [GIVEN[:2], GIVEN[2:], ("--license", " ", *GIVEN[2:])])
def test_license_and_source_are_required(add, weights, given):
    code, _, err = add("products", weights, "--variant", "vit_digits", given=given)
    assert code == 2
    missing = "--source" if given == GIVEN[:2] else "--license"
    says(err, missing, "expected")


def test_a_prefix_of_all_names_is_refused(add, weights, tmp_path):
    tensors = {f"module.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, tmp_path / "prefix.safetensors")
    code, _, err = add("products", "prefix.safetensors", "--variant", "vit_digits")
    assert code == 1
    says(err, "prefix.safetensors", "'module.'")


def test_a_file_that_lacks_a_tensor_is_refused(add, weights, tmp_path):
    """Nothing is newly initialised, as it would be for a user who asks for other classes."""
    tensors = load_file(weights)
    del tensors["head.bias"]
    save_file(tensors, tmp_path / "less.safetensors")
    code, _, err = add("products", "less.safetensors", "--variant", "vit_digits")
    assert code == 1
    says(err, "less.safetensors", "missing", "head.bias")


def test_weights_with_nan_are_refused(add, weights, tmp_path):
    tensors = load_file(weights)
    tensors["head.bias"][0] = float("nan")
    save_file(tensors, tmp_path / "nan.safetensors")
    code, _, err = add("products", "nan.safetensors", "--variant", "vit_digits")
    assert code == 1
    says(err, "NaN", "head.bias")


def test_no_default_preprocessing_is_made_up(add, tmp_path):
    model = fill(vitzoo.create("vit_digits", in_chans=2))
    model.preprocessing = None
    vitzoo.save(model, tmp_path / "weights.safetensors")
    code, _, err = add("products", "weights.safetensors")
    assert code == 2
    says(err, "preprocessing", "--preprocessing")


def test_the_manifest_of_a_plugin_is_refused_as_one(add, tmp_path, tuned):
    path = vitzoo.save(tuned, tmp_path / "net.safetensors")
    manifest = tmp_path / "plugin.toml"
    text = 'api = 1\nheads.x = { target = "acme.parts:X", summary = "s" }\n'
    manifest.write_text(text)
    code, _, err = add("products", path, "--file", manifest)
    assert code == 1
    says(err, manifest, "manifest of a plugin", "--file", "registry file of yours")
    assert manifest.read_text() == text
