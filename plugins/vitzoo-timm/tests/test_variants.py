"""The manifest and the table of README.md are what timm's modules say."""

import runpy
from pathlib import Path

import pytest

UPDATE = runpy.run_path(str(Path(__file__).with_name("update_variants.py")))
HOW = "python plugins/vitzoo-timm/tests/update_variants.py"


def test_the_readme_lists_the_variants_of_the_manifest():
    text = UPDATE["MANIFEST"].read_text()
    assert UPDATE["README"].read_text() == UPDATE["page"](text), HOW


def test_every_family_has_a_row():
    text = UPDATE["MANIFEST"].read_text()
    for title, paper in {**UPDATE["PAPERS"], **UPDATE["OTHERS"]}.values():
        assert f'summary = "{title}; ' in text, title
        assert f'paper = "arXiv:{paper}"' in text, paper


@pytest.mark.parity
@pytest.mark.long  # builds all of them on `meta`
def test_generating_it_again_gives_the_same():
    assert UPDATE["manifest"]() == UPDATE["MANIFEST"].read_text(), HOW
