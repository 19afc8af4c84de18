"""Files written by `vitzoo.save`, given as the weights of a name or a spec: they still count."""

import json
from pathlib import PurePosixPath, PureWindowsPath

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file, save_file

import vitzoo
from create_helpers import PARTS_BY_NAME, refused
from helpers import close, refuses, says
from internals import Trunk, cli
from tables import cases
from vitzoo.errors import CheckpointError, VitzooError

ROW = vitzoo.Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1), crop_mode="squash")


@pytest.fixture
def saved(small, tmp_path, randomise):
    """Save a network that differs from `small`, with labels and preprocessing."""

    def save(**arguments):
        model = randomise(vitzoo.create(small, **arguments))
        model.labels = tuple(f"kind {i}" for i in range(model.num_classes))
        model.preprocessing = ROW
        return model, vitzoo.save(model, tmp_path / "net.safetensors")

    return save


def tamper(path, change):
    """Change the account in a file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.loads(json.loads(file.read(size))["__metadata__"]["vitzoo"])
    save_file(load_file(path), path, {"vitzoo": json.dumps(change(table))})
    return path


@pytest.mark.slow
@cases(
    "arguments",
    [
        {"block": {"norm_eps": 1e-2}},
        {"block": {"activation": "quick_gelu"}},
        {"block": {"qk_scale": 1.5}},
        {"block": {"parallel": False, "qk_norm": True, "layer_scale": 0.1}},
        {"block": {"mlp": "swiglu_packed"}},
        {"pool": "mean"},
        {"pool": "attention"},
        {"pool": {"name": "mean", "norm_first": False}},
        {"pos_embed": "rope"},
        {"pos_embed": {"name": "sincos_2d", "temperature": 100.0}},
        {"pos_embed": {"name": "learned", "where": "layers_shared"}},
        {"patch_embed": {"name": "conv", "bias": False}},
        {"head": {"name": "mlp", "hidden_dim": 16}},
    ],
    ids=str,
)
def test_the_network_of_the_file_counts(saved, small, images, arguments):
    model, path = saved(**arguments)
    again = vitzoo.create(small, weights=path).eval()
    close(again(images), model(images))
    assert (again.labels, again.preprocessing) == (model.labels, ROW)
    assert again.load_report.assumed == ()
    if "mlp" not in arguments.get("block", {}):
        plain = vitzoo.create(small).eval()
        if plain.state_dict().keys() == model.state_dict().keys():
            plain.load_state_dict(model.state_dict())
            assert not torch.allclose(plain(images), model(images)), "the flip shows"


@pytest.fixture
def finetuned(local_registry, randomise, tmp_path):
    """A registered variant with other classes and another epsilon, saved."""
    local_registry()
    model = randomise(vitzoo.create("local/net", num_classes=3, block={"norm_eps": 1e-2}))
    model.labels, model.preprocessing = ("a", "b", "c"), ROW
    return model, vitzoo.save(model, tmp_path / "net.safetensors")


def test_a_registered_name_takes_classes_and_labels(finetuned, images):
    model, path = finetuned
    again = vitzoo.create("local/net", weights=path).eval()
    close(again(images), model(images))
    assert again.labels == ("a", "b", "c")
    other = vitzoo.create("local/net", weights=path, num_classes=4)
    assert (other.num_classes, other.labels) == (4, ())
    assert other.load_report.reinitialised == ("head.weight", "head.bias")


def test_what_the_caller_says_comes_first_and_is_reported(finetuned, saved, small):
    _, path = finetuned
    model = vitzoo.create("local/net", weights=path, block={"norm_eps": 1e-3}, pool="mean")
    assert (model.spec.block.norm_eps, model.spec.pool.name) == (1e-3, "mean")
    pool, epsilon = model.load_report.assumed
    says(pool, "pool = mean", "class")
    says(epsilon, "block.norm_eps = 0.001", 0.01)
    _, path = saved(pool="mean")
    stated = vitzoo.create(small | {"pool": "class"}, weights=path)
    assert stated.spec.pool.name == "class"
    (pool,) = stated.load_report.assumed
    says(pool, "pool = class", "mean")


def test_other_heads_are_refused(saved, small):
    _, path = saved()
    with refuses(CheckpointError, "net.safetensors", "2 attention heads", 4):
        vitzoo.create(small | {"num_heads": 4}, weights=path)


def test_another_image_size_has_to_be_asked_for(saved, small):
    """A table of 2 x 8 patches has as many rows as one of 4 x 4."""
    model, path = saved(image_size=(16, 64))
    plain = {key: value for key, value in small.items() if key != "image_size"}
    with refuses(CheckpointError, "16x64 px", "224x224", "image_size=(16, 64)"):
        vitzoo.create(plain, weights=path)
    again = vitzoo.create(plain, weights=path, image_size=(16, 64)).eval()
    wide = torch.randn(1, 3, 16, 64)
    close(again(wide), model(wide))
    moved = vitzoo.create(small, weights=path)
    assert moved.load_report.resampled == ("pos_embed",)
    model.set_input_size(32)
    assert torch.equal(moved.pos_embed, model.pos_embed)


@pytest.mark.parametrize("field", ["pos_embed", "patch_embed", "head", "pool"])
def test_a_part_that_is_not_registered(saved, small, field):
    path = tamper(saved()[1], lambda t: t | {"spec": t["spec"] | {field: "gone/part"}})
    with refuses(CheckpointError, path, f"{field} 'gone/part'", f"{field}="):
        vitzoo.create(small, weights=path)
    part = {"pos_embed": "learned", "patch_embed": "conv", "head": "linear", "pool": "class"}
    vitzoo.create(small, weights=path, **{field: part[field]})


def test_a_variant_that_is_not_registered_does_not_matter(saved, small, images):
    model, path = saved(pool="mean")
    tamper(path, lambda t: t | {"spec": t["spec"] | {"variant": "gone/net"}})
    close(vitzoo.create(small, weights=path).eval()(images), model(images))
    tamper(path, lambda t: t | {"spec": {"variant": "gone/net"}})
    with refuses(VitzooError, path, "'gone'"):
        vitzoo.create(small, weights=path)


@cases(
    ("change", "parts"),
    [
        (lambda _: [], ["table", "[]"]),
        (lambda _: {}, ["missing", "'api'"]),
        (lambda t: t | {"api": 99}, ["newer", "git pull && ", "pip install ."]),
        (lambda t: t | {"labels": [1]}, ["labels", "list of strings", "[1]"]),
        (lambda t: t | {"preprocessing": {"mean": [1]}}, ["preprocessing", "missing"]),
        (lambda t: t | {"spec": t["spec"] | {"depht": 2}}, ["spec", "'depht'", "'depth'"]),
        (lambda t: t | {"spec": t["spec"] | {"pool": "os:system"}}, ["pool", "'os:system'"]),
        (lambda t: t | {"spec": t["spec"] | {"block": {"norm_eps": 2}}}, ["norm_eps", "2.0"]),
    ],
)
def test_hostile_metadata_is_refused_as_without_a_name(saved, small, change, parts):
    path = tamper(saved()[1], change)
    for arguments in ((path,), (small, path)):
        with refuses(CheckpointError, path, *parts):
            vitzoo.create(arguments[0], weights=arguments[1] if arguments[1:] else None)


def test_predict_prints_the_labels_of_the_file(finetuned, tmp_path):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "red.png")
    arguments = ["predict", "local/net", str(tmp_path / "red.png"), "--weights", str(finetuned[1])]
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert {row["label"] for row in json.loads(done.stdout)[0]["classes"]} == {"a", "b", "c"}


@pytest.fixture
def tampered(small, tmp_path):
    """Save a model, replace its metadata and return its path."""

    def tamper(metadata):
        path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
        if not isinstance(metadata, str):
            table = {"api": 1, "spec": small, "labels": [], "preprocessing": None}
            metadata = json.dumps(metadata(table))
        save_file(load_file(path), path, {"vitzoo": metadata})
        return path

    return tamper


@cases(
    ("metadata", "parts"),
    [
        ("", ["JSON", "column 1"]),
        ("{", ["JSON", "column 2"]),
        ("[" * 100_000, ["JSON"]),
        ("[]", ["table", "[]", "(list)"]),
        ("{}", ["missing", "'api'"]),
        (lambda t: t | {"api": 99}, ["newer", "git pull && ", "pip install ."]),
        (lambda t: t | {"api": "1"}, ["api", "whole number", "'1'", "(str)"]),
        (
            lambda t: t | {"extra": 1},
            ["'extra'", "api, labels, made_from, plugins, preprocessing, spec"],
        ),
        (lambda t: t | {"spec": []}, ["spec", "table", "[]", "(list)"]),
        (lambda t: t | {"plugins": []}, ["plugins", "table", "[]", "(list)"]),
        (lambda t: t | {"plugins": {"gone": 1}}, ["plugins", "gone", "string", 1, "(int)"]),
        (lambda t: t | {"plugins": {"gone": "a\n"}}, ["gone", "printable", r"'a\n'"]),
        (lambda t: t | {"labels": "abcde"}, ["labels", "list", "'abcde'", "(str)"]),
        (lambda t: t | {"labels": [1]}, ["labels", "list of strings", "[1]"]),
        (lambda t: t | {"preprocessing": 1}, ["preprocessing", "table", 1, "(int)"]),
        (lambda t: t | {"preprocessing": {"mean": [1]}}, ["preprocessing", "missing", "'std'"]),
        (lambda t: t | {"spec": t["spec"] | {"depth": 0.5}}, ["spec", "depth", "whole", 0.5]),
        (lambda t: t | {"spec": t["spec"] | {"depht": 2}}, ["spec", "'depht'", "'depth'"]),
        (
            lambda t: t | {"spec": t["spec"] | {"head": "os:system"}},
            ["spec", "head", "'os:system'", *PARTS_BY_NAME, "never imports"],
        ),
        (
            lambda t: t | {"spec": t["spec"] | {"head": {"name": "canary_part:Head"}}},
            ["spec", "head", "'canary_part:Head'", *PARTS_BY_NAME, "never imports"],
        ),
    ],
)
@pytest.mark.usefixtures("canary")
def test_tampered_metadata_is_refused(tampered, metadata, parts):
    path = tampered(metadata)
    says(refused(CheckpointError, path), path, *parts)


def test_metadata_of_another_network_does_not_fit(tampered):
    path = tampered(lambda t: t | {"spec": t["spec"] | {"depth": 3}})
    says(refused(CheckpointError, path), path, "12 missing", "blocks.2.")


# Plugins that are not installed


HEAD = """\
from vitzoo.parts.heads import LinearHead

