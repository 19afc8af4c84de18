"""Checks of wheel and sdist: both contain all files that the plugin needs."""

from __future__ import annotations

import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path

import vitzoo
from vitzoo.installing import pip
from vitzoo.plugin.entry_points import GROUP
from vitzoo.plugin.info import CORE
from vitzoo.plugin.package_files import data_file, module_file
from vitzoo.registry.registry import registry
from vitzoo.testing.checks.plugin import info_of, run_python
from vitzoo.testing.subject import require

__tracebackhide__ = True
INCLUDE = (
    "include it: hatchling includes all files of the package; setuptools needs "
    '[tool.setuptools.package-data] with "*.toml" and "data/*"'
)
INSTALL = (
    f"install 'build' and the build backend ({pip('install', 'build', 'hatchling')}), or set "
    "`archives = False` in the test class"
)


def check_archives(namespace: str, project: Path, folder: Path) -> None:
    """Build sdist and wheel of a project into a folder; fail unless they contain what it needs."""
    _build(project, folder)
    for path, name in needed(namespace).items():
        for kind in ("wheel", "sdist"):
            held = [file.read_bytes() for file in folder.glob(f"{kind}/**/{name}")]
            require(held, f"the {kind} of {project} has no {name}", INCLUDE)
            problem = f"{name} in the {kind} of {project} differs from the installed file {path}"
            require(path.read_bytes() in held, problem, "install the plugin again")
    points = [file.read_text("utf-8") for file in folder.glob("wheel/*.dist-info/entry_points.txt")]
    named = namespace == CORE or any(f"{namespace} =" in text for text in points)
    problem = f"the wheel of {project} has no entry point {namespace!r}"
    require(named, problem, f"add it to [project.entry-points.{GROUP}] in pyproject.toml")


def needed(namespace: str) -> dict[Path, str]:
    """Return the files that archives must contain: installed path to path within the archive."""
    files = [Path(info_of(namespace).location)]
    rows = [row for _, row in registry().host.rows[namespace]]
    targets = [getattr(row, "target", getattr(row, "builder", None)) for row in rows]
    modules = {target.partition(":")[0] for target in targets if isinstance(target, str)}
    files += filter(None, map(module_file, sorted(modules)))
    package = registry().host.package(namespace)
    for variant in vitzoo.variants(namespace=namespace):
        bundled = [data_file(package, row.file) for row in variant.weights if row.bundled]
        files += [path for path in bundled if path]
    top = package.partition(".")[0]
    names = {}
    for path in files:
        if top in path.parts:  # the core's builder is outside the plugin
            start = len(path.parts) - 1 - path.parts[::-1].index(top)
            names[path] = "/".join(path.parts[start:])
    return names


def project_of(namespace: str, test: Path) -> Path:
    """Return the nearest folder above a test whose pyproject.toml declares the namespace."""
    for folder in test.resolve().parents:
        try:
            read = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        project = read.get("project", {})
        if namespace in project.get("entry-points", {}).get(GROUP, {}):
            return folder
        if namespace == CORE and project.get("name") == "vitzoo":
            return folder
    raise AssertionError(
        f"no pyproject.toml above {test} declares the namespace {namespace!r}\n"
        "  set project = Path(...) in the test class, or archives = False"
    )


def _build(project: Path, folder: Path) -> None:
    """Build without network access, and unpack wheel and sdist into folders of that name."""
    problem = "wheel and sdist cannot be built: the package 'build' is not installed"
    require(find_spec("build"), problem, INSTALL)
    done = run_python("-m", "build", "--no-isolation", "--outdir", str(folder), str(project))
    output = f"{done.stdout}\n{done.stderr}"[-3000:]
    problem = f"wheel and sdist of {project} cannot be built:\n{output}"
    require(done.returncode == 0, problem, INSTALL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    shutil.unpack_archive(wheel, folder / "wheel", "zip")
    shutil.unpack_archive(sdist, folder / "sdist", "gztar", filter="data")
