"""Commands of plugins: entry points of the group `vitzoo.commands`."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys

import pytest

from helpers import says
from plugin_files import ACME, UNTOUCHABLE
from tables import cases

pytestmark = pytest.mark.usefixtures("own_home")

CODE = """\
import click

print("printed")

number = 3


@click.command()
@click.argument("model")
@click.option("--top", default=5, help="Number of things.")
def attend(model, top):
    \"\"\"Show what MODEL attends to.\"\"\"
    click.echo(f"{model} {top}")
    return 7


@click.group()
def family():
    \"\"\"Two commands.\"\"\"


@family.command()
@click.pass_context
def leave(context):
    context.exit(3)


@family.command()
def fail():
    raise click.ClickException("no such thing")
"""
GROUP = "[vitzoo.commands]\n"
POINTS = f"""\
acme = acme:registry.toml
{GROUP}attend = acme.command:attend
family = acme.command:family
"""
FILES = {**ACME, "acme/command.py": CODE}
BESIDE = {"globex/__init__.py": "", "globex/command.py": CODE}


@pytest.fixture
def acme(install):
    return install("acme-vit", POINTS, FILES)


def only(install, value: str, code: str = CODE):
    """Install a distribution that has the command `attend` and nothing else."""
    return install(
        "acme-vit", f"{GROUP}attend = {value}", {"acme/__init__.py": "", "acme/c.py": code}
    )


@pytest.mark.usefixtures("acme")
def test_a_command_of_a_plugin_runs(run):
    code, out, err = run("attend", "vit_b16", "--top", "2")
    assert (code, out) == (0, "vit_b16 2\n")
    assert err == "printed\n"


@pytest.mark.usefixtures("acme")
def test_a_group_of_a_plugin_sets_exit_codes_and_ends_with_messages(run):
    assert run("family", "leave")[0] == 3
    code, out, err = run("family", "fail")
    assert (code, out) == (1, "")
    says(err, "no such thing")


@pytest.mark.usefixtures("acme")
def test_the_help_of_a_command_shows_its_options(run):
    code, out, _ = run("attend", "--help")
    assert code == 0
    says(out, "vitzoo attend", "Show what MODEL attends to", "--top", "Number of things")


def test_help_names_the_commands_of_plugins_and_imports_nothing(run, install):
    install("acme-vit", POINTS, UNTOUCHABLE)
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    below = out.partition("Commands of plugins:\n")[2].splitlines()
    shown = [line.split() for line in below if "acme-vit" in line]
    assert shown == [["attend", "of", "acme-vit", "1.0"], ["family", "of", "acme-vit", "1.0"]]
    assert "acme" not in sys.modules


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("att", ["attend"]),
        ("f", ["family", "fetch", "finetune"]),
        ("pre", ["predict"]),
        ("--no-p", ["--no-plugins"]),
        ("fau", []),
    ],
)
def test_a_shell_offers_the_commands_of_plugins_and_imports_nothing(
    run, install, monkeypatch, typed, offered
):
    points = f"{POINTS}\nfault = acme:malformed:command\n"  # no command that can be used
    install("acme-vit", points, UNTOUCHABLE)
    modules = {name for name in sys.modules if name.startswith("vitzoo.apps")}
    monkeypatch.setenv("_VITZOO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"vitzoo {typed}")
    monkeypatch.setenv("COMP_CWORD", "1")
    code, out, err = run()
    assert (code, err) == (0, "")
    assert [word.partition(",")[2] for word in out.split()] == offered
    assert "acme" not in sys.modules
    assert {name for name in sys.modules if name.startswith("vitzoo.apps")} == modules


def test_help_without_such_plugins_has_no_such_section(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "check-vectors,finetune,site")
    assert "Commands of plugins" not in run("--help")[1]


@pytest.mark.usefixtures("acme")
def test_a_command_of_vitzoo_reads_no_metadata(run, monkeypatch):
    module = importlib.import_module("vitzoo.plugin.entry_points")
    monkeypatch.setattr(module, "find_plugins", None)
    monkeypatch.setattr(module, "may_have_commands", None)
    assert run("fetch", "--help")[0] == 0


@pytest.mark.usefixtures("acme")
def test_an_unknown_command_suggests_those_of_plugins(run):
    code, out, err = run("atend")
    assert (code, out) == (2, "")
    says(err, "'atend'", "'attend'")


def test_a_first_party_command_that_is_not_installed_names_its_plugin(run, monkeypatch):
    monkeypatch.setattr("vitzoo.plugin.commands.find_plugins", list)
    code, out, err = run("site", "catalogue")
    assert (code, out) == (2, "")
    says(err, "'site'", "vitzoo-site", "pip install ./plugins/vitzoo-site")


def test_only_its_distribution_has_a_first_party_command(run, install):
    install("acme-vit", f"{GROUP}site = acme.command:attend", UNTOUCHABLE)
    row = next(row for row in rows(run).values() if row["distribution"] == "acme-vit")
    assert row["state"] == "broken"
    says(row["cause"], "'site'", "reserved", "vitzoo-site")


TRIED = {
    "create": "vitzoo.create('vit_b16', pretrained=True)",
    "download": "`vitzoo fetch NAME`",
    "install": "`vitzoo fetch NAME`",
    "info": "`vitzoo show NAME`",
    "search": "`vitzoo list WORD`",
    "delete": "`vitzoo rm NAME`",
    "upload": "`vitzoo push MODEL OWNER/REPO`",
    "classify": "`vitzoo predict MODEL IMAGES`",
    "train": "docs/finetune.md",
}


@cases("name", TRIED)
def test_a_command_that_people_try_is_answered_with_what_to_type(run, name):
    code, out, err = run(name, "vit_b16")
    assert (code, out) == (2, "")
    says(err, repr(name), TRIED[name])
    for command in re.findall(r"`vitzoo (\w+)", err):
        assert run(command, "--help")[0] == 0


def test_a_plugin_may_have_a_command_that_people_try(run, install):
    install("acme-vit", f"{GROUP}train = acme.command:attend", FILES)
    assert run("train", "vit_b16")[:2] == (0, "vit_b16 5\n")


def test_a_command_of_vitzoo_takes_precedence(run, install, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "check-vectors,finetune,site")
    install("acme-vit", f"{GROUP}list = acme.command:attend", UNTOUCHABLE)
    assert run("list", "-q", "vit_b16")[:2] == (0, "vit_b16\n")
    assert "Commands of plugins" not in run("--help")[1]
    row = rows(run)["vitzoo list"]
    assert (row["state"], row["distribution"]) == ("broken", "acme-vit")
    says(row["cause"], "command", "'list'")


def test_a_command_whose_package_is_missing_names_the_dependencies(run, install):
    only(install, "acme.c:attend", "import nothing_here\n")
    got, out, err = run("attend", "vit_b16")
    assert (got, out) == (1, "")
    says(err, "'attend'", "acme-vit 1.0", "nothing_here", "dependencies")
    assert "Traceback" not in err


def test_a_name_has_the_form_of_a_namespace(run, install):
    install("acme-vit", f"{GROUP}Attend = acme.command:attend", FILES)
    code, _, err = run("Attend")
    assert code == 1
    says(err, "'Attend'", "lower-case")


def test_two_distributions_with_one_command_run_neither(run, install, monkeypatch):
    install("acme-vit", f"{GROUP}attend = acme.command:attend", UNTOUCHABLE)
    install("globex-vit", f"{GROUP}attend = globex.command:attend", BESIDE)
    code, out, err = run("attend", "vit_b16")
    assert (code, out) == (1, "")
    says(err, "'attend'", "acme-vit 1.0", "globex-vit 1.0", "VITZOO_DISABLE_PLUGINS")
    assert not {"acme", "globex"} & sys.modules.keys()
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme-vit")
    assert run("attend", "vit_b16")[:2] == (0, "vit_b16 5\n")


@cases(
    ("variable", "value", "runs"),
    [
        ("VITZOO_DISABLE_PLUGINS", "attend", False),
        ("VITZOO_DISABLE_PLUGINS", "acme", False),  # the namespace of the distribution
        ("VITZOO_DISABLE_PLUGINS", "Acme_Vit", False),
        ("VITZOO_DISABLE_PLUGINS", "*", False),
        ("VITZOO_DISABLE_PLUGINS", "family", True),
        ("VITZOO_PLUGINS", "attend", True),
        ("VITZOO_PLUGINS", "acme", True),
        ("VITZOO_PLUGINS", "acme-vit", True),
        ("VITZOO_PLUGINS", "family", False),
        ("VITZOO_PLUGINS", "", False),
    ],
)
@pytest.mark.usefixtures("acme")
def test_switches_apply_to_commands(run, monkeypatch, caplog, variable, value, runs):
    monkeypatch.setenv(variable, value)
    assert ("attend" in run("--help")[1].partition("Commands of plugins")[2]) == runs
    code, out, err = run("attend", "vit_b16")
    if runs:
        assert (code, out) == (0, "vit_b16 5\n")
    else:
        assert (code, out) == (1, "")
        says(err, "'attend'", variable)
    assert run("list", "-q", "vit_b16")[0] == 0
    assert not caplog.records  # every value names something that is installed


@pytest.mark.usefixtures("acme")
def test_no_plugins_disables_commands(run):
    code, out, err = run("--no-plugins", "attend", "vit_b16")
    assert (code, out) == (1, "")
    says(err, "'attend'", "leave out --no-plugins")
    assert "VITZOO_DISABLE_PLUGINS" not in err
    assert "Commands of plugins" not in run("--no-plugins", "--help")[1]
    assert "VITZOO_DISABLE_PLUGINS" not in os.environ


def test_strict_mode_names_other_commands(run, install, monkeypatch):
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    install("acme-vit", POINTS, FILES)
    assert run("attend", "vit_b16")[0] == 0
    install("globex-vit", f"{GROUP}list = globex.command:attend", BESIDE)
    code, _, err = run("attend", "vit_b16")
    assert code == 1
    says(err, "VITZOO_STRICT_PLUGINS=1", "'list (globex-vit)'")


def rows(run) -> dict:
    return {row["namespace"]: row for row in json.loads(run("plugins", "--json")[1])}


def test_plugins_lists_commands(run, install):
    root = install("acme-vit", POINTS, UNTOUCHABLE | {"acme/command.py": ""})
    found = rows(run)
    of_commands = [name for name in found if " " in name]
    assert of_commands == [
        *("vitzoo attend", "vitzoo check-vectors", "vitzoo family", "vitzoo finetune"),
        "vitzoo site",
    ]
    assert found["vitzoo attend"] == dict.fromkeys(("variants", "parts", "formats")) | {
        "namespace": "vitzoo attend", "state": "lazy", "distribution": "acme-vit", "version": "1.0",
        "entry_point": "acme.command:attend", "location": f"{root}/acme/command.py",
        "cause": "", "fix": "",
    }  # fmt: skip
    assert "acme" not in sys.modules


@pytest.mark.parametrize("name", ["attend", "acme-vit"])
def test_why_traces_a_command(run, install, name):
    root = install("acme-vit", POINTS, UNTOUCHABLE | {"acme/command.py": ""})
    code, out, _ = run("plugins", "why", name, "--json")
    trace = next(trace for trace in json.loads(out) if trace["namespace"] == "vitzoo attend")
    assert code == 0
    says(trace["steps"][0], "attend = acme.command:attend", "acme-vit 1.0", str(root))
    says(trace["steps"][2], f"{root}/acme/command.py", "`vitzoo attend`")
    assert "acme" not in sys.modules


def test_why_names_all_that_claim_a_command(run, install):
    install("acme-vit", f"{GROUP}attend = acme.command:attend")
    install("globex-vit", f"{GROUP}attend = globex.command:attend")
    (trace,) = json.loads(run("plugins", "why", "attend", "--json")[1])
    assert (trace["state"], trace["distribution"]) == ("conflict", "acme-vit, globex-vit")
    says(" ".join(trace["steps"]), "acme-vit 1.0", "globex-vit 1.0", "command")


BOTH = f"acme = acme:registry.toml\n{GROUP}attend = acme.command:attend\n"
BOTH += "list = acme.command:family\nFamily = acme.command:family\n"


@pytest.mark.parametrize("name", ["acme", "acme-vit"])
def test_why_names_the_commands_of_a_plugin(run, install, name):
    """Those that cannot be used, and that another distribution claims, too."""
    install("acme-vit", BOTH, UNTOUCHABLE)
    install("aaa-vit", f"{GROUP}attend = globex.command:attend\nother = globex.command:attend")
    traces = json.loads(run("plugins", "why", name, "--json")[1])
    assert {trace["namespace"]: trace["state"] for trace in traces} == {
        "acme": "loaded",
        "vitzoo attend": "conflict",
        "vitzoo list": "broken",
        "vitzoo Family": "broken",
    }
    (one,) = json.loads(run("plugins", "why", "acme/net", "--json")[1])
    assert one["namespace"] == "acme"
    (one,) = json.loads(run("plugins", "why", "list", "--json")[1])
    assert one["namespace"] == "vitzoo list"


@pytest.mark.conformance
def test_check_of_a_namespace_checks_its_commands(run, install):
    install("acme-vit", BOTH, FILES)
    code, out, _ = run("plugins", "check", "acme", "--json")
    found = json.loads(out)
    assert code == 1
    checked = {one["namespace"]: one["state"] for one in found["plugins"]}
    assert checked.pop("acme") == checked.pop("vitzoo attend") == "ok"
    assert checked == {"vitzoo list": "problems", "vitzoo Family": "problems"}
    list_, family = sorted(found["problems"], key=lambda problem: problem["cause"].lower())
    says(list_["cause"] + family["cause"], "'list'", "reserved", "'Family'", "lower-case")


@pytest.mark.conformance
@pytest.mark.parametrize(("value", "code"), [("acme.c:attend", 0), ("acme.c:number", 1)])
def test_check_imports_a_command_in_another_process(run, install, value, code):
    root = only(install, value)
    got, out, err = run("plugins", "check", "attend", "--json")
    (checked,) = json.loads(out)["plugins"]
    assert (got, checked["namespace"]) == (code, "vitzoo attend")
    says(err, "vitzoo attend (acme-vit 1.0)")
    for problem in json.loads(out)["problems"]:
        assert problem["what"] == "vitzoo attend"
        says(problem["cause"], "3", "@click.command", f"{root}/acme/c.py:5")
    assert "acme" not in sys.modules


@pytest.mark.usefixtures("acme")
def test_check_suggests_commands(run):
    code, _, err = run("plugins", "check", "atend")
    assert code == 1
    says(err, "'atend'", "'attend'")


def test_what_a_command_writes_to_descriptor_1_at_its_import_is_no_data(distribution):
    code = (
        "import os, subprocess\nos.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'])\n" + CODE
    )
    site = distribution("acme-vit", POINTS, {**ACME, "acme/command.py": code})
    done = subprocess.run(
        [sys.executable, "-m", "vitzoo", "attend", "vit_b16"],
        env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "vit_b16 5\n")
    assert sorted(done.stderr.split()) == ["child", "printed", "raw"]


@pytest.mark.parametrize(
    ("words", "offered"), [("vitzoo attend --t", "--top"), ("vitzoo lis", "list")]
)
@pytest.mark.usefixtures("acme")
def test_shells_complete_the_options_of_a_command(run, monkeypatch, words, offered):
    monkeypatch.setenv("_VITZOO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code, out, _ = run()
    assert (code, out) == (0, f"plain,{offered}\n")


def test_completion_keeps_quiet_about_a_command_that_fails(run, install, monkeypatch):
    only(install, "acme.c:number")
    monkeypatch.setenv("_VITZOO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "vitzoo attend --t")
    monkeypatch.setenv("COMP_CWORD", "2")
    code, out, err = run()
    assert (code, out, err) == (0, "\n", "printed\n")
