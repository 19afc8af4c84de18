"""Conditions on listed fields: `vitzoo list --where` and `vitzoo.variants` have one language."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.errors import InvalidOption, UnknownOption
from vitzoo.registry.conditions import required, unmet, where
from vitzoo.registry.listing import FIELDS, KINDS

ROW = dict.fromkeys(FIELDS) | {
    "name": "acme/Net",
    "params": 5_717_416,
    "image_size": "224x336",
    "patch_size": 16,
    "depth": 12,
    "license": "Apache-2.0",
    "summary": "a ViT, or two (384 px)",
}


@cases(
    "condition",
    [
        "license=apache-2.0",
        "license==APACHE-2.0",
        "license=mit or license~apache",
        "license~apache OR license~mit",
        "license in (mit, apache-2.0)",
        "license in(MIT,Apache-2.0)",
        "license!=mit and name=acme/net",
        "license!=mit, depth=12",
        "depth=1 or depth=12 and license=apache-2.0",
        "(depth=1 or depth=12) and license=apache-2.0",
        "((depth=12))",
        "depth in (24, 12)",
        "depth = 12.0",
        "params<5.8M",
        "params>=5717.416k and params<=5717416",
        "params<1B and params<1g and params<1e7",
        "summary='A ViT, or two (384 px)'",
        'summary~"or two"',
        "summary~'and' or summary~or",
        "image_size=224x336",
        "image_size in (224, 224x336)",
        "image_size!=224",
        "image_size<384 and image_size>=224",
        "patch_size=16 and patch_size=16x16",
        "top1!=80",
        "params=5.72M and params=5717k and params=5.72e6 and params in (1k, 5.717M)",
        "params!=5.73M and params!=5.7175M and params!=5720000",
        "px=224x336 and PARAMS<1B",
    ],
)
def test_a_condition_that_is_met(condition):
    assert where(condition).test(ROW)


@cases(
    "condition",
    [
        "license~apache and license~mit",
        "license in (mit, bsd-3-clause)",
        "license in (apache)",
        "(depth=12 or depth=1) and license=mit",
        "depth=1 and license=mit or depth=2",
        "image_size=224",
        "image_size>224",
        "image_size<336",
        "params<5M",
        "top1=80",
        "top1<80",
        "top1>=0",
        "top1 in (80, 81)",
        "weights~a",
        "params!=5.72M",
        "params=5.7M",  # three digits count
        "params=5720000",
        "params=1e999",
    ],
)
def test_a_condition_that_is_not_met(condition):
    assert not where(condition).test(ROW)


@cases(
    ("condition", "value", "met"),
    [
        ("top1=85.1", 85.108, True),
        ("top1=85.11", 85.108, True),
        ("top1=85.108", 85.108, True),
        ("top1=85.107", 85.108, False),
        ("top1=85", 85.108, False),
        ("top1=85", 85.04, True),
        ("top1=85.1", 85.2, False),
        ("depth=12", 12, True),
        ("depth=12", 13, False),
        ("num_classes=1000", 1001, False),
        ("num_classes=1k", 1001, True),  # 1.00k
    ],
)
def test_a_number_is_equal_to_those_that_round_to_it(condition, value, met):
    field = condition.partition("=")[0]
    assert where(condition).test(ROW | {field: value}) is met


def test_a_note_names_the_values_of_fields_that_meet_nothing():
    rows = [ROW, ROW | {"license": "MIT", "params": 10**7}, ROW | {"license": None}]
    tests = [where("license=apache and params<1k"), where("top1>1 or depth=12 or image_size=7")]
    assert unmet(tests, rows) == [
        "license has the values Apache-2.0, MIT",
        "params has values from 5,717,416 to 10,000,000",
        "top1 is not known for any of them",
        "image_size has the values 224x336",
    ]


@cases(
    ("condition", "message"),
    [
        ("", ("field", "character 1", "the end")),
        ("  ", ("field", "the end")),
        ("params", ("'params'", "character 7", "the end", "in")),
        ("params 100M", ("character 8", "'100M'")),
        ("params<", ("a value", "character 8", "the end")),
        ("params<100M image_size=224", ("'and'", "'or'", "character 13", "'image_size'")),
        ("params<100M and", ("a field", "character 16", "the end")),
        ("params<100M or or depth=1", ("a field", "character 16", "'or'")),
        ("1<params<5", ("field '1'",)),
        ("params<100M<5", ("character 12", "'<'")),
        ("params<100M)", ("character 12", "')'")),
        ("(params<100M", ("')'", "character 13", "the end")),
        ("license in mit", ("'('", "character 12", "'mit'")),
        ("license in (mit", ("')'", "character 16", "the end")),
        ("license in ()", ("a value", "character 13", "')'")),
        ("license in (mit apache)", ("','", "character 17", "'apache'")),
        ("summary~two words", ("character 13", "'words'")),
        ("summary='two words", ("a value", "character 9", '"\'"')),
        ("params<abc", ("params", "a number", "'abc'", "character 8")),
        ("params in (1, x)", ("params", "a number", "'x'", "character 15")),
        ("params<100MB", ("params", "a number", "'100MB'")),
        ("depth<nan", ("depth", "a number", "'nan'")),
        ("image_size=224x", ("image_size", "px", "'224x'")),
        ("license<5", ("license", "text", "=, !=, ~ or in", "'<'", "character 8")),
        ("params~5", ("params", "a number", "'~'", "character 7")),
        ("(" * 30 + "depth=1" + ")" * 30, ("20 nested parentheses", "character 21")),
        (5, ("text", "5 (int)")),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused_with_the_position(condition, message):
    with refuses(InvalidOption, *message):
        where(condition)
    if isinstance(condition, str) and len(condition) < 50 and "field '1'" not in message:
        with refuses(InvalidOption, "params<100M and (license=mit or"):  # an example
            where(condition)


@pytest.mark.parametrize(
    ("condition", "position"),
    [("parms<1", 1), ("depth=1 or parms<1", 12), ("(parms in (1, 2))", 2)],
)
def test_an_unknown_field_of_a_condition_is_suggested(condition, position):
    with refuses(UnknownOption, "'parms'", f"character {position}", "'params'", "fields"):
        where(condition)


@pytest.mark.slow
@given(st.text("ab<>=!~(),'\" inord1x", max_size=30))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(InvalidOption):  # no other exception
        assert where(text).test(ROW) in (True, False)


@pytest.mark.slow
@given(st.text(max_size=30).filter(lambda text: "'" not in text))
def test_a_text_in_quotes_is_taken_literally(text):
    row = ROW | {"summary": text}
    assert where(f"summary='{text}'").test(row)
    assert required("summary", f"='{text}'")(row)


# Keyword arguments of `vitzoo.variants`


@cases(
    ("field", "value"),
    [
        ("license", "apache-2.0"),
        ("license", "~apache"),
        ("license", "!=mit"),
        ("license", "in (mit, apache-2.0)"),
        ("name", "ACME/net"),
        ("summary", "a ViT, or two (384 px)"),
        ("params", "<100M"),
        ("params", " > 5M "),
        ("params", 5717416),
        ("params", "5717416"),
        ("params", lambda n: n < 1e7),
        ("depth", 12),
        ("depth", 12.0),
        ("depth", "in (12, 24)"),
        ("patch_size", 16),
        ("patch_size", "16x16"),
        ("image_size", "224x336"),
        ("image_size", "!=224"),
        ("top1", None),
    ],
)
def test_a_value_that_a_field_has(field, value):
    assert required(field, value)(ROW)


@pytest.mark.parametrize(
    ("field", "value"),
    [("license", "apache"), ("params", "<5M"), ("depth", 13), ("image_size", 224), ("depth", None)],
)
def test_a_value_that_a_field_has_not(field, value):
    assert not required(field, value)(ROW)


@cases(
    ("field", "value", "message"),
    [
        ("license", 5, ("license", "text", "5 (int)")),
        ("license", ["mit"], ("license", "text", "['mit'] (list)")),
        ("params", "abc", ("params", "number", "'abc'")),
        ("params", "<abc", ("params", "number", "'abc'")),
        ("params", "<100M and >5M", ("params", "character 7", "'and'")),
        ("params", [1, 2], ("params", "number", "[1, 2] (list)")),
        ("depth", True, ("depth", "number", "True (bool)")),
        ("image_size", (224, 224), ("image_size", "px", "HEIGHTxWIDTH", "(224, 224) (tuple)")),
        ("license", "<5", ("license", "text", "'<'")),
        ("license", "=two words", ("license", "character 6", "'words'")),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(field, value, message):
    with refuses(InvalidOption, *message):
        required(field, value)
    with refuses(InvalidOption, *message):
        vitzoo.variants(**{field: value})


def test_every_field_of_a_listing_has_a_kind():
    from internals import registry

    for row in registry().index.listing():
        assert tuple(row) == FIELDS
        for field, value in row.items():
            types = {"text": str, "number": int | float, "size": int | str}[KINDS[field]]
            assert value is None or isinstance(value, types), (row["name"], field)


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({"license": "apache-2.0"}, "license=apache-2.0"),
        ({"license": "APACHE-2.0", "params": "<100M"}, "license=apache-2.0 and params<100M"),
        ({"license": "~apache"}, "license~apache"),
        ({"image_size": "in (28, 384)"}, "image_size=28 or image_size=384"),
        ({"where": "depth=48 or (depth=4 and in_chans=1)"}, "depth=48, depth in (48) or depth=4"),
        ({"where": "top1>85", "depth": 24}, "top1>85 and depth=24"),
    ],
)
def test_the_command_line_and_the_library_agree(run, filters, condition):
    found = [v.name for v in vitzoo.variants(namespace="core", **filters)]
    code, out, _ = run("list", "-q", "--where", f"namespace=core and ({condition})")
    assert code == 0
    assert found
    assert list(dict.fromkeys(name.partition(":")[0] for name in out.split())) == found
