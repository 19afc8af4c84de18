"""Mistakes of authors: what is said about each names plugin, file and line, cause and fix."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import vitzoo
from helpers import fill, says
from internals import installing, place
from plugin_helpers import fails
from vitzoo.authoring.plugin_check_worker import Notes, probe
from vitzoo.errors import VitzooError

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")

NET = """\
api = 1

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""
WEIGHTS = f"""
[variants.net.weights.first]
file = "model.safetensors"
repo = "acme/net"
revision = "{"a" * 40}"
size = 5
sha256 = "{"b" * 64}"
pin = "confirmed"
format = "timm"
license = "MIT"
source = "made up"
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""
NAMED = NET.replace("api = 1\n", 'api = 1\n\n[label_sets.trees]\nlabels = ["oak", "pear"]\n')
NAMED += WEIGHTS + 'label_set = "acme/trees"\n'
HEAD = """\
api = 1

[heads.flat]
summary = "a head"
target = "acme.code:Flat"
"""
FORMAT = """\
api = 1

[checkpoint_formats.mine]
summary = "a format"
target = "acme.code:layout"
"""
LAYOUT = """\
import vitzoo.formats

class Layout(vitzoo.formats.Format):
    def matches(self, keys): return any(key.startswith("m_") for key in keys)
    def to_model(self, tensors): return {k.removeprefix("m_"): t for k, t in tensors.items()}
    def from_model(self, tensors): return {"m_" + k: t for k, t in tensors.items()}
    def %s

