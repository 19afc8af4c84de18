"""`vitzoo plugins`, `which` and `--no-plugins`, with plugins that work and that are broken."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from vitzoo.plugin.package_files import module_file
from vitzoo.plugin.source_lines import where_declared, where_defined
from vitzoo.tools.plugin_check_worker import Notes, probe

MANIFEST = """\
api = 1

[drop_path_policies.late]
target = "acme.parts:late"
summary = "the rate in the last block only"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"

[aliases]
old = "net"
"""
PARTS = "def late(*, depth, rate=0.1):\n    return [0.0] * (depth - 1) + [rate]\n"
ACME = {"acme/__init__.py": "", "acme/parts.py": PARTS, "acme/registry.toml": MANIFEST}
UNTOUCHABLE = ACME | {"acme/__init__.py": "raise ImportError('nobody may import me')"}
MODULE = """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    yield vitzoo.DropPathPolicy("late", late, "the rate in the last block only")

@vitzoo.hookimpl
def vitzoo_variants():
    spec = vitzoo.describe("vit_ti16").spec
    yield vitzoo.Variant("net", "a network", spec, 5717416, source="made up")

def late(*, depth, rate=0.1):
    return [0.0] * (depth - 1) + [rate]
"""
GLOBEX = {"globex/__init__.py": "", "globex/plugin.py": MODULE}
KEYS = [
    "namespace", "state", "distribution", "version", "variants", "parts", "formats",
    "entry_point", "location", "cause", "remedy",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


def by_namespace(out: str) -> dict:
    return {row["namespace"]: row for row in json.loads(out)}


# vitzoo plugins (module cli.plugins)


def test_plugins_json_has_a_row_for_each_plugin(run, acme, install):
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    code, out, err = run("plugins", "--json")
    rows = by_namespace(out)
    assert (code, err) == (0, "")
    assert next(iter(rows)) == "core"
    assert all(list(row) == KEYS for row in rows.values())
    assert rows["acme"] == {
        "namespace": "acme", "state": "loaded", "distribution": "acme-parts", "version": "1.0",
        "variants": 1, "parts": 1, "formats": 0, "entry_point": "acme:registry.toml",
        "location": str(acme / "acme/registry.toml"), "cause": "", "remedy": "",
    }  # fmt: skip
    assert rows["globex"]["state"] == "lazy"
    assert rows["globex"]["variants"] is None
    assert rows["globex"]["location"] == str(acme / "globex/plugin.py")
    assert not {"acme", "globex"} & set(sys.modules)


@pytest.mark.usefixtures("acme")
def test_piped_the_table_has_the_keys_of_json(run):
    code, out, _ = run("plugins")
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert header == KEYS
    assert next(row for row in rows if row[0] == "acme")[:6] == [
        "acme", "loaded", "acme-parts", "1.0", "1", "1",
    ]  # fmt: skip


def test_a_broken_plugin_is_listed_with_line_cause_and_fix(run, install):
    files = UNTOUCHABLE | {"acme/registry.toml": MANIFEST.replace('"ti"', '"tiny"')}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    code, out, _ = run("plugins", "--json")
    row = by_namespace(out)["acme"]
    assert code == 0
    assert row["state"] == "broken"
    assert row["location"] == f"{root}/acme/registry.toml:7"
    says(row["cause"], "[variants.net]", "size", "ti, s, b", "'tiny'")
    fixes = ("--upgrade acme-parts", "pip uninstall acme-parts", "VITZOO_DISABLE_PLUGINS=acme")
    says(row["remedy"], *fixes)


def test_a_manifest_that_is_no_toml_is_listed_with_its_line(run, install):
    files = UNTOUCHABLE | {"acme/registry.toml": "api = 1\nheads =\n"}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    _, out, _ = run("plugins", "--json")
    assert by_namespace(out)["acme"]["location"] == f"{root}/acme/registry.toml:2"


@pytest.mark.usefixtures("acme")
def test_a_switch_that_matches_nothing_is_mentioned(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acne")
    code, _, err = run("plugins")
    assert code == 0
    says(err, "VITZOO_DISABLE_PLUGINS", "'acne'", "'acme'")


def test_the_users_own_file_is_counted(run, local_registry):
    local_registry()
    _, out, _ = run("plugins", "--json")
    assert by_namespace(out)["local"]["variants"] == 1


@pytest.mark.parametrize("args", [("plugins",), ("plugins", "why", "acme"), ("plugins", "--json")])
def test_plugins_and_why_work_in_strict_mode(run, install, monkeypatch, args):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    with pytest.raises(vitzoo.PluginError):
        vitzoo.plugins()
    code, out, _ = run(*args)
    assert code == 0
    says(out, "manifest 'registry.toml'")
    assert os.environ["VITZOO_STRICT_PLUGINS"] == "1"


def test_a_row_that_is_off_survives_another_claim_to_its_namespace(run, install, monkeypatch):
    files = UNTOUCHABLE
    install("acme-fork", "acme = acme:registry.toml", files)
    install("acme-parts", "acme = acme:registry.toml")
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme-fork")
    _, out, _ = run("plugins", "--json")
    rows = [row for row in json.loads(out) if row["namespace"] == "acme"]
    assert {(row["distribution"], row["state"]) for row in rows} == {
        ("acme-fork", "disabled"),
        ("acme-parts", "loaded"),
    }


def test_show_names_the_switch_of_a_first_party_plugin_that_is_off(run, install, monkeypatch):
    install("vitzoo-clip", "clip = acme:registry.toml", UNTOUCHABLE)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "clip")
    code, _, err = run("show", "clip/net")
    assert code == 1
    says(err, "plugin 'clip'", "VITZOO_DISABLE_PLUGINS", "'clip'")


def test_json_belongs_after_a_subcommand(run):
    code, _, err = run("plugins", "--json", "check")
    assert code == 2
    says(err, "--json", "check")


def test_an_unknown_subcommand_suggests_the_nearest(run):
    code, _, err = run("plugins", "chek")
    assert code == 2
    assert "check" in err


# vitzoo plugins why (module plugin_trace)


def test_why_traces_a_manifest_plugin_step_by_step(run, acme):
    code, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert code == 0
    assert (trace["state"], trace["version"]) == ("loaded", "1.0")
    found, switches, manifest, kept, read, counted = trace["steps"]
    says(found, "acme = acme:registry.toml", "acme-parts 1.0", str(acme))
    says(switches, "switches")
    sha256 = hashlib.sha256(MANIFEST.encode()).hexdigest()
    says(manifest, f"{acme}/acme/registry.toml", f"{len(MANIFEST)} bytes", f"sha256 {sha256}")
    says(kept, "listings")
    says(read, f"{acme}/acme/registry.toml", "imported")
    says(counted, "2 contributions")
    assert [row["name"] for row in trace["contributions"]] == ["acme/late", "acme/net"]
    late = trace["contributions"][0]
    assert late["kind"] == "drop-path policy"
    assert late["target"] == "acme.parts:late"
    assert late["defined"] == f"{acme}/acme/parts.py:1"
    assert late["location"] == f"{acme}/acme/registry.toml:3"
    assert "acme" not in sys.modules


@pytest.mark.usefixtures("acme")
def test_why_knows_what_listings_keep(run):
    (before,) = json.loads(run("plugins", "why", "acme", "--json")[1])
    run("list", "acme/*")
    (after,) = json.loads(run("plugins", "why", "acme", "--json")[1])
    (changed,) = [step for step in after["steps"] if step not in before["steps"]]
    says(changed, "listings", "(1)")


@pytest.mark.usefixtures("acme")
def test_why_finds_a_plugin_by_its_distribution(run):
    _, out, _ = run("plugins", "why", "Acme_Parts", "--json")
    assert [trace["namespace"] for trace in json.loads(out)] == ["acme"]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/late", ("acme/late", "drop-path policy")),
        ("acme/net", ("acme/net", "variant")),
        ("acme/old", ("acme/old", "former", "acme/net")),
        ("acme/nets", ("acme/nets", "'acme/net'", "'acme/late'")),
    ],
)
def test_why_explains_a_single_name(run, name, said):
    _, out, _ = run("plugins", "why", name, "--json")
    (trace,) = json.loads(out)
    says(trace["steps"][-1], *said)
    assert all(row["name"] == name for row in trace["contributions"])


@pytest.mark.usefixtures("acme")
def test_why_says_what_is_hidden(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/net")
    _, out, _ = run("plugins", "why", "acme/net", "--json")
    (trace,) = json.loads(out)
    says(trace["steps"][-1], "acme/net", "variant", "VITZOO_DISABLE_PLUGINS")
    assert [row["hidden"] for row in trace["contributions"]] == [True]


def test_why_does_not_import_a_lazy_module_and_names_the_command_that_does(run, install):
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    code, out, _ = run("plugins", "why", "globex/late")
    assert code == 0
    says(out, "globex.plugin", "globex/", "`vitzoo plugins check globex`")
    assert "globex" not in sys.modules


def test_why_names_both_claimants(run, install):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("acme-fork", "acme = acme:registry.toml")
    _, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "conflict"
    assert {step.partition(" 1.0")[0] for step in trace["steps"]} == {"acme-parts", "acme-fork"}


@pytest.mark.usefixtures("acme")
def test_why_says_which_switch_turned_a_plugin_off(run, monkeypatch):
    monkeypatch.setenv("VITZOO_PLUGINS", "globex")
    _, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "disabled"
    says(trace["steps"][-1], "switches", "VITZOO_PLUGINS")


def test_why_says_where_it_looked_for_what_is_not_installed(run, acme):
    code, out, _ = run("plugins", "why", "acne", "--json")
    (trace,) = json.loads(out)
    assert code == 1
    assert trace["state"] == "not installed"
    nothing, searched, having, near = trace["steps"]
    says(nothing, "'acne'", "'vitzoo'")
    says(searched, str(acme))
    says(having, "acme-parts 1.0 (acme)")
    says(near, "'acme'")


def test_why_sends_a_name_of_the_core_to_which(run):
    code, out, _ = run("plugins", "why", "vit_b16")
    assert code == 1
    says(out, "'vit_b16'", "`vitzoo which vit_b16`")


def test_why_reads_the_users_own_file(run, local_registry):
    path = local_registry()
    assert "local/net" in run("plugins", "why", "local")[1]
    path.write_text("api = 1\nvariants = 3\n")
    _, out, _ = run("plugins", "why", "local", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "broken"
    says(trace["remedy"], "unset VITZOO_REGISTRY")


# vitzoo plugins check and registry check (modules plugin_check, plugin_probe, audit)


def test_check_builds_everything_in_other_processes(run, install, monkeypatch):
    """Two plugins that work, one of which prints, beside a broken one in strict mode."""
    install("acme-parts", "acme = acme:registry.toml", ACME)
    install("globex-vit", "globex = globex.plugin", ends(f"print('hello')\n{MODULE}"))
    install("initech-vit", "initech = initech:registry.toml", {"initech/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    code, out, err = run("plugins", "check", "acme", "globex-vit", "--json")
    done = json.loads(out)
    assert code == 0, out
    assert [(p["namespace"], p["state"], p["contributions"]) for p in done["plugins"]] == [
        ("acme", "ok", 2),
        ("globex", "ok", 2),
    ]
    assert done["problems"] == []
    says(err, "acme", "acme-parts 1.0", "2", "ok")
    assert "hello" not in err
    assert not {"acme", "globex"} & set(sys.modules)


def checked(run, *names: str) -> list[dict]:
    code, out, _ = run("plugins", "check", *names, "--json")
    problems = json.loads(out)["problems"]
    assert code == (1 if problems else 0)
    assert all(list(problem) == ["namespace", "what", "cause", "location"] for problem in problems)
    return problems


@pytest.fixture
def probed(new_registry):
    """Do what the process of a check does, in this one; return its problems by what they are of."""

    def probed(namespace: str) -> dict[str, dict[str, str]]:
        new_registry()
        file = io.StringIO()
        probe(namespace, Notes(file))
        notes = [json.loads(line) for line in file.getvalue().splitlines()]
        found = [note["problem"] for note in notes if "problem" in note]
        assert len({problem["what"] for problem in found}) == len(found)
        return {problem["what"]: problem for problem in found}

    return probed


BAD_PARTS = """\
import vitzoo
from torch import nn

