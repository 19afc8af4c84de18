"""`vitzoo plugins compile`: the written manifest replaces the module plugin."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from internals import read_manifest, registry
from vitzoo.authoring.plugin_compile import compile_plugin


@pytest.fixture
def globex(distribution, monkeypatch, new_registry):
    """Install a module plugin in a folder on the path."""

    def install(files, entry_point="globex = globex.plugin"):
        monkeypatch.syspath_prepend(distribution("globex-vit", entry_point, files))
        new_registry()

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] == "globex"]:
        del sys.modules[name]


PLUGIN = """\
import dataclasses

import vitzoo
from globex.formats import ready

print("hello")


class Flat:
    pass


late = lambda *, depth, rate=0.1: [0.0] * (depth - 1) + [rate]


def own(spec):
    return None


@vitzoo.hookimpl
def vitzoo_heads():
    yield vitzoo.Head("flat", Flat, "a head", source="ours", requires=("numpy>=1",))
    yield vitzoo.Head("named", "globex.plugin:Flat", "the same, by name")


@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    return [vitzoo.DropPathPolicy("late", late, "a lambda that has a name")]


@vitzoo.hookimpl
def vitzoo_checkpoint_formats():
    yield vitzoo.CheckpointFormat("ready", ready, "an object")


@vitzoo.hookimpl
def vitzoo_variants():
    base = vitzoo.describe("vit_ti16")
    spec = dataclasses.replace(
        base.spec,
        image_size=(224, 192),
        num_registers=4,
        drop_path=vitzoo.PartSpec("globex/late", (("rate", 0.2),)),
        head=vitzoo.PartSpec("globex/flat"),
        block=dataclasses.replace(base.spec.block, norm_eps=1e-5, layer_scale=0.1),
    )
    weights = vitzoo.Weights(
        "first", file="first.safetensors", size=22869664, sha256="ab" * 32, license="MIT",
        source='"quoted" \\\\ made up', num_classes=0, pre_norm=False, labels=("a", "b"), top1=81.5,
        pos_embed=vitzoo.PartSpec("learned", (("resample", "bicubic"),)), default=True,
        block=(("norm_eps", 1e-6),), head=(("sizes", (1, (2, 3))),),
        patch_embed=vitzoo.PartSpec("conv"),
        preprocessing=vitzoo.Preprocessing(mean=(0.5,), std=(0.25,), crop_mode="squash"),
    )
    yield vitzoo.Variant(
        "net", "a network", spec, 5717416, source="made up", paper="a paper", weights=(weights,),
        known_as=(("timm", "some_net"),),
    )
    yield dataclasses.replace(vitzoo.describe("vit_h14"), name="huge")
    yield vitzoo.Variant(
        "own", "built by ourselves", vitzoo.Spec(options=(("a", (1, (2, "x"))),)), 6, builder=own,
        accepts=("num_classes",), requires=("numpy",), source="made up",
    )
"""
FORMATS = """\
class Layout:
    pass