class Flat(LinearHead):
    pass
"""
MANIFEST = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[variants.net]
summary = "a network"
embed_dim = 32
depth = 1
num_heads = 2
mlp_dim = 32
patch_size = 8
image_size = 16
num_classes = 5
params = 1
source = "made up"
"""


@pytest.fixture
def with_plugin(install, new_registry, small, tmp_path):
    """Save a network with a part or of a variant of a plugin, then remove that plugin."""

    def save(spec=None, **arguments):
        files = {"acme/__init__.py": "", "acme/parts.py": HEAD, "acme/registry.toml": MANIFEST}
        root = install("acme-vit", "acme = acme:registry.toml", files)
        model = vitzoo.create(spec or small, **arguments)
        path = vitzoo.save(model, tmp_path / "net.safetensors")
        (root / "acme_vit-1.0.dist-info").rename(root / "gone")
        new_registry()
        return path

    return save


TRUST = "install it only if you trust its author"
STATED = ("'acme'", "not installed", "distribution 'acme-vit' (not checked)", TRUST)


@pytest.mark.usefixtures("own_home")
def test_a_part_of_a_plugin_that_is_not_installed(with_plugin, small):
    path = with_plugin(head="acme/flat")
    with refuses(CheckpointError, path, *STATED):
        vitzoo.create(path)
    with refuses(CheckpointError, path, "head 'acme/flat'", "head=", *STATED[2:]):
        vitzoo.create(small, weights=path)
    assert vitzoo.create(path, head="linear").num_classes == 5


