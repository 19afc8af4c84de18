"""Settings of Sphinx, which builds the documentation site. From the root of the repository:

    sphinx-build -W --keep-going -c docs . build/site

The pages stay readable where only Markdown is shown: what the site adds to them (the navigation,
the reference of the public names, links into the catalogue) is added here while Sphinx reads them.
The first link of a row in docs/index.md is a page of the sidebar; what the row links besides is one
level down, below that page. Records (docs/count_words.py) are neither in the sidebar nor in the
search.
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

from docutils import nodes
from sphinx.errors import ExtensionError
from torch import nn

import vitzoo
from vitzoo.plugin.info import FIRST_PARTY
from vitzoo_site import write_site
from vitzoo_site.pages import variant_path

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

PROTOCOL = "**Protocol**: an object of any class that has these members fits."

project = "vitzoo"
version = release = vitzoo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**", "plugins/*/README.md"]
exclude_patterns = [".*", "build", "dist", "tests", "vitzoo", "plugins/*/*/**", "**/.*"]
templates_path = ["_templates"]

myst_heading_anchors = 4  # `page.md#section` works as on a code host
default_role = "py:obj"  # a name in backticks in a docstring becomes a link if it is documented
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88

copybutton_prompt_text = r">>> |\.\.\. |\$ "  # neither prompts nor outputs are copied
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"vitzoo {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
html_sidebars = {
    "**": [f"sidebar/{x}.html" for x in ("brand", "search", "scroll-start", "catalogue")]
    + ["sidebar/navigation.html", "sidebar/scroll-end.html"]
}
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = False  # the browser would fetch each page, which fails for local files
html_theme_options = {"top_of_page_buttons": []}

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)\.md\)")
ROW = re.compile(r"^\| \[.*\|$", re.MULTILINE)
NAMES = re.compile(r"^Names of `vitzoo`:(.*?)\.$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"[\w./:-]+")  # of a test, a file or a repository
NETWORK = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)
ADDRESS = re.compile(r"`?docs/([\w/-]+)\.md(#[\w-]+)?`?")
WITH_TITLE = re.compile(r"\[([^\]]+)\]\(([\w/-]*)(?:\.md)?(#[\w-]+)?\)")
WEIGHTS = re.compile(r"<!-- weights: (.+?) -->")
CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")  # as the default of an argument
CONSTANTS = {
    "vitzoo": "/docs/plugins",
    "vitzoo.cli": "/docs/plugins",
    "vitzoo.formats": "/docs/format-arguments",
}
is_record = runpy.run_path(str(ROOT / "docs" / "count_words.py"))["is_record"]
Pages = list[tuple[str, str]]  # titles and names of documents


def linked(text: str, folder: str) -> Pages:
    """Return the pages that a text in a folder links to, each once."""
    found = {}
    for title, target in LINK.findall(text):
        page = "/" + posixpath.normpath(posixpath.join(folder, target))
        plain = title.replace("`", "")
        name = plain.startswith(("vitzoo", "timm"))
        found.setdefault(page, plain if name else plain[0].upper() + plain[1:])
    return [(title, page) for page, title in found.items()]


def navigation(pages: Pages, *, caption: str = "") -> str:
    """Return a hidden table of contents, empty without pages."""
    if not pages:
        return ""
    heading = f":caption: {caption}\n" if caption else ""
    lines = "\n".join(f"{title} <{page}>" for title, page in pages)
    return f"\n```{{toctree}}\n:hidden:\n{heading}\n{lines}\n```\n"


def below() -> dict[str, Pages]:
    """Return the pages one level down, by the name of the page of the sidebar."""
    index = ROOT.joinpath(f"{root_doc}.md").read_text(encoding="utf-8")
    rows = [linked(row, "docs") for row in ROW.findall(index)]
    return {first[1:]: others for (_, first), *others in rows if others}


def families() -> dict[str, str]:
    """Return the page of the family of each namespace, without suffix."""
    pages = ROOT.glob("docs/families/*.md")
    return {
        space: page.relative_to(ROOT).with_suffix("").as_posix()
        for page in pages
        for words in WEIGHTS.findall(page.read_text(encoding="utf-8"))
        for space in words.split()
    }


def with_links(text: str) -> str:
    """Return the page of a family, its networks linked to their pages in the catalogue."""
    variants = {variant.name: variant for variant in vitzoo.variants()}

    def link(match: re.Match[str]) -> str:
        if match[1] not in variants:
            return match[0]
        address = f"../../catalogue/{variant_path(variants[match[1]])}"
        name = f'<code class="docutils literal notranslate">{match[1]}</code>'
        return f'| <a class="reference internal" href="{address}">{name}</a> |'

    return NETWORK.sub(link, text)


def public_names(module: str) -> list[str]:
    """Return the public names of an import path without modules; functions come first."""
    path = importlib.import_module(module)
    names = getattr(path, "__all__", None) or [name for name in vars(path) if name[0] != "_"]
    values = {name: getattr(path, name) for name in names}
    found = [name for name, value in values.items() if is_public(value, module)]
    return sorted(found, key=lambda name: (inspect.isclass(values[name]), name.lower()))


def is_public(value: object, module: str) -> bool:
    """Tell whether a value is documented, and does not only help its module."""
    home = getattr(value, "__module__", "")
    helper = inspect.ismodule(value) or home == "__future__"
    return not helper and (module != "vitzoo.errors" or home == module)


def reference(module: str, names: list[str]) -> str:
    """Return the directives that document names of an import path."""
    path = importlib.import_module(module)
    lines = [f".. currentmodule:: {module}", ""]
    for name in names:
        value = getattr(path, name)
        error = inspect.isclass(value) and issubclass(value, BaseException)
        lines += [*directive(name, value, error=error, page=CONSTANTS.get(module, "")), ""]
    return "\n```{eval-rst}\n" + "\n".join(lines) + "```\n"


def directive(name: str, value: object, *, error: bool, page: str) -> list[str]:
    """Return the lines that document one name; `page` describes the constants."""
    if inspect.isclass(value):
        lines = [f".. auto{'exception' if error else 'class'}:: {name}", "   :members:"]
        # The methods of the network are in several classes.
        return [*lines, "   :inherited-members: Module"] if name == "VisionTransformer" else lines
    if inspect.isfunction(value):
        return [f".. autofunction:: {name}"]
    if get_origin(value):  # an alias of a type
        return [f".. autodata:: {name}"]
    return [f".. py:data:: {name}", "", f"   Described in :doc:`{page}`."]


def complete(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Add to a page what only the site has."""
    text, folder = source[0], posixpath.dirname(docname)
    if docname == root_doc:
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            pages = [linked(row, folder)[0] for row in ROW.findall(section)]
            source[0] += navigation(pages, caption=section.partition("\n")[0])
    elif docname == "docs/api/README":
        source[0] += navigation(linked(text, folder))
    elif docname == "README":  # the start page links it
        source[0] = f"---\norphan: true\n---\n\n{text}"
    elif is_record(f"{docname}.md"):  # neither in the sidebar nor in the search
        source[0] = f"---\norphan: true\nnosearch: true\n---\n\n{text}"
    elif folder == "docs/api" and (named := NAMES.search(text)):
        source[0] += reference("vitzoo", re.findall(r"`(\w+)`", named[1]))
    elif folder == "docs/api":
        module = posixpath.basename(docname)
        source[0] += reference(module, public_names(module))
    elif folder == "docs/families":
        source[0] = with_links(text)
    if docname in BELOW:
        source[0] += navigation(BELOW[docname])


