"""Every command and function, in a process whose sockets, and those of its children, are watched.

Offline none is opened. Online there are the requests that a call asks for and no others, so there
is no telemetry.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import vitzoo
from internals import COMMIT, FIRST_PARTY_COMMANDS, cli
from sockets import WATCH

# Reads one call after the other, [name, arguments of a command or code], and answers each.
RUN = """
import contextlib, io, json, os, sys
import vitzoo
from vitzoo.cli.main import main

answers = sys.stdout
for line in sys.stdin:
    os.environ["CALL"], call = json.loads(line)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if isinstance(call, str):
            try:
                exec(call)
            except vitzoo.VitzooError as error:
                code = error.exit_code
                print(error)
        else:
            code = main(call)
    print(json.dumps([code, err.getvalue() + out.getvalue()]), file=answers, flush=True)
"""
FILE = "model.safetensors"
UNPINNED = f"hf://acme/net@main/{FILE}"
OK, NOT_FOUND, USAGE, OFFLINE = 0, 1, 2, 4


def commands(group=cli, path=()):
    """Yield the names of all commands, those of groups behind the group's."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join((*path, name))


@pytest.fixture
def scans(tmp_path):
    """A folder of two classes, each with one scan in three files that differ."""
    digits = Path(__file__).parents[2] / "docs" / "examples" / "digits"
    for scan in sorted(digits.glob("digit_[12]_*.png")):
        folder = tmp_path / "scans" / scan.name[:7]
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"{number}.png").write_bytes(scan.read_bytes() + bytes([number]))
    return tmp_path / "scans"


@pytest.fixture
def calls(net, scans, tmp_path):
    """Arguments of every command and the exit code with which each ends offline."""
    net.first_use()
    file = tmp_path / "net.safetensors"
    file.write_bytes(net.data)
    registry = tmp_path / "site" / "faulty" / "registry.toml"
    given = ("--variant", "faulty/net", "--license", "mit", "--source", "the test")
    given += ("--file", str(tmp_path / "own.toml"))
    digit = "docs/examples/digits/digit_7_scan_0081.png"
    return {
        "list": (["list"], OK),
        "show": (["show", "faulty/net"], OK),
        "which": (["which", "vit_base_patch16_224"], OK),
        "summary": (["summary", "vit_ti16"], OK),
        "plot": (["plot", "tokens", "vit_digits", digit, "--out", str(tmp_path / "x.png")], OK),
        "bench": (["bench", "--ways", "eager", "--batch", "1", "--seconds", "0.1"], OK),
        "predict": (["predict", "vit_digits", digit], OK),
        "embed": (["embed", "vit_digits", digit, "--out", str(tmp_path / "vectors")], OK),
        "probe": (["probe", "vit_digits", str(scans)], OK),
        "finetune": (
            ["finetune", "vit_digits", str(scans), "--out", str(tmp_path / "run"), "--epochs", "1"],
            OK,
        ),
        "fetch": (["fetch", "faulty/net"], OFFLINE),
        "fetch, pinned": (["fetch", "vit_b16"], OFFLINE),
        "fetch, address": (["fetch", UNPINNED], OFFLINE),
        "fetch, Hub cache": (["fetch", "--from-hub-cache", "faulty/net"], NOT_FOUND),
        "verify": (["verify", "--all"], OK),
        "rm": (["rm", "vit_b16"], OK),
        "import": (["import", str(file)], NOT_FOUND),  # its sha256 is not known
        "lock": (["lock"], OK),
        "lock, Hub cache": (["lock", "--from-hub-cache"], OK),
        "lock, update": (["lock", "--update", "faulty/net"], OFFLINE),
        "convert": (
            ["convert", str(file), str(tmp_path / "new.safetensors"), "--to", "timm"],
            OK,
        ),
        "export": (["export", "vit_digits", str(tmp_path / "pt2"), "--to", "torch"], OK),
        "link": (["link", "vit_digits", str(tmp_path / "linked"), "--for", "timm"], OK),
        "link, published": (
            ["link", "faulty/net", str(tmp_path / "published"), "--for", "timm"],
            OFFLINE,
        ),
        "push": (["push", "vit_digits", "acme/digits"], OFFLINE),
        "push, dry run": (
            [
                "push",
                "vit_digits",
                "acme/digits",
                "--dry-run",
                "--folder",
                str(tmp_path / "pushed"),
            ],
            OK,
        ),
        "registry check": (["registry", "check", str(registry)], OK),
        "registry pin": (["registry", "pin", str(registry)], OFFLINE),
        "registry add": (["registry", "add", "a", str(file), *given], OK),
        "registry add, address": (["registry", "add", "b", UNPINNED, *given], OFFLINE),
        "registry add, https": (
            ["registry", "add", "c", "https://acme.example/x.npz", "--sha256", "ab" * 32, *given],
            OFFLINE,
        ),
        "site": (["site", str(tmp_path / "catalogue")], OK),
        "check-vectors": (["check-vectors", "qdrant:http://localhost:1#a"], OFFLINE),
        "plugins": (["plugins"], OK),
        "plugins check": (["plugins", "check", "faulty"], OK),
        "plugins why": (["plugins", "why", "faulty"], OK),
        "plugins new": (["plugins", "new", "globex", "--dir", str(tmp_path / "new")], OK),
        "plugins compile": (["plugins", "compile", "faulty"], USAGE),  # it has a manifest
    }


