"""Wheels, editable installs and two real plugins, each in an environment of its own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from helpers import says

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[1]


# Installed


@pytest.fixture(params=["tree", "sdist", "editable"], scope="module")
def installed(request, tmp_path_factory, built, built_from_tree, new_environment):
    """Install vitzoo in one of three ways; return the environment and where it must come from."""
    environment = new_environment(tmp_path_factory.mktemp(request.param) / "venv")
    if request.param == "editable":
        environment.install("--editable", ROOT)
        return environment, ROOT
    from_sdist = built(ROOT).glob("*.whl")
    environment.install(*([built_from_tree] if request.param == "tree" else from_sdist))
    return environment, environment.site


@pytest.mark.one_in(3)
def test_an_installed_vitzoo_lists_its_variants(installed):
    environment, place = installed
    code = """
        import json, sys, vitzoo
        names = [v.name for v in vitzoo.variants()]
        print(json.dumps([vitzoo.__file__, names, "torch" in sys.modules]))
    """
    file, names, heavy = json.loads(environment.run(code))
    assert Path(file) == place / "vitzoo" / "__init__.py"
    assert set(names) == set(json.loads(ROOT.joinpath("tests/released.json").read_text()))
    assert not heavy


@pytest.mark.one_in(3)
def test_an_installed_vitzoo_creates_its_bundled_model(installed):
    environment, place = installed
    code = """
        import vitzoo, torch
        model = vitzoo.create("vit_digits", pretrained=True)
        print(vitzoo.__file__, model(torch.zeros(1, 1, 28, 28)).shape[1])
    """
    assert environment.run(code) == f"{place}/vitzoo/__init__.py 10\n"


def test_an_editable_install_has_no_copy_of_the_catalogue(installed):
    environment, place = installed
    code = "import vitzoo.schema.terms as terms; print(terms.CORE_MANIFEST)"
    editable = place == ROOT
    folder = ROOT if editable else place / "vitzoo"
    assert environment.run(code) == f"{folder}/registry.toml\n"
    assert environment.site.joinpath("vitzoo").exists() is not editable


def test_an_installed_vitzoo_has_its_command(installed):
    environment, _ = installed
    listed = environment.call("vitzoo", "list", "vit_b16", "-q")
    assert listed == "vit_b16\n"


# Plugins

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"
dependencies = ["vitzoo"]

[project.entry-points.vitzoo]
{entry_point}

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
ACME = {
    "pyproject.toml": PROJECT.format(
        name="acme-vit", entry_point='acme = "acme_vit:registry.toml"', package="acme_vit"
    ),
    "acme_vit/__init__.py": "",
    "acme_vit/registry.toml": """\
api = 1

[patch_embedders.overlap]
target = "acme_vit.parts:OverlapEmbed"
summary = "convolution twice as wide as its stride"

[variants.vit_ti16_overlap]
summary = "Ti/16 with overlapping patches"
size = "ti"
patch_embed = "acme/overlap"
num_classes = 7
params = 5968135
source = "made up"
""",
    "acme_vit/parts.py": """\
from torch import nn


class OverlapEmbed(nn.Module):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()
        self.in_chans = in_chans
        self.patch_size = patch_size
        kernel = tuple(2 * p - p % 2 for p in patch_size)
        padding = tuple((k - p) // 2 for k, p in zip(kernel, patch_size))
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel, patch_size, padding)

    def grid(self, image_size):
        return image_size[0] // self.patch_size[0], image_size[1] // self.patch_size[1]

    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2)
""",
}
GLOBEX = {
    "pyproject.toml": PROJECT.format(
        name="globex-vit", entry_point='globex = "globex_vit.plugin"', package="globex_vit"
    ),
    "globex_vit/__init__.py": "",
    "globex_vit/plugin.py": """\
import dataclasses

import torch
import vitzoo
from torch import nn


class CosineHead(nn.Module):
    def __init__(self, *, in_dim, num_classes, temperature=0.1):
        super().__init__()
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        self.temperature = temperature
        self.prototypes = nn.Parameter(torch.randn(num_classes, in_dim))

    def reset(self, num_classes):
        return CosineHead(
            in_dim=self.pre_logits_dim, num_classes=num_classes, temperature=self.temperature
        )

    def forward(self, x, pre_logits=False):
        if pre_logits:
            return x
        unit = nn.functional.normalize
        return unit(x, dim=-1) @ unit(self.prototypes, dim=-1).T / self.temperature


@vitzoo.hookimpl
def vitzoo_heads():
    yield vitzoo.Head("cosine", CosineHead, "cosine similarity to class prototypes")


