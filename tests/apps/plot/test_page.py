"""docs/plotting.md: every command and every block runs, and its pictures are those of today."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "plotting.md"

pytestmark = pytest.mark.docs


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=int)


def test_the_page_on_figures_works_and_shows_what_its_commands_draw(run, page_folder):
    """The pictures have a palette, and other versions of matplotlib smooth letters differently."""
    tool = runpy.run_path(str(ROOT / "docs" / "generate_plots.py"))
    commands, text = tool["commands"](), PAGE.read_text(encoding="utf-8")
    assert len(commands) == text.count("$ vitzoo ") == 7
    for arguments in commands:
        code, _, said = run(*arguments)
        assert code == 0, said
    pictures = re.findall(r"\(plots/(\w+\.png)\)", text)
    assert set(pictures) == {path.name for path in tool["PICTURES"].iterdir()}
    assert {arguments[1] for arguments in commands} == {
        "filters", "positions", "attention-distance", "attention", "rollout", "tokens",
    }  # fmt: skip
    for name in pictures:
        kept, drawn = pixels(tool["PICTURES"] / name), pixels(page_folder / name)
        assert kept.shape == drawn.shape, f"{name}: run python docs/generate_plots.py"
        changed = (np.abs(kept - drawn).max(axis=2) > 40).mean()
        assert changed < 0.02, f"{name}: run python docs/generate_plots.py"
    assert sum(path.stat().st_size for path in tool["PICTURES"].iterdir()) < 100_000
    scope = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), scope)
        values = re.findall(r"^(.+?)  # (\([\d, ]+\)|[\d.]+)", block, re.MULTILINE)
        for expression, value in values:
            found = eval(expression.partition(" = ")[2] or expression, scope)
            assert found == pytest.approx(eval(value))
    assert (page_folder / "attention.svg").is_file()
    assert "matplotlib.pyplot" not in sys.modules or scope["plot"].figure.canvas.manager is None


def test_one_command_draws_a_network_over_the_photographs_of_scikit_learn(tmp_path):
    draw = runpy.run_path(str(ROOT / "docs" / "generate_plots.py"))["write_photographs"]
    draw.__globals__["OTHERS"] = tmp_path / "pictures"
    assert draw("vit_digits") == 0
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"vit_digits_rollout.png", "vit_digits_tokens.png"}
    assert draw("vit_digits:none") == 1