@pytest.fixture
def functions(scans, tmp_path):
    """Code that calls every public function, and the exit code of its error offline."""
    digit = "'docs/examples/digits/digit_7_scan_0081.png'"
    saved = repr(str(tmp_path / "saved.safetensors"))
    return {
        "vitzoo.variants": ("vitzoo.variants('vit_b*')", OK),
        "vitzoo.describe": ("vitzoo.describe('faulty/net')", OK),
        "vitzoo.plugins": ("vitzoo.plugins()", OK),
        "vitzoo.synsets": ("vitzoo.synsets('imagenet-1k')", OK),
        "vitzoo.labels": ("vitzoo.labels('vit_digits')", OK),
        "vitzoo.transform": ("vitzoo.transform('faulty/net')", OK),
        "vitzoo.create": ("vitzoo.create('vit_digits', pretrained=True)", OK),
        "vitzoo.summary": ("vitzoo.summary('vit_ti16')", OK),
        "vitzoo.create, published": ("vitzoo.create('faulty/net', pretrained=True)", OFFLINE),
        "vitzoo.save": (f"vitzoo.save(vitzoo.create('vit_digits'), {saved})", OK),
        "vitzoo.convert": (
            f"vitzoo.convert('vit_digits', 'timm', {str(tmp_path / 'timm.safetensors')!r})",
            OK,
        ),
        "vitzoo.export": (
            f"vitzoo.export('vit_digits', 'torch', {str(tmp_path / 'exported')!r})",
            OK,
        ),
        "vitzoo.link": (
            f"vitzoo.link('vit_digits', {str(tmp_path / 'linked2')!r}, 'timm')",
            OK,
        ),
        "vitzoo.push": ("vitzoo.push('vit_digits', 'acme/digits')", OFFLINE),
        "vitzoo.timm_overlay": (
            "vitzoo.timm_overlay('vit_base_patch16_224.augreg2_in21k_ft_in1k')",
            OFFLINE,
        ),
        "vitzoo.backbone": ("vitzoo.backbone('vit_digits', pretrained=True)", OK),
        "vitzoo.register_in_timm": ("vitzoo.register_in_timm()", OK),
        "vitzoo.predict": (
            f"list(vitzoo.predict(vitzoo.create('vit_digits', pretrained=True), [{digit}]))",
            OK,
        ),
        "vitzoo.embed": (
            f"vitzoo.embed('vit_digits', {digit}, {str(tmp_path / 'embedded')!r}, workers=1)",
            OK,
        ),
        "vitzoo.identity": ("vitzoo.identity('vit_digits')", OK),
        "vitzoo.require_identity": (
            "vitzoo.require_identity(vitzoo.identity('vit_digits'), 'vit_digits')",
            OK,
        ),
        "vitzoo.plot": (
            f"vitzoo.plot('rollout', vitzoo.create('vit_digits'), {digit}).figure",
            OK,
        ),
        "vitzoo.bench": ("vitzoo.bench(ways=['eager'], batches=[1], rounds=6, seconds=0.1)", OK),
        "vitzoo.confusion_figure": (
            "import numpy; vitzoo.confusion_figure('a', numpy.eye(2, dtype=int), ['a', 'b'])",
            OK,
        ),
        "vitzoo.read_labelled": (f"vitzoo.read_labelled({str(scans)!r})", OK),
        "vitzoo.probe": (f"vitzoo.probe('vit_digits', {str(scans)!r})", OK),
        "vitzoo.param_groups": ("vitzoo.param_groups(vitzoo.create('vit_digits'), 1e-3)", OK),
        "vitzoo.freeze": ("vitzoo.freeze(vitzoo.create('vit_digits'), until=2)", OK),
        "vitzoo.lora": ("vitzoo.lora(vitzoo.create('vit_digits', pretrained=True))", OK),
        "vitzoo.verify": ("vitzoo.verify()", OK),
        "vitzoo.fetch": ("vitzoo.fetch('faulty/net')", OFFLINE),
    }


