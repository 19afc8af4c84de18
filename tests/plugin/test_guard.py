"""Every error in the code of a plugin names the plugin, with file and line, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import vitzoo
from helpers import fill, message, refuses, says, write
from internals import main
from plugin_helpers import state
from vitzoo.errors import CheckpointError, InvalidOption, PluginError

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


@pytest.mark.parametrize(
    "code",
    [
        "\n\nimport no_such_module", "import json\n\njson.loads('')",
        "def f():\n    import json\n    json.loads('')\nf()",
    ],
)  # fmt: skip
def test_file_and_line_are_those_of_the_plugin(install, code):
    install("globex-vit", "globex = globex", {"globex.py": code})
    with pytest.raises(PluginError):
        vitzoo.describe("globex/net")
    assert state("globex").cause.endswith("site/globex.py:3)")


# Checkpoint formats: each method is called as the next user of it calls it.

LAYOUT = """\
import vitzoo.formats
class Layout(vitzoo.formats.Format):
    def matches(self, keys): return any(key.startswith("mine_") for key in keys)
    def to_model(self, tensors): return {k.removeprefix("mine_"): t for k, t in tensors.items()}
    def from_model(self, tensors): return {"mine_" + k: t for k, t in tensors.items()}
    %s
layout = Layout("globex/mine")
"""
MANIFEST = """\
api = 1
[checkpoint_formats.mine]
target = "globex.code:layout"
summary = "a format"
"""
OF_FORMAT = ("checkpoint format 'globex/mine'", "plugin 'globex' (globex-vit 1.0)")
FIX = ("pip uninstall globex-vit", "VITZOO_DISABLE_PLUGINS=globex/mine")
LINE = "site/globex/code.py:6"


def installed(install, code: str, manifest: str = MANIFEST) -> Path:
    files = {"globex/__init__.py": "", "globex/code.py": code, "globex/registry.toml": manifest}
    return install("globex-vit", "globex = globex:registry.toml", files)


@pytest.fixture
def odd(small, tmp_path):
    """A file that only the format of the plugin matches."""
    tensors = fill(vitzoo.create(small)).state_dict()
    return write(tmp_path / "odd.safetensors", {f"mine_{k}": t for k, t in tensors.items()})


RAISING = [  # method and body, and the error
    ("to_model(self, tensors): raise KeyError('not there')", "KeyError: 'not there'"),
    ("to_model(self, tensors): raise SystemExit(0)", "SystemExit: 0"),
    ("to_model(self): return {}", "TypeError:"),
    ("overrides(self, config, keys): return {'block': {'norm_eps': EPS}}", "NameError:"),
    ("overrides(self, config, keys): raise SystemExit", "SystemExit:"),
    ("overrides_in(self, keys, read): return read('gone')", "KeyError:"),
    ("ignored_keys(self, keys): raise KeyError(0)", "KeyError: 0"),
    ("num_heads(self, config, tensors): return config['heads']", "KeyError: 'heads'"),
]


@pytest.mark.parametrize(("code", "error"), RAISING)
def test_a_method_of_a_format_that_fails(install, small, odd, code, error):
    root = installed(install, LAYOUT % f"def {code}")
    name, correct = code.partition("(")[0], f"correct {root}/globex/code.py:6"
    with refuses(PluginError, odd, *OF_FORMAT, name, error, LINE, correct, *FIX) as caught:
        vitzoo.create(small, weights=odd)
    assert caught.value.__cause__ is not None


RETURNING = [  # method and body, what was returned, and what was expected
    ("to_model(self, tensors): pass", "None", "dict[str, torch.Tensor]"),
    ("to_model(self, tensors): return list(tensors)", "list", "dict[str, torch.Tensor]"),
    (
        "to_model(self, tensors): return {'norm.weight': 1}",
        "'norm.weight': 1",
        "dict[str, torch.Tensor]",
    ),
    (
        "to_model(self, tensors): return {7: t for t in tensors.values()}",
        "{7:",
        "dict[str, torch.Tensor]",
    ),
    ("overrides(self, config, keys): return ['block']", "list", "dict[str, typing.Any]"),
    ("overrides(self, config, keys): return {'blok': {}}", "'blok'", "did you mean 'block'"),
    ("overrides(self, config, keys): return {'block': 1}", "block must be a table", "got 1"),
    (
        "overrides(self, config, keys): return {'block': {'norm_epz': 1e-5}}",
        "'norm_epz'",
        "did you mean 'norm_eps'",
    ),
    ("overrides(self, config, keys): return {'pool': 'gap'}", "pool 'gap'", "class_mean"),
    ("overrides_in(self, keys, read): pass", "None", "dict[str, typing.Any]"),
    (
        "overrides_in(self, keys, read): return {'pool': {'name': 'globex/gap'}}",
        "pool 'globex/gap'",
        "overrides_in",
    ),
    ("ignored_keys(self, keys): pass", "None", "list[str]"),
    ("num_heads(self, config, tensors): return '12'", "'12'", "int | None"),
]


@pytest.mark.parametrize(("code", "returned", "expected"), RETURNING)
def test_a_method_of_a_format_that_returns_a_wrong_type(
    install, small, odd, code, returned, expected
):
    installed(install, LAYOUT % f"def {code}")
    name = code.partition("(")[0]
    with refuses(PluginError, odd, *OF_FORMAT, name, returned, expected, LINE, *FIX):
        vitzoo.create(small, weights=odd)


@pytest.mark.parametrize("body", ["pass", "return 'yes'", "raise SystemExit(0)"])
def test_matches_that_fails_or_returns_a_wrong_type(install, small, odd, body):
    installed(install, LAYOUT % f"def matches(self, keys): {body}")
    text = message(CheckpointError, vitzoo.create, small, weights=odd)
    says(text, odd, "globex/mine could not be tried", *OF_FORMAT, LINE)


@pytest.mark.parametrize(
    ("line", "found"),
    [("layout = Layout", "Layout"), ("layout = object()", "object"), ("layout = None", "None")],
)
def test_a_target_that_is_no_format(install, small, odd, line, found):
    installed(install, (LAYOUT % "").rpartition("layout =")[0] + line)
    text = message(CheckpointError, vitzoo.create, small, weights=odd)
    says(text, odd, *OF_FORMAT, found, "expected an object of Format")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, MemoryError])
def test_these_errors_of_a_format_pass(install, small, odd, error):
    installed(install, LAYOUT % f"def to_model(self, tensors): raise {error.__name__}")
    with pytest.raises(error):
        vitzoo.create(small, weights=odd)


def test_too_little_memory_of_a_device_passes(install, small, odd):
    code = "def to_model(self, tensors):\n        import torch; raise torch.OutOfMemoryError"
    installed(install, LAYOUT % code)
    with pytest.raises(torch.OutOfMemoryError):
        vitzoo.create(small, weights=odd)


@pytest.mark.parametrize("error", ["CheckpointError('bad file')", "InvalidOption('bad option')"])
def test_an_error_of_vitzoo_stays_one(install, small, odd, error):
    installed(install, LAYOUT % f"def to_model(self, tensors): raise vitzoo.{error}")
    kind = getattr(vitzoo, error.partition("(")[0])
    assert not issubclass(kind, PluginError)
    with refuses(kind, error.split("'")[1]):
        vitzoo.create(small, weights=odd)


def test_a_format_that_converts_names_the_source(install, odd, tmp_path):
    installed(install, LAYOUT % "def to_model(self, tensors): return tensors['gone']")
    with refuses(PluginError, odd, *OF_FORMAT, "to_model", "KeyError: 'gone'", LINE):
        vitzoo.convert(odd, "timm", tmp_path / "new.safetensors")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from_model(self, tensors): return 1 / 0", "ZeroDivisionError:"),
        ("from_model(self, tensors): raise SystemExit(0)", "SystemExit: 0"),
        (
            "from_model(self, tensors): pass",
            "returned None (NoneType), expected dict[str, torch.Tensor]",
        ),
        ("unsupported(self, spec): raise SystemExit(0)", "SystemExit: 0"),
        ("with_heads(self, num_heads): pass", "returned None (NoneType), expected Format"),
    ],
)
def test_a_format_that_is_written(install, small, tmp_path, code, said):
    installed(install, LAYOUT % f"def {code}")
    source = vitzoo.save(fill(vitzoo.create(small)), tmp_path / "net.safetensors")
    target = tmp_path / "new.safetensors"
    with refuses(PluginError, *OF_FORMAT, code.partition("(")[0], said, LINE, *FIX):
        vitzoo.convert(source, "globex/mine", target)
    assert not target.exists()


def test_a_format_that_works_is_used_and_written(install, small, odd, tmp_path):
    installed(install, LAYOUT % "")
    assert vitzoo.create(small, weights=odd).load_report.format == "globex/mine"
    vitzoo.convert(odd, "timm", tmp_path / "timm.safetensors")
    again = tmp_path / "again.safetensors"
    vitzoo.convert(tmp_path / "timm.safetensors", "globex/mine", again)
    assert vitzoo.create(small, weights=again).load_report.format == "globex/mine"


# A format that matches files of others.


def test_a_file_that_does_not_fit_names_the_detected_format_and_its_plugin(install, small, odd):
    installed(install, LAYOUT % "def to_model(self, tensors): return dict(tensors)")
    text = message(CheckpointError, vitzoo.create, small, weights=odd)
    says(text, odd, *OF_FORMAT, "VITZOO_DISABLE_PLUGINS=globex/mine")


def test_a_wrong_number_of_heads_names_the_detected_format(install, small, odd):
    installed(install, LAYOUT % "def num_heads(self, config, tensors): return 12")
    text = message(CheckpointError, vitzoo.create, small, weights=odd)
    says(text, odd, "12 attention heads", *OF_FORMAT, "VITZOO_DISABLE_PLUGINS=globex/mine")


def test_an_error_of_a_method_names_the_detected_format(install, small, odd):
    installed(install, LAYOUT % "def to_model(self, tensors): raise vitzoo.CheckpointError('odd')")
    text = message(CheckpointError, vitzoo.create, small, weights=odd)
    says(text, "odd", *OF_FORMAT, "VITZOO_DISABLE_PLUGINS=globex/mine")


def test_the_named_switch_lets_another_format_read_the_file(install, small, odd, switch):
    installed(install, LAYOUT % "def to_model(self, tensors): return dict(tensors)")
    fair = (LAYOUT % "").replace("globex", "acme")
    files = {"acme/__init__.py": "", "acme/code.py": fair}
    files["acme/registry.toml"] = MANIFEST.replace("globex", "acme")
    install("acme-parts", "acme = acme:registry.toml", files)
    switch(off="globex/mine")
    assert vitzoo.create(small, weights=odd).load_report.format == "acme/mine"


def test_a_file_of_the_core_that_does_not_fit_names_no_plugin(install, small, tmp_path):
    installed(install, LAYOUT % "")
    path = write(tmp_path / "net.safetensors", fill(vitzoo.create(small)).state_dict())
    text = message(CheckpointError, vitzoo.create, small | {"depth": 1}, weights=path)
    assert "globex" not in text


# Builders, in the interface and in the commands.

BUILT = """\
api = 1
[variants.net]
size = "ti"
summary = "x"
source = "x"
params = 4000
builder = "globex.code:build"
"""
OF_BUILDER = ("builder of 'globex/net'", "plugin 'globex' (globex-vit 1.0)")
BUILDER = "import torch\n\n%s\n"
BUILDERS = [  # code, and what the error says
    ("def build(spec): raise SystemExit(0)", "SystemExit: 0"),
    ("def build(spec): raise SystemExit('bye')", "SystemExit: bye"),
    ("def build(spec): return spec.no_such", "AttributeError:"),
    ("def build(): pass", "TypeError:"),
    ("def build(spec, extra): pass", "TypeError:"),
    ("def build(spec): pass", "returned None (NoneType), expected a torch.nn.Module"),
    ("def build(spec): return 'net'", "returned 'net' (str), expected a torch.nn.Module"),
    ("def build(spec): return torch.nn.Linear", "expected a torch.nn.Module"),
    (
        "def build(spec): return torch.nn.Identity()",
        "Identity), expected a torch.nn.Module with parameters",
    ),
    ("class build: pass", "TypeError:"),
]


@pytest.mark.parametrize(("code", "said"), BUILDERS)
def test_a_builder_that_fails_or_returns_a_wrong_type(install, code, said):
    installed(install, BUILDER % code, BUILT)
    fix = "VITZOO_DISABLE_PLUGINS=globex/net"
    with refuses(PluginError, *OF_BUILDER, said, "site/globex/code.py:3", fix):
        vitzoo.create("globex/net")


def test_a_builder_whose_package_is_not_installed_names_the_key(install):
    installed(install, BUILDER % "def build(spec): import no_such_lib", BUILT)
    fix = ("add requires = ['no_such_lib']", "site/globex/registry.toml")
    with refuses(PluginError, *OF_BUILDER, "ModuleNotFoundError:", *fix):
        vitzoo.create("globex/net")


@pytest.mark.parametrize("code", [BUILDERS[0][0], BUILDERS[5][0], BUILDERS[8][0]])
def test_the_summary_of_a_wrong_builder_is_an_error(install, capsys, code):
    installed(install, BUILDER % code, BUILT)
    assert main(["summary", "globex/net"]) == 1
    says(capsys.readouterr().err, *OF_BUILDER, "site/globex/code.py:3")


def test_a_network_of_a_builder_that_takes_no_images_is_an_error(install, capsys):
    network = """\
