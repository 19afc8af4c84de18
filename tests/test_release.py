"""What a release needs: supported systems, metadata, citation, and the checklist's own check."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import vitzoo
from helpers import says
from tables import cases

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "tests" / "release.py"))
FOLDERS = list(RELEASE["projects"](ROOT))
PYTHON = "Programming Language :: Python :: "


def text(name: str) -> str:
    """Return a file of the repository as one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# Systems

ELSEWHERE = """
import sys
sys.modules["fcntl"] = None  # Windows does not have it
sys.platform, version, sys.argv, sys.orig_argv = {system!r}, {python!r}, {argv!r}, {argv!r}
sys.version_info = (*version, 0, "final", 0)
import vitzoo
"""
WANTED = "needs Python 3.11 or newer"


def elsewhere(system, python, argv=("script.py",)):
    """Import vitzoo on a pretended system in a new process."""
    code = ELSEWHERE.format(system=system, python=python, argv=list(argv))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("python", [(3, 10), (3, 9)])
def test_an_older_python_gets_one_clear_message(python):
    done = elsewhere("win32", python)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: ")  # an optional vitzoo is left out, as ever
    says(message, vitzoo.__version__, f"this is Python {python[0]}.{python[1]}", WANTED, "newer")
    assert "During handling" not in done.stderr


@pytest.mark.parametrize(
    "argv", [("C:/venv/Scripts/vitzoo.exe", "list"), ("bin/vitzoo",), ("-m", "vitzoo", "list")]
)
def test_a_command_of_an_older_python_prints_one_line(argv):
    done = elsewhere("win32", (3, 10), [arg.rpartition("/")[2] for arg in argv])
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    says(line, "this is Python 3.10", WANTED, "environment")


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_newer_versions_of_python_are_not_refused(system):
    """They work as soon as torch does; an upper bound would make pip choose an older vitzoo."""
    done = elsewhere(system, (3, 99))
    assert (done.returncode, done.stderr) == (0, "")


