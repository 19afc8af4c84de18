"""The plugins as users get them: listing, creating, spawned workers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import vitzoo

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def spaces(project, plugins):
    """The project's namespaces, in the order of listings."""
    own = [plugin for plugin in plugins if plugin.folder == project.folder]
    return sorted(own, key=lambda plugin: plugin.namespace)


@pytest.fixture(scope="module")
def released(spaces) -> dict[str, int]:
    """The project's names, in the order of listings, with their numbers of parameters."""
    frozen = [
        json.loads(space.released_path.read_text())
        for space in spaces
        if space.released_path.exists()
    ]
    return {name: row["params"] for rows in frozen for name, row in rows.items()}


@pytest.fixture(scope="module", params=["wheel", "editable"])
def zoo(request, project, tmp_path_factory, built, new_environment):
    """An environment with vitzoo and the plugin."""
    environment = new_environment(tmp_path_factory.mktemp(request.param) / "venv")
    environment.install(*built(ROOT).glob("*.whl"))
    if request.param == "wheel":
        environment.install(*built(project.folder).glob("*.whl"))
    else:
        environment.install("--editable", project.folder)
    return environment


def test_listing_shows_the_variants_and_imports_nothing(project, spaces, released, zoo):
    patterns = [f"{space.namespace}/*" for space in spaces]
    assert zoo.call("vitzoo", "list", *patterns, "-q").split() == list(released)
    name = list(released)[-1]
    code = f"""
        import sys, vitzoo
        print([p.state for p in vitzoo.plugins()], vitzoo.describe({name!r}).params)
        print([name for name in ("torch", {project.package!r}) if name in sys.modules])
    """
    states = ["core"] + ["loaded"] * len(spaces)
    assert zoo.run(code) == f"{states} {released[name]}\n[]\n"


def test_which_knows_the_names_of_other_libraries(spaces, zoo):
    own = [v for space in spaces for v in vitzoo.variants(namespace=space.namespace)]
    known = [variant for variant in own if variant.known_as and variant.weights]
    assert known
    library, theirs = known[-1].known_as[0]
    tagged = library == "timm" and "." not in theirs
    tag = f".{known[-1].weights[0].name}" if tagged else ""
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


def test_a_network_runs_with_what_the_plugin_depends_on(project, released, zoo):
    text = project.folder.joinpath("pyproject.toml").read_text()
    needed = " ".join(tomllib.loads(text)["project"]["dependencies"])
    others = [name for name in ("timm", "transformers") if name not in needed]
    code = f"""
        import sys, torch, vitzoo
        model = vitzoo.create({min(released, key=released.__getitem__)!r}).eval()
        output = model(torch.randn(1, model.spec.in_chans, *model.spec.image_size))
        print(len(output), bool(output.isfinite().all()))
        print([name for name in {others} if name in sys.modules])
    """
    assert zoo.run(code) == "1 True\n[]\n"
