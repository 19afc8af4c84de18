"""Settings of Sphinx, which builds the documentation site. From the root of the repository:

    sphinx-build -W --keep-going -c docs . build/site

The pages stay readable where only Markdown is shown: what the site adds to them (the navigation of
the index pages, the reference of the public import paths) is added here while Sphinx reads them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_origin

from sphinx.errors import ExtensionError

import vitzoo
from vitzoo.apps.site.site import write_site
from vitzoo.plugin.info import FIRST_PARTY
from vitzoo.registry.registry import registry

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "vitzoo"
version = release = vitzoo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
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
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88

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

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+\.md)\)")
CONSTANTS = {"vitzoo": "/docs/plugins", "vitzoo.formats": "/docs/hooks/checkpoint_formats"}
SECTIONS = ("docs/decisions/README", "docs/api/README")


def navigation(page: str, *, caption: str = "") -> str:
    """Return a hidden table of contents of the pages that a text links to, each once."""
    titles = {target: title.replace("`", "") for title, target in reversed(LINK.findall(page))}
    pages = "\n".join(f"{title} <{target}>" for target, title in reversed(titles.items()))
    heading = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{heading}\n{pages}\n```\n"


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


def reference(module: str) -> str:
    """Return the directives that document every public name of an import path."""
    path = importlib.import_module(module)
    lines, elsewhere = [f".. currentmodule:: {module}", ""], []
    for name in public_names(module):
        value = getattr(path, name)
        error = inspect.isclass(value) and issubclass(value, BaseException)
        if error and module == "vitzoo":
            elsewhere.append(f"`vitzoo.errors.{name}`")
        else:
            lines += [*directive(name, value, error=error, page=CONSTANTS.get(module, "")), ""]
    if elsewhere:
        lines += [f"These exceptions of `vitzoo.errors` are here, too: {', '.join(elsewhere)}.", ""]
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
    text = source[0]
    if docname == root_doc:
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            source[0] += navigation(section, caption=section.partition("\n")[0])
    elif docname in SECTIONS:
        source[0] += navigation(text)
    elif docname.startswith("docs/api/"):
        source[0] += reference(docname.rpartition("/")[2])


def add_catalogue(app: Sphinx, error: Exception | None) -> None:
    """Write what `vitzoo site` writes into the folder `catalogue` of the site.

    It shows the first-party plugins alone, whatever else is installed here.
    """
    if error is None and app.builder.format == "html":
        os.environ.pop("VITZOO_REGISTRY", None)
        os.environ["VITZOO_PLUGINS"] = ",".join(FIRST_PARTY)
        catalogue = write_site(registry(), Path(app.outdir) / "catalogue")
        if catalogue.failed:
            raise ExtensionError(f"plugins of the catalogue have failed: {catalogue.failed}")


def setup(app: Sphinx) -> None:
    """Sphinx calls this with the application."""
    app.connect("source-read", complete)
    app.connect("build-finished", add_catalogue)
