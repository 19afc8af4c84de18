"""`vitzoo list`, `show` and `which`, piped, on a terminal and with plugins."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from plugin_files import GLOBEX, UNTOUCHABLE
from terminal import on_terminal
from vitzoo.cli.browse import _overrides
from vitzoo.registry.registry import describe
from vitzoo.schema.rows import Weights
from vitzoo.schema.spec import PartSpec

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


def test_show_names_the_switch_of_a_first_party_plugin_that_is_off(run, install, monkeypatch):
    install("vitzoo-clip", "clip = acme:registry.toml", UNTOUCHABLE)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "clip")
    code, _, err = run("show", "clip/net")
    assert code == 1
    says(err, "plugin 'clip'", "VITZOO_DISABLE_PLUGINS", "'clip'")


@pytest.mark.parametrize("value", ["acme:registry.toml", "acme.plugin"])
def test_list_of_a_namespace_suggests_its_pattern(run, install, value):
    module = {"acme/plugin.py": "raise ImportError('nobody may import me')"}
    install("acme-parts", f"acme = {value}", UNTOUCHABLE | module)
    code, out, err = run("list", "acme", "nothing")
    assert (code, out) == (1, "")
    says(err, "'acme'", "'nothing'", "'acme/*'")
    assert "nobody may import me" not in err
    says(run("list", "core")[2], "'core'", "`vitzoo list`")


@pytest.mark.usefixtures("acme")
def test_list_finds_a_former_name_listed_before_or_not(run, monkeypatch):
    for _ in range(2):  # the second listing reads no manifest
        code, out, err = run("list", "acme/old", "-q")
        assert (code, out) == (0, "acme/net\n")
        says(err, "'acme/old'", "former name", "'acme/net'")
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/old")
    assert run("list", "acme/old", "-q")[:2] == (1, "")


def test_which_gives_file_and_line_without_importing(run, acme):
    code, out, _ = run("which", "acme/late", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert row["plugin"] == "acme (acme-parts 1.0)"
    assert row["target"] == "acme.parts:late"
    assert row["defined"] == f"{acme}/acme/parts.py:1"
    assert row["location"] == f"{acme}/acme/registry.toml:3"
    assert "acme" not in sys.modules


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("conv", "parts/patch_embed.py", "class ConvPatchEmbed(nn.Module):"),
        ("vit_b16", "build.py", "def build(spec: Spec, ready:"),
        ("timm", "formats/timm.py", "timm_vit = Format("),
    ],
)
def test_which_finds_the_line_of_the_cores_own(run, name, file, text):
    _, out, _ = run("which", name, "--json")
    path, _, line = json.loads(out)[0]["defined"].rpartition(":")
    assert Path(path) == Path(vitzoo.__file__).parent / file
    assert Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1].startswith(text)


def test_which_finds_the_line_of_an_object_of_a_module(run, install):
    root = install("globex-vit", "globex = globex.plugin", GLOBEX)
    _, out, _ = run("which", "globex/late", "--json")
    assert json.loads(out)[0]["defined"] == f"{root}/globex/plugin.py:12"


def test_list_piped_is_tab_separated_under_its_columns(run):
    code, out, err = run("list")
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert err == ""
    assert header == [
        "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights",
        "summary",
    ]  # fmt: skip
    assert next(r for r in rows if r[0] == "vit_b16")[:4] == ["vit_b16", "86567656", "224", "1000"]


def test_list_quiet_prints_names_only(run):
    code, out, _ = run("list", "-q", "vit_b16*")
    assert code == 0
    assert out.split() == ["vit_b16", "vit_b16_384", "vit_b16_in21k"]


def test_list_takes_several_patterns(run):
    _, out, _ = run("list", "-q", "vit_g14", "vit_gg*")
    assert out.split() == ["vit_g14", "vit_gg14"]


def test_list_json_has_stable_keys_and_integers(run):
    _, out, _ = run("list", "vit_l16", "--json")
    (row,) = json.loads(out)
    assert row["params"] == 304326632
    assert list(row) == [
        "name", "params", "gmacs", "activations", "image_size", "patch_size", "embed_dim", "depth",
        "num_heads", "mlp_dim", "in_chans", "num_classes", "head", "pool", "patch_embed",
        "pos_embed", "weights", "top1", "top5", "imagenet_real", "imagenet_v2", "imagenet_sketch",
        "imagenet_a", "imagenet_r", "rtx4090", "rtx4090_compiled", "pro6000_compiled",
        "i9_10940x_compiled", "i7_12700h_compiled", "license", "pin", "pretraining",
        "pretraining_data", "namespace", "paper", "summary",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params<6M and image_size=224", {"vit_ti16"}),
        ("params>=1B", {"vit_g14", "vit_gg14"}),
        ("depth=48", {"vit_gg14"}),
        ("head = tanh and embed_dim <= 768", {"vit_b16_in21k", "vit_b32_in21k"}),
        ("summary~HUGE/14 and image_size != 384 and head=linear", {"vit_h14"}),
        ("params==86567656", {"vit_b16"}),
        ("top1>87", {"vit_l16_384"}),
        ("depth=48 or depth=4", {"vit_gg14", "vit_digits"}),
        ("(depth=48 or in_chans=1) and embed_dim in (64, 100)", {"vit_digits"}),
        ("pretraining_data=imagenet-1k or pretraining_data~DIGITS", {"vit_digits"}),
    ],
)
def test_list_where(run, condition, expected):
    code, out, _ = run("list", "-q", "--where", "namespace=core", "--where", condition)
    assert code == 0
    assert set(out.split()) == expected


def test_list_where_twice_means_both(run):
    _, out, _ = run("list", "-q", "vit_*", "--where", "params<30M", "--where", "image_size=384")
    assert set(out.split()) == {"vit_ti16_384", "vit_s16_384", "vit_s32_384"}


def test_list_names_a_pattern_that_matches_nothing(run):
    code, out, err = run("list", "vit_b16", "vit_b61", "-q")
    assert (code, out) == (1, "")
    says(err, "'vit_b61'", "did you mean", "'vit_b16'")
    assert "matches 'vit_b16'" not in err
    for args in (["--local"], ["--where", "params<1k"], ["--json"]):
        assert run("list", "vit_b16", "vit_b61*", *args)[:2] == (1, "")


def test_list_accepts_a_plugin_without_variants(run):
    assert run("list", "mim/*", "-q")[:2] == (0, "")


def test_list_of_names_that_no_condition_keeps_is_empty(run):
    assert run("list", "vit_b16", "-q", "--where", "params<1k") == (0, "", "")


def test_list_sort(run):
    _, up, _ = run("list", "-q", "vit_*", "--sort", "params")
    _, down, _ = run("list", "-q", "vit_*", "--sort", "params:desc")
    assert up.split()[-1] == down.split()[0] == "vit_gg14"
    _, by_top1, _ = run("list", "-q", "vit_*", "--sort", "top1:desc")
    assert by_top1.split()[0] == "vit_l16_384"  # vit_digits' number is of another data set


def test_show_says_what_a_variant_is(run):
    _, out, _ = run("show", "vit_b16")
    facts = dict(line.split("\t") for line in out.partition("\n\n")[0].splitlines())
    assert facts["params"] == "86567656"
    assert facts["mlp_dim"] == "3072"
    assert facts["block.norm_eps"] == "1e-06"
    assert facts["paper"] == "arXiv:2010.11929"
    assert [facts[key] for key in facts if "torchvision" in key] == ["vit_b_16"]


def test_show_says_what_the_default_weights_change(run):
    rows = [line.split("\t") for line in run("show", "vit_b16_in21k")[1].splitlines()]
    ((title, _),) = [row for row in rows if row[1:] == ["block.norm_eps=1e-12"]]
    assert "default weights" in title
    for same in ("vit_b16", "vit_gg14"):  # weights without such facts, no weights
        assert "default weights\t" not in run("show", same)[1]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, ""),
        ({"block": (("activation", "gelu"), ("norm_eps", 1e-6)), "pool": PartSpec("class")}, ""),
        (
            {"block": (("activation", "quick_gelu"),), "pool": PartSpec("mean")},
            "block.activation=quick_gelu, pool=mean",
        ),
        ({"pos_embed": (("resampling", "bicubic"),)}, "pos_embed.resampling=bicubic"),
        ({"pre_norm": True}, "pre_norm=True"),
        ({"pre_norm": False}, ""),
    ],
)
def test_the_facts_that_weights_change(facts, text):
    row = Weights("w", file="w", **facts)
    assert _overrides(row, describe("vit_b16").spec) == text


def test_show_json_gives_a_spec_that_create_takes(run):
    import vitzoo as zoo

    _, out, _ = run("show", "vit_b16_in21k", "--json")
    data = json.loads(out)
    assert zoo.create(data["spec"], device="meta").spec == zoo.describe("vit_b16_in21k").spec


def test_show_states_the_pretraining_of_each_weights(run):
    weights = json.loads(run("show", "vit_b16", "--json")[1])["weights"]
    stated = {row["name"]: (row["pretraining"], row["pretraining_data"]) for row in weights}
    assert stated["augreg_in1k"] == ("supervised", "ImageNet-1k")
    assert stated["orig_in21k"] == ("supervised", "ImageNet-21k")
    table = run("show", "vit_b16")[1].partition("\n\n")[2].partition("\n\n")[2].splitlines()
    rows = [dict(zip(table[0].split("\t"), line.split("\t"), strict=True)) for line in table[1:]]
    assert {r["name"]: (r["pretraining"], r["pretraining_data"]) for r in rows} == stated


def test_show_lists_weights_with_their_hash(run):
    _, out, _ = run("show", "vit_digits", "--json")
    (weights,) = json.loads(out)["weights"]
    assert isinstance(weights["size"], int)
    assert len(weights["sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_b16", "vit_b16"),
        ("vit_base_patch16_224.augreg_in21k", "vit_b16"),
        ("vit_l_16", "vit_l16"),
        ("google/vit-base-patch16-224-in21k", "vit_b16_in21k"),
        ("google/vit-base-patch16-224", "vit_b16"),
        ("unfold", "unfold"),
    ],
)
def test_which_translates_names(run, name, expected):
    code, out, _ = run("which", name, "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == [expected]


def test_which_does_not_invent_weights(run):
    code, out, err = run("which", "vit_base_patch16_224.nope")
    assert (code, out) == (1, "")
    says(err, "'vit_base_patch16_224.nope'", "'vit_b16'", "'nope'", "timm", "augreg_in21k")


def test_which_gives_every_part_of_a_name(run):
    _, out, _ = run("which", "none", "--json")
    kinds = {row["kind"] for row in json.loads(out)}
    assert kinds == {"position embedding", "head", "drop-path policy"}


@pytest.mark.parametrize("columns", [100, 120])
def test_a_row_on_a_terminal_has_size_accuracy_license_and_pin(local_registry, columns):
    own = str(local_registry())
    screen = on_terminal(
        "list", "vit_*", "local/*", columns=columns, NO_COLOR="1", VITZOO_REGISTRY=own
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).replace("\r", "").splitlines()
    assert all(len(line) <= columns for line in lines)
    titles = ["name", "params", "px", "classes", "top1", "license", "pin"]
    assert lines[0].split() == [*titles, *(["weights"] * (columns > 110)), "summary"]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line[:1].strip()}
    assert rows["vit_b16"][:6] == ["86.6M", "224", "1000", "85.11", "Apache-2.0", "reported"]
    assert rows["vit_g14"][:6] == ["1.01B", "224", "1000", "-", "-", "-"]
    assert rows["local/net"][:6] == ["24k", "32", "5", "-", "-", "-"]
    wrapped = [line for line in lines if line and not line[0].strip()]
    assert len(wrapped) < len(rows)


def test_list_on_a_narrow_terminal_has_a_line_for_each_row():
    screen = on_terminal("list", "vit_*", columns=80, NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).replace("\r", "").splitlines()
    assert lines[0].split() == ["name", "params", "px", "classes", "top1", "license", "pin"]
    assert all(line.startswith("vit_") for line in lines[1:] if line)
    assert "…" not in screen


def test_list_on_a_narrow_terminal_names_local_weights():
    screen = on_terminal("list", "--local", columns=100)
    assert "digits_v1" in screen


def test_show_on_a_terminal_has_size_hash_and_evaluation():
    screen = on_terminal("show", "vit_s16", columns=100, NO_COLOR="1")
    assert "79c03c635cdfd798a364a9d8c4e5c0b7255b975ea2c9616046d4f77ab01435aa" in screen
    assert "  88.2 MB" in screen  # known
    assert "~88.2 MB" in screen  # predicted
    assert "ImageNet-1k validation; timm results-imagenet.csv @224 px" in screen
    assert "7e2c55630205e1266030f18370f4c6ed1a514b52" in screen
    assert "imagenet-21k" in screen
    assert "…" not in screen
