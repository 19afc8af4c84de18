"""`import vitzoo` imports nothing heavy, and the package has exactly its public names."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vitzoo
from tables import cases

HEAVY = ("torch", "numpy", "timm", "PIL", "safetensors", "huggingface_hub")
ALLOWED = {"vitzoo", "pluggy", "rtoml", "_rtoml"}
LIGHT = [
    "import vitzoo",
    "import vitzoo; vitzoo.variants('vit_b*', embed_dim=768)",
    "import vitzoo; vitzoo.describe('vit_b16')",
    "import vitzoo; vitzoo.plugins()",
    "import vitzoo; dir(vitzoo); vitzoo.__version__; vitzoo.__all__",
    "import vitzoo; vitzoo.PartSpec, vitzoo.Variant, vitzoo.RegistryError, vitzoo.hookimpl",
    "import vitzoo.errors, vitzoo.settings, vitzoo.report, vitzoo.text, vitzoo.keywords",
    "import vitzoo.plugin.importing",
    "import vitzoo\ntry: vitzoo.describe('vit_b61')\nexcept vitzoo.UnknownName: pass",
]


STEPS = """
import json, sys
before = set(sys.modules)
for code in json.loads(sys.argv[1]):
    exec(code, {})
    names = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(json.dumps(sorted(names)))
