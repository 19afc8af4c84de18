"""File and line of a definition, found without importing it."""

from __future__ import annotations

import pytest

from vitzoo.plugin.package_files import module_file
from vitzoo.plugin.source_lines import where_declared, where_defined

pytestmark = pytest.mark.usefixtures("own_home")


SOURCE = """\
if True:
    class Under: pass
try:
    from .other import There as Here
except ImportError:
    Here = None
a, (b, c) = 1, (2, 3)
typed: int = 3
class Twice: pass
class Twice: pass
"""


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Under", "/acme/parts.py:2"),
        ("c", "/acme/parts.py:7"),
        ("typed", "/acme/parts.py:8"),
        ("Twice", "/acme/parts.py:10"),
        ("Nowhere", "/acme/parts.py"),
    ],
)
def test_a_definition_is_found_where_it_stands(install, name, place):
    files = {"acme/__init__.py": "1 / 0", "acme/parts.py": SOURCE}
    root = install("acme-parts", "acme = acme.parts", files)
    assert where_defined(f"acme.parts:{name}") == f"{root}{place}"


def test_a_re_export_is_followed(install):
    files = {
        "acme/__init__.py": "from acme.deep import Name",
        "acme/deep/__init__.py": "from .inner import Real as Name",
        "acme/deep/inner.py": "\n\nclass Real: pass",
        "acme/round.py": "from acme.round import Self as Self",
    }
    root = install("acme-parts", "acme = acme.parts", files)
    assert where_defined("acme:Name") == f"{root}/acme/deep/inner.py:3"
    assert where_defined("acme.round:Self") == f"{root}/acme/round.py"


@pytest.mark.parametrize("text", ["def (", "\0", "(" * 100_000, "é = 1\nx = \udce9"])
def test_a_source_that_cannot_be_parsed_has_no_line(install, text):
    root = install("acme-parts", "acme = acme", {"acme/__init__.py": ""})
    (root / "acme/parts.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert where_defined("acme.parts:Name") == f"{root}/acme/parts.py"


def test_a_source_that_python_cannot_parse_now_has_no_line(install, monkeypatch):
    def fails(_):
        raise SystemError("AST constructor recursion depth mismatch (before=39, after=35)")

    root = install("acme-parts", "acme = acme", {"acme/__init__.py": "Name = 1\n"})
    with monkeypatch.context() as patch:  # pytest parses sources, too
        patch.setattr("ast.parse", fails)
        found = where_defined("acme:Name")
    assert found == f"{root}/acme/__init__.py"


def test_what_is_not_there_has_no_place(tmp_path):
    assert where_defined("nonesuch.parts:Name") == ""
    assert module_file("vitzoo.nonesuch") is None
    assert where_declared(str(tmp_path / "none.toml"), "vitzoo_heads", "a").endswith("none.toml")
