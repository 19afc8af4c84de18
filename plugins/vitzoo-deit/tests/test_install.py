"""The plugin as users get it: archives, listing, creating, spawned workers."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

FOLDER = Path(__file__).parents[1]
ROOT = FOLDER.parents[1]
MANIFEST = FOLDER / "vitzoo_deit" / "registry.toml"


@pytest.fixture(scope="module")
def dist(tmp_path_factory, command) -> Path:
    """An sdist with a wheel made from it, and a wheel of vitzoo."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation")
    command(*build, FOLDER, "--outdir", folder)
    command(*build, ROOT, "--outdir", folder / "core", "--wheel")
    return folder


def test_the_wheel_holds_the_manifest_and_the_modules(dist):
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert archive.read("vitzoo_deit/registry.toml") == MANIFEST.read_bytes()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    modules = {f"vitzoo_deit/{path.name}" for path in MANIFEST.parent.glob("*.py")}
    assert names == modules | {"vitzoo_deit/registry.toml", "vitzoo_deit/py.typed"}


def test_the_sdist_holds_the_manifest_and_the_tests(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"vitzoo_deit/registry.toml", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert {f"tests/{path.name}" for path in Path(__file__).parent.glob("*.*")} <= names
    assert not [name for name in names if "__pycache__" in name]


@pytest.fixture(scope="module", params=["wheel", "editable"])
def zoo(request, tmp_path_factory, dist, new_environment):
    """An environment with vitzoo and the plugin."""
    environment = new_environment(tmp_path_factory.mktemp(request.param) / "venv")
    environment.install(*(dist / "core").glob("*.whl"))
    if request.param == "wheel":
        environment.install(*dist.glob("*.whl"))
    else:
        environment.install("--editable", FOLDER)
    return environment


def test_listing_shows_the_variants_and_imports_nothing(zoo):
    released = json.loads(Path(__file__).with_name("released.json").read_text())
    assert zoo.call("vitzoo", "list", "deit/*", "-q").split() == list(released)
    code = """
        import sys, vitzoo
        print([p.state for p in vitzoo.plugins()], vitzoo.describe("deit/deit3_m16").params)
        print([name for name in ("torch", "vitzoo_deit") if name in sys.modules])
    """
    assert zoo.run(code) == "['core', 'loaded'] 38849512\n[]\n"


def test_which_knows_the_names_of_timm(zoo):
    found = zoo.call("vitzoo", "which", "deit_base_distilled_patch16_384.fb_in1k")
    assert "deit/deit_b16_distilled_384" in found


def test_creating_in_a_spawned_worker(zoo):
    script = zoo.elsewhere / "workers.py"
    script.write_text("""\
import multiprocessing, vitzoo

def count(name):
    model = vitzoo.create(name, device="meta")
    return sum(p.numel() for p in model.parameters())

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(count, ["deit/deit_ti16_distilled", "deit/deit3_m16"]))
""")
    assert zoo.call("python", script) == "[5910800, 38849512]\n"


def test_a_network_runs_without_timm(zoo):
    code = """
        import sys, torch, vitzoo
        spec = {"variant": "deit/deit_s16_distilled", "image_size": 64, "num_classes": 3}
        print(tuple(vitzoo.create(spec).eval()(torch.zeros(1, 3, 64, 64)).shape))
        print([name for name in ("timm", "transformers") if name in sys.modules])
    """
    assert zoo.run(code) == "(1, 3)\n[]\n"
