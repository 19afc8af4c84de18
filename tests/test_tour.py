"""docs/tour.md runs offline from top to bottom, and shows what its steps print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from terminal import lines

PAGE = Path(__file__).parents[1] / "docs" / "tour.md"
NUMBER = re.compile(r"\d+\.\d+|\d+")

pytestmark = pytest.mark.docs


def test_the_tour_shows_what_its_steps_print(tmp_path, monkeypatch, capsys):
    """Fractions differ between processors."""
    (tmp_path / "docs").symlink_to(PAGE.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    scope, said, shown = {}, "", 0
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for language, text in blocks:
        expected = text
        if language == "python":
            assert not said, f"the page does not show {said!r}"
            exec(compile(text, str(PAGE), "exec"), scope)
            said = capsys.readouterr().out
        elif language == "console":
            command, _, expected = text.partition("\n")
            said = "\n".join(lines(*shlex.split(command)[2:], columns=80, TERM="dumb")) + "\n"
        if language in ("console", "text"):
            assert words(said) == words(expected)
            assert numbers(said) == pytest.approx(numbers(expected), abs=0.05)
            said, shown = "", shown + 1
    assert shown == 9
    assert len(PAGE.read_text().split()) <= 900


def words(text: str) -> list[str]:
    return [NUMBER.sub("N", line).rstrip() for line in text.splitlines()]


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]