layout = Layout("acme/mine")
"""
TOML, CODE = "acme/registry.toml", "acme/code.py"
POINTS = "acme_parts-1.0.dist-info/entry_points.txt"
PYPROJECT = "correct [project.entry-points.vitzoo] in pyproject.toml"
USUAL = ("pip install --upgrade acme-parts", "pip uninstall acme-parts", "VITZOO_DISABLE_PLUGINS=")


def describe() -> object:
    return vitzoo.describe("acme/net")


def use_head() -> object:
    return vitzoo.create("vit_ti16", head="acme/flat", device="meta")


@dataclass(frozen=True)
class Mistake:
    """A plugin with one mistake.

    Args:
        at: the file and line that the message names.
        says: parts of the message: the cause, and the fix of the author.
        manifest: of the plugin; None for a wheel without it.
        code: of its module.
        points: lines of its entry points.
        ask: meets the mistake.
        fix: what users can do.
        state: of the plugin after that.
    """

    at: str
    says: tuple[str, ...]
    manifest: str | None = NET
    code: str = ""
    points: str = "acme = acme:registry.toml"
    ask: Callable[[], object] = describe
    fix: tuple[str, ...] = USUAL
    state: str = "broken"

    @property
    def files(self) -> dict[str, str]:
        manifest = {} if self.manifest is None else {TOML: self.manifest}
        return {"acme/__init__.py": "", CODE: self.code, **manifest}


def wrong(old: str, new: str, line: int, *says: str, text: str = NET + WEIGHTS) -> Mistake:
    """Return a mistake in a manifest, which the author corrects in the line of the key."""
    assert text.count(old) == 1, old
    at = f"{TOML}:{line}"
    return Mistake(at, (*says, "correct SITE/" + at), text.replace(old, new))


def module(line: int, code: str, *says: str) -> Mistake:
    """Return a mistake in a module plugin."""
    at = f"{CODE}:{line}"
    return Mistake(at, (*says, "correct SITE/" + at), code=code, points="acme = acme.code")


def point(value: str, *says: str, line: int = 2, **others) -> Mistake:
    """Return a mistake in an entry point."""
    return Mistake(f"{POINTS}:{line}", (*says, PYPROJECT), points=value, **others)


def target(line: int, code: str, *says: str, at: str = CODE, **others) -> Mistake:
    """Return a mistake in the code of a head."""
    others = {"manifest": HEAD, "ask": use_head, "state": "failed"} | others
    return Mistake(f"{at}:{line}", says, code=code, **others)


MISTAKES = {
    # Values of a manifest.
    "type": wrong("5717416", '"5"', 6, "params must be a whole number, got '5' (str)"),
    "no-params": wrong("params = 5717416\n", "", 3, "missing key 'params'",
                       "`vitzoo registry check SITE/acme/registry.toml --write`"),
    "misspelt-key": wrong("summary", "sumary", 3, "missing key 'summary'", "'sumary'"),
    "unknown-key": wrong('"made up"\n\n', '"made up"\ngmac = 1\n\n', 8, "key 'gmac'", "'gmacs'"),
    "size-name": wrong('"ti"', '"tiny"', 5, "size must be one of", "'tiny'", "did you mean 'ti'"),
    "no-license": wrong('license = "MIT"\n', "", 9, "missing key 'license'"),
    "hash": wrong("b" * 64, "B" * 64, 14, "sha256 must be 64 lower-case hex digits", "B" * 64),
    "short-hash": wrong("b" * 64, "b" * 63, 14, "sha256 must be 64 lower-case hex digits"),
    "file-size": wrong("size = 5\n", "size = -5\n", 13, "size must be a whole number from 1", "-5"),
    "branch": wrong("a" * 40, "main", 12, "revision must be a 40-digit", "'main'"),
    "pin": wrong('"confirmed"', '"sure"', 15, "pin must be one of", "'sure'"),
    "interpolation": wrong('"bicubic"', '"cubic"', 19, "interpolation must be", "'cubic'"),
    "no-list": wrong("mean = [0.5]", "mean = 0.5", 19, "mean", "0.5"),
    "no-toml": wrong("[variants.net]", "[variants.net", 3, "is not valid TOML"),
    "twice": wrong('size = "ti"', 'size = "ti"\nsize = "s"', 6, "duplicate key", "'size = \"s\"'"),
    "no-table": wrong(HEAD, 'api = 1\n\nheads.flat = "acme.code:Flat"\n', 3, "expected a table",
                      text=HEAD),
    "inline": wrong(HEAD, 'api = 1\nheads.flat = { summary = "s", targt = "acme.code:Flat" }\n', 2,
                    "missing key 'target'", "misspell it as 'targt'", text=HEAD),
    "target-outside": wrong("acme.code:Flat", "os.path:join", 5,
                            "target must be 'package.module:Name' inside the package 'acme'",
                            "'os.path:join'", text=HEAD),
    "target-without-name": wrong("acme.code:Flat", "acme.code", 5, "'package.module:Name'",
                                 "'acme.code'", text=HEAD),
    # Label sets.
    "label-set": wrong('"MIT"\n', '"MIT"\nlabel_set = "imagenet1k"\n', 18,
                       "label_set must be one of imagenet-1k", "'imagenet1k'",
                       "did you mean 'imagenet-1k'", "[label_sets.imagenet1k]"),
    "misspelt-set": wrong('"acme/trees"', '"acme/tree"', 23, "one of acme/trees, imagenet-1k",
                          "'acme/tree'", "did you mean 'acme/trees'", text=NAMED),
    "set-without-namespace": wrong('"acme/trees"', '"trees"', 23, "'trees'",
                                   "did you mean 'acme/trees'", text=NAMED),
    "set-of-others": wrong('"acme/trees"', '"orchard/trees"', 23, "'orchard/trees'",
                           "one of acme/trees, imagenet-1k", text=NAMED),
    "two-lists": wrong('"acme/trees"', '"acme/trees"\nlabels = ["a"]', 24,
                       "labels and label_set both name the classes", "remove one", text=NAMED),
    "label-twice": wrong("pear", "oak", 4, "labels has 'oak' twice", text=NAMED),
    "empty-label": wrong("pear", "", 4, "labels must be a list of", text=NAMED),
    "set-of-a-variants-name": wrong("api = 1\n", 'api = 1\n[label_sets.net]\nlabels = ["a"]\n', 2,
                                    "'net' is a variant, too", "choose another name", text=NET),
    # Names.
    "upper-case": wrong("[variants.net]", "[variants.Net]", 3, "'Net'", "write 'net'", text=NET),
    "non-ascii": wrong("[variants.net]", '[variants."né"]', 3, "'né'", "lower-case letters",
                       text=NET),
    "dot": wrong("[variants.net]", "[variants.net.v2]", 3, "missing key 'summary', which [v2]",
                 "a name has no dots: write net_v2 instead of net.v2", text=NET),
    "quoted-dot": wrong("[variants.net]", '[variants."net.v2"]', 3, "'net.v2'", "write 'net_v2'",
                        text=NET),
    "hyphen": wrong("[variants.net]", "[variants.my-net]", 3, "'my-net'", "write 'my_net'",
                    text=NET),
    # Former names.
    "cycle": wrong('made up"\n', 'made up"\n[aliases]\none = "two"\ntwo = "one"\n', 9,
                   "one -> two -> one", "cycle", "write the name of a variant", text=NET),
    "own-alias": wrong('made up"\n', 'made up"\n[aliases]\nold = "old"\n', 9, "old -> old", "cycle",
                       text=NET),
    "alias-of-alias": wrong('made up"\n', 'made up"\n[aliases]\none = "two"\ntwo = "net"\n', 9,
                            "'two', a former name", "write 'net'", text=NET),
    "alias-of-nothing": wrong('made up"\n', 'made up"\n[aliases]\none = "nett"\n', 9,
                              "'nett', which is no variant of this file", "did you mean 'net'",
                              text=NET),
    "reused-name": wrong('made up"\n', 'made up"\n[aliases]\nnet = "net"\n', 9,
                         "'net' is the name of a variant", "never reused", text=NET),
    "newer": Mistake(f"{TOML}:1", ("api is 2", "at most 1", "or api = 1"), "api = 2\n",
                     fix=("update vitzoo", "git pull"), state="incompatible"),
    # Entry points.
    "no-manifest": point("acme = acme:registry.toml", "'registry.toml' is not in SITE/acme",
                         "wheel", "package-data", "hatchling", manifest=None),
    "no-package": point("acme = akme:registry.toml", "no package 'akme' is installed"),
    "no-module": point("acme = acme.cody", "No module named 'acme.cody'", "did you mean 'code'"),
    "class": point("acme = acme.code:Plugin", "'acme.code:Plugin' is malformed", "'package.module'",
                   code="class Plugin: pass\n"),
    "path": point("acme = acme/registry.toml", "'acme/registry.toml' is malformed",
                  "'package:file.toml'"),
    "two-points": point("acme = acme:registry.toml\nacme = acme.code", "two entry points",
                        "acme.code and acme:registry.toml", state="conflict"),
    "upper-case-namespace": point("Acme = acme:registry.toml", "'Acme'", "write 'acme'"),
    "dot-in-namespace": point("acme.vit = acme:registry.toml", "'acme.vit'", "write 'acme_vit'",
                              ask=lambda: vitzoo.describe("acme.vit/net")),
    "first-party": point("dino = acme:registry.toml", "'dino' is reserved", "vitzoo-dino",
                         ask=lambda: vitzoo.describe("dino/net")),
    "core": point("core = acme:registry.toml", "'core' is reserved for vitzoo",
                  ask=lambda: vitzoo.describe("core/net")),
    "into-vitzoo": point("acme = vitzoo:registry.toml", "must name a package of the plugin"),
    # Module plugins.
    "exception": module(3, "\n\n1 / 0", "ZeroDivisionError: division by zero"),
    "exit": module(2, "\nraise SystemExit(3)", "SystemExit: 3"),
    "syntax": module(1, "def f(:\n", "SyntaxError: "),
    "undecorated": Mistake(
        CODE,
        ("acme.code.vitzoo_heads is not decorated with @vitzoo.hookimpl", f"correct SITE/{CODE}"),
        code="import vitzoo\n\ndef vitzoo_heads():\n    return []\n", points="acme = acme.code"),
    "only-prints": Mistake(
        CODE, ("contributes nothing", "@vitzoo.hookimpl", f"correct SITE/{CODE}"),
        code="print('hello')\n", points="acme = acme.code"),
    # Targets.
    "no-name": target(5, "class Flatt: pass", "AttributeError", "'Flat'", "did you mean 'Flatt'",
                      f"correct the target in SITE/{TOML}:5", at=TOML),
    "undeclared-package": target(2, "\nimport no_such.sub", "No module named 'no_such'",
                                 f"add requires = ['no_such'] to its entry in SITE/{TOML}:3"),
    "declared-package": target(
        6, "import no_such", "'flat' ", "'no-such>=2', which is not installed",
        "pip install 'no-such>=2'", at=TOML, manifest=HEAD + 'requires = ["no-such>=2"]\n', fix=(),
        state="loaded"),
    "target-exit": target(1, "raise SystemExit(0)", "SystemExit: 0", f"correct SITE/{CODE}:1"),
    "builder-without-spec": target(
        1, "def build(): pass", "takes 0 positional arguments but 1 was given",
        f"correct SITE/{CODE}:1", manifest=NET + 'builder = "acme.code:build"\n', state="loaded",
        ask=lambda: vitzoo.create("acme/net")),
    "no-network": target(
        1, "def build(spec): pass", "returned None (NoneType), expected a torch.nn.Module",
        f"correct SITE/{CODE}:1", manifest=NET + 'builder = "acme.code:build"\n', state="loaded",
        ask=lambda: vitzoo.create("acme/net")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_message_names_plugin_line_cause_and_fix(install, mistake):
    root = install("acme-parts", mistake.points, mistake.files)
    with pytest.raises(VitzooError) as caught:
        mistake.ask()
    expected = (*mistake.says, *mistake.fix, f"SITE/{mistake.at}")
    says(str(caught.value), "acme-parts 1.0", *(s.replace("SITE", str(root)) for s in expected))
    (info,) = (i for i in vitzoo.plugins() if i.distribution == "acme-parts")
    assert info.state == mistake.state
    if info.trouble:  # the state has the same message
        assert info.trouble in str(caught.value)
        assert place(info) == f"{root}/{mistake.at}"


@pytest.mark.parametrize("name", ["acme/net", "ACME/net"])
def test_a_name_in_another_case_is_answered_with_the_broken_plugin(install, name):
    install("acme-parts", "Acme = acme:registry.toml", MISTAKES["upper-case-namespace"].files)
    with pytest.raises(VitzooError) as caught:
        vitzoo.describe(name)
    says(str(caught.value), "acme-parts 1.0: its namespace 'Acme'", "write 'acme'", PYPROJECT)
    assert "did you mean" not in str(caught.value)


def test_a_namespace_of_two_plugins_names_both_lines(install):
    files = {"acme/__init__.py": "", TOML: NET}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    install("acme-fork", "acme = acme:registry.toml")
    with pytest.raises(VitzooError) as caught:
        describe()
    both = (f"{name} 1.0 ({root}/{name.replace('-', '_')}-1.0.dist-info/entry_points.txt:2)"
            for name in ("acme-parts", "acme-fork"))  # fmt: skip
    fix = ("VITZOO_DISABLE_PLUGINS", "uninstall", "choose another namespace in its pyproject.toml")
    says(str(caught.value), "'acme'", "is claimed by", *both, *fix)


# An editable installation.


@pytest.mark.parametrize(
    "label", ["type", "no-name", "undeclared-package", "path", "exception", "builder-without-spec"]
)
def test_an_editable_plugin_is_corrected_in_its_folder(install, new_registry, label):
    mistake = MISTAKES[label]
    root = install("acme-parts", mistake.points, mistake.files)
    record = {"url": "file:///home/me/acme", "dir_info": {"editable": True}}
    (root / POINTS).with_name("direct_url.json").write_text(json.dumps(record))
    new_registry()
    with pytest.raises(VitzooError) as caught:
        mistake.ask()
    text = str(caught.value)
    says(
        text, *(s.replace("SITE", str(root)) for s in mistake.says), "pip install -e /home/me/acme"
    )
    says(text, "pip uninstall acme-parts")
    assert "--upgrade" not in text


# A plugin for another vitzoo.


def requiring(root: Path, text: str) -> None:
    """Write the requirement of an installed plugin."""
    metadata = f"Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\nRequires-Dist: {text}\n"
    (root / POINTS).with_name("METADATA").write_text(metadata)


@pytest.mark.parametrize("text", ["vitzoo>=9", "vitzoo[parquet] >=9; python_version > '3'"])
def test_a_plugin_for_a_newer_vitzoo_is_incompatible_when_it_is_used(install, new_registry, text):
    files = {"acme/__init__.py": "", CODE: "1 / 0", TOML: NET + HEAD.removeprefix("api = 1\n")}
    requiring(install("acme-parts", "acme = acme:registry.toml", files), text)
    said = ("acme-parts 1.0", text.partition(";")[0].replace(" ", ""), "vitzoo 0.1.0 is installed")
    for ask in (describe, use_head, lambda: vitzoo.create("acme/net", device="meta")):
        new_registry()
        assert [variant.name for variant in vitzoo.variants("acme/*")] == ["acme/net"]
        with pytest.raises(VitzooError) as caught:
            ask()
        says(str(caught.value), "'acme'", *said, "update vitzoo", *USUAL)
    new_registry()
    (info,) = (i for i in vitzoo.plugins() if i.namespace == "acme")
    assert info.state == "incompatible"
    says(info.trouble, *said, installing.update())


@pytest.mark.parametrize(
    "text", ["vitzoo", "vitzoo>=0.1", "vitzoo-clip>9", "vitzoo>9; extra == 'x'"]
)
def test_a_plugin_for_this_vitzoo_is_used(install, new_registry, text):
    files = {"acme/__init__.py": "", TOML: NET}
    requiring(install("acme-parts", "acme = acme:registry.toml", files), text)
    new_registry()
    assert describe()


def test_a_listing_reads_no_requirement(install, new_registry, monkeypatch, run):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": "", TOML: NET})
    monkeypatch.setattr("vitzoo.plugin.discovery.requires", fails)
    new_registry()
    code, out, _ = run("list", "acme/*", "-q")
    assert (code, out.split()) == (0, ["acme/net"])


def test_a_command_for_a_newer_vitzoo_is_refused(install, new_registry, run):
    files = {"acme/__init__.py": "", CODE: "1 / 0"}
    points = "[vitzoo.commands]\nattend = acme.code:attend"
    requiring(install("acme-parts", points, files), "vitzoo>=9")
    new_registry()
    code, _, err = run("attend")
    assert code == 1
    says(err, "acme-parts 1.0", "vitzoo>=9", "vitzoo 0.1.0 is installed", "update vitzoo")
    assert "Zero" not in err


# Commands.

COMMANDS = {  # entry point and code, and the line and parts of the message
    "core-command": ("list = acme.code:walk", "", f"{POINTS}:4", "'list' is reserved for vitzoo"),
    "first-party-command": ("site = acme.code:walk", "", f"{POINTS}:4", "vitzoo-site"),
    "twice": ("walk = acme.code:walk\nwalk = acme.code:run", "", f"{POINTS}:4", "two entry points"),
    "module": ("walk = acme.code", "", f"{POINTS}:4", "'acme.code' is malformed"),
    "function": ("walk = acme.code:walk", "\ndef walk(): pass\n", f"{CODE}:2", "@click.command"),
    "exception": ("walk = acme.code:walk", "\n\n1 / 0", f"{CODE}:3", "ZeroDivisionError:"),
    "number": ("walk = acme.code:number", "\nnumber = 3\n", f"{CODE}:2", "3 (int)"),
    "no-name": ("walk = acme.code:walk", "", "", "AttributeError:"),
    "no-module": ("walk = acme.cody:walk", "", "", "No module named 'acme.cody'"),
    "into-vitzoo": ("walk = vitzoo.cli.main:cli", "", f"{POINTS}:4", "not vitzoo"),
    "exit": ("walk = acme.code:walk", "raise SystemExit(0)", f"{CODE}:1", "SystemExit: 0"),
}


@pytest.mark.parametrize("label", COMMANDS)
def test_a_wrong_command_names_its_line(install, run, label):
    value, code, at, said = COMMANDS[label]
    points = f"acme = acme:registry.toml\n[vitzoo.commands]\n{value}"
    files = {"acme/__init__.py": "", TOML: NET, CODE: code}
    root = install("acme-parts", points, files)
    name = f"vitzoo {value.partition(' ')[0]}"
    rows = json.loads(run("plugins", "--json")[1])
    (row,) = (
        one for one in rows if (one["namespace"], one["distribution"]) == (name, "acme-parts")
    )
    text = f"{row['cause']}; {row['fix']}"
    if row["state"] == "lazy":
        done, _, text = run("walk")
        assert done == 1
    correct = 'correct [project.entry-points."vitzoo.commands"] in pyproject.toml'
    fix = f"correct {root}/{at}" if at.startswith(CODE) else correct
    says(text, "acme-parts 1.0", root / at if at else "acme", said, fix, *USUAL)


# Parts.

PART = """\
api = 1

