"""An app is optional: without its folder, only its command and its public names are missing."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitzoo
from helpers import says
from internals import COMMANDS

PACKAGE = Path(vitzoo.__file__).parent
APPS = sorted(
    path.name for path in (PACKAGE / "apps").iterdir() if path.joinpath("__init__.py").is_file()
)
USE = """
import contextlib, importlib, io, json, sys, tempfile
import torch  # once

def run(*args):
    from vitzoo.cli.main import main
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        return main(args), out.getvalue()

def use(folder, commands):
    for name in [name for name in sys.modules if name.partition(".")[0] == "vitzoo"]:
        del sys.modules[name]
    sys.path[0] = folder
    import vitzoo
    import vitzoo.testing.checks.variants
    missing = {}
    for name in set(vitzoo.__all__) - {"ray"}:  # which imports ray, and needs two apps
        try:
            getattr(vitzoo, name)
        except ImportError as error:
            missing[name] = str(error)
    try:
        vitzoo.create("vit_ti16", adapter=tempfile.mkdtemp())
    except vitzoo.VitzooError as error:
        adapter = type(error).__name__, str(error)
    return {
        "place": vitzoo.__file__,
        "missing": missing,
        "adapter": adapter,
        "params": sum(p.numel() for p in vitzoo.create("vit_ti16").parameters()),
        "list": run("list", "-q", "vit_b16"),
        "help": run("--help"),
        "commands": {name: run(name, "--help") for name in commands},
    }

print(json.dumps([use(*arguments) for arguments in json.loads(sys.argv[1])]))
"""


def imported_by(app: str) -> set[str]:
    """Return the other apps that an app imports."""
    nodes = [
        node
        for path in (PACKAGE / "apps" / app).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[2] for name in modules if name.startswith("vitzoo.apps.")} - {app}


NEEDED = set().union(*map(imported_by, APPS))
ALONE = [[app] for app in APPS if app not in NEEDED]


def copied(folder: Path, gone: list[str]) -> Path:
    """Copy the package without some apps, as links."""

    def ignore(place, _):
        return gone if Path(place).name == "apps" else ()

    shutil.copytree(PACKAGE, folder / "vitzoo", copy_function=os.symlink, ignore=ignore)
    (folder / "vitzoo" / "registry.toml").symlink_to(PACKAGE.parent / "registry.toml")
    return folder


@pytest.mark.slow
def test_without_an_app_only_its_command_and_its_names_are_missing(tmp_path):
    cases = [*ALONE, APPS]
    folders = [copied(tmp_path / str(i), gone) for i, gone in enumerate(cases)]
    done = subprocess.run(
        [sys.executable, "-c", USE, json.dumps([(str(folder), [*COMMANDS]) for folder in folders])],
        env=os.environ | {"VITZOO_DISABLE_PLUGINS": "*"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for gone, folder, found in zip(cases, folders, json.loads(done.stdout), strict=True):
        assert found["place"].startswith(str(folder))
        check(gone, found)


def check(gone: list[str], found: dict[str, Any]) -> None:
    """Compare what works without some apps with what should."""
    homes = {name: home.split(".")[1] for name, home in vitzoo._HOME.items() if "apps." in home}
    names = {name: app for name, app in homes.items() if app in gone}
    assert found["missing"].keys() == names.keys()
    for name, app in names.items():
        says(found["missing"][name], f"'vitzoo.apps.{app}'")
    places = {name: module.split(".") for name, (module, _) in COMMANDS.items()}
    lost = {name for name, place in places.items() if place[0] == "apps" and place[1] in gone}
    for name, (code, said) in found["commands"].items():
        assert (code, "No such command" in said) == ((2, True) if name in lost else (0, False))
        assert (f"\n  {name} " in found["help"][1]) == (name not in lost)
    assert found["list"] == [0, "vit_b16\n"]
    assert found["help"][0] == 0
    assert found["params"] == vitzoo.describe("vit_ti16").params
    missing = "train" in gone
    assert found["adapter"][0] == ("MissingDependency" if missing else "CheckpointError")
    says(found["adapter"][1], "vitzoo.apps.train" if missing else "adapter_config.json")


def test_some_apps_are_needed_by_no_other():
    assert {"backbone", "plot"} < {app for (app,) in ALONE}
