"""Without its plugins, vitzoo knows their variants and names the command that installs them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import refuses, says
from internals import FIRST_PARTY, available, install_command
from vitzoo.errors import CheckpointError, UnknownName

DINO = "pip install ./plugins/vitzoo-dino"
USES = [vitzoo.create, vitzoo.describe, vitzoo.fetch, vitzoo.labels, vitzoo.transform]


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize("use", USES)
def test_a_variant_of_a_plugin_is_refused_with_the_command_that_installs_it(use):
    for name in ("dinov2/vit_b14", "dinov2/vit_b14:lvd142m"):
        with refuses(UnknownName, "dinov2/vit_b14", "plugin 'dinov2'", DINO):
            use(name)


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize("command", ["show", "fetch", "summary"])
def test_a_command_names_the_plugin_and_asks_no_hub(run, command):
    code, out, err = run(command, "dinov2/vit_b14")
    assert (code, out) == (1, "")
    says(err, "'dinov2/vit_b14'", DINO)


@pytest.mark.usefixtures("core_alone")
def test_parts_and_states_of_a_plugin_name_the_command(run):
    says(run("plugins", "check", "dinov2")[2], "'dinov2'", DINO)
    with refuses(UnknownName, "'deit/distilled'", "pip install ./plugins/vitzoo-deit"):
        vitzoo.create("vit_b16", head="deit/distilled")


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize("name", ["dinov2/vit_b15", "timm/swin_b", "mae/x", "mim/net"])
def test_a_name_that_the_table_lacks_advises_an_update(name):
    namespace = name.partition("/")[0]
    update = f"pip install . ./plugins/{FIRST_PARTY[namespace]}"
    with refuses(UnknownName, repr(name), f"plugin '{namespace}'", "update", update) as caught:
        vitzoo.create(name)
    near = "did you mean 'dinov2/vit_b14'" in str(caught.value)
    assert near is (name == "dinov2/vit_b15")
    assert "hf://" not in str(caught.value)


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("known", "library", "call"),
    [
        ("vit_base_patch14_dinov2", "timm", "'dinov2/vit_b14', pretrained=True"),
        ("vit_base_patch14_dinov2.lvd142m", "timm", "'dinov2/vit_b14', weights='lvd142m'"),
        ("timm/vit_base_patch14_dinov2.lvd142m", "the Hub", "weights='lvd142m'"),
        ("facebook/dinov2-base", "transformers", "weights='facebook_lvd142m'"),
        ("hf://facebook/dinov2-base", "transformers", "weights='facebook_lvd142m'"),
        ("vit_base_patch16_224.mae", "timm", "'mae/vit_b16', weights='mae'"),  # and not vit_b16
    ],
)
def test_a_name_of_another_library_is_answered_without_the_plugin(run, known, library, call):
    code, out, err = run("which", known, "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert call in row["create"]
    assert library in row["known_as"]
    says(err, row["name"], install_command(row["name"].partition("/")[0]))
    if not known.startswith("hf://"):
        with refuses(UnknownName, repr(known), library, row["create"]):
            vitzoo.create(known)


@pytest.mark.usefixtures("core_alone")
def test_which_answers_for_a_variant_and_its_weights(run):
    installed = json.loads(run("which", "vit_b16", "--json")[1])[0]
    for name, weights in (("dinov2/vit_b14", None), ("dinov2/vit_b14:lvd142m", "lvd142m")):
        code, out, err = run("which", name, "--json")
        (row,) = json.loads(out)
        assert (code, list(row)) == (0, list(installed))
        assert (row["name"], row["kind"], row["weights"]) == ("dinov2/vit_b14", "variant", weights)
        assert row["plugin"] == "dinov2 (vitzoo-dino, not installed)"
        says(err, "vitzoo-dino", DINO)
    code, out, err = run("which", "dinov2/vit_b14:nope")
    assert (code, out) == (1, "")
    says(err, "'dinov2/vit_b14'", DINO)


@pytest.mark.usefixtures("core_alone")
def test_a_tag_without_an_entry_is_refused(run):
    tag = "vit_base_patch14_dinov2.nope"
    code, out, err = run("which", tag)
    assert (code, out) == (1, "")
    says(err, repr(tag), "dinov2/vit_b14", "lvd142m", "'nope'", DINO)


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("known", "names"),
    [
        ("vit_base_patch16_224.augreg_in21k", ["vit_b16"]),
        ("ViT-B/16", ["vit_b16"]),  # also the name of clip/vit_b16
        ("eva_large_patch14_196", ["eva/vit_l14_196", "timm/eva_large_patch14_196"]),
    ],
)
def test_what_is_installed_comes_first_and_timms_own_code_last(run, known, names):
    rows = json.loads(run("which", known, "--json")[1])
    assert [row["name"] for row in rows] == names


def test_only_plugins_that_are_not_installed_are_available():
    def zoo(*absent):
        there = {name: owner for name, owner in FIRST_PARTY.items() if owner not in absent}
        return SimpleNamespace(host=SimpleNamespace(infos=there))

    rows = available.available(zoo("vitzoo-dino", "vitzoo-sbb"))
    assert {row["plugin"] for row in rows} == {"vitzoo-dino", "vitzoo-sbb"}
    assert {"dinov2", "sbb"} < {row["namespace"] for row in rows}
    assert available.available(zoo()) == []


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("config", "plugin"),
    [
        ({"model_type": "metaclip_2"}, "vitzoo-clip"),
        ({"model_type": "data2vec-vision"}, "vitzoo-mim"),
        ({"model_type": "llava", "vision_config": {"model_type": "pixio"}}, "vitzoo-encoders"),
    ],
)
def test_a_model_type_of_a_plugin_names_the_command(tmp_path, config, plugin):
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refuses(CheckpointError, config["model_type"], f"pip install ./plugins/{plugin}"):
        vitzoo.create(tmp_path)