"""
COMMAND_LINE = "import vitzoo.registry.registry"
SEEN = "import click, numpy"


@pytest.fixture(scope="module")
def imported():
    """Say which top-level modules one interpreter has imported after each piece of code."""
    codes = [*LIGHT, COMMAND_LINE, SEEN]
    command = [sys.executable, "-c", STEPS, json.dumps(codes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(codes, map(set, map(json.loads, done.stdout.splitlines())), strict=True))


@cases("code", LIGHT)
def test_browsing_imports_nothing_heavy(imported, code):
    modules = imported[code]
    assert "vitzoo" in modules
    assert not modules & set(HEAVY)
    assert modules - set(sys.stdlib_module_names) <= ALLOWED


def test_heavy_imports_are_seen(imported):
    assert {"click", "numpy"} <= imported[SEEN]


def test_the_command_line_is_not_imported_with_the_library(imported):
    assert not imported[COMMAND_LINE] & {"click", "rich"}


COMMANDS = {  # the most modules that a command may import besides those of click
    ("--help",): 28,
    ("list",): 111,
    ("plugins",): 114,
    ("show", "vit_b16"): 68,
    ("which", "vit_b16"): 132,
}
RUN = """
import contextlib, io, json, sys
import click
before = set(sys.modules)
from vitzoo.cli.main import main
from vitzoo.plugin import entry_points
entry_points.COMMANDS = "none"  # as where no plugin has commands
with contextlib.redirect_stdout(io.StringIO()):
    main(json.loads(sys.argv[1]))
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_command_imports_few_modules(args):
    command = [sys.executable, "-c", RUN, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert len(modules) <= COMMANDS[args], modules
    assert not {"pluggy", "rich", "torch"} & set(modules)
    if args[0] in ("--help", "show"):  # a name of the core needs no plugin
        assert not {"email", "importlib.metadata"} & set(modules)
    if args[0] in ("--help", "list", "plugins"):
        assert not {"tomllib", "vitzoo.schema.rows", "vitzoo.schema.manifest"} & set(modules)


def declared() -> set[str]:
    """Return the names that the package declares to type checkers."""
    tree = ast.parse(Path(inspect.getfile(vitzoo)).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    return {alias.name for node in block.body for alias in node.names}


def test_all_is_what_type_checkers_see():
    assert set(vitzoo.__all__) == declared()
    assert len(vitzoo.__all__) == len(set(vitzoo.__all__))


def test_all_holds_the_names_of_the_design():
    assert set(vitzoo.__all__) >= {
        "create",
        "variants",
        "describe",
        "transform",
        "labels",
        "save",
        "plugins",
        "hookimpl",
        "VisionTransformer",
        "LoadReport",
        "VitzooError",
    }


def test_dir_lists_the_public_names():
    assert dir(vitzoo) == sorted([*vitzoo.__all__, "__version__"])


def test_a_star_import_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from vitzoo import *", names)
    assert names.keys() - {"__builtins__"} == set(vitzoo.__all__)


def test_an_attribute_that_is_not_there_raises():
    with pytest.raises(AttributeError, match="'creat'") as caught:
        _ = vitzoo.creat
    assert (caught.value.name, caught.value.obj) == ("creat", vitzoo)  # Python suggests a name


EVERYTHING = """
import importlib, json, pkgutil, sys, types
import vitzoo

def fail(name):
    raise ImportError(name)

found = [module.name for module in pkgutil.walk_packages(vitzoo.__path__, "vitzoo.", fail)]
for name in found:
    if name != "vitzoo.__main__" and ".platform.windows_" not in name:
        importlib.import_module(name)
wrong = [
    name
    for name, home in vitzoo._HOME.items()
    if (module := importlib.import_module(f"vitzoo.{home}"))
    and getattr(vitzoo, name) is not (module if home == name else getattr(module, name))
]
modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vitzoo"}
unusual = [name for name, module in modules.items() if type(module) is not types.ModuleType]
print(json.dumps([len(found), wrong, unusual]))
"""


@pytest.mark.slow
def test_public_names_are_those_of_the_table_after_every_module_is_imported(python):
    """Importing a module sets it as an attribute of its package.

    No module is of a class of its own: cloudpickle, as in ray and dask, sends only plain ones by
    name.
    """
    count, wrong, unusual = json.loads(python(EVERYTHING))
    assert count > 90
    assert (wrong, unusual) == ([], [])


TORCH_FREE = """
import importlib, json, pkgutil, sys
for folder in ("files", "schema", "plugin", "registry", "store"):
    package = importlib.import_module(f"vitzoo.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
import vitzoo.inventory  # fetch and verify
heavy = ("torch", "numpy", "vitzoo.network.model")
print(json.dumps([name for name in sys.modules if name in heavy]))
print("vitzoo.store.download" in sys.modules)
"""


def test_folders_up_to_the_store_and_the_catalogue_are_torch_free(python):
    assert python(TORCH_FREE).splitlines() == ["[]", "True"]


def test_no_module_has_the_name_of_a_public_function():
    """Importing it would replace the function."""
    folder = Path(vitzoo.__file__).parent
    modules = {path.stem for path in folder.iterdir()}
    assert {"factory", "schema", "plugin"} < modules
    assert modules & set(vitzoo.__all__) == {"errors", "formats", "parts", "ray"}
    assert modules & {"predict", "convert", "embed", "plot", "export", "probe", "freeze"} == set()


def test_few_files_lie_directly_in_the_package():
    files = list(Path(vitzoo.__file__).parent.glob("*.py"))
    assert 10 < len(files) <= 16, sorted(path.name for path in files)


def test_the_version_is_that_of_the_installed_distribution():
    from importlib.metadata import version

    assert vitzoo.__version__ == version("vitzoo")


def test_the_diagrams_of_the_architecture_page_show_the_contracts():
    root = Path(__file__).parents[1]
    layers = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    folders, apps = (
        [re.sub(" [:|] ", ", ", layer) for layer in contract["layers"]]
        for contract in layers["contracts"][:2]
    )
    page = (root / "docs" / "architecture.md").read_text("utf-8")
    drawings = page.partition("## Folders and import order")[2].split("```", 4)[1::2]
    assert [drawing.split("\n")[1:-1] for drawing in drawings] == [folders, apps]
    for name, wanted in (("folders", folders), ("apps", apps)):
        table = page.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
        named = set(re.findall(r"^\| `(\w+)(?:\.py|/)` \|", table, re.MULTILINE))
        assert named == {name.partition(".")[0] for line in wanted for name in line.split(", ")}
