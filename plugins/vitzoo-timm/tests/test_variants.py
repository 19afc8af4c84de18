"""The manifest and the table of README.md are what timm's modules say."""

import runpy
from pathlib import Path

import pytest

import vitzoo
from vitzoo.errors import UnknownName

UPDATE = runpy.run_path(str(Path(__file__).with_name("update_variants.py")))
HOW = "python plugins/vitzoo-timm/tests/update_variants.py"


def test_the_readme_lists_the_families_of_the_manifest():
    text = UPDATE["MANIFEST"].read_text()
    assert UPDATE["README"].read_text() == UPDATE["page"](text), HOW


def test_every_family_has_a_row():
    text = UPDATE["MANIFEST"].read_text()
    for title, paper in {**UPDATE["PAPERS"], **UPDATE["OTHERS"]}.values():
        assert f'summary = "{title}; ' in text, title
        assert f'paper = "arXiv:{paper}"' in text, paper


def test_every_file_of_timm_is_registered(timm):
    for variant in vitzoo.variants("timm/*"):
        name = variant.name.removeprefix("timm/")
        tags = {tag.partition(".")[2] for tag in timm.list_pretrained(f"{name}.*")}
        assert {row.name for row in variant.weights} == tags, HOW
        if tags:
            assert variant.default_weights.name == timm.get_pretrained_cfg(name).tag, HOW


@pytest.mark.parametrize("call", [vitzoo.create, vitzoo.describe, vitzoo.fetch])
def test_a_tag_of_timm_follows_a_colon(call):
    name = "timm/swin_tiny_patch4_window7_224"
    with pytest.raises(UnknownName) as caught:
        call(f"{name}.ms_in22k")
    expected = f"the name of weights follows a colon: vitzoo.create('{name}:ms_in22k')"
    assert expected in str(caught.value)


METADATA = 8 + 32  # bytes of alignment, and of the metadata that some files have
SIZED = {
    f"{variant.name.removeprefix('timm/')}.{row.name}": row
    for variant in vitzoo.variants("timm/*")
    for row in variant.weights
    if row.size
}


@pytest.mark.parity
@pytest.mark.parametrize("tag", SIZED)
def test_a_predicted_size_is_that_of_a_known_file(tag, timm):
    """Buffers that timm stored in its files, and no longer has in its state dict, count."""
    classes = timm.get_pretrained_cfg(tag).num_classes
    network = UPDATE["made"](tag.partition(".")[0], num_classes=classes)
    assert abs(SIZED[tag].size - UPDATE["predicted"](network)) <= METADATA


@pytest.mark.parity
@pytest.mark.long  # builds all of them on `meta`
def test_generating_it_again_gives_the_same():
    assert UPDATE["manifest"]() == UPDATE["MANIFEST"].read_text(), HOW
