"""The plugins as users get them: archives, listing, creating, spawned workers."""

from __future__ import annotations

import json
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import vitzoo

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]
BUILD = (sys.executable, "-m", "build", "--no-isolation")


@pytest.fixture(scope="session")
def core(tmp_path_factory, command) -> Path:
    """A wheel of vitzoo."""
    folder = tmp_path_factory.mktemp("core")
    command(*BUILD, ROOT, "--outdir", folder, "--wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def dist(plugin, tmp_path_factory, command) -> Path:
    """An sdist of the plugin with a wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    command(*BUILD, plugin.folder, "--outdir", folder)
    return folder


@pytest.fixture(scope="module")
def released(plugin) -> dict[str, int]:
    """The plugin's names, in the order of its manifest, with their numbers of parameters."""
    frozen = json.loads(plugin.folder.joinpath("tests", "released.json").read_text())
    return {name: row["params"] for name, row in frozen.items()}


@pytest.fixture(scope="module", params=["wheel", "editable"])
def zoo(request, plugin, tmp_path_factory, core, dist, new_environment):
    """An environment with vitzoo and the plugin."""
    environment = new_environment(tmp_path_factory.mktemp(request.param) / "venv")
    environment.install(core)
    if request.param == "wheel":
        environment.install(*dist.glob("*.whl"))
    else:
        environment.install("--editable", plugin.folder)
    return environment


def test_the_wheel_holds_the_whole_package_and_nothing_else(plugin, dist):
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        manifest = archive.read(f"{plugin.package}/{plugin.manifest}")
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert manifest == plugin.manifest_path.read_bytes()
    files = {path for path in (plugin.folder / plugin.package).rglob("*") if path.is_file()}
    assert names == {
        str(path.relative_to(plugin.folder)) for path in files if "__pycache__" not in path.parts
    }


def test_the_sdist_holds_the_manifest_and_the_tests(plugin, dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    own = {f"{plugin.package}/{plugin.manifest}", "LICENSE", "README.md", "pyproject.toml"}
    assert own <= names
    assert {f"tests/{path.name}" for path in plugin.folder.glob("tests/*.*")} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_listing_shows_the_variants_and_imports_nothing(plugin, released, zoo):
    assert zoo.call("vitzoo", "list", f"{plugin.namespace}/*", "-q").split() == list(released)
    name = list(released)[-1]
    code = f"""
        import sys, vitzoo
        print([p.state for p in vitzoo.plugins()], vitzoo.describe({name!r}).params)
        print([name for name in ("torch", {plugin.package!r}) if name in sys.modules])
    """
    assert zoo.run(code) == f"['core', 'loaded'] {released[name]}\n[]\n"


def test_which_knows_the_names_of_other_libraries(plugin, zoo):
    own = vitzoo.variants(namespace=plugin.namespace)
    known = [variant for variant in own if variant.known_as and variant.weights]
    assert known
    library, theirs = known[-1].known_as[0]
    tag = f".{known[-1].weights[0].name}" if library == "timm" else ""
    assert known[-1].name in zoo.call("vitzoo", "which", theirs + tag)


def test_creating_in_a_spawned_worker(released, zoo):
    names = list(released)[:: max(len(released) - 1, 1)][:2]  # the first and the last
    script = zoo.elsewhere / "workers.py"
    script.write_text(f"""\
import multiprocessing, vitzoo

def count(name):
    model = vitzoo.create(name, device="meta")
    return sum(p.numel() for p in model.parameters())

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(count, {names}))
""")
    assert json.loads(zoo.call("python", script)) == [released[name] for name in names]


def test_a_network_runs_with_what_the_plugin_depends_on(plugin, released, zoo):
    project = tomllib.loads(plugin.folder.joinpath("pyproject.toml").read_text())["project"]
    needed = " ".join(project["dependencies"])
    others = [name for name in ("timm", "transformers") if name not in needed]
    code = f"""
        import sys, torch, vitzoo
        model = vitzoo.create({min(released, key=released.__getitem__)!r}).eval()
        output = model(torch.randn(1, model.spec.in_chans, *model.spec.image_size))
        print(len(output), bool(output.isfinite().all()))
        print([name for name in {others} if name in sys.modules])
    """
    assert zoo.run(code) == "1 True\n[]\n"
