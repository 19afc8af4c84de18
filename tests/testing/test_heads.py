"""Each check of heads and of drop-path policies fails for one with one error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitzoo import testing
from vitzoo.parts import heads as core_heads
from vitzoo.testing import check_drop_path_policy, check_head

MODULE = testing.checks.modules


class Cosine(nn.Module):
    """A correct head. The classes below add one error each."""

    def __init__(self, *, in_dim, num_classes):
        super().__init__()
        self.num_classes, self.pre_logits_dim = num_classes, in_dim
        self.prototypes = nn.Parameter(torch.randn(num_classes, in_dim))

    def reset(self, num_classes):
        return type(self)(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x, pre_logits=False):
        if pre_logits or not self.num_classes:
            return x
        unit = nn.functional.normalize
        return unit(x, dim=-1) @ unit(self.prototypes, dim=-1).T


class AlwaysLogits(Cosine):
    def forward(self, x, pre_logits=False):
        return super().forward(x)


class WrongWidth(Cosine):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim=in_dim, num_classes=num_classes)
        self.pre_logits_dim = 2 * in_dim


class NoZero(Cosine):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim=in_dim, num_classes=num_classes)
        self.mean = 1 / num_classes


class EmptyLogits(Cosine):
    def forward(self, x, pre_logits=False):
        return x if pre_logits else x @ self.prototypes.T


class ScaledWithoutClasses(Cosine):
    def forward(self, x, pre_logits=False):
        return super().forward(x, pre_logits) * (1 if pre_logits or self.num_classes else 2)


class CountsWrong(Cosine):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim=in_dim, num_classes=num_classes)
        self.num_classes = 1000


class KeepsClasses(Cosine):
    def reset(self, num_classes):
        return type(self)(in_dim=self.pre_logits_dim, num_classes=self.num_classes)


class ResetsItself(Cosine):
    def reset(self, num_classes):
        nn.init.zeros_(self.prototypes)
        return super().reset(num_classes)


class NoReset(nn.Module):
    num_classes, pre_logits_dim = 5, 32

    def __init__(self, *, in_dim, num_classes):
        super().__init__()


class ReadsTwo(Cosine):
    tokens = 2

    def forward(self, x, pre_logits=False):
        return super().forward(x.mean(1), pre_logits)


class ForgetsTokens(ReadsTwo):
    def reset(self, num_classes):
        return ReadsOne(in_dim=self.pre_logits_dim, num_classes=num_classes)


class ReadsOne(ReadsTwo):
    tokens = None


class SharesLayer(Cosine):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim=in_dim, num_classes=num_classes)
        self.layer = nn.Linear(in_dim, in_dim)

    def reset(self, num_classes):
        fresh = super().reset(num_classes)
        fresh.layer = self.layer
        return fresh

    def forward(self, x, pre_logits=False):
        return super().forward(self.layer(x), pre_logits)


class DrawsLayer(SharesLayer):
    def reset(self, num_classes):
        return Cosine.reset(self, num_classes)


class Detaches(Cosine):
    def forward(self, x, pre_logits=False):
        return super().forward(x.detach(), pre_logits)


class OnItsDevice(Cosine):
    def reset(self, num_classes):
        fresh = Cosine.reset(self, num_classes)
        return fresh.to_empty(device="meta") if self.prototypes.is_meta else fresh


class CopiesData(Cosine):
    def reset(self, num_classes):
        fresh = Cosine.reset(self, num_classes)
        fresh.prototypes.data[:2] = self.prototypes.data[:1]
        return fresh


HEADS = testing.checks.heads


@pytest.mark.parametrize(
    ("check", "part", "words"),
    [
        (MODULE.check_protocol, NoReset, "NoReset lacks reset"),
        (HEADS.check_outputs, AlwaysLogits, "its pre-logits should be (2, 32), but are (2, 5)"),
        (HEADS.check_outputs, WrongWidth, "pre-logits should be (2, 64), but are (2, 32)"),
        (HEADS.check_outputs, CountsWrong, "num_classes is 1000, but it was built for 5 classes"),
        (HEADS.check_no_classes, NoZero, "num_classes=0: ZeroDivisionError"),
        (HEADS.check_no_classes, EmptyLogits, "its logits should be (2, 32), but are (2, 0)"),
        (HEADS.check_no_classes, ScaledWithoutClasses, "returns other numbers than its pre-logits"),
        (MODULE.check_gradients, Detaches, "no gradient reaches its inputs"),
        (HEADS.check_reset, KeepsClasses, "reset(7) gives num_classes 5, expected 7"),
        (HEADS.check_reset, ForgetsTokens, "reset(7) gives tokens None, expected 2"),
        (HEADS.check_reset, ResetsItself, "reset changes the outputs of the old head"),
        (HEADS.check_reset, SharesLayer, "after reset both heads share layer.weight, layer.bias"),
        (HEADS.check_reset, OnItsDevice, "of a head on meta returns no data for prototypes"),
        (
            HEADS.check_reset,
            CopiesData,
            "of a head on meta is called: NotImplementedError",
        ),
        (HEADS.check_reset, DrawsLayer, "reset(7) gives other pre-logits than this head"),
    ],
)
def test_a_broken_head(blames, check, part, words):
    blames("head", part, HEADS.Head, check, words, check_head)


def test_good_heads_pass():
    check_head(Cosine)
    check_head(ReadsTwo)
    check_head(core_heads.tanh_head, hidden_dim=16)


# Drop-path policies.


def few(*, depth):
    return [0.1] * (depth - 1)


def too_high(*, depth):
    return [1.0] * depth


def divides(*, depth):
    return [0.1 * i / (depth - 1) for i in range(depth)]


def of_torch(*, depth):
    return list(torch.linspace(0, 0.5, depth))


def on_meta(*, depth):
    return torch.linspace(0, 0.5, depth).tolist()


def at_random(*, depth):
    return torch.rand(depth).tolist()


def of_known_depths(*, depth):
    return {n: [0.1] * n for n in (1, 2, 12, 40)}[depth]


def positional(depth):
    return [0.0] * depth


POLICIES = testing.checks.drop_path


@pytest.mark.parametrize(
    ("check", "policy", "words"),
    [
        (POLICIES.check_rates, few, "returns 0 rates for 1 blocks, expected 1"),
        (POLICIES.check_rates, too_high, "for 1 blocks a rate is [1.0]"),
        (POLICIES.check_rates, divides, "fails when called for 1 blocks: ZeroDivisionError"),
        (POLICIES.check_rates, of_torch, "for 1 blocks a rate is [tensor(0.)]"),
        (POLICIES.check_rates, at_random, "two calls for 1 blocks differ"),
        (POLICIES.check_meta, on_meta, "fails when called under torch.device('meta')"),
        (POLICIES.check_trains, of_known_depths, "a network trains with it: KeyError: 3"),
        (MODULE.check_constructor, positional, "takes 'depth' by position"),
    ],
)
def test_a_broken_drop_path_policy(blames, check, policy, words):
    subject = POLICIES.DropPathPolicy
    blames("drop-path policy", policy, subject, check, words, check_drop_path_policy)


def test_a_good_policy_passes():
    def late(*, depth, rate):
        return [0.0 if i < depth // 2 else rate for i in range(depth)]

    check_drop_path_policy(late, rate=0.2)
    check_drop_path_policy(late)  # a rate is given to every policy that takes one


def test_an_option_without_default_and_sample_is_named(complaint):
    def late(*, depth, rate, start):
        return [0.0 if i < start * depth else rate for i in range(depth)]

    said = complaint(check_drop_path_policy, late)
    assert "drop-path policy 'late': vitzoo passes depth, but no value for start" in said
    for check in (POLICIES.check_rates, POLICIES.check_meta, POLICIES.check_trains):
        assert "'start'" in complaint(check, POLICIES.DropPathPolicy(late))
    check_drop_path_policy(late, start=0.5)
