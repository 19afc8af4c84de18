"""Recipes as settings: what is stated, what is not, and what cannot be applied."""

from dataclasses import replace

import pytest

import vitzoo
from helpers import refuses, says
from tables import cases
from vitzoo.cli import check_network
from vitzoo.errors import InvalidOption
from vitzoo_finetune.recipes import NOT_STATED, read_recipe
from vitzoo_finetune.settings import Settings

MAE, AUGREG, DEIT = "mae/vit_b16:mae", "vit_ti16:augreg_in21k_ft_in1k", "deit/deit3_s16"


def stated(name, **given):
    """Return settings with the recipe of weights, and what is said about them."""
    recipe = read_recipe(name, check_network("vit_digits"))
    settings = Settings.complete({"model": "vit_digits", **given}, 5000, 384, recipe)
    return settings, recipe.explain(settings, given)


def test_every_stated_value_is_a_setting():
    found, text = stated(MAE)
    assert (found.recipe, found.optimizer, found.lr, found.batch_size) == (MAE, "adamw", 2e-3, 1024)
    assert (found.epochs, found.steps, found.warm_up, found.image_size) == (100, 0, 0.05, 224)
    assert (found.layer_decay, found.weight_decay, found.drop_path) == (0.65, 0.05, 0.1)
    assert (found.mixup, found.cutmix, found.erase, found.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
    assert found.augment == "crop,flip,rand-m9-mstd0.5-inc1"
    says(text, "lr 0.002 (recipe: 0.002 for 1024 images)", "epochs 100 (recipe)")
    says(text, "clip 0.0 (not in the recipe)", "crop_scale 0.08 (not in the recipe)")


def test_a_value_that_is_not_stated_has_one_default():
    for name in (MAE, AUGREG):
        found, text = stated(name)
        values = read_recipe(name, check_network("vit_digits")).values
        for key in NOT_STATED.keys() - values.keys():
            assert getattr(found, key) == NOT_STATED[key]
            if key in found.used():
                says(text, f"{key} {NOT_STATED[key]} (not in the recipe)")


def test_the_rate_scales_with_the_batch_and_given_values_come_first():
    found, text = stated(MAE, batch_size=256, accumulate=4, mixup=0.0)
    assert (found.lr, found.accumulate, found.mixup) == (5e-4, 4, 0.0)
    says(text, "lr 0.0005 (recipe: 0.002 for 1024 images)", "mixup 0.0 (given)", "accumulate 4,")
    assert stated(MAE, batch_size=256, lr=0.1)[0].lr == 0.1
    recipe = read_recipe(MAE, check_network("vit_digits"))
    with refuses(InvalidOption, "1024", "recipe states", "300 training images", "--batch-size"):
        Settings.complete({"model": "vit_digits"}, 300, 384, recipe)


def test_values_of_another_run_are_those_of_the_recipe_or_without_a_source():
    recipe = read_recipe(MAE, check_network("vit_digits"))
    before = stated(MAE, mixup=0.4, epochs=3)[0].to_data()
    settings = Settings.complete(before | {"seed": 2}, 5000, 384, recipe)
    text = recipe.explain(settings, {"seed": 2, "epochs": None})
    says(text, "lr 0.002 (recipe: 0.002 for 1024 images)", "cutmix 1.0 (recipe)", "mixup 0.4,")
    says(text, "clip 0.0 (not in the recipe)", "epochs 3,")
    assert "given" not in text


def test_steps_and_the_optimizers_and_augmentation_of_others():
    found, _ = stated(AUGREG)
    assert (found.optimizer, found.momentum, found.clip) == ("momentum", 0.9, 1.0)
    assert (found.steps, found.epochs, found.warm_up) == (20_000, 2223, 500 / 20_000)  # 9 steps
    found, text = stated(AUGREG, epochs=3)
    assert found.steps == 0
    says(text, "epochs 3 (given), steps 0, optimizer momentum (recipe)")
    found, _ = stated(f"{DEIT}:fb_in22k_ft_in1k")
    assert (found.optimizer, found.augment) == ("lamb", "simple-crop,flip,3-augment")
    assert (found.color_jitter, found.erase, found.cutmix) == (0.3, 0.0, 1.0)


def test_own_is_the_recipe_of_the_named_weights():
    assert read_recipe("own", check_network("mae/vit_b16")).name == MAE
    named = check_network("mae/vit_b16", "facebook_mae")
    assert read_recipe("own", named).name == "mae/vit_b16:facebook_mae"
    assert read_recipe(None, named) is None
    with refuses(InvalidOption, "vit_digits:digits_v1", "no recipe", "--recipe"):
        read_recipe("own", check_network("vit_digits"))
    with refuses(InvalidOption, "deit/deit_s16", "deit/deit3_s16:fb_in22k_ft_in1k"):
        read_recipe("own", check_network("deit/deit_s16"))
    with refuses(InvalidOption, "own", "VARIANT:WEIGHTS", "'mae/vit_b16'"):
        read_recipe("mae/vit_b16", named)


def test_a_file_has_no_recipe(tmp_path, small):
    vitzoo.save(vitzoo.create(small), tmp_path / "x.safetensors")
    with refuses(InvalidOption, "x.safetensors", "no registered weights", "mae/vit_b16:mae"):
        read_recipe("own", check_network(str(tmp_path / "x.safetensors")))
    path = str(tmp_path / "x.safetensors")
    with refuses(InvalidOption, "mae/vit_b16", "no registered weights"):
        read_recipe("own", check_network("mae/vit_b16", path), path)


@cases(
    ("changes", "parts"),
    [
        ({"optimizer": "Shampoo"}, ("optimizer 'Shampoo'", "AdamW")),
        ({"augmentation": "AutoAugment"}, ("augmentation 'AutoAugment'", "3-Augment")),
        ({"augmentation": "rand-m9-foo"}, ("augmentation 'rand-m9-foo'",)),
        ({"image_size": (224, 320)}, ("image_size (224, 320)", "square")),
        ({"warm_up": 100.0}, ("warm_up 100.0", "epochs")),
    ],
)
def test_a_value_that_cannot_be_applied_is_named(changes, parts):
    named = check_network("mae/vit_b16")
    weights = named.variant.default_weights
    weights = replace(weights, recipe=replace(weights.recipe, **changes))
    with refuses(InvalidOption, MAE, *parts):
        read_recipe("own", replace(named, variant=replace(named.variant, weights=(weights,))))


@pytest.mark.slow
def test_all_recipes_of_the_registry_are_applied():
    stating = {
        f"{variant.name}:{weights.name}": weights.recipe
        for variant in vitzoo.variants()
        for weights in variant.weights
        if weights.recipe is not None
    }
    assert len(stating) >= 69
    for name, recipe in stating.items():
        found = stated(name)[0]
        assert (found.recipe, found.ema) == (name, recipe.ema or 0.0)
