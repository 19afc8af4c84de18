"""Wheel and sdist: both hold what the entry point, the manifest and its rows name."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import vitzoo
from vitzoo.plugin.entry_points import GROUP
from vitzoo.plugin.info import CORE
from vitzoo.plugin.package_files import data_file, module_file
from vitzoo.registry.registry import registry
from vitzoo.testing.plugin import info_of
from vitzoo.testing.subject import fail, require

INCLUDE = (
    "include it: hatchling takes what lies inside the package; setuptools needs "
    '[tool.setuptools.package-data] with "*.toml" and "data/*"'
)
INSTALL = (
    "is the build backend installed (pip install hatchling, say)? Or set `archives = False` in "
    "the test class"
)


def check_archives(namespace: str, project: Path, folder: Path) -> None:
    """An sdist of the project, and the wheel made from it, hold manifest, code and bundled files.

    Args:
        namespace: of the plugin, or `core`.
        project: folder with its pyproject.toml.
        folder: where the archives are built.
    """
    __tracebackhide__ = True
    wheel, sdist = _built(project, folder)
    for path, name in needed(namespace).items():
        for kind, archive in (("wheel", wheel), ("sdist", sdist)):
            held = {n: data for n, data in archive.items() if f"/{n}".endswith(f"/{name}")}
            require(held, f"the {kind} of {project} has no {name}", INCLUDE)
            require(
                path.read_bytes() in held.values(),
                f"the {kind} of {project} has another {name} than the one in use, {path}",
                "reinstall the plugin, or build from the folder that is installed",
            )
    points = [data.decode() for n, data in wheel.items() if n.endswith("/entry_points.txt")]
    named = any(f"{namespace} =" in text for text in points)
    require(
        named or namespace == CORE,
        f"the wheel of {project} has no entry point {namespace!r}",
        f"[project.entry-points.{GROUP}] in pyproject.toml names it",
    )


def needed(namespace: str) -> dict[Path, str]:
    """Return what archives must hold: files here, by name within the package's parent."""
    info = info_of(namespace)
    files = [Path(info.location)]
    rows = [row for _, row in registry().host.rows[namespace]]
    targets = [getattr(row, "target", getattr(row, "builder", None)) for row in rows]
    modules = {target.partition(":")[0] for target in targets if isinstance(target, str)}
    files += filter(None, map(module_file, sorted(modules)))
    package = registry().host.package(namespace)
    for variant in vitzoo.variants(namespace=namespace):
        bundled = [data_file(package, row.file) for row in variant.weights if not row.repo]
        files += [path for path in bundled if path]
    top = package.partition(".")[0]
    names = {}
    for path in files:
        if top in path.parts:  # the core's builder lies outside a plugin
            start = len(path.parts) - 1 - path.parts[::-1].index(top)
            names[path] = "/".join(path.parts[start:])
    return names


def project_of(namespace: str, start: Path) -> Path | None:
    """Return the nearest folder above `start` whose pyproject.toml declares the namespace."""
    for folder in start.resolve().parents:
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get(
                "project", {}
            )
        except (OSError, ValueError):
            continue
        if namespace in project.get("entry-points", {}).get(GROUP, {}):
            return folder
        if namespace == CORE and project.get("name") == "vitzoo":
            return folder
    return None


def _built(project: Path, folder: Path) -> Iterator[dict[str, bytes]]:
    """Build without a network, and yield the files of the wheel and of the sdist."""
    __tracebackhide__ = True
    if find_spec("build") is None:
        fail(
            "wheel and sdist cannot be built: the package 'build' is not installed",
            "pip install build and your build backend, or set `archives = False` in the test class",
        )
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(  # noqa: S603  # the author's own project
        [*command, str(project)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    output = f"{done.stdout}\n{done.stderr}"[-3000:]
    require(
        done.returncode == 0, f"wheel and sdist of {project} cannot be built:\n{output}", INSTALL
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        yield {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(sdist) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if not member.isdir()}
        yield {name: file.read() for name, file in files.items() if file}
