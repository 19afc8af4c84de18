"""Paths of Windows, with a backslash, in code that looks for files of the package."""

from __future__ import annotations

import ast
import ntpath
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import vitzoo
from internals import main
from vitzoo.cli import commands
from vitzoo.plugin import guard, importing

PACKAGE = Path(vitzoo.__file__).parent
ROOT = r"C:\lib\vitzoo"


def method_calls():
    """Yield the place and the code of the calls of methods in vitzoo."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield f"{path}:{node.lineno}", ast.unparse(node)


def test_commands_are_found(monkeypatch):
    windows = SimpleNamespace(**{name: getattr(ntpath, name) for name in ("dirname", "join")})
    windows.isdir = {rf"{ROOT}\cli", rf"{ROOT}\apps\predict"}.__contains__
    monkeypatch.setattr(commands, "os", SimpleNamespace(path=windows))
    monkeypatch.setattr(commands, "__file__", rf"{ROOT}\cli\commands.py")
    found = commands.own_commands()
    assert {"list", "predict"} <= {*found}
    assert "embed" not in found


def test_patterns_reach_the_commands(monkeypatch, tmp_path, capsys):
    """Click expands patterns on Windows, quoted or not, in another order than `vitzoo embed`."""
    windows = SimpleNamespace(**{**vars(os), "name": "nt"})
    monkeypatch.setattr("click.core.os", windows)
    monkeypatch.chdir(tmp_path)
    Path("vit_b16").touch()
    monkeypatch.setattr("sys.argv", ["vitzoo", "list", "vit_b*"])
    assert main() == 0
    assert {"vit_b16", "vit_b32"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }


def test_another_process_finds_vitzoo(monkeypatch):
    windows = SimpleNamespace(path=ntpath, fspath=os.fspath)
    monkeypatch.setattr(importing, "os", windows)
    monkeypatch.setattr(importing, "__file__", rf"{ROOT}\plugin\importing.py")
    assert importing.search_path()[-1] == r"C:\lib"


def test_lines_of_vitzoo_are_told_from_those_of_a_plugin():
    assert str(Path(guard.__file__)).startswith(guard.HERE)
    assert str(PACKAGE) + os.sep == guard.HERE


@pytest.mark.slow
def test_no_module_expects_a_slash_in_its_own_path():
    for where, call in method_calls():
        assert not (call.startswith("__file__.") and "/" in call), where