class Net(torch.nn.Linear):
    def forward(self, images): return super().forward(images)

def build(spec): return Net(5, 5)
"""
    installed(install, BUILDER % network, BUILT)
    assert main(["summary", "globex/net"]) == 1
    said = capsys.readouterr().err
    says(said, *OF_BUILDER, "the network failed: RuntimeError:", "site/globex/code.py:4")
    assert "Traceback" not in said


# Parts.

PARTS = """\
import torch, vitzoo.parts

%s
"""
PART = """\
api = 1
[{0}.part]
target = "globex.code:part"
summary = "a part"
"""
KINDS = {
    "head": "heads",
    "pool": "pools",
    "patch_embed": "patch_embedders",
    "pos_embed": "position_embeddings",
    "drop_path": "drop_path_policies",
}
NO_PARTS = [  # argument, code, and what the error says
    ("head", "def part(*, in_dim): raise SystemExit(0)", "SystemExit: 0"),
    ("head", "def part(*, in_dim): raise KeyError('not there')", "KeyError: 'not there'"),
    ("head", "def part(*, in_dim): pass", "NoneType lacks"),
    ("head", "class part(vitzoo.parts.LinearHead): __init__ = 5", "TypeError:"),
    ("head", "class part(torch.nn.Identity): pass", "part lacks num_classes"),
    ("pool", "def part(): return 'pool'", "str lacks"),
    ("pool", "def part(): import no_such_lib", "ModuleNotFoundError:"),
    ("drop_path", "def part(*, depth): raise SystemExit(0)", "SystemExit: 0"),
    ("drop_path", "def part(*, depth): pass", "'NoneType' object is not iterable"),
    ("drop_path", "def part(*, depth): return ['a'] * depth", "at least 0 and below 1"),
    ("drop_path", "def part(*, depth): return [0.0]", "1 rates for 2 blocks"),
    ("drop_path", "def part(*, depth): yield 1 / 0", "ZeroDivisionError:"),
    ("patch_embed", "class part(vitzoo.parts.ConvPatchEmbed): grid = lambda self, s: 1/0",
     "ZeroDivisionError:"),
    ("patch_embed", "class part(vitzoo.parts.ConvPatchEmbed): grid = lambda self, s: None",
     "two positive whole numbers"),
    ("pos_embed", "class part(vitzoo.parts.NoPositions): initial_table = lambda self, g: {}['a']",
     "KeyError: 'a'"),
    ("pos_embed", "class part(vitzoo.parts.NoPositions): initial_table = lambda self, g: [0.0]",
     "AttributeError: 'list'"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("field", "code", "said"), NO_PARTS)
def test_a_part_that_fails_or_is_of_a_wrong_type(install, small, field, code, said):
    installed(install, PARTS % code, PART.format(KINDS[field]))
    whose = (f"{field} 'globex/part'", "plugin 'globex' (globex-vit 1.0)")
    with refuses(PluginError, *whose, said, "globex/code.py:3", "vitzoo plugins check globex"):
        vitzoo.create(small, **{field: {"name": "globex/part"}})


@pytest.mark.parametrize(
    ("error", "kind"),
    [("ValueError('not so large')", InvalidOption), ("SystemExit(0)", PluginError)],
)
def test_the_given_options_of_a_part_that_fails_are_named(install, small, error, kind):
    """An option may be the cause of the error."""
    code = f"def part(*, in_dim, scale=1): raise {error}"
    installed(install, PARTS % code, PART.format("heads"))
    said = ("head 'globex/part'", "globex-vit 1.0", "scale=7", error.partition("(")[0], ":3")
    with refuses(kind, *said):
        vitzoo.create(small, head={"name": "globex/part", "scale": 7})


@pytest.mark.parametrize("error", ["SystemExit(0)", "KeyError('gone')"])
def test_a_part_that_fails_while_it_computes(install, small, images, error):
    code = f"class part(vitzoo.parts.LinearHead):\n    def forward(self, *_): raise {error}"
    installed(install, PARTS % code, PART.format("heads"))
    model = vitzoo.create(small, head="globex/part")
    whose = ("head 'globex/part'", "plugin 'globex' (globex-vit 1.0)", error.partition("(")[0])
    with refuses(PluginError, *whose, "globex/code.py:4", "input of shape (2, 32)"):
        model(images)


@pytest.mark.parametrize(
    "method", ["state_dict", "_load_from_state_dict", "_apply", "named_parameters"]
)
def test_a_part_whose_method_of_a_module_fails(install, small, method):
    code = f"class part(vitzoo.parts.LinearHead):\n    def {method}(self, *_, **__): {{}}['lost']"
    installed(install, PARTS % code, PART.format("heads"))
    whose = ("head 'globex/part'", "plugin 'globex' (globex-vit 1.0)", "KeyError: 'lost'", ":4")
    with refuses(PluginError, *whose, "vitzoo plugins check globex"):
        vitzoo.create(small, head="globex/part", dtype=torch.float64)
        vitzoo.create(small, head="globex/part", device="meta")
        vitzoo.create("vit_digits", pretrained=True, num_classes=10, head="globex/part")


def test_an_exception_of_torchs_own_passes_through_a_part(install, small, images):
    """`torch.utils.checkpoint` ends a recomputation with an exception that a part must not stop."""
    code = "import torch.utils.checkpoint as c\nclass part(vitzoo.parts.LinearHead):\n"
    code += "    def forward(self, *_): raise c._StopRecomputationError"
    installed(install, PARTS % code, PART.format("heads"))
    model = vitzoo.create(small, head="globex/part")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        model(images)
    assert type(caught.value).__name__ == "_StopRecomputationError"


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, MemoryError])
def test_these_errors_of_a_part_pass(install, small, error):
    code = f"def part(*, in_dim): raise {error.__name__}"
    installed(install, PARTS % code, PART.format("heads"))
    with pytest.raises(error):
        vitzoo.create(small, head="globex/part")


# Commands.

WALK = """\
import torch

