"""`vitzoo list --available`, and the line that counts what is not installed."""

from __future__ import annotations

import json

import pytest

from helpers import says
from internals import FIRST_PARTY
from tables import cases

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def terminal(monkeypatch):
    """Let the commands print as on a terminal of 120 columns."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setattr("vitzoo.cli.output.is_terminal", lambda _: True)


@pytest.mark.usefixtures("core_alone")
def test_available_lists_the_variants_of_other_plugins(run):
    code, out, err = run("list", "--available")
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert header == ["name", "params", "plugin", "summary"]
    assert ["dinov2/vit_s14", "22056192", "vitzoo-dino", "DINOv2, ViT-Small/14"] in lines
    assert {line[2] for line in lines} == set(FIRST_PARTY.values())
    rows = json.loads(run("list", "--available", "--json")[1])
    assert [row["name"] for row in rows] == [line[0] for line in lines]
    assert list(rows[0]) == ["name", "params", "plugin", "summary", "namespace"]


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    "args",
    [
        ("dinov2/vit_[sb]14",),
        ("dinov2/vit_s14", "dinov2/vit_b14", "--all", "--wide"),
        ("dinov2/*14", "--where", "params<90M and summary~dinov2"),
        ("--family", "dinov2", "--where", "name in (dinov2/vit_s14, dinov2/vit_b14)"),
        ("--family", "dinov2", "*[sb]14", "--sort", "params"),
    ],
)
def test_available_takes_patterns_families_and_known_fields(run, args):
    names = ["dinov2/vit_s14", "dinov2/vit_b14"]
    assert run("list", "--available", "-q", *args)[:2] == (0, "\n".join([*names, ""]))
    assert (
        run("list", "--available", "-q", *names, "--sort", "params:desc")[1].split() == names[::-1]
    )


@pytest.mark.usefixtures("core_alone")
@cases(
    ("args", "code", "message"),
    [
        (("--where", "top1>80"), 2, ("--available", "params", "top1", "-r plugins/all.txt")),
        (("--sort", "gmacs"), 2, ("--available", "params", "gmacs", "-r plugins/all.txt")),
        (("--pareto", "params:top1"), 2, ("--available", "--where", "--pareto")),
        (("--columns", "name"), 2, ("--available", "--where", "--columns")),
        (("--local",), 2, ("--available", "--where", "--local")),
        (("dinov22",), 1, ("'dinov22'", "not installed", "did you mean 'dinov2/*'")),
        (("vit_b99",), 1, ("'vit_b99'", "without --available")),
        (("-q", "swin"), 1, ("'swin'", "without --available")),
        (("--family", "core"), 1, ("'core/*'", "without --available")),
    ],
)
def test_what_available_cannot_do_is_refused(run, args, code, message):
    got, out, err = run("list", "--available", *args)
    assert (got, out) == (code, "")
    says(err, *message)


@pytest.mark.usefixtures("core_alone", "terminal")
def test_on_a_terminal_available_ends_with_the_command_that_installs(run):
    _, out, err = run("list", "--available", "dinov2/*", "dino/*")
    says(out, "dinov2/vit_s14", "22.1M", "vitzoo-dino", "DINOv2, ViT-Small/14")
    assert err.endswith("pip install ./plugins/vitzoo-dino\n")
    assert run("list", "--available")[2].endswith("pip install -r plugins/all.txt\n")


@pytest.mark.usefixtures("core_alone", "terminal")
@pytest.mark.parametrize("args", [(), ("list",), ("list", "--all")])
def test_a_terminal_shows_how_many_variants_are_not_installed(run, args):
    more = len(run("list", "--available", "-q")[1].split())
    here = len(run("list", "-q")[1].split())
    line = (
        f"{here} networks; {more} more in 8 plugins that are not installed: vitzoo list --available"
    )
    assert run(*args)[2].splitlines()[-1] == f"vitzoo: {line}"


@pytest.mark.usefixtures("core_alone", "terminal")
@pytest.mark.parametrize("args", [("vit_b16",), ("--where", "depth=12"), ("-q",), ("--json",)])
def test_a_choice_and_a_list_for_scripts_count_nothing(run, args):
    assert "not installed" not in run("list", *args)[2]


@pytest.mark.usefixtures("core_alone")
def test_a_word_that_is_no_name_is_searched(run):
    code, out, _ = run("list", "--available", "SwinV2")
    names = [line.split("\t")[0] for line in out.splitlines()[1:]]
    assert code == 0
    assert len(names) > 10
    assert all("swinv2" in name for name in names)


@pytest.mark.usefixtures("core_alone")
def test_a_pipe_counts_nothing(run):
    assert run("list")[2] == run()[2] == ""


@pytest.mark.usefixtures("core_alone")
def test_a_pattern_of_a_plugin_that_is_not_installed_names_the_list(run):
    for pattern in ("dinov2/*", "dinov2/vit_b14", "swin"):
        code, out, err = run("list", pattern)
        assert (code, out) == (1, "")
        says(err, repr(pattern), f"vitzoo list --available '{pattern}'")


@pytest.mark.usefixtures("terminal")
def test_with_all_plugins_nothing_is_available(run, monkeypatch):
    monkeypatch.setattr("vitzoo.cli.available.available", lambda _: [])
    code, _, err = run("list", "--available", "dinov2/*")
    assert code == 0
    says(err, "are installed")
    assert "not installed" not in run()[2] + run("list")[2]
