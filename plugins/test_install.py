"""The plugins as users get them: listing, creating, spawned workers."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import vitzoo
from first_party import FOLDERS

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]


def released(spaces) -> dict[str, int]:
    """The names of some namespaces, in the order of listings, with their numbers of parameters."""
    files = [space.released_path for space in sorted(spaces, key=lambda space: space.namespace)]
    frozen = [json.loads(file.read_text()) for file in files if file.exists()]
    return {name: row["params"] for rows in frozen for name, row in rows.items()}


@pytest.fixture(  # each environment is made once
    scope="session", params=["all", pytest.param("requirements", marks=pytest.mark.long)]
)
def zoo(request, tmp_path_factory, built, new_environment):
    """An environment with vitzoo and all plugins, which the second file installs editable."""
    environment = new_environment(tmp_path_factory.mktemp(request.param) / "venv")
    core = [] if request.param == "all" else built(ROOT).glob("*.whl")
    environment.install(*core, "-r", f"plugins/{request.param}.txt")
    return environment


@pytest.mark.long
def test_listing_shows_the_variants_and_imports_nothing(plugins, zoo):
    names = released(plugins)
    assert zoo.call("vitzoo", "list", "*/*", "-q").split() == list(names)
    packages = sorted({plugin.package for plugin in plugins})
    last = {name.partition("/")[0]: name for name in names}  # of each namespace
    code = f"""
        import sys, vitzoo
        print([p.state for p in vitzoo.plugins()])
        print([vitzoo.describe(name).params for name in {[*last.values()]}])
        print([name for name in ("torch", *{packages}) if name in sys.modules])
    """
    states = ["core"] + ["loaded"] * len(plugins)
    assert zoo.run(code) == f"{states}\n{[names[name] for name in last.values()]}\n[]\n"


@pytest.mark.long
def test_which_knows_the_names_of_other_libraries(project, plugins, zoo):
    own = [
        variant
        for plugin in sorted(plugins, key=lambda plugin: plugin.namespace)
        if plugin.folder == project.folder
        for variant in vitzoo.variants(namespace=plugin.namespace)
    ]
    known = [variant for variant in own if variant.known_as and variant.weights]
    assert known
    library, theirs = known[-1].known_as[0]
    tagged = library == "timm" and "." not in theirs
    tag = f".{known[-1].weights[0].name}" if tagged else ""
    assert known[-1].name in zoo.call("vitzoo", "which", theirs + tag)


@pytest.mark.long
def test_creating_in_a_spawned_worker(plugins, zoo):
    names = released(plugins)
    spaces = [[n for n in names if n.startswith(f"{p.namespace}/")] for p in plugins]
    ends = [name for own in spaces if own for name in (own[0], own[-1])]
    script = zoo.elsewhere / "workers.py"
    script.write_text(f"""\
import multiprocessing, vitzoo

def count(name):
    model = vitzoo.create(name, device="meta")
    return sum(p.numel() for p in model.parameters())

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(count, {ends}))
""")
    assert json.loads(zoo.call("python", script)) == [names[name] for name in ends]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("zoo", ["all"], indirect=True)
def test_a_network_runs_with_what_the_plugin_depends_on(project, plugins, zoo):
    names = released(plugin for plugin in plugins if plugin.folder == project.folder)
    text = project.folder.joinpath("pyproject.toml").read_text()
    needed = " ".join(tomllib.loads(text)["project"]["dependencies"])
    packages = {plugin.package for plugin in plugins} - {project.package}
    others = sorted(n for n in ("timm", "transformers", *packages) if n not in needed)
    code = f"""
        import sys, torch, vitzoo
        model = vitzoo.create({min(names, key=names.__getitem__)!r}).eval()
        output = model(torch.randn(1, model.spec.in_chans, *model.spec.image_size))
        print(len(output), bool(output.isfinite().all()))
        print([name for name in {others} if name in sys.modules])
    """
    assert zoo.run(code) == "1 True\n[]\n"


@pytest.fixture
def index(tmp_path, built):
    """An index on loopback with the wheels of vitzoo and its plugins, and what it was asked for."""
    asked = []

    class Index(SimpleHTTPRequestHandler):
        """A folder for each project; the listing of a folder has a link to each file."""

        def log_message(self, form, *values):
            asked.append(self.path)

    for folder in (ROOT, *FOLDERS):
        (wheel,) = built(folder).glob("*.whl")
        name = "vitzoo" if folder == ROOT else folder.name
        place = tmp_path / "index" / name
        place.mkdir(parents=True)
        shutil.copy(wheel, place)
    handler = partial(Index, directory=tmp_path / "index")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_an_index_gives_vitzoo_with_its_plugins(tmp_path, index, new_environment, command):
    """What a release publishes; the other dependencies are there, as in other tests."""
    address, asked = index
    environment = new_environment(tmp_path / "venv")
    alone = ("env", f"PIP_CONFIG_FILE={os.devnull}", "no_proxy=127.0.0.1", sys.executable, "-m")
    pip = (*alone, "pip", "--python", environment.python, "install", "--no-cache-dir")
    command(*pip, "--index-url", address, "vitzoo[plugins]")
    sent = [path.rpartition("/")[2] for path in asked if path.endswith(".whl")]
    installed = [path.stem for path in environment.site.glob("vitzoo*.dist-info")]
    assert sorted({wheel.partition("-py3")[0] for wheel in sent}) == sorted(installed)
    assert len(installed) == 1 + len(FOLDERS)
    states = environment.run("import vitzoo; print({p.state for p in vitzoo.plugins()[1:]})")
    assert states == "{'loaded'}\n"
    digits = ROOT / "docs" / "examples" / "digits"
    printed = environment.call("vitzoo", "predict", "vit_digits", digits, "--top", 1)
    labels = [line.split("\t")[2] for line in printed.splitlines()[1:]]
    assert labels == [path.name.split("_")[1] for path in sorted(digits.iterdir())]