@vitzoo.hookimpl
def vitzoo_variants():
    base = vitzoo.describe("vit_ti16").spec
    head = vitzoo.PartSpec("globex/cosine", (("temperature", 0.05),))
    spec = dataclasses.replace(base, num_classes=3, head=head)
    yield vitzoo.Variant("vit_ti16_cosine", "Ti/16, cosine head", spec, 5_524_992)
""",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a project."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def zoo(tmp_path_factory, built, new_environment):
    """An environment with vitzoo and both plugins."""
    folder = tmp_path_factory.mktemp("zoo")
    environment = new_environment(folder / "venv")
    environment.install(*built(ROOT).glob("*.whl"))
    environment.install(write(folder / "acme", ACME), write(folder / "globex", GLOBEX))
    return environment


@pytest.mark.long
def test_listing_shows_the_plugins_and_imports_neither(zoo):
    code = """
        import json, sys, vitzoo
        names = [v.name for v in vitzoo.variants() if "/" in v.name]
        plugins = [[p.namespace, p.state, p.distribution, p.version] for p in vitzoo.plugins()]
        imported = [m for m in ("torch", "acme_vit", "globex_vit") if m in sys.modules]
        print(json.dumps([names, plugins[1:], imported]))
    """
    names, plugins, imported = json.loads(zoo.run(code))
    assert names == ["acme/vit_ti16_overlap"]
    assert plugins == [
        ["acme", "loaded", "acme-vit", "1.0"],
        ["globex", "lazy", "globex-vit", "1.0"],
    ]
    assert imported == []


@pytest.mark.long
def test_the_command_line_lists_a_plugin(zoo):
    listed = zoo.call("vitzoo", "list", "acme/*", "-q")
    assert listed == "acme/vit_ti16_overlap\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "classes"),
    [
        ("'acme/vit_ti16_overlap'", 7),
        ("'globex/vit_ti16_cosine'", 3),
        ("'vit_ti16', patch_embed='acme/overlap'", 1000),
        ("'vit_ti16', head={'name': 'globex/cosine', 'temperature': 0.5}, num_classes=2", 2),
        ("'acme/vit_ti16_overlap', head='globex/cosine', image_size=64", 7),
    ],
)
def test_plugins_create_models_that_run(zoo, call, classes):
    code = f"""
        import torch, vitzoo
        model = vitzoo.create({call}).eval()
        logits = model(torch.randn(1, 3, *model.spec.image_size))
        print(tuple(logits.shape), bool(logits.isfinite().all()))
        assert vitzoo.create(model.spec, device="meta").spec == model.spec
    """
    assert zoo.run(code) == f"(1, {classes}) True\n"


@pytest.mark.long
@pytest.mark.parametrize("name", ["acme/vit_ti16_overlap", "globex/vit_ti16_cosine"])
def test_the_parameters_of_a_plugins_variant_are_as_stated(zoo, name):
    code = f"""
        import vitzoo
        model = vitzoo.create({name!r}, device="meta")
        print(sum(p.numel() for p in model.parameters()) - vitzoo.describe({name!r}).params)
    """
    assert zoo.run(code) == "0\n"


@pytest.mark.long
def test_a_saved_model_with_parts_of_plugins_is_restored(zoo):
    code = """
        import torch, vitzoo
        parts = {"patch_embed": "acme/overlap", "head": "globex/cosine", "image_size": 32}
        model = vitzoo.create("vit_ti16", num_classes=3, **parts).eval()
        again = vitzoo.create(vitzoo.save(model, "net.safetensors")).eval()
        images = torch.randn(2, 3, 32, 32)
        print(torch.equal(model(images), again(images)), again.spec == model.spec)
    """
    assert zoo.run(code) == "True True\n"


@pytest.mark.long
def test_plugins_work_in_spawned_workers(zoo):
    script = zoo.elsewhere / "workers.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, vitzoo

        def classes(name):
            return vitzoo.create(name, device="meta").num_classes

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(classes, ["acme/vit_ti16_overlap", "globex/vit_ti16_cosine"]))
        """)
    )
    assert zoo.call("python", script) == "[7, 3]\n"


@pytest.mark.long
def test_an_uninstalled_plugin_is_gone(built, tmp_path, new_environment):
    environment = new_environment(tmp_path / "venv")
    environment.install(*built(ROOT).glob("*.whl"), write(tmp_path / "acme", ACME))
    ask = """
        import vitzoo
        try:
            print(vitzoo.describe("acme/vit_ti16_overlap").name)
        except vitzoo.UnknownName as error:
            print(error)
    """
    assert environment.run(ask) == "acme/vit_ti16_overlap\n"
    environment.uninstall("acme-vit")
    says(environment.run(ask), "'acme/vit_ti16_overlap'", "plugin 'acme'")
