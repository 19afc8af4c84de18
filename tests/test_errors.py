"""Suggestions in messages about unknown names."""

import pytest

from vitzoo.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "known", "first"),
    [
        ("vit_bse16", ["vit_s16", "vit_b16", "vit_l16"], "vit_b16"),
        ("vit_bse16", ["vit_b16", "vit_l16", "vit_s16"], "vit_b16"),
        ("pooled", ["spooled", "acme/pooled"], "acme/pooled"),
        ("net_a", ["nut_a", "xnet_a"], "xnet_a"),  # more similar
    ],
)
def test_the_nearest_name_is_suggested_first(word, known, first):
    assert did_you_mean(word, known).startswith(f"; did you mean {first!r}")
