"""Patterns and filters select variants."""

from __future__ import annotations

import sys

import pytest

import vitzoo
from helpers import refuses
from vitzoo.errors import UnknownOption


def test_a_pattern_selects_names():
    assert [v.name for v in vitzoo.variants("vit_l*_384")] == ["vit_l16_384", "vit_l32_384"]


def test_several_patterns_are_a_union_in_registered_order():
    found = [v.name for v in vitzoo.variants(["vit_h14", "vit_b1?"])]
    assert found == ["vit_b16", "vit_h14"]


def test_a_pattern_that_matches_nothing_gives_an_empty_list():
    assert vitzoo.variants("resnet*") == []


def test_patterns_are_case_sensitive():
    assert vitzoo.variants("VIT_B16") == []


def test_filters_compare_values():
    found = [v.name for v in vitzoo.variants("vit_*", depth=12, image_size=384, embed_dim=768)]
    assert found == ["vit_b16_384", "vit_b32_384"]


def test_filters_may_be_functions():
    found = [v.name for v in vitzoo.variants(namespace="core", params=lambda n: n > 1e9)]
    assert found == ["vit_g14", "vit_gg14"]


def test_an_unknown_filter_suggests_the_field():
    with refuses(UnknownOption, "'embed_dims'", "'embed_dim'"):
        vitzoo.variants(embed_dims=768)


def test_variants_are_listed_once_per_registry(monkeypatch):
    listing = sys.modules["vitzoo.registry.registry"]
    for _ in range(2):  # the first call reads the manifests
        vitzoo.variants()
    made = []
    monkeypatch.setattr(listing, "row_of", made.append)
    monkeypatch.setattr(listing, "read_rows", made.append)
    assert vitzoo.variants("vit_b16")
    assert made == []


@pytest.mark.parametrize(
    ("name", "weights", "objective", "data"),
    [
        ("vit_b16", "augreg2_in21k_ft_in1k", "supervised", "ImageNet-21k"),
        ("vit_b16", "augreg_in1k", "supervised", "ImageNet-1k"),
        ("vit_b16", "miil_in21k_ft_in1k", "supervised", "ImageNet-21k-P"),
        ("vit_digits", "digits_v1", "supervised", "scikit-learn digits"),
    ],
)
def test_weights_state_their_pretraining(name, weights, objective, data):
    row = next(w for w in vitzoo.describe(name).weights if w.name == weights)
    assert (row.pretraining, row.pretraining_data) == (objective, data)


def test_variants_are_found_by_the_pretraining_of_their_default_weights():
    core = {"namespace": "core", "pretraining": "Supervised"}
    assert [v.name for v in vitzoo.variants(**core, pretraining_data="~digits")] == ["vit_digits"]
    assert vitzoo.variants(**core) == [v for v in vitzoo.variants("vit_*") if v.default_weights]
    assert vitzoo.variants(namespace="core", pretraining="self-supervised") == []


def test_an_unknown_filter_lists_all_fields():
    with refuses(UnknownOption, "'zzz'", "name, params, gmacs,"):
        vitzoo.variants(zzz=1)
