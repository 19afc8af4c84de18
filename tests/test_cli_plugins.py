"""`vitzoo plugins`, `which` and `--no-plugins`: what they say of good, odd and broken plugins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitzoo
from vitzoo.plugin_source import module_file, where_declared, where_defined
from vitzoo.plugins import CORE_MANIFEST

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


# vitzoo plugins


def test_the_table_says_what_each_plugin_is(run, acme, install):
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


def test_a_broken_plugin_is_listed_with_line_cause_and_way_out(run, install):
    files = UNTOUCHABLE | {"acme/registry.toml": MANIFEST.replace('"ti"', '"tiny"')}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    code, out, _ = run("plugins", "--json")
    row = by_namespace(out)["acme"]
    assert code == 0
    assert row["state"] == "broken"
    assert row["location"] == f"{root}/acme/registry.toml:7"
    assert "[variants.net]: size must be one of ti, s, b" in row["cause"]
    assert row["remedy"].startswith("pip install --upgrade acme-parts, or pip uninstall acme-parts")


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
    assert "VITZOO_DISABLE_PLUGINS names 'acne', which is no installed plugin" in err


def test_the_users_own_file_is_counted(run, local_registry):
    local_registry()
    _, out, _ = run("plugins", "--json")
    assert by_namespace(out)["local"]["variants"] == 1


@pytest.mark.parametrize("args", [("plugins",), ("plugins", "why", "acme"), ("plugins", "--json")])
def test_strictness_does_not_keep_one_from_looking(run, install, monkeypatch, args):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    with pytest.raises(vitzoo.PluginError):
        vitzoo.plugins()
    code, out, _ = run(*args)
    assert code == 0
    assert "its manifest 'registry.toml' is not in" in out
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


def test_a_first_party_plugin_that_is_off_is_said_to_be_off(run, install, monkeypatch):
    install("vitzoo-clip", "clip = acme:registry.toml", UNTOUCHABLE)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "clip")
    code, _, err = run("show", "clip/net")
    assert code == 1
    assert "plugin 'clip' cannot be used: VITZOO_DISABLE_PLUGINS names 'clip'" in err


def test_json_belongs_after_a_subcommand(run):
    code, _, err = run("plugins", "--json", "check")
    assert code == 2
    assert "write --json after check" in err


def test_a_subcommand_that_is_not_there_has_a_near_one(run):
    code, _, err = run("plugins", "chek")
    assert code == 2
    assert "check" in err


# vitzoo plugins why


def test_why_tells_the_story_of_a_manifest(run, acme):
    code, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert code == 0
    assert (trace["state"], trace["version"]) == ("loaded", "1.0")
    found, switches, manifest, kept, read, counted = trace["steps"]
    assert found.startswith("found the entry point acme = acme:registry.toml of acme-parts 1.0 in ")
    assert switches == "switches: it may be used"
    assert f": {len(MANIFEST)} bytes, sha256 " in manifest
    assert kept.startswith("listings have not kept")
    assert read == f"read the manifest {acme}/acme/registry.toml; nothing imported"
    assert counted == "2 contributions"
    assert [row["name"] for row in trace["contributions"]] == ["acme/late", "acme/net"]
    late = trace["contributions"][0]
    assert late["kind"] == "drop-path policy"
    assert late["target"] == "acme.parts:late"
    assert late["defined"] == f"{acme}/acme/parts.py:1"
    assert late["location"] == f"{acme}/acme/registry.toml:3"
    assert "acme" not in sys.modules


@pytest.mark.usefixtures("acme")
def test_why_knows_what_listings_keep(run):
    run("list", "acme/*")
    _, out, _ = run("plugins", "why", "acme")
    assert "listings have kept what it says of variants (1) and do not read it again" in out


@pytest.mark.usefixtures("acme")
def test_why_finds_a_plugin_by_its_distribution(run):
    _, out, _ = run("plugins", "why", "Acme_Parts", "--json")
    assert [trace["namespace"] for trace in json.loads(out)] == ["acme"]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/late", "acme/late is a drop-path policy"),
        ("acme/net", "acme/net is a variant"),
        ("acme/old", "acme/old is a former name of acme/net"),
        (
            "acme/nets",
            "acme/nets is none of its contributions; did you mean 'acme/net' or 'acme/late'?",
        ),
    ],
)
def test_why_explains_a_single_name(run, name, said):
    _, out, _ = run("plugins", "why", name, "--json")
    (trace,) = json.loads(out)
    assert trace["steps"][-1] == said
    assert all(row["name"] == name for row in trace["contributions"])


@pytest.mark.usefixtures("acme")
def test_why_says_what_is_hidden(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/net")
    _, out, _ = run("plugins", "why", "acme/net", "--json")
    (trace,) = json.loads(out)
    assert trace["steps"][-1] == (
        "acme/net is a variant, switched off: VITZOO_DISABLE_PLUGINS names it"
    )
    assert [row["hidden"] for row in trace["contributions"]] == [True]


def test_why_says_that_a_module_waits_and_does_not_import_it(run, install):
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    code, out, _ = run("plugins", "why", "globex/late")
    assert code == 0
    assert "is imported when something in globex/ is asked for, not before" in out
    assert "`vitzoo plugins check globex` imports it now, in a process of its own" in out
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
    assert trace["steps"][-1] == "switches: VITZOO_PLUGINS does not name it"


def test_why_says_where_it_looked_for_what_is_not_installed(run, acme):
    code, out, _ = run("plugins", "why", "acne", "--json")
    (trace,) = json.loads(out)
    assert code == 1
    assert trace["state"] == "not installed"
    nothing, searched, having, near = trace["steps"]
    assert nothing == ("no installed distribution has an entry point 'acne' in the group 'vitzoo'")
    assert str(acme) in searched
    assert "acme-parts 1.0 (acme)" in having
    assert near == "did you mean 'acme'?"


def test_why_sends_a_name_of_the_core_to_which(run):
    code, out, _ = run("plugins", "why", "vit_b16")
    assert code == 1
    assert "the core has 'vit_b16': `vitzoo which vit_b16` says what it is" in out


def test_why_reads_the_users_own_file(run, local_registry):
    path = local_registry()
    assert "local/net" in run("plugins", "why", "local")[1]
    path.write_text("api = 1\nvariants = 3\n")
    _, out, _ = run("plugins", "why", "local", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "broken"
    assert trace["remedy"] == "mend the file, or unset VITZOO_REGISTRY"


# vitzoo plugins check


def test_check_uses_everything_and_imports_nothing_here(run, install):
    install("acme-parts", "acme = acme:registry.toml", ACME)
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    code, out, err = run("plugins", "check", "acme", "globex-vit", "--json")
    done = json.loads(out)
    assert code == 0, out
    assert [(p["namespace"], p["state"], p["contributions"]) for p in done["plugins"]] == [
        ("acme", "ok", 2),
        ("globex", "ok", 2),
    ]
    assert done["problems"] == []
    assert "acme (acme-parts 1.0): 2 contributions, ok (" in err
    assert not {"acme", "globex"} & set(sys.modules)


def checked(run, *names: str) -> list[dict]:
    code, out, _ = run("plugins", "check", *names, "--json")
    problems = json.loads(out)["problems"]
    assert code == (1 if problems else 0)
    assert all(list(problem) == ["namespace", "what", "cause", "location"] for problem in problems)
    return problems


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


def test_check_finds_what_is_wrong_with_each_contribution(run, install):
    files = {"acme/__init__.py": "", "acme/parts.py": BAD_PARTS, "acme/registry.toml": BAD_MANIFEST}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    found = {problem["what"]: problem for problem in checked(run, "acme")}
    causes = {what: problem["cause"] for what, problem in found.items()}
    assert "gave 1 rates for 2 blocks" in causes.pop("drop-path policy acme/short")
    assert "Blind lacks grid, in_chans" in causes.pop("patch embedder acme/blind")
    assert causes.pop("head acme/angry") == "ValueError: no"
    assert found["head acme/angry"]["location"] == f"{root}/acme/parts.py:13"
    assert "cannot import 'acme.parts:Gone'" in causes.pop("head acme/gone")
    assert "pip install 'nonesuch-package>=2'" in causes.pop("head acme/far")
    assert "is the class Layout; name an object of it: `layout = Layout()`" in causes.pop(
        "checkpoint format acme/kind"
    )
    half = causes.pop("checkpoint format acme/half")
    assert half.endswith("lacks canonical, inverse, facts; see vitzoo.formats.Format")
    assert "cannot be built: unknown head 'acme/none_of_mine'" in causes.pop("variant acme/net")
    assert "params is 5, the network has 5717416" in causes.pop("variant acme/counted")
    assert found["variant acme/counted"]["location"] == f"{root}/acme/registry.toml:18"
    assert causes == {}


@pytest.mark.parametrize("value", ["acme:registry.toml", "acme.plugin"])
def test_a_namespace_as_a_pattern_is_told_apart(run, install, value):
    module = {"acme/plugin.py": "raise ImportError('nobody may import me')"}
    install("acme-parts", f"acme = {value}", UNTOUCHABLE | module)
    code, out, err = run("list", "acme", "nothing")
    said = "vitzoo: no variant matches 'acme', 'nothing'; did you mean 'acme/*'?\n"
    assert (code, out, err) == (1, "", said)
    assert run("list", "core")[2] == "vitzoo: no variant matches 'core'; `vitzoo list` shows all\n"


LATE = MANIFEST.replace('source = "made up"', 'source = "made up"\ndrop_path = DROP')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"params = 5717416": "params = 1"}, "net: params is 1, the network has 5717416"),
        ({'"acme/late"': '{name = "acme/late", rates = 1}'}, "net: cannot be built: .*'rates'"),
        ({"parts:late": "parts:lat"}, "net: cannot be built: .*acme.parts:lat"),
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
    assert err == (
        f"problem: {file}: not built, and not counted: net; no installed plugin has the parts of "
        "'acme' that this manifest names. Install it (pip install -e .), then check again\n"
    )
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    code, _, err = run("registry", "check", file)
    assert code == (1 if said else 0)
    assert re.fullmatch(f"problem: {said}.*\n" if said else "", err)


def test_the_registry_check_of_a_file_without_parts_of_plugins(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text)
    assert run("registry", "check", file)[::2] == (0, "")
    assert run("registry", "check", CORE_MANIFEST)[::2] == (0, "")
    file.write_text(text.replace("5717416", "1"))
    code, _, err = run("registry", "check", file)
    assert (code, err) == (1, "problem: net: params is 1, the network has 5717416\n")


def test_check_looks_for_bundled_weights(run, install):
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
    (problem,) = checked(run, "acme")
    assert "first.safetensors is not in the data folder of acme" in problem["cause"]


def ends(code: str) -> dict[str, str]:
    return {"globex/__init__.py": "", "globex/plugin.py": code}


@pytest.mark.parametrize(
    ("code", "what", "cause", "line"),
    [
        ("\n1 / 0", "the plugin", "ZeroDivisionError: division by zero", ":2"),
        ("\n\nraise SystemExit(3)", "the plugin", "SystemExit: 3", ":3"),
        ("import vitzoo", "the plugin", "globex.plugin contributes nothing", ""),
        ("def broken(:", "the plugin", "SyntaxError", ":1"),
        ("import os\nos._exit(0)", "reading it", "ended by itself with exit code 0", ""),
        ("import os\nprint('bye')\nos._exit(7)", "reading it", "with exit code 7", ""),
        (
            "import ctypes\n\nctypes.string_at(0)",
            "reading it",
            "its process was killed by SIGSEGV",
            ":3",
        ),
        (
            f"{MODULE}\nimport atexit, os\natexit.register(os._exit, 3)",
            "ending the process that used it",
            "its process ended by itself with exit code 3",
            "",
        ),
    ],
)
def test_check_survives_a_module_that_ends_badly(run, install, code, what, cause, line):
    root = install("globex-vit", "globex = globex.plugin", ends(code))
    (problem,) = checked(run, "globex")
    assert problem["namespace"] == "globex"
    assert problem["what"] == what
    assert cause in problem["cause"]
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
    assert problem["cause"] == "took longer than 3 s and was killed"
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
    code = f"{MODULE}\nimport threading, time\n{thread}"
    install("globex-vit", "globex = globex.plugin", ends(code))
    done, out, _ = run("plugins", "check", "globex", "--timeout", "12", "--json")
    (problem,) = json.loads(out)["problems"]
    assert done == 1
    assert problem["what"] == "ending the process that used it"
    assert problem["cause"] == "took longer than 12 s and was killed"


def test_check_keeps_what_a_plugin_prints_off_stdout(run, install):
    install("globex-vit", "globex = globex.plugin", ends(f"print('hello')\n{MODULE}"))
    code, out, err = run("plugins", "check", "globex")
    assert (code, out) == (0, "namespace\twhat\tcause\tlocation\n")
    assert "hello" not in err


def test_check_fails_for_what_cannot_be_used(run, install):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("acme-fork", "acme = acme:registry.toml")
    (problem,) = checked(run, "acme")
    assert problem["cause"] == (
        "the namespace 'acme' is claimed by acme-fork 1.0 and acme-parts 1.0; name one of them in "
        "VITZOO_DISABLE_PLUGINS, or uninstall one of them"
    )


def test_check_fails_for_a_namespace_that_is_another_s(run, install):
    install("acme-parts", "core = acme:registry.toml\ndeit = acme:registry.toml", UNTOUCHABLE)
    causes = [problem["cause"] for problem in checked(run, "acme-parts")]
    assert len(causes) == 2
    assert causes[0].startswith("its namespace 'core' is reserved or malformed")
    assert causes[1].startswith("its namespace 'deit' is reserved to the distribution vitzoo-deit")


@pytest.mark.usefixtures("acme")
def test_check_leaves_out_what_is_switched_off_unless_it_is_named(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "*")
    code, out, err = run("plugins", "check")
    assert (code, out) == (0, "namespace\twhat\tcause\tlocation\n")
    assert "acme (acme-parts 1.0): switched off, not checked" in err
    (problem,) = checked(run, "acme")
    assert problem["cause"].startswith("VITZOO_DISABLE_PLUGINS names '*'")


@pytest.mark.usefixtures("acme")
def test_check_of_a_name_that_is_not_installed(run):
    code, _, err = run("plugins", "check", "acne")
    assert code == 1
    assert "no plugin 'acne' is installed; did you mean 'acme'?" in err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_check_needs_a_time_that_passes(run, seconds):
    assert run("plugins", "check", "--timeout", seconds)[0] == 2


def test_check_works_in_strict_mode(run, install, monkeypatch):
    install("globex-vit", "globex = globex.plugin", ends("1 / 0"))
    install("acme-parts", "acme = acme:registry.toml", ACME)
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    assert checked(run, "acme") == []
    assert len(checked(run, "globex")) == 1


# vitzoo which, and where things are


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


# --no-plugins, and commands that leave plugins alone

LOOK = """
import importlib, sys
plugins = importlib.import_module("vitzoo.plugins")
from vitzoo.cli.main import main
read = []
whole = plugins.PluginHost._read_manifest
plugins.PluginHost._read_manifest = lambda *args: read.append(args[-1]) or whole(*args)
code = main({args!r})
print(code, len(read), "acme" in sys.modules, file=sys.stderr)
"""


def quiet(path: Path, *args: str, **env: str) -> str:
    """Run a command; return its exit code, the manifests that it read, and if acme was imported."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(args=args)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path]), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("--version",),
        ("plugins", "--help"),
        ("rm", "vit_b16"),
        ("lock",),
        ("--no-plugins", "list"),
        ("--no-plugins", "plugins"),
        ("show", "vit_b16"),
    ],
    ids=" ".join,
)
def test_commands_that_read_nothing_of_a_plugin(acme, tmp_path, args):
    home = {"VITZOO_HOME": str(tmp_path / "home"), "VITZOO_STRICT_PLUGINS": ""}
    assert quiet(acme, *args, **home) == "0 0 False"


