"""The documentation is tested: snippets run, signatures and links hold, pages are fresh."""

import doctest
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import vitzoo
from vitzoo import hookspecs, manifest, schema

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXECUTED = [ROOT / "README.md", ROOT / "docs" / "create.md", ROOT / "docs" / "images.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize("page", EXECUTED, ids=names(EXECUTED))
def test_python_snippets_run_in_order(page, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), scope)


def test_readme_says_what_its_prediction_gives(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    expression, expected = re.search(
        r"^(vitzoo\.labels\(model\).*?) +# ('.')$", text, re.MULTILINE
    ).groups()
    snippet = next(b for b in blocks(ROOT / "README.md", "python") if expression in b)
    scope = {}
    exec(snippet.replace(expression, f"answer = {expression}"), scope)
    assert repr(scope["answer"]) == expected


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_docs_page_is_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_cli_page_is_the_commands_own_help():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        generate = importlib.import_module("generate_cli")
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "cli.md").read_text() == generate.page(), (
        "docs/cli.md is out of date: python docs/generate_cli.py"
    )


def test_every_hook_has_a_heading_with_its_exact_signature():
    page = (ROOT / "docs" / "plugins.md").read_text()
    hooks = {name for name in vars(hookspecs) if name.startswith("vitzoo_")}
    headings = re.findall(r"^### `(\w+)(\(.*)`$", page, re.MULTILINE)
    assert {name for name, _ in headings} == hooks
    for name, written in headings:
        signature = str(inspect.signature(getattr(hookspecs, name))).replace("'", "")
        assert signature == written


def test_hook_snippets_of_the_plugin_page_are_accepted_by_pluggy():
    page = ROOT / "docs" / "plugins.md"
    module = type(sys)("documented_plugin")
    after_hooks = page.read_text().split("## The hooks")[1]
    for block in re.findall(r"^```python\n(.*?)^```", after_hooks, re.MULTILINE | re.DOTALL):
        exec(block, module.__dict__)
    host = importlib.import_module("vitzoo.plugins").PluginHost()
    host.manager.register(module, name="documented")
    host.manager.check_pending()
    for hook in (name for name in vars(hookspecs) if name.startswith("vitzoo_")):
        *_, rows = (list(rows) for rows in getattr(host.manager.hook, hook)())
        assert rows, hook


@pytest.fixture
def documented_plugin(tmp_path, monkeypatch):
    """The plugin that docs/plugins.md writes out, on the path as an installed distribution."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    files = dict(
        re.findall(r"^`(acme_vit/\S+)`[^\n]*\n\n```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    assert set(files) == {"acme_vit/registry.toml", "acme_vit/overlap.py"}
    for name, text in {**files, "acme_vit/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    info = tmp_path / "acme_vit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-vit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vitzoo]\nacme = acme_vit:registry.toml\n")
    monkeypatch.syspath_prepend(tmp_path)
    cache = importlib.import_module("vitzoo.registry")._registry
    cache.cache_clear()
    yield
    cache.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme_vit")]:
        del sys.modules[name]


@pytest.mark.usefixtures("documented_plugin")
def test_the_documented_plugin_works():
    import torch

    variant = vitzoo.describe("acme/vit_ti16_overlap")
    model = vitzoo.create("acme/vit_ti16_overlap", num_classes=10)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 10)
    whole = vitzoo.create("acme/vit_ti16_overlap", device="meta")
    assert sum(p.numel() for p in whole.parameters()) == variant.params
    base = vitzoo.create("vit_b16", patch_embed="acme/overlap", device="meta")
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert f"params={sum(p.numel() for p in base.parameters()):_}" in page


def test_the_documented_registry_file_works(tmp_path, monkeypatch):
    (text,) = blocks(ROOT / "docs" / "registry.md", "toml")
    (tmp_path / "my.toml").write_text(text)
    monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "my.toml"))
    variant = vitzoo.describe("local/micro28")
    model = vitzoo.create("local/micro28", device="meta")
    assert sum(p.numel() for p in model.parameters()) == variant.params


def test_every_key_of_a_registry_file_is_documented(monkeypatch):
    asked = set()
    done = schema.Reader.done
    monkeypatch.setattr(
        schema.Reader, "done", lambda self: (asked.update(self._asked), done(self))[1]
    )
    path = ROOT / "registry.toml"
    manifest.read_manifest(path, package="vitzoo")
    page = (ROOT / "docs" / "registry.md").read_text()
    written = set(re.findall(r"[`.]?(\w+)(?:\.NAME)?`", page)) | set(re.findall(r"\w+", page))
    assert len(asked) > 40
    assert asked <= written, sorted(asked - written)


MODULES = ["vitzoo"] + [
    found.name
    for found in pkgutil.walk_packages(vitzoo.__path__, "vitzoo.")
    if found.name != "vitzoo.__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    import torch

    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0


def test_the_docstring_examples_are_really_run():
    found = [
        example
        for name in MODULES
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        for example in test.examples
    ]
    assert len(found) >= 10