class build(torch.nn.Linear):
    def __init__(self, spec): super().__init__(3, 5)
    def forward(self, images): raise SystemExit({})
"""


@pytest.mark.parametrize("code", ["0", "", "'bye'"])
def test_a_network_that_ends_the_process_is_an_error_of_the_command(install, capsys, code):
    root = installed(install, WALK.format(code), BUILT)
    assert main(["summary", "globex/net"]) == 1
    says(capsys.readouterr().err, f"{root}/globex/code.py:5", "the network failed", "SystemExit")


@pytest.mark.slow
def test_a_part_that_ends_the_process_is_an_error_of_each_command(install, small, tmp_path, capsys):
    code = "class part(vitzoo.parts.LinearHead):\n    def forward(self, *_): raise SystemExit(0)"
    installed(install, PARTS % code, PART.format("heads"))
    model = fill(vitzoo.create(small, head="globex/part"))
    path = str(vitzoo.save(model, tmp_path / "net.safetensors"))
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (32, 32)).save(images / "a.png")
    for command in (
        ["summary", "vit_digits", "--head", "globex/part"],
        ["predict", path, str(images)],
        ["embed", path, str(images), "--out", str(tmp_path / "out"), "--output", "logits"],
    ):
        assert main(command) == 1, command
        says(capsys.readouterr().err, "head 'globex/part'", "plugin 'globex'", "SystemExit: 0")
    assert main(["export", path, str(tmp_path / "exported"), "--to", "torch"]) == 1  # it is traced
    says(capsys.readouterr().err, "site/globex/code.py:4", "ended the command", "SystemExit: 0")


def test_a_format_that_ends_the_process_is_an_error_of_the_command(install, odd, tmp_path, capsys):
    installed(install, LAYOUT % "def to_model(self, tensors): raise SystemExit(0)")
    assert main(["convert", str(odd), str(tmp_path / "new.safetensors"), "--to", "timm"]) == 1
    says(capsys.readouterr().err, *OF_FORMAT, "to_model", "SystemExit: 0", LINE)


# Every exception of the code of a plugin is converted, also one that `contextlib` lets through.

STOP = "raise StopIteration('odd')"
NASTY = "class Nasty(Exception): pass\n"


def test_a_format_that_stops_an_iteration(install, small, odd):
    installed(install, LAYOUT % f"def to_model(self, tensors): {STOP}")
    with refuses(PluginError, odd, *OF_FORMAT, "StopIteration: odd", LINE, *FIX):
        vitzoo.create(small, weights=odd)


def test_a_builder_that_stops_an_iteration(install):
    installed(install, BUILDER % f"def build(spec): {STOP}", BUILT)
    with refuses(PluginError, *OF_BUILDER, "StopIteration: odd", "site/globex/code.py:3"):
        vitzoo.create("globex/net")


def test_a_builder_whose_network_cannot_list_its_parameters(install):
    code = "class build(torch.nn.Identity):\n    def __init__(self, spec): super().__init__()\n"
    code += "    def parameters(self): return 1 / 0"
    installed(install, BUILDER % code, BUILT)
    with refuses(PluginError, *OF_BUILDER, "ZeroDivisionError:", "site/globex/code.py:5"):
        vitzoo.create("globex/net")


def test_a_constructor_that_stops_an_iteration(install, small):
    installed(install, PARTS % f"def part(*, in_dim): {STOP}", PART.format("heads"))
    with refuses(PluginError, "head 'globex/part'", "StopIteration: odd", "globex/code.py:3"):
        vitzoo.create(small, head="globex/part")


@pytest.mark.parametrize("error", ["StopIteration('odd')", "Nasty('odd')"])
def test_a_part_that_raises_an_odd_exception_while_it_computes(install, small, images, error):
    code = NASTY + "class part(vitzoo.parts.LinearHead):\n    def forward(self, *_): raise "
    installed(install, PARTS % (code + error), PART.format("heads"))
    model = vitzoo.create(small, head="globex/part")
    whose = ("head 'globex/part'", "plugin 'globex' (globex-vit 1.0)", error.partition("(")[0])
    with refuses(PluginError, *whose, "odd", "globex/code.py:5", "input of shape (2, 32)"):
        model(images)


# Module plugins.

HOOK = "import vitzoo\n@vitzoo.hookimpl\ndef vitzoo_heads(): return next(iter(()))\n"


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (HOOK, "correct {}/globex.py:3"),
        ("x = '\0'\n", "correct {}/globex.py"),
        (HOOK.replace("next(iter(()))", "5"), "correct {}/globex.py"),
        ("import no_such_lib", "add 'no_such_lib' to the dependencies of globex-vit"),
    ],
)
def test_the_fix_of_a_module_names_its_line(install, code, fix):
    root = install("globex-vit", "globex = globex", {"globex.py": code})
    fixes = (fix.format(root), "pip uninstall globex-vit", "VITZOO_DISABLE_PLUGINS=globex")
    with refuses(PluginError, "globex-vit 1.0", *fixes):
        vitzoo.describe("globex/net")
    says(state("globex").cause, f"{root}/globex.py" if "no_such" not in code else "no_such_lib")


# Attributes and other methods of parts.


@pytest.mark.parametrize(
    ("field", "base", "name"),
    [
        ("head", "LinearHead", "num_classes"),
        ("head", "LinearHead", "tokens"),
        ("pool", "MeanPool", "tokens"),
        ("pool", "MeanPool", "norm_first"),
        ("patch_embed", "ConvPatchEmbed", "in_chans"),
    ],
)
def test_a_property_of_a_part_that_fails(install, small, field, base, name):
    code = f"class part(vitzoo.parts.{base}):\n    {name} = property(lambda self: {{}}['no'], "
    code += "lambda self, value: None)"
    installed(install, PARTS % code, PART.format(KINDS[field]))
    with refuses(PluginError, f"{field} 'globex/part'", "KeyError: 'no'", "globex/code.py:4"):
        vitzoo.create(small, **{field: "globex/part"})


METHODS = [  # argument, base, method, and how it is called
    ("head", "LinearHead", "reset", lambda model: model.reset_classifier(5)),
    ("head", "LinearHead", "no_weight_decay", lambda model: model.no_weight_decay()),
    ("pos_embed", "NoPositions", "no_weight_decay", lambda model: model.no_weight_decay()),
    ("pos_embed", "NoPositions", "to_grid", lambda model: model.set_input_size(64)),
]


@pytest.mark.parametrize(("field", "base", "name", "use"), METHODS)
def test_a_method_of_a_part_that_fails(install, small, field, base, name, use):
    code = f"class part(vitzoo.parts.{base}):\n    def {name}(self, *_): return {{}}['no']"
    installed(install, PARTS % code, PART.format(KINDS[field]))
    model = vitzoo.create(small, **{field: "globex/part"})
    with refuses(PluginError, f"{field} 'globex/part'", "KeyError: 'no'", "globex/code.py:4"):
        use(model)


@pytest.mark.parametrize(("field", "base", "name", "use"), METHODS[:3])
def test_a_method_of_a_part_that_returns_a_wrong_type(install, small, field, base, name, use):
    code = f"class part(vitzoo.parts.{base}):\n    def {name}(self, *_): return 7"
    installed(install, PARTS % code, PART.format(KINDS[field]))
    model = vitzoo.create(small, **{field: "globex/part"})
    with refuses(PluginError, f"{field} 'globex/part'", "7 (int)", "expected", "globex/code.py:4"):
        use(model)


@pytest.mark.parametrize("name", ["to_grid", "resample"])
def test_positions_that_fail_for_another_grid(install, small, name):
    code = f"class part(vitzoo.parts.NoPositions):\n    def {name}(self, *_): return {{}}['no']"
    installed(install, PARTS % code, PART.format("position_embeddings"))
    said = ("dynamic", "pos_embed 'globex/part'", "KeyError: 'no'", "globex/code.py:4")
    with refuses(InvalidOption, *said, "pass dynamic=False"):
        vitzoo.create(small, pos_embed="globex/part", dynamic=True)


ODD = [  # method of positions, what it does, and how it is called
    ("resample", "return 7", lambda model, _: model.set_input_size(64)),
    ("attention_bias", "return 7", lambda model, images: model(images)),
    ("attention_bias", "return lambda queries: 7", lambda model, images: model(images)),
    ("attention_bias", "return lambda queries: {}['no']", lambda model, images: model(images)),
    ("rotate", "return {}['no']", lambda model, _: vitzoo.plot("positions", model)),
    ("rotate", "return 7", lambda model, _: vitzoo.plot("positions", model)),
    ("attention_bias", "return {}['no']", lambda model, _: vitzoo.plot("positions", model)),
    ("attention_bias", "return 7", lambda model, _: vitzoo.plot("positions", model)),
]


@pytest.mark.parametrize(("name", "does", "use"), ODD)
def test_odd_results_of_positions_are_errors_of_their_plugin(
    install, small, images, name, does, use
):
    base = "LearnedPositions" if name == "resample" else "NoPositions"
    code = f"class part(vitzoo.parts.{base}):\n    def {name}(self, *_): {does}"
    installed(install, PARTS % code, PART.format("position_embeddings"))
    model = vitzoo.create(small, pos_embed="globex/part")
    said = "KeyError: 'no'" if "no" in does else "7 (int)"
    with refuses(PluginError, "pos_embed 'globex/part'", "globex-vit 1.0", said, "code.py:4"):
        use(model, images)


def test_a_part_without_its_attributes_is_named_by_its_class(install, small):
    code = "class part(vitzoo.parts.LearnedPositions):\n    def __init__(self): pass"
    installed(install, PARTS % code, PART.format("position_embeddings"))
    with refuses(PluginError, "pos_embed 'globex/part'", "AttributeError:", "globex/code.py:3"):
        vitzoo.create(small, pos_embed="globex/part")


@pytest.mark.parametrize(
    "grid", ["(14.0, 14.0)", "(None, None)", "('a', 'b')", "(-1, 5)", "(0, 0)", "(1, 2, 3)", "7"]
)
def test_a_grid_that_is_not_two_positive_numbers(install, small, grid):
    code = "class part(vitzoo.parts.ConvPatchEmbed):\n    def grid(self, size): return "
    code += f"{grid} if size[0] != 64 else super().grid(size)"
    installed(install, PARTS % code, PART.format("patch_embedders"))
    said = ("patch_embed 'globex/part'", "plugin 'globex' (globex-vit 1.0)", grid)
    with refuses(PluginError, *said, "expected two positive whole numbers", "globex/code.py:4"):
        vitzoo.create(small, patch_embed="globex/part")
    model = vitzoo.create(small, patch_embed="globex/part", image_size=64)
    with refuses(PluginError, *said, "expected two positive whole numbers", "globex/code.py:4"):
        model.set_input_size(32)


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_a_drop_path_rate_outside_its_range(install, small, rate):
    code = f"def part(*, depth): return [{rate}] * depth"
    installed(install, PARTS % code, PART.format("drop_path_policies"))
    said = ("drop_path 'globex/part'", "plugin 'globex' (globex-vit 1.0)", "globex/code.py:3")
    with refuses(PluginError, *said, "at least 0 and below 1", rate):
        vitzoo.create(small, drop_path="globex/part")


ADAPTING = [  # argument, base, method, its argument that fails, and what `create` gets
    ("head", "LinearHead", "reset", 6, {"num_classes": 5}),
    ("patch_embed", "ConvPatchEmbed", "grid", (32, 32), {"image_size": 64}),
    ("pos_embed", "LearnedPositions", "initial_table", (4, 4), {"image_size": 64}),
]


@pytest.mark.parametrize(("field", "base", "name", "at", "asked"), ADAPTING)
def test_a_method_of_a_part_that_fails_while_weights_are_adapted(
    install, small, tmp_path, monkeypatch, field, base, name, at, asked
):
    code = f"class part(vitzoo.parts.{base}):\n    def {name}(self, given): "
    code += f"return {{}}['no'] if given == torch.odd else super().{name}(given)"
    installed(install, PARTS % code, PART.format(KINDS[field]))
    monkeypatch.setattr(torch, "odd", None, raising=False)
    file = tmp_path / "net.safetensors"
    vitzoo.save(fill(vitzoo.create(small, **{field: "globex/part"})), file)
    monkeypatch.setattr(torch, "odd", at)
    with refuses(PluginError, f"{field} 'globex/part'", "KeyError: 'no'", "globex/code.py:4"):
        vitzoo.create(file, **asked)


# Formats that are written.


@pytest.mark.parametrize(
    "name", ["from_model", "to_model", "overrides", "with_heads", "unsupported", "suffix"]
)
def test_a_target_format_that_fails_names_the_file(install, small, tmp_path, name):
    code = f"def {name}(self, *_): return {{}}['no']"
    if name == "suffix":
        code = "suffix = property(lambda self: {}['no'])"
    code = LAYOUT % code
    if name == "suffix":  # which the constructor cannot set
        code = code.replace('Layout("globex/mine")', "Layout.__new__(Layout)")
    installed(install, code)
    source = vitzoo.save(fill(vitzoo.create(small)), tmp_path / "net.safetensors")
    target = tmp_path / "new.safetensors"
    with refuses(PluginError, *OF_FORMAT, name, "KeyError: 'no'", LINE, *FIX, target):
        vitzoo.convert(source, "globex/mine", target)
