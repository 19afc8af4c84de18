"""What holds for every first-party plugin: conventions, manifest, documentation, snapshot."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

import vitzoo
from first_party import FOLDERS, PLUGINS
from tables import cases
from vitzoo.testing import PluginTests

HERE = Path(__file__).parent
UPDATE = HERE.parent / "tests" / "update_released.py"
HOOKS = sorted(f"vitzoo_{page.stem}" for page in HERE.parent.glob("docs/hooks/*.md"))
VARIANTS, FORMATS = "vitzoo_variants", "vitzoo_checkpoint_formats"
each_plugin = cases("plugin", PLUGINS, ids=lambda plugin: plugin.namespace)
each_folder = cases("folder", FOLDERS, ids=lambda folder: folder.name)
EXECUTED = r"^```python\n(.*?)^```"


def variants(plugin):
    found = vitzoo.variants(namespace=plugin.namespace)
    assert found or parts(plugin)
    return found


def tables(plugin):
    """Return the contributions of a manifest: a table by name for each hook."""
    read = tomllib.loads(plugin.manifest_path.read_text())
    found = {table: read.get(table.removeprefix("vitzoo_"), {}) for table in HOOKS}
    assert any(found.values())
    return found


def parts(plugin):
    rows = [row for hook, table in tables(plugin).items() if hook != VARIANTS for row in table]
    return [f"{plugin.namespace}/{name}" for name in rows]


@pytest.mark.parametrize(
    ("file", "line", "core"),
    [("requirements.txt", "-e plugins/{}", []), ("all.txt", "./plugins/{}", ["."])],
)
def test_every_folder_is_a_plugin_that_the_readme_installs(file, line, core):
    folders = {path.name for path in HERE.iterdir() if path.is_dir() and path.name[0] not in "._"}
    required = HERE.joinpath(file).read_text().splitlines()
    assert {folder.name for folder in FOLDERS} == folders - {"__pycache__"}
    assert sorted(text for text in required if text[0] != "#") == sorted(
        [*core, *(line.format(folder.name) for folder in FOLDERS)]
    )


@pytest.fixture(scope="module")
def listed(command):
    """Return what `vitzoo plugins` says of each namespace."""
    rows = json.loads(command(sys.executable, "-m", "vitzoo", "plugins", "--json"))
    return {row["namespace"]: row for row in rows}


def test_every_listing_is_that_of_its_manifest():
    tool = runpy.run_path(str(UPDATE.with_name("update_listings.py")))
    kept = {path.stem: path.read_text(encoding="utf-8") for path in tool["FOLDER"].iterdir()}
    assert kept == tool["texts"](), tool["BY_HAND"]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_used_by_a_shipped_plugin(hook, plugins):
    assert any(tables(plugin)[hook] for plugin in plugins)


@pytest.mark.slow
@each_plugin
def test_what_its_manifest_contributes_is_registered(plugin, listed):
    row, written = listed[plugin.namespace], tables(plugin)
    counts = (row["variants"], row["parts"], row["formats"])
    formats = len(written[FORMATS])
    assert counts == (len(written[VARIANTS]), len(parts(plugin)) - formats, formats)


@each_plugin
def test_distribution_package_and_manifest_have_the_usual_names(plugin, plugins):
    spaces = [p.namespace for p in plugins if p.folder == plugin.folder]
    assert plugin.folder.name == plugin.name
    assert plugin.package == plugin.name.replace("-", "_")
    several = len(spaces) > 1
    assert several or plugin.name == f"vitzoo-{plugin.namespace}"
    assert plugin.manifest == (f"{plugin.namespace}.toml" if several else "registry.toml")


@each_folder
def test_it_has_what_a_distribution_needs(folder):
    license_text = folder.joinpath("LICENSE").read_bytes()
    assert license_text == HERE.parent.joinpath("LICENSE").read_bytes()
    assert folder.joinpath(folder.name.replace("-", "_"), "py.typed").is_file()
    assert folder.joinpath("README.md").read_text().startswith(f"# {folder.name}\n")


@each_plugin
def test_it_is_loaded_from_its_own_manifest(plugin):
    (info,) = (row for row in vitzoo.plugins() if row.namespace == plugin.namespace)
    assert (info.state, info.distribution, info.cause) == ("loaded", plugin.name, "")
    assert Path(info.location).samefile(plugin.manifest_path)


@each_plugin
def test_it_runs_the_conformance_kit_on_itself(plugin):
    path = plugin.folder / "tests" / "test_conformance.py"
    classes = [c for c in runpy.run_path(str(path)).values() if inspect.isclass(c)]
    spaces = {c.namespace for c in classes if issubclass(c, PluginTests) and c is not PluginTests}
    assert plugin.namespace in spaces


DATA = {  # the beginning of the names of weights, as their authors or timm chose them
    r"(augreg2?|orig|google|miil|microsoft|mim|fb)?_?in2[12]k": "ImageNet-21k",
    r"(augreg|sam|fb|facebook)?_?in1k": "ImageNet-1k",
    r"(facebook_)?lvd142m": "LVD-142M",
    r"(facebook_|eupe_)?lvd1689m": "LVD-1689M",
    "sat493m": "SAT-493M",
    "laion2b": "LAION-2B",
    "(tinyclip_)?laion400m": "LAION-400M",
    "tinyclip_yfcc15m": "YFCC-15M",
    "metaclip_2pt5b": "MetaCLIP-2.5B",
    "metaclip_400m": "MetaCLIP-400M",
    "dfn2b": "DFN-2B",
    "dfn5b": "DFN-5B",
    "(v2_)?webli": "WebLI",
    "mim_m38m": "Merged-38M",
    "merged2b": "Merged-2B",
    "sa1b": "SA-1B",
    "m30m": "Merged-30M",
    r"\d+ep_in1k": "ImageNet-1k",
    r"(\d+ep|patch\d+)_in21k": "ImageNet-21k",
}
OBJECTIVES = {
    "deit hybrid flexivit sbb rope_vit": "supervised",
    "dino dinov2 dinov3 lingbot mae beit": "self-supervised",
    "clip siglip aimv2 pe tipsv2": "image-text",
}
# Of data sets to which the authors give no name, or to which timm's tags give none.
UNNAMED = ("lingbot", "pe", "radio", "internvit", "timm")


@pytest.mark.slow
@each_plugin
def test_weights_state_the_pretraining_that_their_names_state(plugin):
    expected = {space: o for spaces, o in OBJECTIVES.items() for space in spaces.split()}
    for variant in variants(plugin):
        for row in variant.weights:
            stated = [data for start, data in DATA.items() if re.match(start, row.name)]
            assert row.pretraining_data in (stated or [row.pretraining_data]), row
            assert len(stated) < 2
            assert row.pretraining_data or plugin.namespace in UNNAMED, row
            if plugin.namespace in expected and not row.name.startswith("eupe"):
                assert row.pretraining == expected[plugin.namespace], row


@pytest.mark.slow
@each_plugin
def test_a_repository_is_answered_with_the_weights_in_it(plugin):
    for variant in variants(plugin):
        for repo in {row.repo for row in variant.weights if row.repo}:
            with pytest.raises(vitzoo.UnknownName) as caught:
                vitzoo.describe(repo)
            call = re.search(r"create\('(.+?)(?:', weights='|:)(.+?)'\)", str(caught.value))
            assert call, str(caught.value)
            found = {row.name: row.repo for row in vitzoo.describe(call[1]).weights}
            assert found[call[2]] == repo


@pytest.mark.parametrize(
    ("foreign", "name", "weights"),
    [
        ("facebook/dinov2-base", "dinov2/vit_b14", "facebook_lvd142m"),
        ("facebook/dino-vitb16", "dino/vit_b16", "facebook_dino"),
        ("facebook/vit-mae-base", "mae/vit_b16", "facebook_mae"),
        (
            "microsoft/beit-base-patch16-224-pt22k-ft22k",
            "beit/beit_b16",
            "microsoft_in22k_ft_in22k",
        ),
        ("microsoft/beit-base-patch16-224", "beit/beit_b16", "microsoft_in22k_ft_in22k_in1k"),
        ("facebook/deit-base-patch16-224", "deit/deit_b16", "facebook_in1k"),
        ("ViT-B-32", "clip/vit_b32", ""),
        ("ViT-B/32", "clip/vit_b32", ""),
        ("ViT-L/14@336px", "clip/vit_l14_336", ""),
        ("ViT-B-16-SigLIP-384", "siglip/vit_b16_384", ""),
    ],
)
def test_names_of_other_libraries_and_of_the_hub(foreign, name, weights, run):
    weights_argument = f", weights={weights!r}" if weights else ""
    with pytest.raises(vitzoo.UnknownName) as caught:
        vitzoo.create(foreign)
    assert f"vitzoo.create({name!r}{weights_argument})" in str(caught.value)
    code, out, _ = run("which", foreign, "--json")
    assert code == 0
    assert (name, weights or None) in [(row["name"], row["weights"]) for row in json.loads(out)]


CHECKS = """
import contextlib, io, json, sys
from vitzoo.cli.main import main

