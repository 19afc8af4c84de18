"""What a registry file may say, and how large and deep it may be."""

from __future__ import annotations

import sys

import pytest

import vitzoo
from helpers import says
from plugin_helpers import MANIFEST, state
from vitzoo.schema.manifest import MAX_PLUGIN_MANIFEST

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("#" * (MAX_PLUGIN_MANIFEST + 1), ("1048576 bytes",)),
        ("a" + ".a" * 500_000 + " = 1", ("nested", "12", "line 1")),
        ("api = 1\n[" + "a . " * 200_000 + "a]", ("nested", "12", "line 2")),
        ("a" + '."b\\"."' * 100_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ".'b'" * 200_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ("\t" * 20 + ".b") * 40_000 + " = 1", ("nested", "12", "line 1")),
        ("x" + ".x" * 13 + " = 1", ("nested", "12")),
        ("x = " + "[" * 14 + "]" * 14, ("nested", "12")),
        ("x = " + "{a = " * 14 + "1" + "}" * 14, ("nested", "12")),
        ('"a\\u001b[31m" = 1', (r"key 'a\x1b[31m'", "128", "printable")),
        ('"a\\nb" = 1', (r"key 'a\nb'", "128", "printable")),
        ("k" * 129 + " = 1", ("128", "printable")),
        ("x = " + "9" * 5000, ("TOML",)),
        ("api = 1\n[heads]\n[heads.flat]\n[heads.flat]\n", ("TOML", "('heads', 'flat')")),
        ("\0", ("TOML",)),
        ("api = 2", ("api", "2", "1")),
    ],
)
def test_a_manifest_beyond_the_limits_is_refused(acme, text, cause):
    acme(text)
    info = state("acme")
    assert info.state == ("incompatible" if text == "api = 2" else "broken")
    says(info.cause, "acme-parts 1.0", "/acme/registry.toml", *cause)
    assert info.cause.isprintable()
    assert "acme" not in sys.modules


def test_dots_in_texts_do_not_count_as_nesting(acme):
    dotted = '"' + "a sentence, then one more. " * 50 + "pkg." * 20 + '"'
    acme(MANIFEST.replace('"made up"', dotted, 1))
    assert state("acme").state == "loaded"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"api = 1\n# \xff"])
def test_a_manifest_that_is_no_text_is_refused(acme, data, new_registry):
    acme().write_bytes(data)
    new_registry()
    says(state("acme").cause, "acme-parts 1.0", "/acme/registry.toml", "TOML")


def test_a_manifest_of_terabytes_is_refused_unread(acme, new_registry):
    path = acme()
    with path.open("wb") as file:
        file.truncate(8 * 1024**4)  # sparse
    new_registry()
    says(state("acme").cause, "/acme/registry.toml", "1048576 bytes")
    assert vitzoo.variants("vit_b16")
