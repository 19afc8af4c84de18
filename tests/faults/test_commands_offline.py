"""Every command with VITZOO_OFFLINE=1, in a process whose children open no socket either."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from vitzoo.cli.main import cli

# Loaded by every interpreter that is started with its folder on PYTHONPATH.
FORBID = """
import os, sys

def forbid(event, args):
    if event.startswith("socket.") and event not in ("socket.gethostname", "socket.gethostbyaddr"):
        line = f"{os.getpid()} {event} {args[1:]}\\n"
        descriptor = os.open(os.environ["SOCKETS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        raise OSError(f"{event} is forbidden by the test")

sys.addaudithook(forbid)
"""
RUN = """
import contextlib, io, json, sys, warnings
from vitzoo.cli.main import main

found = {}
for name, args in json.load(sys.stdin).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    found[name] = code, err.getvalue() + out.getvalue()
print(json.dumps(found))
"""
UNPINNED = "hf://acme/net@main/model.safetensors"
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
def calls(net, tmp_path):
    """Arguments of every command and the exit code with which each ends offline."""
    net.first_use()
    file = tmp_path / "net.safetensors"
    file.write_bytes(net.data)
    registry = tmp_path / "site" / "faulty" / "registry.toml"
    digit = "docs/examples/digits/digit_7_scan_0081.png"
    return {
        "list": (["list"], OK),
        "show": (["show", "faulty/net"], OK),
        "which": (["which", "vit_base_patch16_224"], OK),
        "summary": (["summary", "vit_ti16"], OK),
        "predict": (["predict", "vit_digits", digit], OK),
        "fetch": (["fetch", "faulty/net"], OFFLINE),
        "fetch, pinned": (["fetch", "vit_b16"], OFFLINE),
        "fetch, address": (["fetch", UNPINNED], OFFLINE),
        "verify": (["verify", "--all"], OK),
        "rm": (["rm", "vit_b16"], OK),
        "import": (["import", str(file)], NOT_FOUND),  # its sha256 is not known
        "lock": (["lock"], OK),
        "lock, update": (["lock", "--update", "faulty/net"], OFFLINE),
        "convert": (
            ["convert", str(file), str(tmp_path / "new.safetensors"), "--to", "timm"],
            OK,
        ),
        "registry check": (["registry", "check", str(registry)], OK),
        "registry pin": (["registry", "pin", str(registry)], OFFLINE),
        "plugins": (["plugins"], OK),
        "plugins check": (["plugins", "check", "faulty"], OK),
        "plugins why": (["plugins", "why", "faulty"], OK),
        "plugins new": (["plugins", "new", "globex", "--dir", str(tmp_path / "new")], OK),
        "plugins compile": (["plugins", "compile", "faulty"], USAGE),  # it has a manifest
    }


def test_every_command_is_called(calls):
    assert {name.partition(",")[0] for name in calls} == set(commands())


@pytest.mark.parametrize("variable", ["VITZOO_OFFLINE", "HF_HUB_OFFLINE"])
def test_no_command_opens_a_socket(calls, net, tmp_path, variable):
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(FORBID, encoding="utf-8")
    log = tmp_path / "sockets.txt"
    registry = tmp_path / "site" / "faulty" / "registry.toml"
    before = registry.read_bytes()
    env = net.environment() | {variable: "1", "SOCKETS": str(log)}
    env |= {"PYTHONPATH": os.pathsep.join([str(hook), env["PYTHONPATH"]])}
    env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps({name: args for name, (args, _) in calls.items()}),
        env=env, capture_output=True, text=True, encoding="utf-8", timeout=300,
        cwd=net.repository,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not log.exists(), log.read_text(encoding="utf-8")
    wrong = {name: found[name] for name, (_, code) in calls.items() if found[name][0] != code}
    assert wrong == {}
    for name, (_, code) in calls.items():
        if code == OFFLINE:
            assert "offline" in found[name][1], name
    assert "VITZOO_OFFLINE" in found["registry pin"][1]
    assert registry.read_bytes() == before


def test_the_hook_sees_sockets(tmp_path):
    """So that the test above can fail."""
    (tmp_path / "sitecustomize.py").write_text(FORBID, encoding="utf-8")
    log = tmp_path / "sockets.txt"
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    env = os.environ | {"PYTHONPATH": str(tmp_path), "SOCKETS": str(log)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert "socket." in log.read_text(encoding="utf-8")