@pytest.mark.usefixtures("own_home")
def test_a_variant_of_a_plugin_that_is_not_installed(with_plugin):
    path = with_plugin("acme/net")
    with refuses(CheckpointError, path, *STATED):
        vitzoo.create(path)


@pytest.mark.parametrize(
    ("change", "parts", "command"),
    [
        ({"head": "deit/distilled"}, ("'deit'", "pip install ./plugins/vitzoo-deit"), True),
        ({"head": "gone/part"}, ("'gone'", "does not state"), False),
        ({"variant": "gone/net"}, ("'gone'", "does not state"), False),
    ],
)
def test_an_install_command_is_for_first_party_plugins(
    saved, change, parts, command, monkeypatch, new_registry
):
    """What a file states of first-party namespaces is not used."""
    path = saved()[1]
    tamper(path, lambda t: t | {"spec": t["spec"] | change, "plugins": {"deit": "evil-package"}})
    monkeypatch.setattr("vitzoo.plugin.host.find_plugins", list)
    new_registry()
    text = refused(CheckpointError, path)
    says(text, path, *parts)
    assert ("pip install" in text) == command
    assert "evil" not in text


def test_a_network_of_the_core_states_no_plugin(saved):
    tables = []
    tamper(saved()[1], lambda t: tables.append(t) or t)
    assert "plugins" not in tables[0]


@pytest.mark.parametrize("kind", [PurePosixPath, PureWindowsPath])
def test_a_classifier_names_a_file_without_a_folder(monkeypatch, kind):
    monkeypatch.setattr("vitzoo.checkpoint.description.PurePath", kind)
    assert [name for name in ("net", "a/b", "../net", ".net") if Trunk.can_name(name)] == ["net"]
    of_posix = kind is PurePosixPath  # on Windows, these are elsewhere
    assert [Trunk.can_name(name) for name in ("a\\net", "C:net")] == [of_posix, of_posix]
