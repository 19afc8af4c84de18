"""Each check of a whole plugin fails for a plugin with one error."""

from __future__ import annotations

import json
import os

import pytest

from vitzoo import testing
from vitzoo.testing import check_variant
from vitzoo.testing.events import SOCKETS, watched

VARIANT, WEIGHTS, WHOLE = testing.checks.variants, testing.checks.weights, testing.checks.plugin


def test_a_good_plugin_passes(acme):
    acme()
    check_variant("acme/net")
    check_variant("acme/own")
    WHOLE.check_loads("acme")
    WHOLE.check_discovery("acme")
    WHOLE.check_spawned("acme")
    WHOLE.check_offline("acme")
    row = WEIGHTS.WeightsSubject("acme/net", "main")
    WEIGHTS.check_row(row)
    WEIGHTS.check_served(row)


MODULE_PLUGIN = """\
from collections.abc import Iterable

import vitzoo


@vitzoo.hookimpl
def vitzoo_heads() -> Iterable[vitzoo.Head]:
    yield vitzoo.Head("cosine", "acme_vit.parts:Cosine", "cosine similarity")
"""


def module_plugin(acme, *changes):
    files = {"acme_vit/hooks.py": MODULE_PLUGIN}
    return acme(*changes, entry_point="acme_vit.hooks", files=files)


def test_a_good_module_plugin_passes(acme):
    module_plugin(acme)
    for check in (WHOLE.check_loads, WHOLE.check_discovery, WHOLE.check_hooks):
        check("acme")


def test_a_plugin_that_is_not_installed(complaint):
    said = complaint(WHOLE.check_loads, "coer")
    assert "no plugin 'coer' is installed; did you mean 'core'?" in said


def test_a_plugin_that_is_broken(complaint, acme):
    acme(("api = 1", "api = 2"))
    said = complaint(WHOLE.check_loads, "acme")
    assert "plugin 'acme' cannot be used: acme-vit 1.0" in said


def test_a_plugin_that_is_imported_when_it_is_listed(complaint, acme, monkeypatch):
    acme()
    WHOLE.check_discovery("acme")
    eager = WHOLE.LISTING.replace("import vitzoo\n", "import vitzoo, acme_vit.parts\n", 1)
    monkeypatch.setattr(WHOLE, "LISTING", eager)
    WHOLE._listing.cache_clear()
    assert "listing imports acme_vit, torch" in complaint(WHOLE.check_discovery, "acme")


UNMARKED = "def vitzoo_variants():\n    return []\n\n\n@vitzoo.hookimpl"
MISNAMED = "def vitzoo_head():\n    return []\n\n\n@vitzoo.hookimpl"
LATER = "from __future__ import annotations"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("-> Iterable[vitzoo.Head]", "-> list[vitzoo.Variant]")],
         "hooks.vitzoo_heads is annotated to return list[vitzoo.schema.rows.Variant]"),
        ([("from collections.abc import Iterable", LATER)],
         "hooks.vitzoo_heads: its annotations cannot be read: NameError"),
        ([("@vitzoo.hookimpl", UNMARKED)], "hooks.vitzoo_variants is not decorated with @vitzoo"),
        ([("@vitzoo.hookimpl", MISNAMED)], "vitzoo_head is no hook; did you mean 'vitzoo_heads'"),
        ([("vitzoo_heads()", "vitzoo_heads(zoo)")], "takes 'zoo', expected no arguments"),
        ([("@vitzoo.hookimpl\n", "")], "hooks.vitzoo_heads is not decorated with @vitzoo"),
    ],
)  # fmt: skip
def test_broken_hooks(complaint, acme, changes, words):
    module_plugin(acme, *changes)
    assert words in complaint(WHOLE.check_hooks, "acme")


def test_a_plugin_that_opens_a_socket(complaint, acme):
    knock = """
import socket

try:
    socket.create_connection(("127.0.0.1", 9), 1)
except OSError:
    pass
"""
    acme(("from torch import nn\n", f"from torch import nn\n{knock}"))
    said = complaint(WHOLE.check_offline, "acme")
    assert "plugin 'acme' opens sockets while it is listed or built: socket." in said


