"""Print how large and how entangled the package is, or what the tests cost: figures to judge.

    python tests/measure.py [TREE] [--moves FILE]
    python tests/measure.py --create
    python tests/measure.py --tests [ARGUMENTS OF PYTEST]

TREE is another checkout; without it, this one is measured. FILE has lines `OLD moves to NEW`, with
the paths of modules: a tree with the old names is then measured as if they had moved.

`--create` prints what `create` does for five ways to name a network, see helpers/calls.py.

`--tests` runs tests and prints how many there are, the seconds of processor time of each file and
of the collection, and the ten slowest tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

PUBLIC = {"vitzoo", *(f"vitzoo.{m}" for m in ("errors", "parts", "formats", "testing", "ray"))}
BESIDE_CORE = ("apps", "authoring", "testing", "ray")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
WRITE = """
import sys, vitzoo
from safetensors.torch import save_file
save_file(vitzoo.create("vit_ti16").state_dict(), sys.argv[1])
"""
CREATE = """
import sys, vitzoo
vitzoo.create("vit_ti16", weights=sys.argv[1])
print(*(sys.modules[m].__file__ for m in sys.modules if m.split(".")[0] == "vitzoo"), sep="\\n")
"""
Imports = dict[str, set[str]]


def ranks() -> dict[str, int]:
    """Return the rank of each folder and app from the contracts of import-linter, 0 for the top."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))
    folders, apps = (c["layers"] for c in project["tool"]["importlinter"]["contracts"][:2])
    at = folders.index("apps")
    rows = [*folders[:at], *(re.sub(r"(\w+)", r"apps.\1", row) for row in apps), *folders[at + 1 :]]
    return {name: rank for rank, row in enumerate(rows) for name in re.findall(r"[\w.]+", row)}


def lines_of_code(path: Path) -> int:
    """Count lines without docstrings, comments and blank lines."""
    text = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docs |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    stripped = [line.strip() for line in text.splitlines()]
    return sum(
        bool(line) and line[0] != "#" and number not in docs
        for number, line in enumerate(stripped, start=1)
    )


def read_imports(tree: Path) -> Imports:
    """Return what each module of vitzoo imports, in functions too, but not for type checkers."""
    import grimp

    sys.path.insert(0, str(tree))
    graph = grimp.build_graph("vitzoo", exclude_type_checking_imports=True, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circles(imports: Imports) -> dict[str, frozenset[str]]:
    """Return for each module the modules that it imports and that import it, itself included."""

    @cache
    def reached(module: str) -> frozenset[str]:
        found, queue = {module}, [module]
        while queue:
            new = imports[queue.pop()] - found
            found |= new
            queue += new
        return frozenset(found)

    return {m: frozenset(o for o in reached(m) if m in reached(o)) for m in imports}


def longest_chain(imports: Imports) -> int:
    """Count the modules of the longest chain of imports; a circle counts as one."""
    circle = circles(imports)

    @cache
    def length(group: frozenset[str]) -> int:
        after = {circle[imported] for module in group for imported in imports[module]} - {group}
        return 1 + max(map(length, after), default=0)

    return max(map(length, circle.values()))


def place(module: str, moves: dict[str, str]) -> str:
    """Return the folder of a module in `vitzoo/`, of an app with its name."""
    parts = moves.get(module, module).split(".")[1:]
    return ".".join(parts[: 1 + (parts[:1] == ["apps"])])


def against_layers(imports: Imports, moves: dict[str, str]) -> Iterator[str]:
    """Yield the imports of modules by those of a lower layer."""
    rank = ranks()
    for module, imported in imports.items():
        own = rank.get(place(module, moves), -1)
        for other in imported:
            if own > rank.get(place(other, moves), own):
                yield f"{module} imports {other}"


def files_of_create(tree: Path) -> list[Path]:
    """Return the modules that a fresh process has imported when `create` returns."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "ti16.safetensors"))
        env = os.environ | {"PYTHONPATH": str(tree), "VITZOO_HOME": folder}

        def run(code: str) -> str:
            command = [sys.executable, "-c", code, file]
            return subprocess.check_output(command, env=env, cwd=folder, text=True)

        run(WRITE)
        return [Path(line) for line in run(CREATE).splitlines()]


def calls_of_create() -> dict[str, dict[str, Any]]:
    """Return what `create` does in a fresh process, by how the network is named."""
    script = Path(__file__).parent / "helpers" / "calls.py"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        command = [sys.executable, str(script), os.path.realpath(folder)]
        env = os.environ | {"VITZOO_HOME": home}
        found: dict[str, dict[str, Any]] = json.loads(subprocess.check_output(command, env=env))
    return found


def core_of(tree: Path) -> list[Path]:
    """Return the modules of the core."""
    files = tree.joinpath("vitzoo").rglob("*.py")
    return [p for p in files if p.relative_to(tree / "vitzoo").parts[0] not in BESIDE_CORE]


def inner_imports(path: Path) -> int:
    """Count the imports inside the functions of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = {id(n): n for function in functions for n in ast.walk(function)}
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in inner.values())