def polish(
    _app: Sphinx, _what: str, _name: str, value: object, _options: object, lines: list[str]
) -> None:
    """Link the pages that a docstring names, and remove what Python and torch say of any value."""
    if get_origin(value) or value is Any:  # an alias of a type
        lines.clear()
    if lines and (inspect.getdoc(nn.Module.forward) or "").startswith(lines[0]):
        lines.clear()
    if is_protocol(value):
        lines[:0] = [PROTOCOL, ""]
    text = ADDRESS.sub(
        lambda m: f"`docs/{m[1]}.md <../{m[1]}.html{m[2] or ''}>`__", "\n".join(lines)
    )
    # Such a link is relative to docs/testing.md, which has the docstrings of the tests.
    title = lambda m: f"`{' '.join(m[1].split())} <../{m[2] or 'testing'}.html{m[3] or ''}>`__"  # noqa: E731
    lines[:] = WITH_TITLE.sub(title, text).split("\n")


def is_protocol(value: object) -> bool:
    """Tell whether a value is a protocol, which Sphinx documents as a class."""
    return inspect.isclass(value) and bool(getattr(value, "_is_protocol", False))


def signature(
    _app: Sphinx, _what: str, _name: str, _value: object, _options: object, given: str, result: str
) -> tuple[str, str] | None:
    """Return a signature that Sphinx can parse, an empty one if it says nothing."""
    if not given:
        return None
    anything = given in ("(*args, **kwargs)", "(*args: ~typing.Any, **kwargs: ~typing.Any)")
    given = CLASS.sub(r"\1", given.replace("<factory>", "..."))
    return "" if anything else given, result


def skip(
    _app: Sphinx, _what: str, name: str, value: object, _skipped: bool, _options: object
) -> bool | None:
    """Leave out fields of named tuples, which the parameters describe, and methods of torch."""
    field = (inspect.getdoc(value) or "").startswith("Alias for field number")
    return True if field or name == "extra_repr" else None


def size_tables(_app: Sphinx, tree: nodes.document) -> None:
    """Mark cells by the length of their text: site.css keeps their columns readable."""
    for entry in tree.findall(nodes.entry):
        length = len(entry.astext())
        entry["classes"].append("short" if length <= 12 else "middle" if length <= 30 else "long")
        for code in entry.findall(nodes.literal):
            if len(code.astext()) > 45 and NAME.fullmatch(code.astext()) is None:
                code["classes"].append("long")


def add_catalogue(app: Sphinx, error: Exception | None) -> None:
    """Write what `vitzoo site` writes into the folder `catalogue` of the site."""
    if error is None and app.builder.format == "html":
        pages = {space: f"../{page}.html" for space, page in families().items()}
        out = Path(app.outdir) / "catalogue"
        catalogue = write_site(out, docs={"": f"../{root_doc}.html"} | pages)
        if catalogue.failed:
            raise ExtensionError(f"plugins of the catalogue have failed: {catalogue.failed}")


def setup(app: Sphinx) -> None:
    """Sphinx calls this with the application.

    The site shows the first-party plugins alone, whatever else is installed here.
    """
    os.environ.pop("VITZOO_REGISTRY", None)
    os.environ["VITZOO_PLUGINS"] = ",".join(FIRST_PARTY)
    app.connect("source-read", complete)
    app.connect("doctree-read", size_tables)
    app.connect("autodoc-process-docstring", polish, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("build-finished", add_catalogue)


BELOW = below()