@pytest.fixture
def process(net, tmp_path):
    """Start the process that is watched; returns a function that makes a call in it."""
    started = []

    def start(**variables):
        hook = tmp_path / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
        env = net.environment() | variables | {"SOCKETS": str(tmp_path / "sockets.txt")}
        env |= {"PYTHONPATH": os.pathsep.join([str(hook), env["PYTHONPATH"]])}
        env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        running = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RUN],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=env, text=True, encoding="utf-8", cwd=net.repository,
        )  # fmt: skip
        started.append(running)

        def call(name, what):
            running.stdin.write(json.dumps([name, what]) + "\n")
            running.stdin.flush()
            answer = running.stdout.readline()
            assert answer, running.communicate()[1]
            return json.loads(answer)

        return call

    yield start
    for running in started:
        running.communicate(timeout=60)
        assert running.returncode == 0


def test_every_command_and_function_is_called(calls, functions):
    missing = {*commands(), *FIRST_PARTY_COMMANDS} ^ {name.partition(",")[0] for name in calls}
    assert not missing, f"add calls of {missing} to the fixture `calls`, or remove them"
    public = {name for name in vitzoo.__all__ if inspect.isfunction(getattr(vitzoo, name))}
    missing = {f"vitzoo.{name}" for name in public} ^ {name.partition(",")[0] for name in functions}
    assert not missing, f"add calls of {missing} to the fixture `functions`, or remove them"


@pytest.mark.parametrize(
    "variable", ["VITZOO_OFFLINE", pytest.param("HF_HUB_OFFLINE", marks=pytest.mark.long)]
)
def test_offline_no_call_opens_a_socket(calls, functions, process, tmp_path, variable):
    log = tmp_path / "sockets.txt"
    registry = tmp_path / "site" / "faulty" / "registry.toml"
    before = registry.read_bytes()
    call = process(**{variable: "1"})
    wanted = calls | functions
    found = {name: call(name, what) for name, (what, _) in wanted.items()}
    assert not log.exists(), log.read_text(encoding="utf-8")
    wrong = {name: found[name] for name, (_, code) in wanted.items() if found[name][0] != code}
    assert wrong == {}
    for name, (_, code) in wanted.items():
        if code == OFFLINE:
            assert "offline" in found[name][1], name
    assert "VITZOO_OFFLINE" in found["registry pin"][1]
    assert registry.read_bytes() == before


@pytest.mark.long
def test_online_there_are_the_requests_that_were_asked_for(
    calls, functions, process, hub, tmp_path, monkeypatch
):
    """The calls that need the network are those that fail without it."""
    for name in ("CI", "DO_NOT_TRACK", "DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    call, wanted, sent = process(ALLOWED=hub.host), calls | functions, {}
    for name, (what, _) in wanted.items():
        if name in (
            "fetch, address",
            "link, published",
            "registry add, address",
            "vitzoo.create, published",
            "vitzoo.fetch",
        ):
            call("rm", ["rm", "faulty/net"])
        before = len(hub.requests)
        call(name, what)
        sent[name] = [path.partition("?")[0] for _, path, _ in hub.requests[before:]]
    metadata, file = "/api/models/acme/net/revision/", f"/acme/net/resolve/{COMMIT}/{FILE}"
    pinned = vitzoo.describe("vit_b16").default_weights
    assert {name: paths for name, paths in sent.items() if paths} == {
        "fetch": [f"{metadata}main", file],
        "fetch, pinned": [f"/{pinned.repo}/resolve/{pinned.revision}/{pinned.file}"],
        "fetch, address": [f"{metadata}{COMMIT}", file],
        "lock, update": [f"{metadata}main"],
        "link, published": [file],
        "registry pin": [f"{metadata}main"],
        "registry add, address": [file],
        "vitzoo.create, published": [file],
        "vitzoo.timm_overlay": [f"/{pinned.repo}/resolve/{pinned.revision}/{pinned.file}"],
        "vitzoo.fetch": [file],
    }
    asked = {name for name, (_, code) in wanted.items() if code == OFFLINE}
    # The host of the first is not the Hub, and may not be reached here; the client of the second is
    # not installed; the others lack a token.
    other = {"registry add, https", "check-vectors", "push", "vitzoo.push"}
    assert asked - other == {name for name, paths in sent.items() if paths}
    host, port = hub.host.split(":")
    lines = (tmp_path / "sockets.txt").read_text(encoding="utf-8").splitlines()
    seen = [re.fullmatch(r"(.*) socket\.(\w+) (.*)", line).groups() for line in lines]
    assert {name for name, _, _ in seen} <= asked
    places = {place for _, event, place in seen if event != "__new__"}
    assert places == {str((host, int(port))), "('acme.example', 443)"}


def test_the_hook_sees_sockets(tmp_path):
    """So that the tests above can fail."""
    (tmp_path / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    log = tmp_path / "sockets.txt"
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    env = os.environ | {"PYTHONPATH": str(tmp_path), "SOCKETS": str(log)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert "socket." in log.read_text(encoding="utf-8")
