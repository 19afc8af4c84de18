"""What the module of a plugin contributes is checked before it is used."""

from __future__ import annotations

import importlib
import sys

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, refuses, says
from internals import place, registry
from plugin_helpers import state
from vitzoo.errors import PluginError

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ('Variant("net", "x", {}, 1)', ("vitzoo_variants", "spec", "Spec", "{} (dict)")),
        ('Variant("net", "x", SPEC, "1")', ("params", "whole number", "'1' (str)")),
        ('Variant("net", 5, SPEC, 1)', ("summary", "string", "5 (int)")),
        ('Variant("net", "\\x1b[31m", SPEC, 1)', ("summary", "printable", r"'\x1b[31m'")),
        ('Variant("net", "x", SPEC, 1, weights=("w",))', ("weights", "Weights objects", "'w'")),
        ('Variant("net", "x", SPEC, 1, weights=5)', ("weights", "list", "5 (int)")),
        ('Variant("net", "x", SPEC, 1, known_as=("a",))', ("known_as", "library")),
        ('Variant("net", "x", SPEC, 1, builder="os:abort")', ("builder", "'os:abort'", "'globex'")),
        ('Variant("net", "x", SPEC, 1, builder=None)', ("builder", "object")),
        ('Variant("net", "x", SPEC, 1, accepts=("wings",))', ("accepts", "spec")),
        ('Variant("net", "x", BAD, 1)', ("image_size", "whole number", "px")),
        ('Variant("net", "x", vitzoo.Spec(), 1)', ("embed_dim",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(sha256="abc"),))', ("sha256", "64", "'abc'")),
        ('Variant("net", "x", SPEC, 1, weights=(W(file="../x"),))', ("file", "'../x'")),
        ('Variant("net", "x", SPEC, 1, weights=(W(size="5"),))', ("size", "whole number")),
        ('Variant("net", "x", SPEC, 1, weights=(W(), W()))', ("weights",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(preprocessing=1),))', ("preprocessing",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(top1=101.0),))', ("top1", "percentage")),
        ('Variant("net", "x", SPEC, 1, weights=(W(gated="no"),))', ("gated", "true", "false")),
        ('Variant("net", "x", SPEC, 1, weights=(W(block=(("a", 1),)),))', ("block", "'a'")),
        ('Variant("net", "x", SPEC, 1, weights=(W(pool="os:x"),))', ("pool", "'os:x'")),
        ('Variant("net", "x", SPEC, 1, paper_results=(1,))', ("paper_results", "PaperResult")),
        ('Variant("net", "x", SPEC, 1, paper_results=(R(101.0),))', ("imagenet", "101.0")),
        ('Variant("net", "", SPEC, 1)', ("summary", "printable", "''")),
        ('Variant(["net"], "x", SPEC, 1)', ("vitzoo_variants", "Variant objects")),
        ('Variant("net", "x", SPEC, 1, requires="timm")', ("requires", "list", "'timm' (str)")),
        ('Variant("net", "x", SPEC, 1, requires=("a >>> 9",))', ("requires", "'a >>> 9'", "pip")),
    ],
)
def test_a_row_with_a_wrong_field_is_an_error_of_its_plugin_alone(install, row, cause):
    code = f"""\
import vitzoo
SPEC = vitzoo.describe("vit_ti16").spec
BAD = vitzoo.Spec(image_size="xx", embed_dim=1, depth=1, num_heads=1, mlp_dim=1)
def W(**changes):
    good = dict(file="x.safetensors", size=1, sha256="a" * 64)
    return vitzoo.Weights("w", **(good | changes))
def R(accuracy):
    return vitzoo.PaperResult("JFT", 7, (("imagenet", accuracy),), 0.5, "table 5")
@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.{row}
"""
    install("globex-vit", "globex = globex", {"globex.py": code})
    own = ("net",) if row.startswith('Variant("net"') else ()
    with refuses(PluginError, "'globex'", "globex-vit 1.0", *own, *cause):
        vitzoo.describe("globex/net")
    assert state("globex").state == "broken"
    assert vitzoo.variants()
    assert not registry().host.manager.has_plugin("globex")


def test_a_good_row_with_weights_passes(install):
    code = """\
import vitzoo
@vitzoo.hookimpl
def vitzoo_variants():
    w = vitzoo.Weights("w", file="x.safetensors", size=1, sha256="a" * 64, top1=80.0, default=True)
    spec = vitzoo.describe("vit_ti16").spec
    known = (("timm", "x"),)
    yield vitzoo.Variant("net", "x", spec, 1, weights=(w,), known_as=known, accepts=("head",))
"""
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net").default_weights.top1 == 80