@cases("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_distribution_states_what_it_runs_on(folder):
    stated = project(folder)
    assert stated["requires-python"] == ">=3.11"
    systems = [c.split(" :: ")[-1] for c in stated["classifiers"] if c.startswith("Operating")]
    assert systems == ["MacOS", "Windows", "Linux"]
    listed = [c.removeprefix(PYTHON) for c in stated["classifiers"] if c.startswith(PYTHON)]
    torch = metadata("torch").get_all("Classifier")
    known = [c.removeprefix(PYTHON) for c in torch if re.fullmatch(rf"{PYTHON}3\.\d+", c)]
    assert "3.11" in known
    assert listed == ["3 :: Only", *(v for v in known if int(v[2:]) >= 11)]


def test_the_repository_has_no_symbolic_link():
    """Git for Windows writes one as a text file with the name of its target."""
    folders = (ROOT / name for name in ("vitzoo", "plugins", "tests", "docs", ".ci", ".github"))
    assert [path for folder in folders for path in folder.rglob("*") if path.is_symlink()] == []


def test_readme_states_the_versions_of_the_classifiers():
    listed = [c.removeprefix(PYTHON) for c in project(ROOT)["classifiers"] if c.startswith(PYTHON)]
    says(text("README.md"), f"Linux, macOS and Windows with Python {listed[1]} to {listed[-1]}")


# Metadata


def test_plugins_state_the_same_as_vitzoo():
    core = project(ROOT)
    for folder in FOLDERS[1:]:
        stated = project(folder)
        same = ("authors", "classifiers", "license", "license-files", "readme")
        same += ("requires-python", "dynamic")
        assert {key: stated[key] for key in same} == {key: core[key] for key in same}, folder.name
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_a_plugin_needs_the_minor_version_of_vitzoo_that_it_was_made_with():
    """The next one may change what first-party plugins use of its modules."""
    major, minor = (int(part) for part in vitzoo.__version__.split(".")[:2])
    for folder in FOLDERS[1:]:
        needed = f"vitzoo>={major}.{minor},<{major}.{minor + 1}"
        assert needed in project(folder)["dependencies"], folder.name


def test_the_extras_of_extras_leave_nothing_out():
    stated = project(ROOT)["optional-dependencies"]
    assert stated["plugins"] == [project(folder)["name"] for folder in FOLDERS[1:]]
    (extras,) = map(Requirement, stated["extras"])
    assert extras.extras == stated.keys() - {
        "plugins",
        "usual",
        "extras",
        "all",
        "test",
        "dev",
        "docs",
    }
    assert stated["all"] == ["vitzoo[plugins,extras]"]


# Citation


def citation() -> dict:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_citation_fits_the_schema_of_its_format(tmp_path):
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    check += ("vendor.citation-file-format",)
    ok = subprocess.run([*check, ROOT / "CITATION.cff"], capture_output=True, text=True, timeout=60)
    assert ok.returncode == 0, ok.stdout + ok.stderr
    wrong = tmp_path / "CITATION.cff"
    wrong.write_text("cff-version: 1.2.0\ntitle: vitzoo\n")
    bad = subprocess.run([*check, wrong], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 1
    says(bad.stdout, "'authors' is a required property")


def test_the_citation_agrees_with_the_metadata():
    stated, cited = project(ROOT), citation()
    assert cited["version"] == vitzoo.__version__
    assert (cited["title"], cited["license"]) == (stated["name"], stated["license"])
    assert cited["authors"] == stated["authors"]
    assert cited["abstract"] == f"{stated['description']}."


def test_the_citation_names_the_papers_of_the_core():
    """Those that a variant of the core comes from, which is more than one step of its training."""
    sources = " ".join(variant.source for variant in vitzoo.variants(namespace="core"))
    papers = set(re.findall(r"arXiv:\d{4}\.\d{5}", sources))
    cited = {paper["identifiers"][0]["value"]: paper["url"] for paper in citation()["references"]}
    assert papers <= set(cited)
    assert cited == {paper: f"https://arxiv.org/abs/{paper[6:]}" for paper in cited}


# Release


def test_the_version_in_the_changelog_is_complete_if_it_has_a_date():
    """The first release dates it; then nothing of the checklist may be missing."""
    _, date = RELEASE["changelog"](ROOT)
    assert date == "unreleased" or RELEASE["missing"]() == []


@pytest.fixture
def repository(tmp_path):
    """A copy of the files that a release changes, all complete."""
    urls = "[project.urls]\n" + "".join(f'{n} = "https://a.example/"\n' for n in RELEASE["URLS"])
    for folder in FOLDERS:
        copy = tmp_path / folder.relative_to(ROOT)
        copy.mkdir(parents=True, exist_ok=True)
        name = project(folder)["name"]
        (copy / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n{urls}')
        (copy / "README.md").write_text("[vitzoo](https://a.example/), [below](#below)\n")
    package = tmp_path / "vitzoo"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (package / "installing.py").write_text('UPDATE = "pip install --upgrade vitzoo"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 (2027-01-31)\n")
    (tmp_path / "CITATION.cff").write_text(
        "version: 1.2.0\ndate-released: 2027-01-31\nrepository-code: https://a.example/\n"
    )
    (tmp_path / "SECURITY.md").write_text("## How to report\n\nOn https://a.example/report\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "trust.md").write_text("The CI runs on Linux, macOS and Windows.\n")
    return tmp_path


def test_nothing_is_missing_from_a_complete_release(repository):
    assert RELEASE["missing"](repository) == []


@cases(
    ("file", "old", "new", "said"),
    [
        ("CHANGELOG.md", "2027-01-31", "unreleased", ["1.2.0", "'unreleased'"]),
        ("CHANGELOG.md", "1.2.0", "1.3.0", ["1.3.0", "1.2.0"]),
        ("pyproject.toml", "Issues", "Bugs", ["vitzoo", "[project.urls]", "Issues"]),
        ("plugins/vitzoo-dino/pyproject.toml", "https", "http", ["vitzoo-dino", "Homepage"]),
        ("plugins/vitzoo-dino/README.md", "https://a.example", "../..", ["vitzoo-dino", "links"]),
        ("CITATION.cff", "date-released: 2027-01-31", "", ["CITATION.cff", "date-released"]),
        ("CITATION.cff", "version: 1.2.0", "version: 1.1.0", ["CITATION.cff", "version"]),
        ("CITATION.cff", "repository-code: https", "url: https", ["repository-code"]),
        ("SECURITY.md", "https://a.example/report", "", ["SECURITY.md", "address"]),
        ("README.md", "[below]", "It has no\nrelease yet.", ["README.md", "first release"]),
        ("plugins/vitzoo-dino/README.md", "[below]", "`pip install ./plugins/x`", ["vitzoo-dino"]),
        ("docs/trust.md", "runs", "has not run yet", ["docs/trust.md", "first release"]),
        ("vitzoo/installing.py", "UPDATE", "FROM_CLONE", ["FROM_CLONE", "installing.py"]),
    ],
)
def test_what_is_missing_is_named(repository, file, old, new, said):
    path = repository / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = " ".join(RELEASE["missing"](repository))
    says(found, *said)


def test_the_tag_is_that_of_the_version(repository):
    assert RELEASE["wrong_tag"]("v1.2.0", repository) == []
    for tag in ("1.2.0", "v1.3.0"):
        (found,) = RELEASE["wrong_tag"](tag, repository)
        says(found, f"tag is {tag};", "version is v1.2.0")


def test_the_release_check_prints_what_is_missing():
    command = [sys.executable, ROOT / "tests" / "release.py", f"v{vitzoo.__version__}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lacking = RELEASE["missing"]()
    assert done.stdout.splitlines() == (lacking or ["nothing is missing"])
    assert done.returncode == bool(lacking)