[%s.part]
summary = "a part"
target = "acme.code:part"
"""
PARTS = {  # table, code, and line and parts of the message of `vitzoo plugins check`
    "tokens": (
        "pools", "class part(Mean):\n    def forward(self, x, count, grid): return x\n",
        3, ("it gives (2, 9, 32), expected (2, 32)",)),
    "other-arguments": (
        "pools", "class part(Mean):\n    def forward(self, x): return x.mean(1)\n",
        3, ("takes 2 positional arguments but 4 were given", "(tokens, num_prefix_tokens,")),
    "wrong-shape": (
        "patch_embedders",
        "class part(Conv):\n    def forward(self, x): return super().forward(x).mT\n",
        3, ("tokens of shape (2, 8, 32), but it is (2, 32, 8)", "let grid and forward agree")),
    "swapped-grid": (
        "patch_embedders",
        "class part(Conv):\n    def grid(self, s): return super().grid(s)[::-1]\n",
        3, ("(4, 4) instead of (4, 2)", "sizes are (height, width)")),
    "ignored-classes": (
        "heads", "def part(*, in_dim, num_classes): return Linear(in_dim=in_dim, num_classes=9)\n",
        3, ("num_classes is 9, but it was built for 5", "self.num_classes = num_classes")),
    "by-position": (
        "heads", "def part(in_dim, num_classes): return Linear(in_dim=in_dim, num_classes=9)\n",
        3, ("takes 'in_dim' by position", "write `*,`")),
    "object": (
        "heads", "part = Linear(in_dim=3, num_classes=2)\n",
        3, ("its target is LinearHead(", "expected a class or a function")),
    "no-module": (
        "heads", "class part: pass\n", 3, ("part is no torch.nn.Module", "derive the class from")),
    "no-constructor": (
        "heads",
        "class part(Module):\n    def __init__(self, *, in_dim):\n        self.a = Module()\n",
        5, ("cannot assign module before Module.__init__() call", "correct the error")),
    "no-attributes": (
        "pools", "class part(Module): pass\n", 3, ("part lacks norm_first", "vitzoo.parts.Pool")),
    "tensors": (
        "drop_path_policies", "def part(*, depth): return torch.linspace(0, 0.1, depth)\n",
        3, ("a rate is [tensor(0.)]", "one plain number in [0, 1)", "without torch")),
    "few-rates": (
        "drop_path_policies", "def part(*, depth): return [0.0] * (depth - 1)\n",
        3, ("0 rates for 1 blocks, expected 1", "for each block")),
    "class-of-format": (
        "checkpoint_formats", "class part(vitzoo.formats.Format): pass\n",
        3, ("its target is the class part, not an object", "write `part = part()`")),
}  # fmt: skip
IMPORTS = """\
import torch, vitzoo.formats; from torch.nn import Module
from vitzoo.parts import ConvPatchEmbed as Conv, LinearHead as Linear, MeanPool as Mean
"""


def part(install, label: str) -> Path:
    """Install a plugin with a wrong part."""
    table, code = PARTS[label][:2]
    files = {"acme/__init__.py": "", TOML: PART % table, CODE: IMPORTS + code}
    return install("acme-parts", "acme = acme:registry.toml", files)


@pytest.mark.parametrize("label", PARTS)
def test_the_check_of_a_wrong_part_names_its_line(install, label):
    root = part(install, label)
    _, _, line, said = PARTS[label]
    notes = io.StringIO()
    probe("acme", Notes(notes))
    found = [json.loads(note) for note in notes.getvalue().splitlines() if '"problem"' in note]
    assert len(found) == 1
    problem = found[0]["problem"]
    says(problem["what"], "acme/part")
    says(problem["cause"], *said)
    assert problem["location"] == f"{root}/{CODE}:{line}"


BUNDLED = NET + "".join(
    line for line in WEIGHTS.splitlines(keepends=True) if not line.startswith(("repo", "revision"))
)
BUILDER = "import torch\ndef build(spec): return torch.nn.Linear(spec.num_classes, 4)\n"
VALUES = {  # a replacement in the manifest, the line of its key, and parts of the cause
    "params-of-builder": (
        '"ti"', '"ti"\nbuilder = "acme.code:build"', 7, ("params = 5717416", "params = 4004")),
    "size": ("size = 5", "size = 6", 11, ("5 bytes", "6 bytes")),
    "sha256": ("b" * 64, "c" * 64, 12, ("sha256", "c" * 64)),
}  # fmt: skip


@pytest.mark.parametrize("label", VALUES)
def test_the_check_of_a_wrong_value_names_the_line_of_its_key(install, label):
    old, new, line, said = VALUES[label]
    assert BUNDLED.count(old) == 1
    found = {"acme/__init__.py": "", CODE: BUILDER, TOML: BUNDLED.replace(old, new)}
    root = install("acme-parts", "acme = acme:registry.toml", found | {"acme/data/m": "12345"})
    (root / "acme/data/m").rename(root / "acme/data/model.safetensors")
    notes = io.StringIO()
    probe("acme", Notes(notes))
    problems = [json.loads(note).get("problem") for note in notes.getvalue().splitlines()]
    placed = {one["location"]: one["cause"] for one in problems if one}
    says(placed[f"{root}/{TOML}:{line}"], *said)


USED = {  # field of a spec, and parts of the message when it is used
    "tokens": ("pool", 4, ("gave shape (2, 17, 32)", "expected a result of shape (2, 32)")),
    "other-arguments": ("pool", 4, ("takes 2 positional arguments but 4 were given",)),
    "wrong-shape": ("patch_embed", 4, ("gave shape (2, 32, 16)", "(2, 16, 32)")),
    "ignored-classes": ("head", 3, ("called with num_classes=5, but has 9 classes",)),
    "object": ("head", 3, ("its target is LinearHead(", "expected a class or a function")),
    "no-module": ("head", 3, ("part lacks num_classes, pre_logits_dim, reset",)),
}


@pytest.mark.parametrize("label", USED)
def test_a_wrong_part_is_refused_when_it_is_used(install, small, label):
    root = part(install, label)
    field, line, said = USED[label]
    with pytest.raises(VitzooError) as caught:
        vitzoo.create(small, **{field: "acme/part"})(torch.zeros(2, 3, 32, 32))
    says(
        str(caught.value), f"{field} 'acme/part'", "acme-parts 1.0", f"{root}/{CODE}:{line}", *said
    )


# Formats.

READ = 'to_model(self, tensors): return {k.removeprefix("m_"): t for k, t in tensors.items()'
WRITE = 'from_model(self, tensors): return {"m_" + k: t for k, t in tensors.items()'
METHODS = {  # a method, and what the message says of it
    "writes-more": (WRITE + '} | {"m_x": t for t in tensors.values()}', "from_model adds x"),
    "writes-less": (WRITE + ' if k != "norm.bias"}', "from_model drops norm.bias"),
    "reads-more": (READ + '} | {"x": t for t in tensors.values()}', "to_model adds x"),
    "reads-less": (READ + ' if k != "m_norm.bias"}', "to_model drops norm.bias"),
    "other-names": (READ.replace('k.removeprefix("m_")', "k.upper()") + "}", "to_model drops"),
    "other-values": (READ.replace(" t for", " -t for") + "}", "to_model does not undo from_model"),
}


@pytest.mark.parametrize("label", METHODS)
def test_a_format_that_is_no_inverse_names_one_method(install, small, tmp_path, label):
    code, does = METHODS[label]
    files = {"acme/__init__.py": "", TOML: FORMAT, CODE: LAYOUT % code}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    source = vitzoo.save(fill(vitzoo.create(small)), tmp_path / "net.safetensors")
    new = tmp_path / "new.safetensors"
    with pytest.raises(VitzooError) as caught:
        vitzoo.convert(source, "acme/mine", new)
    text, at = str(caught.value), f"{root}/{CODE}:7"
    says(text, "checkpoint format 'acme/mine'", "acme-parts 1.0", does, f"({at})", f"correct {at}")
    says(text, *USUAL, new)
    assert text.count(f"{root}/{CODE}:") == 2  # cause and fix
    assert "disk" not in text
    assert not new.exists()
    if label == "other-values":
        return
    from vitzoo.testing.checks import check_checkpoint_format

    with pytest.raises(AssertionError) as failed:
        check_checkpoint_format("acme/mine")
    says(str(failed.value), does, f"({at})", "only rename, split, stack and transpose")