HEADS = "import vitzoo\n@vitzoo.hookimpl\ndef vitzoo_heads():"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            ("E: ", "unprintable E"),
        ),
        ("raise ValueError('x' * 10**6)", (f"ValueError: {'x' * 1000}...",)),
        ("raise ValueError('\\x1b[31m' + chr(10) + 'two')", ("ValueError: \\x1b[31m two",)),
        ("import sys; sys.exit('bye')", ("SystemExit: bye",)),
        ("import vitzoo\n__file__ = 5", ("globex", "@vitzoo.hookimpl")),
        ("import no_such_module", ("ModuleNotFoundError: ", "'no_such_module'")),
        (
            "import vitzoo\n@vitzoo.hookimpl(wrapper=True)\ndef vitzoo_heads(): return (yield)",
            ("globex.vitzoo_heads", "wrapper"),
        ),
        (
            "import vitzoo\n@vitzoo.hookimpl(specname='vitzoo_hats')\ndef heads():\n    return []",
            ("hook 'vitzoo_hats'", "globex", "'vitzoo_heads'"),
        ),
        (
            f"import itertools\n{HEADS} return (vitzoo.Head('a', 1, 'x') for _ in ENDLESS)".replace(
                "ENDLESS", "itertools.count()"
            ),
            ("vitzoo_heads", "20000 entries"),
        ),
        (
            f"{HEADS} return [vitzoo.Head('a', 1, 'x'), vitzoo.Head('a', 2, 'y')]",
            ("vitzoo_heads", "'a'", "rename"),
        ),
        (
            f"{HEADS} return [vitzoo.Head('a', 'globex.x', 'x')]",
            ("target", "'globex.x'", "package 'globex'"),
        ),
    ],
)
def test_a_module_that_fails_is_broken_with_its_cause(install, code, cause):
    install("globex-vit", "globex = globex", {"globex.py": code})
    with pytest.raises(PluginError) as caught:
        vitzoo.describe("globex/net")
    says(str(caught.value), "'globex'", "globex-vit 1.0", *cause)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).isprintable()
    assert state("globex").state == "broken"
    says(state("globex").fix, "pip uninstall globex-vit", "VITZOO_DISABLE_PLUGINS=globex")


def test_mock_objects_in_a_module_are_no_hooks(install):
    code = f"from unittest.mock import MagicMock, call\nthing = MagicMock()\n{MODULE}"
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net")


def test_a_hook_function_with_a_specname_is_used(install):
    code = MODULE.replace("@vitzoo.hookimpl", "@vitzoo.hookimpl(specname='vitzoo_variants')", 2)
    code = code.replace("(specname='vitzoo_variants')", "", 1).replace(
        "def vitzoo_variants", "def rows"
    )
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net")


def test_an_undecorated_hook_from_another_file_of_the_package_is_found(install):
    files = {
        "globex/__init__.py": "",
        "globex/hooks.py": "def vitzoo_heads():\n    return []\n",
        "globex/plugin.py": f"from globex.hooks import vitzoo_heads\n{MODULE}",
    }
    install("globex-vit", "globex = globex.plugin", files)
    with refuses(PluginError, "globex.plugin.vitzoo_heads", "@vitzoo.hookimpl"):
        vitzoo.describe("globex/net")


@pytest.mark.slow
def test_a_plugin_that_asks_for_itself_during_its_import_is_loaded_later(install):
    ask = "try: vitzoo.describe('globex/net')\nexcept LookupError as error: said = str(error)\n"
    code = MODULE.replace("import vitzoo\n", f"import vitzoo\n{ask}")
    install("globex-vit", "globex = globex", {"globex.py": code})
    importlib.import_module("globex")  # by other code, not by vitzoo
    assert state("globex").state == "lazy"
    says(sys.modules["globex"].said, "variant 'globex/net'")
    assert vitzoo.describe("globex/net")


def test_a_hook_function_that_asks_for_its_own_plugin_does_not_recurse(install):
    ask = "    try: vitzoo.describe('globex/net')\n    except LookupError: pass\n"
    code = MODULE.replace("vitzoo_variants():\n", f"vitzoo_variants():\n{ask}")
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net").name == "globex/net"


HOOK = "import vitzoo\n\n@vitzoo.hookimpl\ndef vitzoo_pools{}\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "(): return vitzoo.Pool('a', print, 'a')",
            "vitzoo_pools returned a PoolEntry, expected a list of entries",
        ),
        ("(): pass", "vitzoo_pools returned a NoneType, expected a list of entries"),
        ("(): return 5", "vitzoo_pools returned a int, expected a list of entries"),
        ("(): return ['a']", "vitzoo_pools must return Pool objects"),
        ("(config): return []", "globex.vitzoo_pools takes 'config', expected no arguments"),
        ("(*, config): return []", "globex.vitzoo_pools takes 'config', expected no arguments"),
        ("(): raise SystemExit(0)", "SystemExit: 0"),
        ("(): yield 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_hook_function_is_located_in_the_plugin(install, code, said):
    root = install("globex-vit", "globex = globex", {"globex.py": HOOK.format(code)})
    line = 4 if "raise" in code or "yield" in code else 3
    with refuses(PluginError, "globex-vit 1.0", said, f"{root}/globex.py:{line}"):
        vitzoo.create("vit_ti16", pool="globex/a", device="meta")
    assert place(state("globex")) == f"{root}/globex.py:{line}"


def test_a_hook_function_with_a_default_is_called(install):
    code = "(kind=print):\n    return [vitzoo.Pool('a', kind, 'a')]"
    install("globex-vit", "globex = globex", {"globex.py": HOOK.format(code)})
    assert registry().part("pool", "globex/a") is print
