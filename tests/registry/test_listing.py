"""Patterns and filters select variants."""

from __future__ import annotations

import pytest

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.errors import UnknownOption
from vitzoo.registry.listing import (
    TEXTS_OF_WEIGHTS,
    fields,
    pareto,
    pareto_fields,
    sort,
    sort_keys,
)
from vitzoo.schema.terms import commercial_use


def test_a_pattern_selects_names():
    assert [v.name for v in vitzoo.variants("vit_l*_384")] == ["vit_l16_384", "vit_l32_384"]


def test_several_patterns_are_a_union_in_registered_order():
    found = [v.name for v in vitzoo.variants(["vit_h14", "vit_b1?"])]
    assert found == ["vit_b16", "vit_h14"]


def test_the_name_of_a_family_means_its_variants():
    assert vitzoo.variants("dinov2") == vitzoo.variants("dinov2/*") != []
    assert vitzoo.variants("vit", depth=12) == vitzoo.variants(namespace="core", depth=12) != []
    together = [*vitzoo.variants("vit_h14"), *vitzoo.variants("dinov2/*")]
    assert vitzoo.variants(["dinov2", "vit_h14"]) == together


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


def test_variants_are_found_by_the_pretraining_of_any_weights():
    core = {"namespace": "core", "pretraining": "Supervised"}
    assert [v.name for v in vitzoo.variants(**core, pretraining_data="~digits")] == ["vit_digits"]
    assert vitzoo.variants(**core) == [v for v in vitzoo.variants("vit_*") if v.weights]
    assert vitzoo.variants(namespace="core", pretraining="self-supervised") == []
    named = {"weights": "augreg_in1k", "pretraining_data": "ImageNet-1k"}
    found = [v.name for v in vitzoo.variants("vit_b16*", **named)]
    assert found == ["vit_b16", "vit_b16_384"]  # of neither it is the default


def test_a_listing_has_the_texts_of_the_default_weights():
    variant = vitzoo.describe("vit_digits")
    texts = ("Apache-2.0", "confirmed", "yes", "supervised", "scikit-learn digits")
    assert tuple(fields(variant)[name] for name in TEXTS_OF_WEIGHTS) == texts
    weights = vitzoo.Weights("w", file="w", pin="first-use", file_seen=False, default=True)
    unstated = fields(variant.with_values(weights=(weights,)))
    assert [unstated[name] for name in TEXTS_OF_WEIGHTS] == ["", "first-use", "no", None, None]


@cases(
    ("license_", "use"),
    [
        ("MIT", "yes"),
        ("Apache-2.0", "yes"),
        ("CC-BY-NC-4.0", "no"),
        ("fair-noncommercial-research-license", "no"),
        ("dinov3-license", "read"),
        ("LicenseRef-Apple-ASCL", "read"),
        ("NCSA", "read"),
        ("", None),
        (None, None),
    ],
)
def test_commercial_use(license_, use):
    assert commercial_use(license_) == use


ROWS = [
    {"name": name, "params": params, "image_size": size, "top1": top1}
    for name, params, size, top1 in [
        ("a", 3, 224, 80.0),
        ("B", 1, "224x336", 70.0),
        ("c", 2, 288, None),
        ("d", 2, 200, 70.0),
        ("e", 1, 224, 70.0),
        ("f", 4, 224, 79.0),
    ]
]


def sorted_by(order):
    return "".join(row["name"] for row in sort(ROWS, sort_keys(order)))


def test_rows_are_sorted_by_several_keys_and_missing_values_come_last():
    assert sorted_by("params") == "Becdaf"
    assert sorted_by("params, top1:desc") == "Bedcaf"
    assert sorted_by("top1:desc,params,name:desc") == "afeBdc"
    assert sorted_by("name") == "aBcdef"
    assert sorted_by("px:desc,name") == "cBaefd"  # 288 * 288 > 224 * 336


def test_no_row_of_the_front_is_worse_than_another():
    def front(text):
        return "".join(row["name"] for row in pareto(ROWS, pareto_fields(text)))

    assert front("params:top1") == "Bea"
    assert front("params:px:top1") == "eda"  # less px is better, too
    assert front("top1:params") == "aBe"


def test_an_unknown_filter_lists_all_fields():
    with refuses(UnknownOption, "'zzz'", "name, params, gmacs,"):
        vitzoo.variants(zzz=1)
