"""`one_of_each_kind` leaves no kind of network to the nightly run alone."""

from kinds import one_of_each_kind

NAMES = ("vit_b16", "vit_ti16", "vit_s16", "vit_s16_384", "vit_b16_in21k", "vit_b32_in21k")


def often(*always):
    networks = {f"{name} whole": name for name in NAMES}
    return [one.values[0] for one in one_of_each_kind(networks, always) if not one.marks]


def test_the_smallest_of_each_kind_runs_in_ci():
    """The two kinds differ in their head."""
    assert often() == ["vit_ti16 whole", "vit_b32_in21k whole"]
    assert often("vit_b16 whole") == ["vit_b16 whole", "vit_ti16 whole", "vit_b32_in21k whole"]


def test_all_others_are_long():
    marks = {one.values[0]: one.marks for one in one_of_each_kind({n: n for n in NAMES})}
    assert list(marks) == list(NAMES)
    assert [mark.name for mark in marks["vit_b16"]] == ["long"]
