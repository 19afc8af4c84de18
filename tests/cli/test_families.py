"""What `vitzoo list`, `show` and `which` answer for a family."""

from __future__ import annotations

import json

import pytest

import vitzoo
from helpers import says
from internals import FIRST_PARTY
from plugin_files import ACME, FRESH, NET, UNTOUCHABLE

pytestmark = pytest.mark.usefixtures("own_home")
SUMMARY = "small networks of our lab"
MANIFEST = NET.replace("api = 1\n", f'api = 1\nsummary = "{SUMMARY}"\n') + FRESH
PART = ACME["acme/registry.toml"].partition("\n[variants.")[0]


@pytest.fixture
def acme(install, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    files = UNTOUCHABLE | {"acme/registry.toml": MANIFEST}
    return install("acme-parts", "acme = acme:registry.toml", files)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("command", ["list", "show", "which"])
@pytest.mark.parametrize("name", ["acme", "acme/"])
def test_a_family_is_what_it_is_and_its_names(run, command, name):
    table = () if command == "which" else ("--table",)
    code, out, err = run(command, name, *table)
    assert (code, "unknown" in err, "no variant" in err) == (0, False, False)
    says(out, "acme/net")
    if command != "which":  # a pipe has its keys
        assert out.startswith(f"acme: {SUMMARY}\n")
        says(out, "MIT", "acme-parts", "24.1k")


@pytest.mark.usefixtures("acme")
def test_show_of_a_family_has_stable_keys(run):
    shown = json.loads(run("show", "acme", "--json")[1])
    assert list(shown) == [
        "family", "summary", "plugin", "installed", "papers", "licenses", "variants",
        "contributions",
    ]  # fmt: skip
    assert (shown["summary"], shown["installed"], shown["licenses"]) == (SUMMARY, True, ["MIT"])
    assert shown["variants"] == [
        {"name": "acme/net", "params": 24069, "image_size": 32, "top1": None, "knn_top1": None}
        | {"license": "MIT", "weights": ["fresh"]}
    ]
    piped = run("show", "acme")[1]
    assert f"summary\t{SUMMARY}\n" in piped
    assert "acme/net\t24069\t\t\t32\t" in piped


@pytest.mark.usefixtures("acme")
def test_which_has_a_row_for_each_name_of_a_family(run):
    (row,) = json.loads(run("which", "acme", "--json")[1])
    assert (row["name"], row["kind"]) == ("acme/net", "variant")
    assert row["known_as"] == "acme (family)"
    assert row["create"] == "vitzoo.create('acme/net', pretrained=True)"


def test_a_family_without_networks_says_what_it_has(run, install):
    files = UNTOUCHABLE | {"acme/registry.toml": PART}
    install("acme-parts", "acme = acme:registry.toml", files)
    code, out, err = run("list", "acme", "--table")
    assert (code, out.splitlines()[0]) == (0, "acme: 1 part")
    says(err, "1 part", "vitzoo show acme")
    assert json.loads(run("list", "acme", "--json")[1]) == []
    says(run("show", "acme", "--table")[1], "drop-path policy", "acme/late", "last block")
    (row,) = json.loads(run("show", "acme", "--json")[1])["contributions"]
    assert row["name"] == "acme/late"
    assert [r["kind"] for r in json.loads(run("which", "acme", "--json")[1])] == [row["kind"]]


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_family_without_networks_names_the_others_of_its_plugin(run, command):
    _, _, err = run(command, "mim", "--table")
    says(err, "vitzoo-mim", "mae, beit, eva")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("command", ["list", "show", "which"])
def test_the_name_of_a_plugin_means_all_of_its_families(request, run, command, alone):
    if alone:
        request.getfixturevalue("core_alone")
    code, out, err = run(command, "encoders")
    assert code == 0
    says(out, "pe/vit_b16_core", "radio/")
    assert ("vitzoo-encoders" in err) is alone
    shown = json.loads(run("show", "encoders", "--json")[1])
    says(shown["summary"], "pe", "tipsv2", "radio", "internvit")
    assert "vitdet" not in shown["summary"]  # which has no network


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize("command", ["list", "show", "which"])
def test_a_family_that_is_not_installed_names_its_plugin(run, command):
    code, out, err = run(command, "dinov2")
    assert code == 0
    says(out, "dinov2/vit_b14", "dinov2/vit_g14_reg4")
    says(err, "vitzoo-dino", "not installed", "pip install")
    assert run("list", "dinov2", "-q")[:2] == (1, "")
    shown = json.loads(run("show", "dinov2", "--json")[1])
    assert (shown["installed"], shown["contributions"]) == (False, None)
    assert len(shown["variants"]) == 8


def test_a_family_that_is_switched_off_names_the_switch(run, install, monkeypatch):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme")
    for command in ("list", "show", "which"):
        code, _, err = run(command, "acme")
        assert code == 1
        says(err, "'acme'", "VITZOO_DISABLE_PLUGINS")


def test_a_family_of_the_core_and_one_that_shares_its_name_with_a_format(run):
    for name in ("core", "vit"):
        _, out, _ = run("list", name, "-q")
        assert out.split() == [v.name for v in vitzoo.variants(namespace="core")]
    _, out, err = run("which", "timm", "--json")
    assert [row["kind"] for row in json.loads(out)] == ["checkpoint format"]
    says(err, "also a family", "vitzoo show timm")


def test_every_family_of_this_project_says_what_it_is(run):
    for namespace in ("core", *sorted(FIRST_PARTY)):
        shown = json.loads(run("show", namespace, "--json")[1])
        assert 20 <= len(shown["summary"]) <= 120, namespace
        assert not shown["summary"].endswith("."), namespace


# Networks of timm that another family has

DOUBLE = "timm/eva_giant_patch14_224"


def test_tables_leave_out_networks_of_timm_that_another_family_has(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for command in ("list", "show"):
        _, out, err = run(command, "timm", "--table")
        assert DOUBLE not in out
        assert "timm/swin_base_patch4_window7_224 " in out
        says(err, "9 of timm's networks", "--all")
        _, out, err = run(command, "timm", "--table", "--all")
        assert f"{DOUBLE} " in out
        assert "left out" not in err
    assert f"{DOUBLE} " in run("list", DOUBLE, "--table")[1]  # asked for by its name
    assert f"{DOUBLE}:" not in run("list", "--where", "top1>89", "--table")[1]


def test_other_forms_of_output_have_all_networks_of_timm(run):
    for options in ([], ["-q"], ["--json"]):
        _, out, err = run("list", "timm/eva_*", *options)
        assert DOUBLE in out
        assert err == ""