def short(*, depth):
    return [0.0]

class Blind(nn.Module):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()

class Angry(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        raise ValueError("no")

class Needy(nn.Module):
    def __init__(self, *, in_dim, num_classes, prototypes):
        super().__init__()

class Layout:
    def claims(self, keys):
        return False

half = Layout()
"""
BAD_MANIFEST = """\
api = 1
drop_path_policies.short = { target = "acme.parts:short", summary = "s" }
patch_embedders.blind = { target = "acme.parts:Blind", summary = "s" }
heads.angry = { target = "acme.parts:Angry", summary = "s" }
heads.needy = { target = "acme.parts:Needy", summary = "s" }
heads.gone = { target = "acme.parts:Gone", summary = "s" }
heads.far = { target = "acme.parts:Needy", summary = "s", requires = ["nonesuch-package>=2"] }
checkpoint_formats.kind = { target = "acme.parts:Layout", summary = "s" }
checkpoint_formats.half = { target = "acme.parts:half", summary = "s" }

[variants.net]
summary = "a network"
size = "ti"
head = "acme/none_of_mine"
params = 5
source = "made up"

[variants.counted]
summary = "a network"
size = "ti"
params = 5
source = "made up"
"""


def test_check_finds_what_is_wrong_with_each_contribution(probed, install):
    files = {"acme/__init__.py": "", "acme/parts.py": BAD_PARTS, "acme/registry.toml": BAD_MANIFEST}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    found = probed("acme")
    causes = {what: problem["cause"] for what, problem in found.items()}
    says(causes.pop("drop-path policy acme/short"), "1 rates", "2 blocks")
    says(causes.pop("patch embedder acme/blind"), "Blind", "grid, in_chans")
    assert causes.pop("head acme/angry") == "ValueError: no"
    assert found["head acme/angry"]["location"] == f"{root}/acme/parts.py:13"
    says(causes.pop("head acme/gone"), "'acme.parts:Gone'", "AttributeError:")
    says(causes.pop("head acme/far"), "pip install 'nonesuch-package>=2'")
    says(causes.pop("checkpoint format acme/kind"), "class Layout", "`layout = Layout()`")
    half = causes.pop("checkpoint format acme/half")
    says(half, "canonical, inverse, facts", "vitzoo.formats.base.Format")
    says(causes.pop("variant acme/net"), "head 'acme/none_of_mine'")
    says(causes.pop("variant acme/counted"), "params", "5", "5717416")
    assert found["variant acme/counted"]["location"] == f"{root}/acme/registry.toml:18"
    assert causes == {}


@pytest.mark.parametrize("value", ["acme:registry.toml", "acme.plugin"])
def test_list_of_a_namespace_suggests_its_pattern(run, install, value):
    module = {"acme/plugin.py": "raise ImportError('nobody may import me')"}
    install("acme-parts", f"acme = {value}", UNTOUCHABLE | module)
    code, out, err = run("list", "acme", "nothing")
    assert (code, out) == (1, "")
    says(err, "'acme'", "'nothing'", "'acme/*'")
    assert "nobody may import me" not in err
    says(run("list", "core")[2], "'core'", "`vitzoo list`")


LATE = MANIFEST.replace('source = "made up"', 'source = "made up"\ndrop_path = DROP')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ()),
        ({"params = 5717416": "params = 1"}, ("params", "1", "5717416")),
        ({'"acme/late"': '{name = "acme/late", rates = 1}'}, ("drop_path", "'rates'")),
        ({"parts:late": "parts:lat"}, ("'acme.parts:lat'",)),
    ],
    ids=["right", "params", "option", "target"],
)
def test_the_registry_check_builds_only_with_the_plugin_installed(
    run, install, tmp_path, new_registry, changes, said
):
    text = LATE.replace("DROP", '"acme/late"')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "source" / "acme" / "registry.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    new_registry()
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, "problem:", str(file), "net", "'acme'", "pip install -e .")
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    code, _, err = run("registry", "check", file)
    assert (code, err.count("\n")) == ((1, 1) if said else (0, 0))
    if said:
        says(err, "problem: net:", *said)


def test_the_registry_check_of_a_file_without_parts_of_plugins(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text)
    assert run("registry", "check", file)[::2] == (0, "")
    file.write_text(text.replace("5717416", "1"))
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, "problem: net:", "params", "1", "5717416")


def test_check_looks_for_bundled_weights(probed, install):
    weights = """
[variants.net.weights.first]
file = "first.safetensors"
size = 22869664
sha256 = "{}"
pin = "confirmed"
format = "timm"
license = "apache-2.0"
source = "made up"
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""
    text = MANIFEST.replace("\n[aliases]", weights.format("0" * 64) + "\n[aliases]")
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    found = probed("acme")
    assert list(found) == ["variant acme/net"]
    says(found["variant acme/net"]["cause"], "acme/net:first", "first.safetensors", "data folder")


def ends(code: str) -> dict[str, str]:
    return {"globex/__init__.py": "", "globex/plugin.py": code}


# One contribution that no network is built with, so that its process does without torch.
CHEAP = """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    yield vitzoo.DropPathPolicy("late", ["no function"], "a policy that cannot be called")
"""


@pytest.mark.parametrize(
    ("code", "what", "cause", "line"),
    [
        ("\n1 / 0", "plugin", ("ZeroDivisionError: division by zero",), ":2"),
        ("\n\nraise SystemExit(3)", "plugin", ("SystemExit: 3",), ":3"),
        ("import vitzoo", "plugin", ("globex.plugin", "@vitzoo.hookimpl"), ""),
        ("def broken(:", "plugin", ("SyntaxError:",), ":1"),
        ("import os\nos._exit(0)", "reading", ("exit code 0",), ""),
        ("import os\nprint('bye')\nos._exit(7)", "reading", ("exit code 7", "bye"), ""),
        ("import ctypes\n\nctypes.string_at(0)", "reading", ("SIGSEGV",), ":3"),
        (f"{CHEAP}\nimport atexit, os\natexit.register(os._exit, 3)", "process", ("code 3",), ""),
    ],
)
def test_check_survives_a_module_that_ends_badly(run, install, code, what, cause, line):
    root = install("globex-vit", "globex = globex.plugin", ends(code))
    problem = checked(run, "globex")[-1]
    assert problem["namespace"] == "globex"
    says(problem["what"], what)
    says(problem["cause"], *cause)
    assert problem["location"] == f"{root}/globex/plugin.py{line}"


HANG = """\
import subprocess, time
subprocess.Popen(["sleep", "600"])
print("x" * 1_000_000, flush=True)
open({file!r}, "w").write("here")
while True:
    time.sleep(1)
"""


def test_check_kills_a_plugin_that_hangs_and_what_it_started(run, install, tmp_path):
    before = sleepers()
    flag = tmp_path / "flag"
    root = install("globex-vit", "globex = globex.plugin", ends(HANG.format(file=str(flag))))
    begin = time.monotonic()
    code, out, _ = run("plugins", "check", "globex", "--timeout", "3", "--json")
    assert time.monotonic() - begin < 20
    assert flag.exists(), "the machine was too busy for this test"
    (problem,) = json.loads(out)["problems"]
    assert code == 1
    says(problem["cause"], "3 s", "killed")
    assert problem["location"] == f"{root}/globex/plugin.py:6"
    assert sleepers() == before


def sleepers() -> set[str]:
    """Return the processes that sleep for the time that HANG gives."""
    found = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if line.read_bytes() == b"sleep\x00600\x00":
                found.add(line.parent.name)
        except OSError:
            continue
    return found


def test_check_reports_a_thread_that_does_not_end(run, install):
    thread = "threading.Thread(target=time.sleep, args=(600,)).start()"
    code = f"{CHEAP}\nimport threading, time\n{thread}"
    install("globex-vit", "globex = globex.plugin", ends(code))
    done, out, _ = run("plugins", "check", "globex", "--timeout", "4", "--json")
    cheap, problem = json.loads(out)["problems"]
    assert done == 1
    says(cheap["cause"], "['no function']", "called")
    says(problem["what"], "process")
    says(problem["cause"], "4 s", "killed")


def test_check_fails_for_what_cannot_be_used(run, install):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("acme-fork", "acme = acme:registry.toml")
    (problem,) = checked(run, "acme")
    says(problem["cause"], "'acme'", "acme-fork 1.0", "acme-parts 1.0", "VITZOO_DISABLE_PLUGINS")


def test_check_fails_for_a_reserved_namespace(run, install):
    install("acme-parts", "core = acme:registry.toml\ndeit = acme:registry.toml", UNTOUCHABLE)
    causes = [problem["cause"] for problem in checked(run, "acme-parts")]
    assert len(causes) == 2
    says(causes[0], "'core'", "reserved")
    says(causes[1], "'deit'", "reserved", "vitzoo-deit")


@pytest.mark.usefixtures("acme")
def test_check_leaves_out_what_is_switched_off_unless_it_is_named(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "*")
    code, out, err = run("plugins", "check")
    assert (code, out) == (0, "namespace\twhat\tcause\tlocation\n")
    says(err, "acme", "acme-parts 1.0")
    assert "ok" not in err
    (problem,) = checked(run, "acme")
    says(problem["cause"], "VITZOO_DISABLE_PLUGINS", "'*'")


@pytest.mark.usefixtures("acme")
def test_check_of_a_name_that_is_not_installed(run):
    code, _, err = run("plugins", "check", "acne")
    assert code == 1
    says(err, "plugin 'acne'", "'acme'")


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_check_needs_a_time_that_passes(run, seconds):
    assert run("plugins", "check", "--timeout", seconds)[0] == 2


def test_check_of_a_broken_plugin_works_in_strict_mode(run, install, monkeypatch):
    install("globex-vit", "globex = globex.plugin", ends("1 / 0"))
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    (problem,) = checked(run, "globex")
    says(problem["cause"], "globex-vit 1.0", "ZeroDivisionError: division by zero")


# vitzoo which, and source lines (module plugin_source)


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
        ("timm", "formats/timm.py", "timm = TimmFormat()"),
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


SOURCE = """\
if True:
    class Under: pass
try:
    from .other import There as Here
except ImportError:
    Here = None
a, (b, c) = 1, (2, 3)
typed: int = 3
class Twice: pass
class Twice: pass
"""


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Under", "/acme/parts.py:2"),
        ("c", "/acme/parts.py:7"),
        ("typed", "/acme/parts.py:8"),
        ("Twice", "/acme/parts.py:10"),
        ("Nowhere", "/acme/parts.py"),
    ],
)
def test_a_definition_is_found_where_it_stands(install, name, place):
    files = {"acme/__init__.py": "1 / 0", "acme/parts.py": SOURCE}
    root = install("acme-parts", "acme = acme.parts", files)
    assert where_defined(f"acme.parts:{name}") == f"{root}{place}"


