"""What the sdist and the wheel of every distribution contain, file by file, and their metadata."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import vitzoo
from vitzoo.registry.foreign_names import TAGS
from vitzoo.registry.label_sets import OWN, SHARED, SYNSETS

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
CACHES = {"__pycache__", ".pytest_cache", ".hypothesis"}
ODD = re.compile(r"__pycache__|\.pyc$|\.egg-info|/\.|~$|\.orig$|\.rej$|\.log$")
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)

# Beside the package, in every wheel:
INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
# Kinds of files in the packages. A new kind is added here on purpose.
PLUGIN_KINDS = {".py", ".toml", ".typed"}
KINDS = {  # of single distributions, beside those
    "vitzoo": {".gz", ".json", ".safetensors", ".tmpl", ".txt"},
    "vitzoo-site": {".css", ".html", ".js"},
}
# Beside the package, in every sdist. hatchling adds .gitignore, by which it chose the files.
PLUGIN_SDIST = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
CORE_SDIST = PLUGIN_SDIST | {
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
    *("hatch_build.py", "registry.toml"),
}


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package(folder: Path) -> str:
    (found,) = (path.parent.name for path in folder.glob("vitzoo*/__init__.py"))
    return found


def packaged(folder: Path) -> dict[str, Path]:
    """Return where each file in the package of a wheel comes from."""
    found = {name: folder / name for name in files(folder, package(folder))}
    return found | ({"vitzoo/registry.toml": ROOT / "registry.toml"} if folder == ROOT else {})


def files(folder: Path, *parts: str) -> set[str]:
    """Return the files below some folders of a distribution, without those that Python caches."""
    found = (path for part in parts for path in (folder / part).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in found if not CACHES & set(path.parts)}


@pytest.fixture(params=FOLDERS, ids=[project(folder)["name"] for folder in FOLDERS], scope="module")
def folder(request) -> Path:
    """The folder of each distribution."""
    return request.param


@pytest.fixture(scope="module")
def wheel(folder, built) -> dict[str, bytes]:
    """The files of the wheel that is made from the sdist."""
    (path,) = built(folder).glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        assert not [m for m in archive.infolist() if m.external_attr >> 28 == 0o12], "links"
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist(folder, built) -> dict[str, bytes]:
    """The files of the sdist, without the name of its folder."""
    (path,) = built(folder).glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert all(member.isfile() for member in archive.getmembers())
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
        return {name: archive.extractfile(member).read() for name, member in members.items()}


@pytest.mark.one_in(4)
def test_a_wheel_has_the_package_and_its_metadata(folder, wheel):
    inside = {name for name in wheel if ".dist-info/" not in name}
    assert inside == set(packaged(folder))
    info = {name.partition(".dist-info/")[2] for name in wheel} - {""}
    assert info == INFO
    kinds = {Path(name).suffix for name in inside}
    name = "vitzoo" if folder == ROOT else folder.name
    assert kinds <= PLUGIN_KINDS | KINDS.get(name, set())
    assert f"{package(folder)}/py.typed" in inside
    assert [name for name in inside if ODD.search(f"/{name}")] == []


@pytest.mark.one_in(4)
def test_the_files_of_a_wheel_are_those_of_the_repository(folder, wheel):
    for name, path in packaged(folder).items():
        assert wheel[name] == path.read_bytes(), name
    (license_file,) = (name for name in wheel if name.endswith("licenses/LICENSE"))
    assert wheel[license_file] == (ROOT / "LICENSE").read_bytes()


def test_an_sdist_has_the_package_and_the_named_files_but_no_tests(folder, sdist):
    named, parts = (CORE_SDIST, ["docs"]) if folder == ROOT else (PLUGIN_SDIST, [])
    assert set(sdist) == named | files(folder, package(folder), *parts)
    assert [n for n in sdist if ODD.search(f"/{n}") and n != ".gitignore"] == []
    for name in named - {"PKG-INFO", ".gitignore"}:
        assert sdist[name] == (folder / name).read_bytes(), name


def test_the_metadata_of_both_archives_are_valid_and_equal(folder, wheel, sdist):
    (text,) = (data for name, data in wheel.items() if name.endswith(".dist-info/METADATA"))
    assert text == sdist["PKG-INFO"]
    found, stated = Metadata.from_email(text, validate=True), project(folder)
    assert found.name == stated["name"]
    (version,) = VERSION.findall((folder / package(folder) / "__init__.py").read_text("utf-8"))
    assert str(found.version) == version
    assert found.summary == stated["description"]
    assert (found.license_expression, found.license_files) == ("Apache-2.0", ["LICENSE"])
    assert str(found.requires_python) == stated["requires-python"]
    assert found.classifiers == sorted(stated["classifiers"])
    extras = stated.get("optional-dependencies", {})
    assert sorted(found.provides_extra or []) == sorted(extras)
    plain = [r for r in found.requires_dist if not r.marker]
    assert set(plain) == set(map(Requirement, stated["dependencies"]))
    assert (found.project_urls or {}) == stated.get("urls", {})
    assert found.description_content_type == "text/markdown"
    assert (
        message_from_bytes(text).get_payload(decode=True).decode().strip()
        == (folder / "README.md").read_text(encoding="utf-8").strip()
    )


def test_the_entry_points_of_a_wheel(folder, wheel):
    (text,) = (data for name, data in wheel.items() if name.endswith("entry_points.txt"))
    stated = project(folder)
    wanted = {"console_scripts": stated.get("scripts", {}), **stated.get("entry-points", {})}
    lines = text.decode().splitlines()
    found = {f"[{group}]" for group, points in wanted.items() if points}
    found |= {f"{name} = {value}" for points in wanted.values() for name, value in points.items()}
    assert set(filter(None, lines)) == found
    for value in wanted.get("vitzoo", {}).values():  # the manifests
        assert value.replace(":", "/") in wheel


def test_the_wheel_of_vitzoo_has_the_data_of_its_registry(built):
    (path,) = built(ROOT).glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        held = {name for name in archive.namelist() if name.startswith("vitzoo/data/")}
        assert archive.read(f"vitzoo/registry/{TAGS.name}") == TAGS.read_bytes()
    rows = [row for variant in vitzoo.variants(namespace="core") for row in variant.weights]
    bundled = {row.file for row in rows if not row.repo} | {OWN, SHARED, SYNSETS, "WORDNET.txt"}
    assert held == {f"vitzoo/data/{file}" for file in bundled}


def test_a_wheel_from_the_repository_equals_that_from_the_sdist(built, built_from_tree):
    contents = []
    for path in (*built(ROOT).glob("*.whl"), built_from_tree):
        with zipfile.ZipFile(path) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert contents[0] == contents[1]
