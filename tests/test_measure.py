"""The way through `create` gets no longer: each figure here may only fall."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).with_name("measure.py")))
MOST = {  # calls; changes of the file; times that one file is opened; classes
    "vit_digits, pretrained": (158, 94, 0, 21),
    "a file": (243, 127, 1, 23),
    "a saved file": (299, 143, 1, 21),
    "a folder with timm's config": (400, 207, 1, 27),
    "a folder of transformers": (442, 249, 1, 25),
}

# Imports inside functions, most of which keep torch, or modules that a list of names does not need,
# out of a command; files with TYPE_CHECKING. Both of the core.
INNER_IMPORTS, TYPE_CHECKING = 118, 27


@pytest.mark.slow
def test_create_does_no_more_than_before():
    found = TOOL["calls_of_create"]()
    figures = {name: (*row.values(),) for name, row in found.items()}
    counted = {name: (*row[:-1], len(row[-1])) for name, row in figures.items()}
    assert counted.keys() == MOST.keys()
    more = {
        name: f"{row}, at most {MOST[name]}"
        for name, row in counted.items()
        if any(now > most for now, most in zip(row, MOST[name], strict=True))
    }
    assert more == {}


def test_the_core_hides_no_more_imports_than_before():
    core = TOOL["core_of"](Path(__file__).parents[1])
    assert sum(map(TOOL["inner_imports"], core)) <= INNER_IMPORTS
    assert sum("if TYPE_CHECKING" in path.read_text("utf-8") for path in core) <= TYPE_CHECKING