def test_a_re_export_is_followed(install):
    files = {
        "acme/__init__.py": "from acme.deep import Name",
        "acme/deep/__init__.py": "from .inner import Real as Name",
        "acme/deep/inner.py": "\n\nclass Real: pass",
        "acme/round.py": "from acme.round import Self as Self",
    }
    root = install("acme-parts", "acme = acme.parts", files)
    assert where_defined("acme:Name") == f"{root}/acme/deep/inner.py:3"
    assert where_defined("acme.round:Self") == f"{root}/acme/round.py"


@pytest.mark.parametrize("text", ["def (", "\0", "(" * 100_000, "é = 1\nx = \udce9"])
def test_a_source_that_cannot_be_parsed_has_no_line(install, text):
    root = install("acme-parts", "acme = acme", {"acme/__init__.py": ""})
    (root / "acme/parts.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert where_defined("acme.parts:Name") == f"{root}/acme/parts.py"


def test_what_is_not_there_has_no_place(tmp_path):
    assert where_defined("nonesuch.parts:Name") == ""
    assert module_file("vitzoo.nonesuch") is None
    assert where_declared(str(tmp_path / "none.toml"), "vitzoo_heads", "a").endswith("none.toml")


# --no-plugins, and commands that read no plugin (module switches)

LOOK = """
import importlib, json, sys
plugins = importlib.import_module("vitzoo.plugin.host")
from vitzoo.cli.main import main
from vitzoo.registry.registry import _registry
read = []
whole = plugins.PluginHost._read_manifest
plugins.PluginHost._read_manifest = lambda *args: read.append(args[-1]) or whole(*args)
for args in json.loads(sys.argv[1]):
    _registry.cache_clear()
    read.clear()
    code = main(args)
    print("done", code, len(read), "acme" in sys.modules, file=sys.stderr)
"""
QUIET = [
    ["--help"],
    ["--version"],
    ["plugins", "--help"],
    ["rm", "vit_b16"],
    ["lock"],
    ["--no-plugins", "list"],
    ["--no-plugins", "plugins"],
    ["show", "vit_b16"],
    ["rm", "vit_b61"],
]


@pytest.fixture
def looked(acme, tmp_path):
    """Run commands in one fresh interpreter: exit codes, manifests read, whether acme came in."""
    path = os.pathsep.join([str(acme), *sys.path])
    home = str(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps([*QUIET, ["list"]])],
        env=os.environ | {"PYTHONPATH": path, "VITZOO_HOME": home, "VITZOO_STRICT_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    rows = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("done ")]
    return [(int(code), int(count), imported) for code, count, imported in rows]


def test_commands_that_read_no_manifest_of_a_plugin(looked):
    *quiet, listing = looked
    for args, found in zip(QUIET, quiet, strict=True):
        assert found == (1 if args == ["rm", "vit_b61"] else 0, 0, "False"), args
    assert listing[0] == 0
    assert listing[1] >= 1, "what is read is not seen"


@pytest.mark.parametrize("args", [("rm", "vit_b16"), ("lock",), ("rm", "hf://a/b@main/c.npz")])
def test_rm_and_lock_work_beside_a_broken_plugin_in_strict_mode(
    run, install, monkeypatch, tmp_path, args
):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    assert run(*args)[0] == 0


def test_rm_of_a_plugins_variant_works_beside_a_broken_plugin_in_strict_mode(
    run, install, monkeypatch
):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("globex-vit", "globex = globex:registry.toml", {"globex/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    code, _, err = run("rm", "acme/net")
    assert code == 1
    says(err, "acme/net", "weights")
    assert "globex" not in err


@pytest.mark.usefixtures("acme")
def test_no_plugins_holds_for_one_command(run):
    assert "acme/net" not in run("--no-plugins", "list", "-q")[1]
    code, _, err = run("--no-plugins", "show", "acme/net")
    assert code == 1
    says(err, "'acme'", "VITZOO_DISABLE_PLUGINS", "'*'")
    assert "VITZOO_DISABLE_PLUGINS" not in os.environ
    assert "acme/net" in run("list", "-q")[1]


def test_plugins_on_a_terminal_fits_80_columns_and_wraps_the_fix(run, install, monkeypatch):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("vitzoo.cli.plugins.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    _, out, _ = run("plugins")
    assert "acme (acme-parts): broken" in out
    flat = " ".join(out.split())
    says(flat, "pip install --upgrade acme-parts", "lazy:")
    assert max(map(len, out.splitlines()[: out.splitlines().index("")])) <= 80
