"""Freezing: which parameters keep their values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SMALL, randn, refuses
from tables import cases
from vitzoo.errors import InvalidOption

NETWORK = SMALL | {"depth": 3, "num_registers": 2, "num_classes": 5}


def names(model, *, frozen):
    return [n for n, p in model.named_parameters() if p.requires_grad is not frozen]


@pytest.mark.parametrize(
    ("until", "blocks", "norm"),
    [("blocks", 0, True), (0, 0, True), ("blocks.0", 0, True), (2, 2, True),
     ("blocks.2", 2, True), (3, 3, True), ("head", 3, False)],
)  # fmt: skip
def test_everything_before_a_layer_is_frozen(until, blocks, norm):
    model = vitzoo.create(NETWORK)
    stem = ("cls_token", "reg_token", "pos_embed", "patch_embed.")
    first = (*stem, *(f"blocks.{i}." for i in range(blocks)), *(() if norm else ("norm.",)))
    expected = [n for n, _ in model.named_parameters() if n.startswith(first)]
    assert vitzoo.freeze(model, until=until) == expected
    assert names(model, frozen=True) == expected
    assert {"head.weight", "head.bias"} <= set(names(model, frozen=False))


@pytest.mark.slow
def test_training_changes_what_is_not_frozen_and_nothing_else():
    model = vitzoo.create(NETWORK)
    with torch.no_grad():
        model.head.weight.normal_()
    frozen = set(vitzoo.freeze(model, until="blocks.1"))
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(vitzoo.param_groups(model, 1e-2, layer_decay=0.9))
    F.cross_entropy(model.train()(randn(2, 3, 32, 32)), torch.tensor([0, 3])).backward()
    optimizer.step()
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == before.keys() - frozen


def test_a_second_call_freezes_more_and_never_less():
    model = vitzoo.create(NETWORK)
    vitzoo.freeze(model, until="head")
    vitzoo.freeze(model, until="blocks.1")
    assert names(model, frozen=False) == ["head.weight", "head.bias"]
    vitzoo.freeze(model.requires_grad_(True), until="blocks.1")
    assert "blocks.1.norm1.weight" in names(model, frozen=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("deit/deit_ti16_distilled", "head."),
        ("hybrid/r26_vit_s32", "head."),
        ("timm/swin_tiny_patch4_window7_224", "head."),
        ("timm/cait_xxs24_224", "head."),
    ],
)
def test_only_the_classifier_stays(name, head):
    model = vitzoo.create(name, device="meta")
    vitzoo.freeze(model, until="head")
    assert names(model, frozen=False) == [n for n, _ in model.named_parameters() if head in n]


def test_parts_before_the_blocks_are_frozen():
    """The ResNet of a hybrid, learned rotations, a norm before the first block."""
    for name, parts in {
        "hybrid/r26_vit_s32": ("pos_embed", "cls_token", "patch_embed."),
        "rope_vit/vit_s16_mixed": ("cls_token", "patch_embed.", "positions."),
        "clip/vit_b32": ("pos_embed", "cls_token", "patch_embed.", "norm_pre."),
    }.items():
        model = vitzoo.create(name, device="meta")
        expected = [n for n, _ in model.named_parameters() if n.startswith(parts)]
        assert vitzoo.freeze(model, until=0) == expected
        assert {n.split(".")[0] for n in expected} == {part.strip(".") for part in parts}


def test_wrapped_networks_have_layers_of_their_own_names():
    model = vitzoo.create("timm/swin_tiny_patch4_window7_224", device="meta")
    frozen = vitzoo.freeze(model, until="layers.2")
    assert frozen == [
        n
        for n, _ in model.named_parameters()
        if n.startswith(("patch_embed", "layers.0", "layers.1"))
    ]
    with refuses(InvalidOption, "'blocks.3'", "layers.1.blocks.1", "'head'"):
        vitzoo.freeze(model, until="blocks.3")


@cases(
    ("until", "says"),
    [
        ("blocks.3", ("'blocks.3'", "blocks.0, blocks.1, blocks.2", "'head'")),
        ("blocks.1.mlp", ("'blocks.1.mlp'", "blocks.0, blocks.1, blocks.2")),
        ("norm", ("'norm'", "blocks.2")),
        ("", ("''", "blocks.0")),
        (4, ("4", "from 0 to 3", "'head'")),
        (-1, ("-1", "from 0 to 3")),
        (True, ("True", "from 0 to 3", "'blocks.0'")),
        (None, ("None", "'blocks.0'")),
    ],
)
def test_unknown_layers(until, says):
    model = vitzoo.create(NETWORK)
    with refuses(InvalidOption, *says):
        vitzoo.freeze(model, until=until)
    assert names(model, frozen=True) == []


def test_a_model_without_a_classifier_or_layers():
    with refuses(InvalidOption, "'head'", "num_classes"):
        vitzoo.freeze(vitzoo.create(NETWORK, num_classes=0), until="head")
    with refuses(InvalidOption, "Linear", "get_classifier()", "'head'", "name a layer in until="):
        vitzoo.freeze(nn.Linear(2, 2), until="head")
    with refuses(InvalidOption, "Linear", "group_matcher()", "until='head'"):
        vitzoo.freeze(nn.Linear(2, 2), until=1)


def test_the_network_inside_a_wrapper_is_frozen():
    model = vitzoo.create(NETWORK)
    frozen = vitzoo.freeze(nn.DataParallel(model), until=1)
    assert names(model, frozen=True) == frozen