def test_a_name_that_is_not_there_is_looked_for_in_no_plugin(acme, tmp_path):
    assert quiet(acme, "rm", "vit_b61", VITZOO_HOME=str(tmp_path / "home")) == "1 0 False"


def test_this_test_sees_what_is_read(acme, tmp_path):
    count = int(quiet(acme, "list", VITZOO_HOME=str(tmp_path / "home")).split()[1])
    assert count >= 1


@pytest.mark.parametrize("args", [("rm", "vit_b16"), ("lock",), ("rm", "hf://a/b@main/c.npz")])
def test_recovery_works_whatever_plugins_do(run, install, monkeypatch, tmp_path, args):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    assert run(*args)[0] == 0


def test_weights_of_a_plugin_are_removed_whatever_others_do(run, install, monkeypatch):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("globex-vit", "globex = globex:registry.toml", {"globex/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    code, _, err = run("rm", "acme/net")
    assert (code, err) == (1, "vitzoo: acme/net has no weights None\n")


@pytest.mark.usefixtures("acme")
def test_no_plugins_holds_for_one_command(run):
    assert "acme/net" not in run("--no-plugins", "list", "-q")[1]
    code, _, err = run("--no-plugins", "show", "acme/net")
    assert code == 1
    assert "VITZOO_DISABLE_PLUGINS names '*', all of them" in err
    assert "VITZOO_DISABLE_PLUGINS" not in os.environ
    assert "acme/net" in run("list", "-q")[1]


def test_a_plugin_shown_on_a_terminal_is_readable(run, install, monkeypatch):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("vitzoo.cli.plugins.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    _, out, _ = run("plugins")
    assert "acme (acme-parts): broken" in out
    flat = " ".join(out.split())
    assert "remedy pip install --upgrade acme-parts" in flat
    assert "lazy: a module, imported when something in it is asked for" in flat
    assert max(map(len, out.splitlines()[: out.splitlines().index("")])) <= 80
