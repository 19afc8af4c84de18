"""docs/embedding.md: its blocks in order, up to Ray Data; tests/ray has the others."""

from pathlib import Path

import pytest

from pages import outputs

PAGE = Path(__file__).parents[3] / "docs" / "embedding.md"


@pytest.mark.long
@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
def test_the_page_on_embedding_shows_what_its_blocks_print(run, capsys):
    text = PAGE.read_text(encoding="utf-8").partition("## Ray Data")[0]
    assert outputs(text, lambda: capsys.readouterr().out, run) == 4
