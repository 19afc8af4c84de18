"""`vitzoo plugins` and `--no-plugins`, with plugins that work and that are broken."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys

import pytest

import vitzoo
from helpers import says
from internals import registry
from plugin_files import GLOBEX, MANIFEST, UNTOUCHABLE
from vitzoo.schema.terms import CORE_MANIFEST

pytestmark = pytest.mark.usefixtures("own_home")


KEYS = [
    "namespace", "state", "distribution", "version", "variants", "parts", "formats",
    "entry_point", "location", "cause", "fix",
]  # fmt: skip


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


def by_namespace(out: str) -> dict:
    return {row["namespace"]: row for row in json.loads(out)}


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
        "location": str(acme / "acme/registry.toml"), "cause": "", "fix": "",
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
    assert row["location"] == f"{root}/acme/registry.toml:9"
    says(row["cause"], "[variants.net]", "size", "ti, s, b", "'tiny'")
    fixes = ("--upgrade acme-parts", "pip uninstall acme-parts", "VITZOO_DISABLE_PLUGINS=acme")
    says(row["fix"], *fixes)


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


def test_json_belongs_after_a_subcommand(run):
    code, _, err = run("plugins", "--json", "check")
    assert code == 2
    says(err, "--json", "check")


def test_an_unknown_subcommand_suggests_the_nearest(run):
    code, _, err = run("plugins", "chek")
    assert code == 2
    assert "check" in err


LOOK = """
import importlib, json, sys
plugins = importlib.import_module("vitzoo.plugin.host")
from vitzoo.cli.main import main
from vitzoo.registry.registry import _registry
read = []
whole = plugins.read_manifest
plugins.read_manifest = lambda path, **options: (
    (path != plugins.CORE_MANIFEST and read.append(path)) or whole(path, **options)
)
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


@pytest.mark.usefixtures("acme")
def test_no_plugins_holds_for_one_command(run):
    assert "acme/net" not in run("--no-plugins", "list", "-q")[1]
    code, _, err = run("--no-plugins", "show", "acme/net")
    assert code == 1
    says(err, "'acme'", "the option --no-plugins", "leave out --no-plugins")
    assert "VITZOO_DISABLE_PLUGINS" not in err
    assert "VITZOO_DISABLE_PLUGINS" not in os.environ
    assert "acme/net" in run("list", "-q")[1]


def test_plugins_on_a_terminal_fits_80_columns_and_wraps_the_fix(run, install, monkeypatch):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("vitzoo.authoring.plugins_command.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    _, out, _ = run("plugins")
    assert "acme (acme-parts): broken" in out
    flat = " ".join(out.split())
    says(flat, "pip install --upgrade acme-parts", "lazy:")
    assert max(map(len, out.splitlines()[: out.splitlines().index("")])) <= 80
    monkeypatch.setenv("COLUMNS", "50")
    _, out, err = run("plugins")
    table = out.splitlines()[: out.splitlines().index("")]
    cells = [re.split(r"  +", row) for row in table]  # the name of a command has a space
    assert [len(row) for row in cells] == [len(cells[0])] * len(cells)
    assert {"core", "acme", "globex"} <= {row.split()[0] for row in table}
    says(err, "50", "version")


@pytest.mark.usefixtures("own_home")
def test_manifests_with_generated_listings_are_not_read(run, monkeypatch, new_registry):
    new_registry()
    read = manifests_read(monkeypatch)
    generated = counts(run("plugins"), "deit")
    assert read == []
    registry().load_manifests()
    assert counts(run("plugins"), "deit") == generated
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "deit/distilled")  # the listing counts it
    fewer = {"parts": str(int(generated["parts"]) - 1)}
    assert counts(run("plugins"), "deit") == generated | fewer


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "expected"), [("vit_b16", ["core"]), ("acme/net", ["acme", "core"])]
)
def test_which_reads_the_manifest_of_the_name_alone(run, monkeypatch, new_registry, name, expected):
    assert run("list")[0] == 0
    new_registry()
    read = manifests_read(monkeypatch)
    assert run("which", name)[0] == 0
    names = ("core" if path == CORE_MANIFEST else path.parent.name for path in read)
    assert sorted(names) == expected


def counts(result, namespace: str) -> dict:
    """Return what `vitzoo plugins` says of a plugin, and check that the command had no error."""
    code, out, _ = result
    heading, *rows = (line.split("\t") for line in out.splitlines())
    (row,) = (row for row in rows if row[0] == namespace)
    assert code == 0
    row = dict(zip(heading, row, strict=True))
    return {key: row[key] for key in ("variants", "parts", "formats", "state")}


def manifests_read(monkeypatch) -> list:
    """Return a list that gets the path of every manifest that is read."""
    host = importlib.import_module("vitzoo.plugin.host")
    read, whole = [], host.read_manifest
    noted = lambda path, **options: read.append(path) or whole(path, **options)  # noqa: E731
    monkeypatch.setattr(host, "read_manifest", noted)
    return read
