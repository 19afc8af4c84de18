"""Recipes of fine-tuning in registry files, each with its source."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import Entries, Reader, read_manifest, table_of
from plugin_files import FRESH, NET
from plugin_helpers import state
from tables import cases
from vitzoo.errors import RegistryError

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"
VALUES = {
    "data": "ImageNet-1k",
    "optimizer": "AdamW",
    "lr": 0.002,
    "batch_size": 1024,
    "epochs": 100,
    "warm_up": 5.0,
    "image_size": [224, 320],
    "layer_decay": 0.65,
    "weight_decay": 0.05,
    "drop_path": 0.1,
    "clip": 3.0,
    "mixup": 0.8,
    "cutmix": 1.0,
    "augmentation": "rand-m9-mstd0.5-inc1",
    "random_erasing": 0.25,
    "label_smoothing": 0.1,
    "ema": 0.9999,
    "source": "our lab, table 3",
    "commit": "0123abc",
}
RECIPES = "\n[recipes.ours]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in VALUES.items())
EXPECTED = vitzoo.Recipe(**(VALUES | {"image_size": (224, 320)}))


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "registry.toml"
        path.write_text(NET + FRESH + text)
        return read_manifest(path, package="acme").variants[0]

    return read


@pytest.mark.parametrize(
    "text",
    [
        'recipe = "ours"\n' + RECIPES,
        RECIPES.replace("[recipes.ours]", "[variants.net.weights.fresh.recipe]"),
    ],
)
def test_a_recipe_is_read_and_written(read, text):
    variant = read(text)
    (weights,) = variant.weights
    assert weights.recipe == EXPECTED
    table = json.loads(json.dumps(table_of(variant)))
    assert table["weights"][weights.name]["recipe"] == VALUES
    again = Entries("acme").variant(variant.name, Reader(table, variant.name))
    assert again.weights == variant.weights


def test_a_recipe_states_few_values(read):
    few = {"data": "pets", "optimizer": "SGD", "lr": 1, "batch_size": 8, "steps": 20}
    few |= {"image_size": 32, "source": "us"}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in few.items())
    (weights,) = read('recipe = "few"\n[recipes.few]\n' + lines).weights
    recipe = weights.recipe
    assert recipe == vitzoo.Recipe(**(few | {"image_size": (32, 32)}))
    assert (recipe.epochs, recipe.steps, recipe.layer_decay, recipe.mixup) == (None, 20, None, None)
    assert read("").weights[0].recipe is None


@cases(
    ("old", "new", "said"),
    [
        ('recipe = "ours"', 'recipe = "our"', ("'our'", "'recipes'", "'ours'")),
        ('recipe = "ours"', "recipe = 3", ("recipe", "string", "3 (int)")),
        ("lr = 0.002", "lr = 0", ("lr", "above 0", "0.0")),
        ("lr = 0.002", "lr = inf", ("lr", "finite", "inf")),
        ("epochs = 100", "", ("epochs", "steps", "neither")),
        ("epochs = 100", "epochs = 100\nsteps = 9", ("length", "got epochs and steps")),
        ("epochs = 100", "epochs = 0", ("epochs", "whole number", "0")),
        ("layer_decay = 0.65", "layer_decay = 1.5", ("layer_decay", "from 0 to 1", "1.5")),
        ("ema = 0.9999", "ema = nan", ("ema", "from 0 to 1", "nan")),
        ("mixup = 0.8", "mixup = -0.5", ("mixup", "from 0", "-0.5")),
        ("clip = 3.0", 'clip = "3"', ("clip", "number", "'3'")),
        ("image_size = [224, 320]", "image_size = 0", ("image_size", "px", "0 (int)")),
        ('source = "our lab, table 3"', "", ("'source'",)),
        ('commit = "0123abc"', 'commit = "main"', ("commit", "7 to 40", "'main'")),
        ("cutmix = 1.0", "cutmicks = 1.0", ("'cutmicks'", "'cutmix'")),
    ],
)
def test_a_wrong_recipe_is_refused(read, old, new, said):
    text = 'recipe = "ours"\n' + RECIPES
    assert text.count(old) == 1
    with refuses(RegistryError, "registry.toml", *said):
        read(text.replace(old, new))


MODULE = """
import vitzoo

@vitzoo.hookimpl
def vitzoo_variants():
    row = vitzoo.Preprocessing()
    w = vitzoo.Weights("w", file="w.safetensors", size=9, sha256="0" * 64, preprocessing=row,
        recipe=RECIPE)
    spec = vitzoo.Spec(embed_dim=8, depth=1, num_heads=1, mlp_dim=8)
    yield vitzoo.Variant("net", "x", spec, 1, weights=(w,))
"""


@pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")
@pytest.mark.parametrize("wrong", ["", "lr=0", "'ours'"])
def test_recipes_of_a_module_are_checked(install, wrong):
    values = VALUES | {"image_size": (224, 320)}
    code = f"vitzoo.Recipe(**({values!r} | dict({wrong if '=' in wrong else ''})))"
    code = MODULE.replace("RECIPE", wrong if wrong.startswith("'") else code)
    install("globex-vit", "globex = globex", {"globex.py": code})
    if not wrong:
        assert vitzoo.describe("globex/net").weights[0].recipe == EXPECTED
        return
    with pytest.raises(vitzoo.PluginError):
        vitzoo.describe("globex/net")
    assert ("lr must be" if "=" in wrong else "'ours'") in state("globex").cause


def test_every_recipe_of_the_core_and_the_plugins_can_be_used():
    """A learning rate and a decay that `param_groups` takes, and a source that names its file."""
    found = {
        (v.namespace, w.recipe): v.spec for v in vitzoo.variants() for w in v.weights if w.recipe
    }
    assert {space for space, _ in found} == {"core", "hybrid", "mae", "beit", "deit", "eva02"}
    for (_, recipe), spec in found.items():
        assert recipe.lr < 0.1
        assert 0 < (recipe.layer_decay or 1) <= 1
        sides = zip(recipe.image_size, spec.patch_size, strict=True)
        assert [side % patch for side, patch in sides] == [0, 0]
        assert any(name in recipe.source for name in (".md", ".py"))


def test_the_page_counts_the_recipes():
    count = sum(w.recipe is not None for v in vitzoo.variants() for w in v.weights)
    assert f"{count} weights state the recipe" in PAGE.read_text(encoding="utf-8")


def test_a_recipe_of_a_paper_table():
    """MAE, FINETUNE.md: blr 5e-4 at 1,024 images per step, so 5e-4 * 1024 / 256."""
    (recipe,) = {w.recipe for w in vitzoo.describe("mae/vit_b16").weights}
    assert recipe.lr == 5e-4 * 1024 / 256
    stated = (recipe.layer_decay, recipe.drop_path, recipe.epochs, recipe.mixup, recipe.cutmix)
    assert stated == (0.65, 0.1, 100, 0.8, 1.0)
    assert dataclasses.asdict(recipe)["weight_decay"] == 0.05
