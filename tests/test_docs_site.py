"""The documentation site: built with the documented command, whole, offline, links that lead on."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vitzoo
from vitzoo import parts

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
COMMAND = re.compile(r"`\.venv/bin/python (-m sphinx [^`]+ build/site)`")
# Runs Sphinx in a process that may open no socket, and has not the modules in the first argument.
OFFLINE = """
import sys

sys.modules |= dict.fromkeys(sys.argv.pop(1).split(","))

def forbid(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise OSError(f"{event} {args[1:]} while the site is built")

sys.addaudithook(forbid)
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""
OWN = """\
api = 1

[variants.secret]
summary = "a private network"
size = "ti"
params = 5717416
source = "made up"
"""


@pytest.fixture(scope="module")
def site(shared_folder) -> Path:
    """The site, built once with the command in CONTRIBUTING.md; every warning is an error.

    The build needs nothing but the extra `docs` and the plugins. Networks that the user registered
    do not belong into it.
    """
    with FileLock(shared_folder / "docs_site.lock"):
        if not (shared_folder / "site").exists():
            build(shared_folder)
    return shared_folder / "site"


def build(folder: Path) -> None:
    own = folder / "own.toml"
    own.write_text(OWN, encoding="utf-8")
    (documented,) = COMMAND.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert "-W" in documented.split()
    arguments = [arg.replace("build/", f"{folder}/") for arg in shlex.split(documented)[2:]]
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, ",".join(missing()), "-q", *arguments],
        cwd=ROOT, env=os.environ | {"VITZOO_REGISTRY": str(own)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def missing() -> list[str]:
    """Return the modules here that come neither with the extra `docs` nor with the plugins."""
    files = (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    needed = {(project["name"], ""): project["dependencies"] for project in projects}
    asked, brought = [*needed, ("vitzoo", "docs")], set()
    needed |= {("vitzoo", e): texts for e, texts in projects[0]["optional-dependencies"].items()}
    while asked:
        name, extra = asked.pop()
        if (name, extra) not in brought:
            brought.add((name, extra))
            known = needed.get((name, extra))
            for requirement in map(Requirement, installed(name) if known is None else known):
                marker = requirement.marker
                if marker is None or marker.evaluate({"extra": extra}):
                    home = canonicalize_name(requirement.name)
                    asked += [(home, part) for part in ("", *requirement.extras)]
    names = {name for name, _ in brought}
    homes = metadata.packages_distributions()
    return sorted(m for m, of in homes.items() if not names & set(map(canonicalize_name, of)))


def installed(name: str) -> list[str]:
    """Return what an installed distribution needs; nothing if it is for other systems."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


class Page(HTMLParser):
    """What a page refers to: anchors in it, links from it, and what a browser loads by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "href" in given:
            self.loaded.append(given["href"])
        self.loaded += [
            given[name] for name in ("src", "srcset", "data", "poster") if name in given
        ]
        if given.get("http-equiv", "").lower() == "refresh":
            self.links.append(given["content"].partition("url=")[2])


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    """Every HTML file of the site."""
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_there(site, pages):
    assert len(PAGES) > 40
    built = {path.relative_to(site).with_suffix(".md") for path in pages}
    assert {path.relative_to(ROOT) for path in PAGES} <= built


def test_the_first_page_leads_to_the_documentation(site, pages):
    assert pages[site / "index.html"].links[0] == "docs/index.html"


def test_every_page_is_reached_from_the_navigation(site, pages):
    start = pages[site / "docs" / "index.html"]
    reached = {(site / "docs" / urlsplit(link).path).resolve() for link in start.links}
    for section in ("api/README", "decisions/README", "families/README", "maintainers"):
        page = site / "docs" / f"{section}.html"
        reached |= {(page.parent / urlsplit(link).path).resolve() for link in pages[page].links}
    wanted = {(site / path.relative_to(ROOT)).with_suffix(".html").resolve() for path in PAGES}
    assert wanted <= reached


def test_the_sidebar_is_short(site):
    """Other pages are one level down, below a page of the sidebar, and shown on request."""
    start = site.joinpath("docs", "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<span class="caption-text">(.+?)</span>', start)
    assert captions == ["Start", "Use", "Models", "Extend", "Operate", "Reference"]
    assert 15 < start.count('<li class="toctree-l1') <= 25
    assert start.count('<li class="toctree-l2"') > 40


def test_records_are_neither_in_the_sidebar_nor_in_the_search(site):
    is_record = runpy.run_path(str(ROOT / "docs" / "count_words.py"))["is_record"]
    found = [page for page in PAGES if is_record(page.relative_to(ROOT).as_posix())]
    assert len(found) > 10
    start = site.joinpath("docs", "index.html").read_text(encoding="utf-8")
    (sidebar,) = re.findall(r'<div class="sidebar-scroll">.*?</aside>', start, re.DOTALL)
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "A tour" in sidebar
    assert '"Creating models"' in index
    for page in found:
        address = os.path.relpath(page.with_suffix(".html"), ROOT / "docs")
        assert f'href="{address}"' not in sidebar
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert f'"{title}"' not in index


def test_every_page_leads_to_the_catalogue_of_all_networks(site, pages):
    catalogue = site / "catalogue" / "index.html"
    outside = {catalogue, *catalogue.parent.rglob("*.html"), site / "index.html"}
    for path in set(pages) - outside:
        targets = {(path.parent / urlsplit(link).path).resolve() for link in pages[path].links}
        assert catalogue.resolve() in targets, path
    assert len(outside) == len(vitzoo.variants()) + 2  # a page for each, the first pages
    assert "local/secret" not in catalogue.read_text(encoding="utf-8")


def test_families_and_the_catalogue_link_each_other(site, pages):
    families, linked = site / "docs" / "families", 0
    for variant in vitzoo.variants():
        path = site / "catalogue" / "networks" / f"{variant.name}.html"
        targets = {(path.parent / urlsplit(link).path).resolve() for link in pages[path].links}
        (family,) = [target for target in targets if target.parent == families.resolve()]
        back = os.path.relpath(path.resolve(), family.parent)
        named = back in pages[families / family.name].links
        assert named or not variant.weights, variant.name
        linked += named
    assert linked > 200
    first = pages[site / "catalogue" / "index.html"].links
    assert "../docs/index.html" in first


def test_blocks_have_copy_buttons_without_prompts(site, pages):
    loaded = pages[site / "docs" / "cli.html"].loaded
    assert any("copybutton.js" in address for address in loaded)
    script = site.joinpath("_static", "copybutton.js").read_text(encoding="utf-8")
    assert r"formatCopyText(text, '>>> |\\.\\.\\. |\\$ ', true, true, true" in script


def test_every_public_name_is_once_in_the_reference(site, pages):
    names = runpy.run_path(str(ROOT / "tests" / "test_public.py"))["NAMES"]
    exceptions = names["vitzoo"] & names["vitzoo.errors"]
    names["vitzoo"] -= exceptions | {path.rpartition(".")[2] for path in names} | {"__version__"}
    wanted = {f"{module}.{name}" for module, public in names.items() for name in public}
    api = [page.anchors for path, page in pages.items() if path.parent == site / "docs" / "api"]
    assert Counter(name for anchors in api for name in anchors & wanted) == Counter(wanted)
    methods = ("forward", "features", "set_input_size", "reset_classifier", "num_reg_tokens")
    anchors = pages[site / "docs" / "api" / "networks.html"].anchors
    assert {f"vitzoo.VisionTransformer.{name}" for name in methods} <= anchors


def test_the_reference_has_the_text_of_the_docstrings(site):
    text = (site / "docs" / "api" / "networks.html").read_text(encoding="utf-8")
    assert "Create a Vision Transformer with random or trained weights." in text
    assert "number of image channels." in text


def test_the_reference_says_which_classes_are_protocols(site):
    text = (site / "docs" / "api" / "vitzoo.parts.html").read_text(encoding="utf-8")
    protocols = [name for name, one in vars(parts).items() if getattr(one, "_is_protocol", False)]
    assert {"Head", "Network", "WeightsAdapter"} <= {*protocols}
    assert text.count("<strong>Protocol</strong>: an object of any class") == len(protocols)


def test_the_reference_has_no_texts_of_python_or_torch_and_no_marks_of_other_syntax(site):
    """A property whose docstring has a colon would get the first part of it as its type."""
    for path in sorted((site / "docs" / "api").glob("*.html")):
        text = re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8"))
        wrong = r"&lt;factory&gt;|Define the computation|generic container|Alias for field|\w\]\(\w"
        assert re.findall(wrong, text) == [], path.name
        for kind in re.findall(r"^Type:\n(.+)$", text, re.MULTILINE):
            assert re.search(r"\w \w", kind) is None, (path.name, kind)


def test_the_reference_shows_the_values_of_defaults(site):
    text = re.sub(r"<[^>]+>", "", (site / "docs" / "api" / "networks.html").read_text("utf-8"))
    assert "pretrained: bool = False," in text
    assert "UNTRAINED" not in text


def test_options_keep_their_hyphens_and_cells_are_sized(site):
    page = (site / "docs" / "benchmarks.html").read_text(encoding="utf-8")
    assert "vitzoo plot filters vit_digits --out" in re.sub(r"<[^>]+>", "", page)
    assert page.count("<h3>Time of a refusal") == 1
    errors = (site / "docs" / "errors.html").read_text(encoding="utf-8")
    assert errors.count('<td class="long">') > 20


def test_links_inside_the_site_lead_somewhere(site, pages):
    wrong, followed = [], 0
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            found = file.is_file() and file.is_relative_to(site.resolve())
            anchors = pages[file].anchors if file in pages else {""}
            anchor = unquote(target.fragment)  # with "=", it is the state of the catalogue
            if not found or (anchor and "=" not in anchor and anchor not in anchors):
                wrong.append(f"{path.relative_to(site)}: {link}")
            followed += 1
    assert wrong == []
    assert followed > 1000


def test_the_site_loads_nothing_from_another_host(site, pages):
    outside = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
    for path, page in pages.items():
        assert [link for link in page.loaded if outside.match(link)] == [], path
    loads = re.compile(
        r"""(?:url\(|@import|fetch\(|import\(|\.src *=|open\()\s*["']?\s*(?:https?:)?//"""
    )
    scripts = [*site.rglob("*.css"), *site.rglob("*.js")]
    assert len(scripts) > 5
    for path in scripts:
        assert loads.findall(path.read_text(encoding="utf-8")) == [], path


def test_the_search_needs_no_server(site, pages):
    """Its index is a script, which a browser also loads for a local file."""
    assert "searchindex.js" in " ".join(pages[site / "search.html"].loaded)
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "docs/glossary" in index
    assert '"stochast' in index or "stochast:" in index
    assert "DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY" in " ".join(
        path.read_text(encoding="utf-8") for path in site.rglob("searchtools.js")
    )
    options = (site / "_static" / "documentation_options.js").read_text(encoding="utf-8")
    assert "SHOW_SEARCH_SUMMARY: false" in options  # it would fetch pages
