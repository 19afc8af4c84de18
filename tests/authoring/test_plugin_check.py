"""`vitzoo plugins check`: plugins are tested in another process, which may crash or hang."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from helpers import says
from plugin_files import ACME, MODULE, UNTOUCHABLE

pytestmark = [pytest.mark.conformance, pytest.mark.usefixtures("own_home")]


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


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


PARTLY = """\
from torch import nn
from vitzoo import InvalidOption

class Head(nn.Module):
    def __init__(self, *, in_dim, num_classes, prototypes):
        super().__init__()

class Picky(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        raise InvalidOption(f"in_dim must be 40, got {in_dim}")

class Big(nn.Module):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()
        self.in_chans = in_chans
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.more = nn.Linear(1024, 1024)

    def grid(self, image_size):
        return image_size[0] // 8, image_size[1] // 8

    def forward(self, images):
        raise RuntimeError("is never run")

def build(spec):
    from vitzoo.network.build import build
    from vitzoo.registry.registry import registry
    return build(spec, part=registry().part)

def bare(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
"""
UNTESTED = """\
api = 1
heads.needy = { target = "acme.parts:Head", summary = "s" }
heads.picky = { target = "acme.parts:Picky", summary = "s" }
patch_embedders.big = { target = "acme.parts:Big", summary = "s" }
[variants.small]
summary = "s"
size = "ti"
params = 5717416
builder = "acme.parts:build"
source = "made up"
[variants.large]
summary = "s"
size = "s"
params = 22050664
builder = "acme.parts:build"
source = "made up"
[variants.bare]
summary = "s"
patch_size = 8
image_size = 8
num_classes = 5
params = 965
builder = "acme.parts:bare"
source = "made up"
"""


def test_check_lists_what_it_did_not_test(run, install):
    files = {"acme/__init__.py": "", "acme/parts.py": PARTLY, "acme/registry.toml": UNTESTED}
    install("acme-parts", "acme = acme:registry.toml", files)
    code, out, err = run("plugins", "check", "acme", "--json")
    assert code == 0, out
    (row,) = json.loads(out)["plugins"]
    assert row["state"] == "ok"
    found = {line.partition(": ")[0]: line.partition(": ")[2] for line in row["untested"]}
    assert {*found} == {
        "head acme/needy", "head acme/picky", "patch embedder acme/big", "variant acme/large",
        "variant acme/bare",
    }  # fmt: skip
    says(found["head acme/needy"], "needs prototypes")
    says(found["head acme/picky"], "none of the usual sizes")
    says(found["patch embedder acme/big"], "1,000,000 parameters", "not run")
    says(found["variant acme/large"], "same builder")
    says(found["variant acme/bare"], "vitzoo.backbone needs feature_info and")
    lines = [line.strip() for line in err.splitlines()]
    assert {f"not tested: {line}" for line in row["untested"]} < {*lines}
    says(lines[-1], "not tested of any plugin", "training", "vitzoo.testing.PluginTests")


def checked(run, *names: str) -> list[dict]:
    code, out, _ = run("plugins", "check", *names, "--json")
    problems = json.loads(out)["problems"]
    assert code == (1 if problems else 0)
    assert all(list(problem) == ["namespace", "what", "cause", "location"] for problem in problems)
    return problems


def ends(code: str) -> dict[str, str]:
    return {"globex/__init__.py": "", "globex/plugin.py": code}


# A contribution that needs no network, so its process imports no torch.
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
    says(problem["cause"], "3 s, during an import,", "killed", "do this work later", "--timeout")
    assert problem["location"] == f"{root}/globex/plugin.py:6"
    assert sleepers() == before


def sleepers() -> set[str]:
    """Return the ids of the `sleep 600` processes that HANG starts."""
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
    says(cheap["cause"], "['no function']", "expected a class or a function")
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
