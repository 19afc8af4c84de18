"""`vitzoo.summary`: of a name, a model and a changed network; the numbers are tested elsewhere."""

from __future__ import annotations

import pytest

import vitzoo
from helpers import refuses
from internals import summarize
from tables import cases
from vitzoo.errors import InvalidOption, UnknownName


def test_a_name_a_spec_and_a_model_have_one_summary():
    expected = summarize(vitzoo.create("vit_digits", device="meta"), 2)
    model = vitzoo.create("vit_digits", pretrained=True)
    for named in ("vit_digits", "vit_digits:digits_v1", model.spec, model):
        assert vitzoo.summary(named, batch_size=2) == expected
    assert next(model.parameters()).device.type == "cpu"


def test_arguments_change_the_network():
    changed = vitzoo.summary("vit_ti16", num_classes=0, image_size=32, head="none")
    assert changed.params < vitzoo.summary("vit_ti16").params
    assert changed.layers[0].output == (1, 4, 192)


def test_it_shows_the_numbers_in_one_line_and_as_tables():
    found = vitzoo.summary("vit_b16")
    assert repr(found) == "Summary(86.6M parameters, 17.6 GMACs, activations 7.26 MB)"
    table = found._repr_html_()
    assert "blocks.0.attn" in table
    assert "blocks.1." not in table
    assert ">86.6M parameters, 17.6 GMACs<" in table
    assert "blocks.11" in str(found.layers)


@cases("value", [0, 65_537, 2.0, "1", True])
def test_an_impossible_batch_is_refused(value):
    with refuses(InvalidOption, "batch_size", "from 1 to 65536", repr(value)):
        vitzoo.summary("vit_digits", batch_size=value)


def test_an_unknown_network_is_refused():
    with pytest.raises(UnknownName):
        vitzoo.summary("nope")
