"""The picture of a confusion matrix."""

from __future__ import annotations

import numpy as np
import pytest

from vitzoo.apps.probe.confusion import confusion_figure

NUMBERS = np.array([[9, 1], [0, 4]])


@pytest.mark.slow
def test_numbers_are_white_on_dark_cells_and_black_on_light_ones():
    axes = confusion_figure("title", NUMBERS, ["a", "b"]).axes[0]
    shown = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
    assert shown == {(0, 0): ("9", "white"), (1, 0): ("1", "black"), (1, 1): ("4", "white")}


@pytest.mark.slow
@pytest.mark.parametrize(("names", "turn"), [(["cat", "dog"], 0), (["cats", "dog"], 90)])
def test_long_names_below_the_columns_are_vertical(names, turn):
    axes = confusion_figure("title", NUMBERS, names).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {turn}
    assert {label.get_rotation() for label in axes.get_yticklabels()} == {0}
