"""Parameter groups and rates of each step, as timm's, for every recipe of the registry."""

import math
import re

import pytest
import torch
from torch import nn

import vitzoo
from tables import cases
from vitzoo.cli import check_network
from vitzoo_finetune.optimizing import mixing_of, optimizer_of, schedule_of
from vitzoo_finetune.recipes import read_recipe
from vitzoo_finetune.settings import Settings

FAMILIES = ("vit", "hybrid", "mae", "beit", "deit", "eva02")
RENAMED = {  # ends of timm's names
    "gamma_1": "ls1.gamma",
    "gamma_2": "ls2.gamma",
    "attn.q_proj.weight": "attn.qkv.weight",
    "attn.k_proj.weight": "attn.qkv.weight",
    "attn.v_proj.weight": "attn.qkv.weight",
    "attn.q_proj.bias": "attn.q_bias",
    "attn.v_proj.bias": "attn.v_bias",
}
TABLE = "attn.relative_position_bias_table"  # in layer 0, as docs/fine-tuning.md states


def recipes(family):
    """Return the networks of a family with the names of their weights that state a recipe."""
    found = {
        variant.name: [weights.name for weights in variant.weights if weights.recipe]
        for variant in vitzoo.variants()
        if re.split("[/_]", variant.name)[0] == family
    }
    return {name: weights for name, weights in found.items() if weights}


def renamed(name, known):
    if name in known:
        return name
    end = next(end for end in RENAMED if name.endswith(end))
    return name.removesuffix(end) + RENAMED[end]


def groups_of(model, optimizer):
    """Return the group of each parameter by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    pairs = [(names[id(p)], g) for g in optimizer.param_groups for p in g["params"]]
    assert len(dict(pairs)) == len(pairs) == len(names)
    return dict(pairs)


def of_timm(reference, settings, recipe):
    """Return timm's groups by name, and its schedule; epochs are those of the recipe."""
    from timm.optim import create_optimizer_v2, param_groups_layer_decay
    from timm.scheduler import create_scheduler_v2

    groups = param_groups_layer_decay(
        reference,
        settings.weight_decay,
        no_weight_decay_list=reference.no_weight_decay(),
        layer_decay=settings.layer_decay,
    )
    optimizer = create_optimizer_v2(groups, opt=settings.optimizer, lr=settings.lr)
    length, updates = (recipe.steps, 1) if recipe.steps else (recipe.epochs, 3)
    schedule, _ = create_scheduler_v2(
        optimizer,
        "cosine",
        num_epochs=length - int(recipe.warm_up),
        warmup_epochs=int(recipe.warm_up),
        warmup_lr=0.0,
        warmup_prefix=True,
        step_on_epochs=False,
        updates_per_epoch=updates,
    )
    return groups_of(reference, optimizer), schedule, length * updates


def check(name, weights, reference):
    """Compare members, weight decay and the rates of all steps; of repeated runs once."""
    named = check_network(name, weights)
    stated, recipe = named.weights.recipe, read_recipe("own", named, weights)
    count = 3 * stated.batch_size
    settings = Settings.complete({"model": name}, count, 0, recipe)
    groups, schedule_of_timm, steps = of_timm(reference, settings, stated)
    assert (settings.steps or 3 * settings.epochs) == steps
    model = vitzoo.create(name, num_classes=7, device="meta")
    optimizer = optimizer_of(model, settings)
    schedule, of_vitzoo = schedule_of(optimizer, settings, steps), groups_of(model, optimizer)
    tables = {key for key in groups if TABLE in key}
    names = {key: renamed(key, of_vitzoo) for key in groups.keys() - tables}
    assert {*names.values(), *(["pos_embed"] if tables else [])} == of_vitzoo.keys()
    pairs = {}
    for key, mine in names.items():
        group = groups[key]
        assert mine in of_vitzoo
        assert of_vitzoo[mine]["weight_decay"] == group["weight_decay"]
        assert pairs.setdefault(id(group), (of_vitzoo[mine], group))[0] is of_vitzoo[mine]
    for step in range(steps):
        for mine, group in pairs.values():
            assert math.isclose(mine["lr"], group["lr"], rel_tol=1e-9, abs_tol=1e-15)
        schedule_of_timm.step_update(step + 1)
        schedule.step_update(step + 1)


