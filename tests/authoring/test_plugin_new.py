"""`vitzoo plugins new`: projects that work as they are written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses, says
from internals import read_manifest, registry
from tables import cases
from vitzoo.authoring.plugin_new import write_project

ROOT = Path(__file__).parents[2]


def test_new_writes_a_project(run, tmp_path):
    code, out, err = run("plugins", "new", "acme", "--dir", tmp_path / "src", "--json")
    project = tmp_path / "src" / "vitzoo-acme"
    done = json.loads(out)
    assert code == 0
    assert done["project"] == str(project)
    names = {str(Path(file).relative_to(project)) for file in done["files"]}
    assert names == {
        ".gitignore", "README.md", "pyproject.toml", "tests/conftest.py",
        "tests/test_conformance.py", "tests/test_acme.py", "vitzoo_acme/__init__.py",
        "vitzoo_acme/parts.py", "vitzoo_acme/py.typed", "vitzoo_acme/registry.toml",
    }  # fmt: skip
    says(err, f"pip install -e '{project}[dev]'", f"pytest {project}")
    table = tomllib.loads(project.joinpath("pyproject.toml").read_text())["project"]
    assert table["entry-points"]["vitzoo"] == {"acme": "vitzoo_acme:registry.toml"}
    assert not [path for path in project.rglob("*.*") if "$" in path.name]


@pytest.mark.parametrize("namespace", ["acme", "my-vit_2"])
def test_every_placeholder_of_the_template_is_filled(tmp_path, namespace):
    project = write_project(namespace, tmp_path)
    for path in project.rglob("*.*"):
        if path.is_file() and path.name != "README.md":
            assert "$" not in path.read_text(), path
    readme = project.joinpath("README.md").read_text()
    assert "$ vitzoo list" in readme
    assert "$namespace" not in readme
    assert "$package" not in readme
    (own,) = set(project.glob("tests/test_*.py")) - {project / "tests" / "test_conformance.py"}
    assert f"| `tests/{own.name}` |" in readme
    assert f"Adapt `tests/{own.name}`" in readme


@pytest.mark.parametrize("namespace", ["acme", "my-vit_2"])
def test_a_new_manifest_is_read_by_vitzoo(tmp_path, namespace):
    project = write_project(namespace, tmp_path)
    (path,) = project.glob("*/registry.toml")
    sizes = registry().host.core.sizes
    manifest = read_manifest(path, package=path.parent.name, sizes=sizes)
    (part,), (variant,) = manifest.rows("vitzoo_patch_embedders"), manifest.variants
    assert part.target == f"{path.parent.name}.parts:OverlapEmbed"
    assert variant.spec.patch_embed.name == f"{namespace}/overlap"


@cases(
    ("name", "said"),
    [
        ("core", ("namespace 'core'", "reserved", "vitzoo")),
        ("local", ("namespace 'local'", "reserved", "registry file")),
        ("deit", ("namespace 'deit'", "reserved", "vitzoo-deit")),
        ("Acme", ("64", "lower-case letters", "'acme'", "'Acme' (str)")),
        ("acme-", ("64", "'acme-' (str)")),
        ("../acme", ("64", "'../acme' (str)")),
        ("a" * 65, ("64", "lower-case letters")),
        ("acme\n", ("64", r"'acme\n' (str)")),
        ("com1", ("Windows device", "'com1' (str)")),
        ("", ("64", "'' (str)")),
    ],
)
def test_new_refuses_names_that_no_plugin_may_have(run, tmp_path, name, said):
    code, out, err = run("plugins", "new", name, "--dir", tmp_path)
    assert (code, out) == (2, "")
    says(err, *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [("acme-vit", "acme_vit"), ("Acme.ViT_2", "acme_vit_2"), ("a--b", "a_b"), ("x", "x")],
)
def test_new_takes_the_name_of_the_distribution(run, tmp_path, name, package):
    code, out, _ = run("plugins", "new", "acme", "--dir", tmp_path, "--distribution", name)
    assert code == 0
    table = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
    assert table["name"] == name
    assert table["entry-points"]["vitzoo"] == {"acme": f"{package}:registry.toml"}
    assert f"{package}/parts.py" in out


@pytest.mark.parametrize("namespace", ["a--b", "a_-b", "a__b"])
def test_the_usual_distribution_has_its_normal_name(tmp_path, namespace):
    assert write_project(namespace, tmp_path).name == "vitzoo-a-b"


@cases(
    ("name", "said"),
    [
        ("acme vit", ("letters", "'acme-vit'", "'acme vit' (str)")),
        ("-acme", ("letters", "'-acme' (str)")),
        ("acme-", ("letters", "'acme-' (str)")),
        ("acmé", ("ASCII", "'acmé' (str)")),
        ("../acme", ("letters", "'../acme' (str)")),
        ("acme\n", ("letters", r"'acme\n' (str)")),
        ("acme>=1", ("letters", "'acme>=1' (str)")),
        ("vitzoo", ("'vitzoo'", "package 'vitzoo'", "choose another")),
        ("Vitzoo_DeiT", ("'Vitzoo_DeiT'", "belongs to vitzoo", "choose another")),
        ("2d-vit", ("'2d-vit'", "package '2d_vit'", "choose another")),
        ("class", ("'class'", "package 'class'", "choose another")),
        ("json", ("'json'", "package 'json'", "choose another")),
    ],
)
def test_new_refuses_what_is_no_name_of_a_distribution(run, tmp_path, name, said):
    code, out, err = run("plugins", "new", "acme", "--dir", tmp_path, f"--distribution={name}")
    assert (code, out) == (2, "")
    says(err, *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", ["mkdir", "touch"])
def test_new_overwrites_nothing(run, tmp_path, make):
    place = tmp_path / "vitzoo-acme"
    getattr(place, make)()
    code, _, err = run("plugins", "new", "acme", "--dir", tmp_path)
    assert code == 2
    assert str(place) in err
    assert place.is_file() or list(place.iterdir()) == []


def test_new_needs_a_folder(run, tmp_path):
    tmp_path.joinpath("file").write_text("")
    code, _, err = run("plugins", "new", "acme", "--dir", tmp_path / "file" / "below")
    assert code == 1
    says(err, str(tmp_path / "file" / "below"), "Not a directory")


def test_new_removes_a_project_it_cannot_finish(monkeypatch, tmp_path):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with refuses(vitzoo.StoreError, str(tmp_path / "vitzoo-acme"), "No space left on device"):
        write_project("acme", tmp_path)
    assert list(tmp_path.iterdir()) == []


def tool_passes(project: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env={"PATH": "", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow  # it needs ruff
@pytest.mark.parametrize("namespace", ["acme", "my-vit_2"])
def test_a_new_project_passes_ruff(tmp_path, namespace):
    project = write_project(namespace, tmp_path)
    tool_passes(project, "ruff", "check", "--no-cache", ".")
    tool_passes(project, "ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.install
@pytest.mark.long  # mypy reads all of torch: 20 s
def test_new_projects_pass_mypy(tmp_path):
    for namespace in ("acme", "my-vit_2"):
        project = write_project(namespace, tmp_path)
        tool_passes(project, "mypy", "--cache-dir", str(tmp_path / "cache"))


@pytest.mark.long
@pytest.mark.install
def test_a_new_project_passes_its_tests_from_a_wheel(tmp_path, new_environment, command):
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path)
    command(*build, ROOT)
    environment = new_environment(tmp_path / "venv")
    environment.install(*tmp_path.glob("vitzoo-*.whl"))
    environment.call("vitzoo", "plugins", "new", "acme", "--dir", tmp_path)
    project = tmp_path / "vitzoo-acme"
    command(*build, project)
    environment.install(*tmp_path.glob("vitzoo_acme-*.whl"))
    listed = environment.call("vitzoo", "list", "acme/*", "-q")
    assert listed == "acme/vit_ti16_overlap\n"
    tested = environment.call("python", "-m", "pytest", "-q", project)
    assert "failed" not in tested
    assert int(re.search(r"(\d+) passed", tested)[1]) >= 30
    states = json.loads(environment.call("vitzoo", "plugins", "--json"))
    location = environment.site / "vitzoo_acme" / "registry.toml"
    assert [row["location"] for row in states if row["namespace"] == "acme"] == [str(location)]
    checked = json.loads(environment.call("vitzoo", "plugins", "check", "--json"))
    assert checked["problems"] == []
    code = """
        import torch, vitzoo
        model = vitzoo.create("acme/vit_ti16_overlap", num_classes=3).eval()
        print(tuple(model(torch.zeros(1, 3, 224, 224)).shape))
    """
    assert environment.run(code) == "(1, 3)\n"