for path in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["registry", "check", path, "--json"])
    print(json.dumps([code, json.loads(out.getvalue())]), flush=True)
"""


@pytest.mark.conformance
@pytest.mark.long  # the conformance tests of each plugin build the same networks
def test_the_registry_check_finds_nothing_wrong(project, plugins, command):
    """In a new process: after a compilation that failed, torch frees tensors later."""
    checked = [plugin for plugin in plugins if plugin.folder == project.folder]
    printed = command(sys.executable, "-c", CHECKS, *(plugin.manifest_path for plugin in checked))
    for plugin, line in zip(checked, printed.splitlines(), strict=True):
        code, report = json.loads(line)
        assert (code, report["problems"]) == (0, [])
        assert report["counts"]["variants"] == len(variants(plugin))


@pytest.mark.conformance
def test_released_names_keep_their_meaning(plugin):
    tool = runpy.run_path(str(UPDATE))
    frozen = plugin.released_path
    released = tool["read"](frozen)
    present = tool["snapshot"](plugin.namespace)
    assert not tool["changes"](released, present), "give the change a new name"
    how = f"freeze what is new: python tests/update_released.py {frozen} {plugin.namespace}"
    assert present == tool["normal"](released), how


@pytest.mark.conformance
def test_what_is_frozen_stays_as_it_is_written(plugin, tmp_path):
    frozen, path = plugin.released_path, tmp_path / "released.json"
    path.write_bytes(frozen.read_bytes() if frozen.exists() else b"{}\n")
    before = path.read_bytes()
    assert runpy.run_path(str(UPDATE))["main"](path, plugin.namespace) == 0
    assert path.read_bytes() == before


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_readme_snippets_run_in_order(folder):
    page = folder / "README.md"
    found = re.findall(EXECUTED, page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    scope: dict[str, object] = {}
    for block in found:
        exec(compile(block, str(page), "exec"), scope)


@each_folder
def test_readme_links_lead_somewhere(folder):
    page = folder / "README.md"
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@each_plugin
def test_readme_names_every_part(plugin):
    text = plugin.folder.joinpath("README.md").read_text()
    for name in parts(plugin):
        assert f"`{name}`" in text, name


@pytest.mark.docs
def test_docstring_examples(plugin):
    import doctest

    for path in sorted(plugin.folder.joinpath(plugin.package).glob("*.py")):
        name = plugin.package if path.stem == "__init__" else f"{plugin.package}.{path.stem}"
        assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.conformance
def test_this_file_sees_a_changed_snapshot(plugin):
    tool = runpy.run_path(str(UPDATE))
    present = tool["snapshot"](plugin.namespace)
    for name, row in present.items():
        assert tool["changes"]({name: row | {"params": 1}}, present)