def imports_internals(path: Path, modules: Collection[str]) -> bool:
    """Say whether a test imports a module of vitzoo that is not public."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return not PUBLIC.issuperset(named & set(modules))


def main(tree: Path, moves: dict[str, str]) -> None:
    """Print the table."""
    package, imports = tree / "vitzoo", read_imports(tree)
    files = list(package.rglob("*.py"))
    modules = {path: ".".join(path.relative_to(tree).with_suffix("").parts) for path in files}
    lines = {path: lines_of_code(path) for path in modules}
    core = core_of(tree)
    created = files_of_create(tree)
    folders = {p.relative_to(package).parts[0] for p in modules if p.parent != package}
    top = [p for p in package.glob("*.py") if not p.name.startswith("__")]
    against = sorted(against_layers(imports, moves))
    round_trips = sorted({tuple(sorted(c)) for c in circles(imports).values() if len(c) > 1})
    places = ("conftest.py", "tests/**/*.py", "plugins/*.py", "plugins/*/tests/**/*.py")
    tests = [path for pattern in places for path in tree.glob(pattern)]
    internal = sum(imports_internals(path, imports) for path in tests)
    sources = [path.read_text(encoding="utf-8") for path in core]
    for figure, measure in [
        (f"{sum(lines.values()):,}", "lines of code of vitzoo/"),
        (f"{sum(lines[path] for path in core):,}", "lines of code of the core"),
        (longest_chain(imports), "modules in the longest chain of imports"),
        (sum(map(inner_imports, core)), "imports inside functions of the core"),
        (sum("if TYPE_CHECKING" in s for s in sources), "files of the core with TYPE_CHECKING"),
        (
            f"{len(created)} ({sum(len(p.read_text().splitlines()) for p in created):,} lines)",
            "modules imported when create returns",
        ),
        (f"{len(folders)}; {len(top)}", "folders and files with code directly in vitzoo/"),
        (f"{len(against)}; {len(round_trips)}", "imports against the layers, and circles"),
        (f"{internal} of {len(tests)}", "test files that import internal modules"),
    ]:
        print(f"{figure!s:>20}  {measure}")
    print(*against, *map(" <-> ".join, round_trips), sep="\n")


def measure_tests(arguments: list[str]) -> int:
    """Run tests, print what they cost, and return the exit code of pytest."""
    helpers = str(Path(__file__).parent / "helpers")
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"CPU_TIMES": folder, "PYTHONPATH": helpers}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "cpu_times", *arguments]
        code = subprocess.run(command, env=env, check=False).returncode
        rows = [row for path in Path(folder).iterdir() for row in json.loads(path.read_text())]
    collections = [cpu for test, cpu, _ in rows if not test]
    tests = [row for row in rows if row[0]]
    files = Counter[str]()
    for test, cpu, _ in tests:
        files[test.partition("::")[0]] += cpu
    print(f"{len(tests):>10,}  tests")
    print(f"{sum(files.values()):>10.1f}  s of processor time of all tests")
    print(f"{max(collections, default=0):>10.1f}  s of processor time of one collection, at most")
    for file, cpu in files.most_common():
        print(f"{cpu:>10.1f}  {file}")
    print("the slowest tests, in seconds:")
    for test, _, seconds in sorted(tests, key=lambda row: -row[2])[:10]:
        print(f"{seconds:>10.1f}  {test}")
    return code


def print_calls() -> None:
    """Print what `create` does."""
    for name, row in calls_of_create().items():
        figures = row | {"classes": len(row["classes"])}
        print(f"{name}:", ", ".join(f"{value} {key}" for key, value in figures.items()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--create"]:
        sys.exit(print_calls())
    if sys.argv[1:2] == ["--tests"]:
        sys.exit(measure_tests(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--moves", type=argparse.FileType())
    given = parser.parse_args()
    table = re.findall(r"(\S+)\.py moves to (\S+)\.py", given.moves.read() if given.moves else "")
    main(given.tree.resolve(), {a.replace("/", "."): b.replace("/", ".") for a, b in table})
