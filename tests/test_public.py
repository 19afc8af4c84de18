"""Plugins, their tests, the template and the documentation import public names alone."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitzoo
from tables import cases

ROOT = Path(__file__).parents[1]
PATHS = (
    "vitzoo",
    "vitzoo.cli",
    "vitzoo.errors",
    "vitzoo.formats",
    "vitzoo.parts",
    "vitzoo.ray",
    "vitzoo.testing",
)
PYTHON = [
    # Not the scripts that write manifests: they belong to this repository.
    *sorted(path for path in ROOT.glob("plugins/**/*.py") if not path.match("update_*.py")),
    *sorted(ROOT.glob("docs/examples/**/*.py")),
    *sorted(ROOT.glob("vitzoo/authoring/templates/**/*.py.tmpl")),
]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])
FENCE = re.compile(r"^```(?:python|py)\b[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def public(path: str) -> set[str]:
    """Return the public names of one of the paths."""
    module = importlib.import_module(path)
    if path == "vitzoo":
        return {*module.__all__, "__version__"}
    if path == "vitzoo.errors":
        return {
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == path
        }
    if path in ("vitzoo.cli", "vitzoo.testing"):
        return set(module.__all__)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names if alias.name == alias.asname}


FORMATS = (ROOT / "docs" / "format-arguments.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "apps.md").read_text(encoding="utf-8")
NAMES = {path: public(path) for path in PATHS}
FOLDERS = [f"vitzoo.{path.stem}" for path in Path(vitzoo.__file__).parent.iterdir()]


def private_imports(source: str) -> list[str]:
    """Return each import of vitzoo, and each attribute of it, that is not public."""
    return [name for node in ast.walk(ast.parse(source)) for name in used(node) if is_private(name)]


def used(node: ast.AST) -> Iterator[str]:
    """Yield the full names that one node imports or reads."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Attribute():
            name = ast.unparse(node)
            if name.rpartition(".")[0] in (*PATHS, *FOLDERS):  # below a name, anything goes
                yield name
        case ast.Call(func=ast.Attribute(attr="import_module" | "setattr" | "patch"), args=args):
            yield from (a.value for a in args[:1] if isinstance(a, ast.Constant))


def is_private(name: object) -> bool:
    if not isinstance(name, str) or name.partition(".")[0] != "vitzoo" or name in PATHS:
        return False
    path, _, last = name.rpartition(".")
    return last not in NAMES.get(path, ())


def blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page; `$ ` and `...` lines do not occur in them."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@cases("path", PYTHON, ids=ids(PYTHON))
def test_code_imports_public_names(path):
    source = path.read_text(encoding="utf-8").replace("$package", "package")
    assert private_imports(source) == []


@cases("page", PAGES, ids=ids(PAGES))
def test_examples_import_public_names(page):
    assert [found for block in blocks(page) for found in private_imports(block)] == []


def test_files_are_found():
    assert {path.suffix for path in PYTHON} == {".py", ".tmpl"}
    assert len(PYTHON) > 60
    assert sum(len(blocks(page)) for page in PAGES) > 60


@cases(
    "source",
    [
        "import vitzoo.loading.load",
        "import vitzoo.schema as schema",
        "from vitzoo.schema.spec import Spec",
        "from vitzoo import factory",
        "from vitzoo import _HOME",
        "from vitzoo.parts import pool",
        "from vitzoo.parts.pools import MeanPool",
        "from vitzoo.errors import Iterable",
        "from vitzoo.testing.hub import COMMIT",
        "def f():\n    from vitzoo.registry.registry import registry",
        "vitzoo.settings.home()",
        "vitzoo.parts.pools.MeanPool",
        "importlib.import_module('vitzoo.factory')",
        "patch.setattr('vitzoo.factory.create', None)",
    ],
)
def test_a_private_import_is_found(source):
    assert private_imports(source)


@cases(
    "source",
    [
        "import vitzoo",
        "import vitzoo.parts",
        "from vitzoo import Spec, create, parts, testing",
        "from vitzoo.errors import GatedRepo, did_you_mean",
        "from vitzoo.testing import Hub, PluginTests",
        "vitzoo.create('vit_b16').spec.to_data()",
        "vitzoo.errors.GatedRepo, vitzoo.parts.MeanPool, vitzoo.__version__",
        "import vitzoo_clip.head",
    ],
)
def test_public_imports_are_left_alone(source):
    assert private_imports(source) == []


@pytest.mark.parametrize("path", PATHS)
def test_public_names_exist_and_are_documented(path):
    module = importlib.import_module(path)
    for name in NAMES[path] - {"__version__"}:
        value = getattr(module, name)
        home = f"{path}.{name}"
        if isinstance(value, types.ModuleType):
            assert value.__name__ == home
        described = inspect.getdoc(value) or f"`{name}`" in FORMATS + COMMANDS
        assert described or name in ("hookimpl", "DropPathPolicy"), home


def test_the_page_of_plugins_lists_the_paths():
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    section = page.partition("\n## Public import paths\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(vitzoo[\w.]*)` \|", section, re.MULTILINE)) == sorted(PATHS)


@pytest.mark.slow
def test_public_modules_are_attributes(python):
    code = "import vitzoo; print(vitzoo.errors.GatedRepo.__name__, vitzoo.parts.tiled.__name__)"
    assert python(code).split() == ["GatedRepo", "tiled"]


def test_about_a_dozen_exceptions_are_at_the_top():
    """Those that call for different reactions: all without a base class below WeightsError."""
    errors = importlib.import_module("vitzoo.errors")
    bases = (Exception, errors.VitzooError, errors.WeightsError, UserWarning)
    kinds = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    kinds = {name: kind for name, kind in kinds.items() if kind.__module__ == errors.__name__}
    top = {name for name, kind in kinds.items() if kind.__bases__[0] in bases}
    assert top == kinds.keys() & set(vitzoo.__all__)
    assert len(top) == 17