ready = Layout()
"""
GLOBEX = {"globex/__init__.py": "", "globex/plugin.py": PLUGIN, "globex/formats.py": FORMATS}


def test_a_compiled_manifest_says_what_the_module_says(run, globex, tmp_path):
    globex(GLOBEX)
    code, out, err = run("plugins", "compile", "globex", "--out", tmp_path / "registry.toml")
    assert (code, out) == (0, "")
    assert "hello" in err
    sizes = registry().host.core.sizes
    back = read_manifest(tmp_path / "registry.toml", package="globex", sizes=sizes)
    module = importlib.import_module("globex.plugin")
    heads = list(module.vitzoo_heads())
    heads[0] = dataclasses.replace(heads[0], target="globex.plugin:Flat")
    assert list(back.rows("vitzoo_heads")) == heads
    (late,) = back.rows("vitzoo_drop_path_policies")
    (layout,) = back.rows("vitzoo_checkpoint_formats")
    assert (late.target, layout.target) == ("globex.plugin:late", "globex.formats:ready")
    wanted = [
        dataclasses.replace(row, spec=dataclasses.replace(row.spec, variant=None))
        for row in module.vitzoo_variants()
    ]
    wanted[2] = dataclasses.replace(wanted[2], builder="globex.plugin:own")
    assert list(back.variants) == wanted


def test_a_compiled_plugin_works_in_place_of_its_module(run, globex, new_registry):
    globex(GLOBEX)
    before = vitzoo.describe("globex/net")
    _, out, err = run("plugins", "compile", "globex")
    says(err, 'globex = "globex:registry.toml"', "[project.entry-points.vitzoo]")
    says(err, f"{Path(sys.modules['globex'].__file__).parent}/", "`vitzoo plugins check`")
    root = Path(sys.modules["globex"].__file__).parents[1]
    root.joinpath("globex/registry.toml").write_text(out)
    (entry_points,) = root.glob("*.dist-info/entry_points.txt")
    entry_points.write_text("[vitzoo]\nglobex = globex:registry.toml\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "globex"]:
        del sys.modules[name]
    new_registry()
    assert vitzoo.describe("globex/net") == before
    assert "globex" not in sys.modules


def test_compile_takes_a_module_that_is_not_installed(run, globex):
    globex(GLOBEX, entry_point="other = nothing")
    code, out, err = run("plugins", "compile", "globex.plugin")
    assert code == 0
    says(out.partition("\n")[0], "globex.plugin", "`vitzoo plugins compile`")
    assert out.partition("\n")[2].startswith("api = 1\n")
    assert 'NAMESPACE = "globex:registry.toml"' in err


def test_compile_requires_no_source(globex):
    """A variant of a module needs none, so that of a manifest needs none either."""
    spec = "vitzoo.describe('vit_ti16').spec"
    code = f"def vitzoo_variants():\n    yield vitzoo.Variant('v', 'x', {spec}, 5)"
    globex(row(code))
    text = compile_plugin("globex").text
    assert "[variants.v]" in text
    assert "source" not in text


def test_compile_of_a_single_file_module_names_the_package_to_make(run, globex):
    code = "import vitzoo\n\ndef late(*, depth): return [0.0] * depth\n\n@vitzoo.hookimpl\n"
    code += "def vitzoo_drop_path_policies():\n    yield vitzoo.DropPathPolicy('late', late, 'x')\n"
    globex({"globex.py": code}, entry_point="globex = globex")
    _, out, err = run("plugins", "compile", "globex")
    assert 'target = "globex:late"' in out
    says(err, "globex", "globex/__init__.py")


def row(text: str) -> dict[str, str]:
    code = f"import vitzoo\nfrom torch import nn\n\n@vitzoo.hookimpl\n{text}"
    return {"globex/__init__.py": "", "globex/plugin.py": code}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            (
                "def vitzoo_drop_path_policies():\n"
                "    yield vitzoo.DropPathPolicy('late', lambda *, depth: [], 'x')"
            ),
            ("'late'", "vitzoo_drop_path_policies.<locals>.<lambda>", "`name = ...`"),
        ),
        (
            (
                "def vitzoo_checkpoint_formats():\n"
                "    yield vitzoo.CheckpointFormat('f', Layout(), 'x')\n\nclass Layout: pass"
            ),
            ("'f'", "Layout", "`name = ...`"),
        ),
        (
            (
                "def vitzoo_heads():\n    yield vitzoo.Head('h', Outer.Inner, 'x')\n\n"
                "class Outer:\n    class Inner: pass"
            ),
            ("'h'", "globex.plugin.Outer.Inner", "`name = ...`"),
        ),
        (
            "def vitzoo_heads():\n    yield vitzoo.Head('h', 'globex.plugin:A.B', 'x')",
            ("'h'", "'globex.plugin:A.B'", "'package.module:Name'"),
        ),
        (
            "def vitzoo_heads():\n    yield vitzoo.Head('h', vitzoo.create, 'x')",
            ("'h'", "vitzoo.factory.create", "`name = ...`"),
        ),
        (
            "def vitzoo_heads():\n    yield vitzoo.Head('h', 'globex.plugin:nn', '')",
            ("vitzoo_heads", "'h'", "summary", "printable", "''"),
        ),
        (
            (
                "def vitzoo_variants():\n    import dataclasses\n"
                "    spec = dataclasses.replace(vitzoo.describe('vit_ti16').spec, "
                "head=vitzoo.PartSpec('Mine', opaque=True))\n"
                "    yield vitzoo.Variant('v', 'x', spec, 5, source='s')"
            ),
            ("'v'", "head", "'Mine'"),
        ),
        (
            (
                "def vitzoo_variants():\n"
                "    spec = vitzoo.describe('vit_ti16').spec\n"
                "    yield vitzoo.Variant('v', 'x', spec, 5, source='s',\n"
                "        known_as=(('timm', 'a'), ('timm', 'b')))"
            ),
            ("'v'", "known_as", "(('timm', 'a'), ('timm', 'b'))", "(('timm', 'b'),)"),
        ),
        (
            (
                "def vitzoo_heads():\n    yield vitzoo.Head('h', nn.Linear, 'x')\n"
                "    yield vitzoo.Head('h', nn.Linear, 'x')"
            ),
            ("vitzoo_heads", "'h'", "rename"),
        ),
        ("def vitzoo_heads():\n    yield 3", ("vitzoo_heads", "Head objects", "3")),
        ("def vitzoo_heads():\n    return []", ("globex.plugin", "@vitzoo.hookimpl")),
        (
            "def vitzoo_heads():\n    1 / 0",
            ("globex.plugin", "ZeroDivisionError: division by zero"),
        ),
        ("def vitzoo_head():\n    pass", ("hook 'vitzoo_head'",)),
        ("def vitzoo_heads():\n    pass\nraise SystemExit(3)", ("globex.plugin", "SystemExit: 3")),
    ],
)
def test_compile_says_what_to_change(run, globex, code, said):
    globex(row(code))
    done, out, err = run("plugins", "compile", "globex")
    assert (done, out) == (1, "")
    says(err, *said)


def test_what_is_imported_into_the_package_has_a_name_there(globex):
    globex(
        row("def vitzoo_heads():\n    yield vitzoo.Head('h', nn.Linear, 'x')\n\nMine = nn.Linear")
    )
    assert 'target = "globex.plugin:Mine"' in compile_plugin("globex").text


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("core", 2, ("plugin 'core'", "manifest")),
        ("nonesuch", 1, ("module 'nonesuch'", "pip install -e .")),
        ("vitzoo.schema.spec", 1, ("vitzoo.schema.spec", "@vitzoo.hookimpl")),
    ],
)
def test_compile_refuses_what_is_no_module_plugin(run, name, code, said):
    done, _, err = run("plugins", "compile", name)
    assert done == code
    says(err, *said)


def test_compile_replaces_a_file_only_by_force(run, globex, tmp_path):
    globex(GLOBEX)
    file = tmp_path / "registry.toml"
    file.write_text("mine")
    code, _, err = run("plugins", "compile", "globex", "--out", file)
    assert (code, file.read_text()) == (2, "mine")
    says(err, str(file), "--force")
    assert run("plugins", "compile", "globex", "--out", file, "--force")[0] == 0
    says(file.read_text().partition("\n")[0], "globex.plugin")