@pytest.mark.slow
@cases("family", FAMILIES)
def test_groups_and_rates_are_those_of_timm(family, timm):
    found, done = recipes(family), set()
    assert found
    for name, all_weights in found.items():
        variant = vitzoo.describe(name)
        with torch.device("meta"):
            known = dict(variant.known_as)["timm"].partition(".")[0]
            reference = timm.create_model(known, num_classes=7)
        for weights in all_weights:
            row = next(w for w in variant.weights if w.name == weights).recipe
            if (key := (known, row)) not in done:
                check(name, weights, reference)
                done.add(key)


def test_every_recipe_is_in_a_compared_family():
    names = sum(len(weights) for family in FAMILIES for all_ in [recipes(family)]
                for weights in all_.values())  # fmt: skip
    stating = [w for variant in vitzoo.variants() for w in variant.weights if w.recipe]
    assert names == len(stating) >= 69


def settings(**options):
    return Settings.complete({"model": "x", "lr": 2.0, "warm_up": 0.2, **options}, 100, 384)


@cases(
    ("schedule", "expected"),
    [
        ("cosine", [0, 1, 2, *(1 + math.cos(math.pi * t / 8) for t in range(1, 8))]),
        ("linear", [0, 1, 2, *(2 * (1 - t / 8) for t in range(1, 8))]),
        ("constant", [0, 1] + 8 * [2]),
    ],
)
def test_the_rate_rises_from_0_and_falls(schedule, expected):
    optimizer = optimizer_of(nn.Linear(2, 2), settings(layer_decay=1.0))
    made = schedule_of(optimizer, settings(schedule=schedule), 10)
    found = []
    for step in range(10):
        found.append(optimizer.param_groups[0]["lr"])
        made.step_update(step + 1)
    assert found == pytest.approx(expected)


def test_a_run_of_one_step_has_a_rate():
    optimizer = optimizer_of(nn.Linear(2, 2), settings(layer_decay=1.0))
    schedule_of(optimizer, settings(warm_up=0.9), 1)
    assert optimizer.param_groups[0]["lr"] == 2.0


@cases(
    ("name", "kind", "momentum"),
    [
        ("adamw", "AdamW", None),
        ("sgd", "SGD", 0.8),
        ("momentum", "SGD", 0.8),
        ("lamb", "Lamb", None),
        ("lion", "Lion", None),
    ],
)
def test_optimizers(name, kind, momentum):
    own = {} if momentum is None else {"momentum": momentum}
    made = optimizer_of(nn.Linear(2, 2), settings(layer_decay=1, optimizer=name, **own))
    assert type(made).__name__ == kind
    group = made.param_groups[0]
    assert (group.get("momentum"), group.get("nesterov", False)) == (momentum, name == "sgd")
    assert sorted(g["weight_decay"] for g in made.param_groups) == [0.0, 0.05]


def test_mixed_targets_have_label_smoothing():
    assert mixing_of(settings(), 4) is None
    mix = mixing_of(settings(mixup=0.8, cutmix=1.0, label_smoothing=0.1), 4)
    images, targets = mix(torch.rand(6, 1, 8, 8), torch.arange(6) % 4)
    assert (images.shape, targets.shape) == ((6, 1, 8, 8), (6, 4))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(6))
    assert targets.min() == pytest.approx(0.025)


@cases("kind", ["mixup", "cutmix"])
def test_several_classes_are_mixed_in_the_shares_of_the_images(kind):
    mix = mixing_of(settings(target="labels", **{kind: 1.0}), 3)
    images = torch.eye(4).reshape(4, 4, 1, 1).expand(4, 4, 8, 8).clone()  # a channel for each
    targets = torch.tensor([[1.0, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]])
    mixed, found = mix(images, targets)
    shares = mixed.mean(dim=(2, 3))  # of each image, in each mixed one
    assert 0 < shares[0, 0] < 1
    torch.testing.assert_close(found, shares @ targets)