def test_a_plugin_that_needs_its_main_process(complaint, acme, monkeypatch):
    guard = "import os\nassert os.getpid() == int(os.environ['ACME_PID'])\n"
    monkeypatch.setenv("ACME_PID", str(os.getpid()))
    acme(("from torch import nn\n", f"from torch import nn\n{guard}"))
    said = complaint(WHOLE.check_spawned, "acme")
    assert "plugin 'acme': a spawned worker fails: PluginError" in said
    assert "a worker starts afresh" in said


def test_a_plugin_that_ends_the_worker(complaint, acme, monkeypatch):
    guard = "import os\nif os.getpid() != int(os.environ['ACME_PID']):\n    os._exit(3)\n"
    monkeypatch.setenv("ACME_PID", str(os.getpid()))
    acme(("from torch import nn\n", f"from torch import nn\n{guard}"))
    assert "the worker died" in complaint(WHOLE.check_spawned, "acme")
    WHOLE.in_worker.cache_clear()
    assert WHOLE.in_worker("core")["error"] is None, "the next plugin has a new worker"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["names"].pop(), "a spawned worker has other variants: ['acme/net']"),
        (
            lambda found: found["params"].update({"acme/own": 7}),
            "'acme/own' with 7 parameters, this",
        ),
    ],
)
def test_a_plugin_that_differs_in_a_worker(complaint, acme, monkeypatch, change, words):
    acme()
    found = {"names": ["acme/net", "acme/own"], "params": {"acme/own": 965}, "error": None}
    with monkeypatch.context() as patch:
        patch.setattr(WHOLE, "in_worker", lambda _namespace: found)
        WHOLE.check_spawned("acme")
        change(found)
        assert words in complaint(WHOLE.check_spawned, "acme")


def test_a_plugin_that_cannot_be_disabled(complaint, acme, monkeypatch):
    acme()
    monkeypatch.setattr(WHOLE, "_listing", lambda *_args: LISTED)
    said = complaint(WHOLE.check_disabled, "acme")
    assert "VITZOO_DISABLE_PLUGINS=acme: the plugin is still loaded, with acme/net" in said


LISTED = json.dumps([["vit_b16", "acme/net"], {"core": "core", "acme": "loaded"}, 0, []])


def test_watching_sees_sockets_and_ends():
    import socket

    with watched(SOCKETS) as seen, socket.socket() as one:
        one.bind(("127.0.0.1", 0))
    assert [event.partition(" ")[0] for event in seen] == ["socket.bind"]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
    assert len(seen) == 1


# Archives.

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-vit"
version = "1.0"

[project.entry-points.vitzoo]
acme = "acme_vit:registry.toml"

[tool.hatch.build.targets.wheel]
packages = ["acme_vit"]
"""


TOML = 'exclude = ["*.toml"]\n'
SDIST = "[tool.hatch.build.targets.sdist]"


@pytest.mark.install
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("", ""), ""),
        (("packages =", f"{TOML}packages ="), "wheel of {root} has no acme_vit/registry.toml"),
        (("packages =", f"{TOML}packages =".replace("*.toml", "parts.py")), "no acme_vit/parts.py"),
        (("[tool.hatch", f"{SDIST}\n{TOML}[tool.hatch"), "has no acme_vit/registry.toml"),
        (('acme = "', 'other = "'), "has no entry point 'acme'"),
        (("hatchling.build", "hatchling.bild"), "cannot be built"),
    ],
)  # fmt: skip
def test_archives(complaint, acme, tmp_path, change, words):
    root = acme()
    root.joinpath("pyproject.toml").write_text(PROJECT.replace(*change))
    folder = tmp_path / "dist"
    if not words:
        testing.checks.archives.check_archives("acme", root, folder)
        return
    said = complaint(testing.checks.archives.check_archives, "acme", root, folder)
    assert words.format(root=root) in said


def test_a_project_is_found_above_its_tests(complaint, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "tests").mkdir()
    find = testing.checks.archives.project_of
    assert find("acme", tmp_path / "tests" / "test_x.py") == tmp_path.resolve()
    said = complaint(find, "globex", tmp_path / "tests" / "test_x.py")
    assert "test_x.py declares the namespace 'globex'" in said


def test_building_needs_the_builder(complaint, acme, monkeypatch, tmp_path):
    acme()
    monkeypatch.setattr(testing.checks.archives, "find_spec", lambda _name: None)
    said = complaint(testing.checks.archives.check_archives, "core", tmp_path, tmp_path)
    assert "the package 'build' is not installed" in said
