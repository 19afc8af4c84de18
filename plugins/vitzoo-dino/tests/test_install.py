"""The plugin as users get it: three namespaces in one wheel, listed without an import."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

FOLDER = Path(__file__).parents[1]
ROOT = FOLDER.parents[1]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory, command, new_environment):
    """An environment with wheels of vitzoo and of the plugin."""
    folder = tmp_path_factory.mktemp("dist")
    environment = new_environment(folder / "venv")
    for project in (ROOT, FOLDER):
        target = folder / project.name
        command(
            *(sys.executable, "-m", "build", "--no-isolation", "--wheel"),
            *(project, "--outdir", target),
        )
        environment.install(*target.glob("*.whl"))
    (environment.wheel,) = (folder / FOLDER.name).glob("*.whl")
    return environment


def test_the_wheel_holds_the_manifests(zoo):
    with zipfile.ZipFile(zoo.wheel) as archive:
        names = set(archive.namelist())
        for space in ("dino", "dinov2", "dinov3"):
            path = f"vitzoo_dino/{space}.toml"
            assert archive.read(path) == FOLDER.joinpath(path).read_bytes()
    assert "vitzoo_dino/py.typed" in names


def test_listing_shows_all_namespaces_and_imports_nothing(zoo):
    code = """
        import sys, vitzoo
        print([(p.namespace, p.state) for p in vitzoo.plugins()][1:])
        print(len(vitzoo.variants("dino*/*")))
        print([name for name in ("torch", "vitzoo_dino") if name in sys.modules])
    """
    states = [(space, "loaded") for space in ("dino", "dinov2", "dinov3")]
    assert zoo.run(code) == f"{states}\n24\n[]\n"


def test_a_network_runs_without_timm(zoo):
    code = """
        import sys, torch, vitzoo
        from vitzoo_dino.tokens import forward_features
        model = vitzoo.create({"variant": "dinov3/vit_s16", "depth": 1, "image_size": 32}).eval()
        print(tuple(forward_features(model, torch.zeros(1, 3, 32, 32))["x_norm_regtokens"].shape))
        print([name for name in ("timm", "transformers") if name in sys.modules])
    """
    assert zoo.run(code) == "(1, 4, 384)\n[]\n"
