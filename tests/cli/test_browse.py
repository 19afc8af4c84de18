"""`vitzoo show` and `which`, piped, on a terminal and with plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from plugin_files import FRESH, GLOBEX, NET, UNTOUCHABLE
from tables import cases
from terminal import lines
from vitzoo import PartSpec, Weights, describe
from vitzoo.cli.browse import _overrides
from vitzoo.testing import Hub

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
        ("vit_b16", "network/build.py", "def build(spec: Spec, ready:"),
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


def test_show_prints_how_weights_were_fine_tuned(run):
    _, out, _ = run("show", "mae/vit_b16:mae")
    rows = dict(line.split("\t") for line in out.splitlines())
    says(rows["recipe"], "lr=0.002", "layer_decay=0.65", "warm_up=5", "image_size=224")
    says(rows["recipe_source"], "facebookresearch/mae, FINETUNE.md")
    assert "ema" not in rows["recipe"]  # not stated
    _, out, _ = run("show", "mae/vit_b16:mae", "--json")
    (weights,) = json.loads(out)["weights"]
    assert weights["recipe"]["lr"] == 0.002
    assert weights["recipe"]["image_size"] == [224, 224]
    _, out, _ = run("show", "vit_digits:digits_v1")
    assert "recipe" not in out


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


WIDTHS = (60, 80, 100, 140)


@pytest.mark.slow
@pytest.mark.parametrize("columns", WIDTHS)
def test_show_has_the_weights_first_and_cuts_nothing(columns):
    found = lines("show", "vit_b16", "--all", columns=columns)
    assert all(len(line) <= columns or " " not in line.strip() for line in found)  # a path is whole
    title, _, header, *rows = found
    assert title.startswith("vit_b16: ")
    assert header.split()[0] == "name"
    weights = [weights.name for weights in vitzoo.describe("vit_b16").weights]
    assert [row.split()[0] for row in rows[: len(weights)]] == weights
    assert len(found) < 95
    settings = [line.split()[0] for line in found if line and line[0] != " "]
    assert "embed_dim" in settings
    assert "class_token" not in settings
    assert "block.norm" not in settings


def test_show_names_the_settings_that_differ_from_their_defaults():
    found = lines("show", "clip/vit_b16", "--all", columns=80)
    rows = dict(line.split(maxsplit=1) for line in found if len(line.split()) > 1)
    assert rows["pre_norm"].strip() == "True"
    assert rows["patch_embed"].strip() == "conv (bias=False)"
    assert "final_norm" not in rows


def test_show_names_the_source_of_results():
    found = lines("show", "vit_b16", "--all", columns=100)
    start = found.index("results in percent")
    rows = {line.split()[0]: line.split()[1:] for line in found[start + 1 :] if line}
    top1 = found[start + 1].split().index("top1") - 1
    for weights in vitzoo.describe("vit_b16").weights:
        if weights.top1 is None:
            assert weights.name not in rows
        else:
            assert float(rows[weights.name][top1]) == weights.top1
    says(" ".join(found), *{w.evaluation for w in vitzoo.describe("vit_b16").weights if w.top1})


@pytest.mark.parametrize("columns", [60, 140])
def test_show_names_the_hardware_and_the_source_of_images_per_second(columns):
    found = lines("show", "vit_b16", "--all", columns=columns)
    table = found[found.index("speed") + 1 :]
    measured = vitzoo.describe("vit_b16").throughput
    assert measured
    for line, row in zip(table[1:], measured, strict=False):
        assert line.split()[:2] == [row.name, f"{row.images_per_second:,.0f}"]
        assert row.hardware in line
        assert (row.software in line) is (columns == 140)
    text = "".join("".join(found).split())  # long names of files are broken
    assert all(f"{row.source}{row.commit}".replace(" ", "") in text for row in measured)


@pytest.mark.parametrize("columns", [60, 160])
def test_show_prints_results_as_those_of_the_paper(columns):
    found = lines("show", "vit_h14", "--all", columns=columns)
    start = found.index("results in the paper, of no published file")
    rows = vitzoo.describe("vit_h14").paper_results
    for line, row in zip(found[start + 2 :], rows, strict=False):
        assert line.startswith(row.model or "vit_h14")
        assert row.cells["imagenet"] in line
    says(" ".join(found[start:]), *{row.source for row in rows})


def test_show_tells_the_rows_of_the_paper_apart_at_80_columns(run):
    found = lines("show", "vit_l16", "--all", columns=80)
    start = found.index("results in the paper, of no published file")
    rows = [line.split() for line in found[start + 2 : start + 6]]
    assert [row[1:4] for row in rows] == [
        ["JFT-300M", "7", "-"],
        ["JFT-300M", "14", "-"],
        ["JFT-300M", "-", "512"],
        ["ImageNet-21k", "-", "512"],
    ]
    piped = run("show", "vit_l16")[1].splitlines()
    (header,) = [line for line in piped if "imagenet\t" in line]
    assert header.startswith("model in the paper\t")


@pytest.mark.parametrize("terminal", [True, False])
def test_show_of_one_weights_entry(run, terminal):
    name = "vit_s16:augreg_in21k_ft_in1k"
    text = "\n".join(lines("show", name, columns=120)) if terminal else run("show", name)[1]
    (weights,) = [w for w in vitzoo.describe("vit_s16").weights if name.endswith(f":{w.name}")]
    says(text, weights.sha256, weights.revision, "88.2 MB", "81.402", "ImageNet-21k", "reported")
    says(text, "Apache-2.0", "allows commercial use", "ImageNet-1k validation")
    says(text, "vitzoo.create('vit_s16', pretrained=True)")
    (row,) = json.loads(run("show", name, "--json")[1])["weights"]
    assert (row["name"], row["sha256"]) == (weights.name, weights.sha256)


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False])
def test_a_file_that_was_not_seen_is_called_so(run, tmp_path, monkeypatch, new_registry, seen):
    line = "" if seen else "file_seen = false\n"
    own = tmp_path / "own.toml"
    own.write_text(NET + FRESH + line)
    monkeypatch.setenv("VITZOO_REGISTRY", str(own))
    new_registry()
    said = "trust on first use" + ("" if seen else ", file not seen")
    for args in (("local/net", "--all"), ("local/net:fresh",)):
        text = "\n".join(lines("show", *args, columns=120, VITZOO_REGISTRY=str(own)))
        assert (said in text, "not seen" in text) == (True, not seen)
    narrow = lines("show", "local/net", "--all", columns=70, VITZOO_REGISTRY=str(own))
    assert ("file not seen" in "\n".join(narrow)) is not seen
    fields = dict(line.split("\t") for line in run("show", "local/net:fresh")[1].splitlines())
    assert fields["pin"] == said
    assert json.loads(run("show", "local/net", "--json")[1])["weights"][0]["file_seen"] is seen
    (row,) = json.loads(run("list", "local/*", "--json")[1])
    assert row["file_seen"] == ("yes" if seen else "no")
    assert run("list", "local/*", "--where", "file_seen=no", "-q")[1] == (
        "" if seen else "local/net\n"
    )


@pytest.mark.parametrize("command", ["show", "which"])
def test_weights_that_do_not_exist_are_named(run, command):
    code, out, err = run(command, "vit_b16:augreg_in1")
    assert (code, out) == (1, "")
    says(err, "vit_b16", "'augreg_in1'", "'augreg_in1k'")


def test_an_address_with_a_revision_is_shown_with_what_to_type(run):
    code, _, err = run("show", "hf://acme/net@feature%2fx/a.npz")
    assert code == 1
    says(err, "vitzoo.create('hf://acme/net@feature%2Fx/a.npz')")
    assert "plugin" not in err
    code, _, err = run("show", "hf://acme/net@")
    assert code == 2
    says(err, "hf://owner/repo@revision", "'hf://acme/net@'")


@pytest.mark.slow
@cases(
    ("name", "call"),
    [
        ("vit_b16", "vitzoo.create('vit_b16', pretrained=True)"),
        ("vit_b16:augreg_in21k", "vitzoo.create('vit_b16', weights='augreg_in21k')"),
        ("vit_b16:augreg2_in21k_ft_in1k", "vitzoo.create('vit_b16', pretrained=True)"),
        ("vit_g14", "vitzoo.create('vit_g14')"),
        ("vit_base_patch16_224.augreg_in1k", "vitzoo.create('vit_b16', weights='augreg_in1k')"),
        ("vit_l_16", "vitzoo.create('vit_l16', pretrained=True)"),
        ("tanh", "vitzoo.create('vit_b16', head='tanh')"),
        ("timm", "vitzoo.create('vit_b16', weights='model.safetensors')"),
        ("acme/some-vit", "vitzoo.create('hf://acme/some-vit')"),
        ("hf:acme/vit", "vitzoo.create('hf://acme/vit')"),
    ],
)
def test_which_says_first_what_to_type(run, name, call):
    code, out, _ = run("which", name)
    header, row = (line.split("\t") for line in out.splitlines())
    assert code == 0
    assert (header[0], row[0]) == ("create", call)
    assert json.loads(run("which", name, "--json")[1])[0]["create"] == call
    if name.startswith("vit_base"):
        assert lines("which", name, columns=60)[0] == call


def test_which_knows_repositories_without_a_request(run, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    code, out, err = run("which", "hf-hub:mahmoodlab/UNI", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert row["license"] == "CC-BY-NC-ND-4.0 (gated)"
    says(row["documented"], "timm.create_model('hf-hub:MahmoodLab/UNI'", "init_values=1e-05")
    says(err, "https://huggingface.co/MahmoodLab/UNI", "gated", "accept the terms", "HF_TOKEN")
    code, out, err = run("which", "facebook/ijepa_vith14_1k")
    says(out, "hf://facebook/ijepa_vith14_1k", "AutoModel.from_pretrained(")
    assert err == ""


def test_which_says_what_create_adds_to_a_config(run):
    _, _, err = run("which", "paige-ai/Virchow")
    says(err, "documented call", "create adds the arguments")


@pytest.mark.parametrize("end", ["@main", "@main/model.safetensors", "/model.safetensors"])
def test_which_takes_an_address_as_create_does(run, end):
    code, out, _ = run("which", f"hf://google/owlvit-base-patch32{end}", "--json")
    (row,) = json.loads(out)
    assert (code, row["create"]) == (0, f"vitzoo.create('hf://google/owlvit-base-patch32{end}')")
    says(row["documented"], "from_pretrained('google/owlvit-base-patch32')")


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize("name", ["vinid/plip", "imageomics/bioclip"])
def test_which_names_the_plugin_that_reads_a_repository(run, name):
    says(run("which", name)[2], "pip install ./plugins/vitzoo-clip")


def test_which_shows_the_file_in_the_store(run, small, tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    vitzoo.save(vitzoo.create(small), file)
    with Hub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        sha256 = hub.add(
            "acme/Net", "model.safetensors", (tmp_path / "model.safetensors").read_bytes()
        )
        with pytest.warns(vitzoo.FirstUseWarning):
            vitzoo.create("hf://acme/Net")
        before = len(hub.requests)
        (row,) = json.loads(run("which", "acme/Net", "--json")[1])
        assert len(hub.requests) == before
    assert Path(row["stored"]).name == sha256
    assert row["license"] is row["documented"] is None


def test_show_of_a_file_names_the_command_for_files(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("net.safetensors").write_bytes(b"")
    tmp_path.joinpath("folder").mkdir()
    for name in ("net.safetensors", "./net.safetensors", tmp_path / "net.safetensors", "folder/"):
        code, out, err = run("show", name)
        assert (code, out) == (1, "")
        says(err, f"'{name}'", "it is a path", f"vitzoo summary {name}")
    code, _, err = run("show", tmp_path / "gone.safetensors")
    assert code == 1
    says(err, tmp_path / "gone.safetensors")
    assert "plugin" not in err
    for name in ("C:\\gone.safetensors", "\\\\host\\gone", ".\\gone"):  # as Windows writes paths
        says(run("show", name)[2], repr(name), "it is a path")
