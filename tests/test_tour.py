"""docs/tour.md runs offline from top to bottom, and shows what its steps print."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import outputs

PAGE = Path(__file__).parents[1] / "docs" / "tour.md"

pytestmark = pytest.mark.docs


def test_the_tour_shows_what_its_steps_print(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").symlink_to(PAGE.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    page = PAGE.read_text(encoding="utf-8")
    assert outputs(page, lambda: capsys.readouterr().out) == 9
    assert len(page.split()) <= 900
