"""What a type checker reports of code that uses vitzoo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo

# Only names are asked for: torch, which takes mypy half a minute, is left out.
MYPY = """\
[mypy]
strict = True
[mypy-vitzoo.*]
follow_imports = silent
[mypy-torch.*,numpy.*,huggingface_hub.*,safetensors.*,rich.*,PIL.*,click.*]
follow_imports = skip
"""
RIGHT = [
    *(f"vitzoo.{name}" for name in vitzoo.__all__),
    "vitzoo.transform('vit_b16', crop_pct=1, image_size=(32, 64))",
    "vitzoo.create('vit_b16', num_classes=3).set_input_size(384)",
    "vitzoo.create('vit_b16', dynamic=True, check_finite=False).head",
    "vitzoo.errors.GatedRepo, vitzoo.formats.Format, vitzoo.parts.MeanPool",
]
WRONG = {  # a line, and what must be reported of it
    "vitzoo.transform('vit_b16', crop_pc=1)": ("crop_pc", "call-arg"),
    "vitzoo.transform('vit_b16', crop_pct='1')": ("str", "float", "arg-type"),
    "vitzoo.transform()": ("name_or_model", "call-arg"),
    "vitzoo.create('vit_b16', num_clases=3)": ("num_clases", "call-arg"),
    "vitzoo.create('vit_b16', num_classes='3')": ("str", "int", "arg-type"),
    "vitzoo.creat('vit_b16')": ("creat", "attr-defined"),
    "vitzoo.parts.MeanPol": ("MeanPol", "attr-defined"),
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Return what mypy reports of each line."""
    folder = tmp_path_factory.mktemp("user")
    lines = ["import vitzoo", *RIGHT, *WRONG]
    (folder / "user.py").write_text("\n".join(lines) + "\n")
    (folder / "mypy.ini").write_text(MYPY)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(folder), "user.py"],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(Path(vitzoo.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, str] = {}
    for number, text in re.findall(r"^user\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found[lines[int(number) - 1]] = text
    assert done.stdout.count(": error: ") == len(found), done.stdout
    return found


def test_public_names_and_their_arguments_are_known(reported):
    assert reported.keys() <= WRONG.keys()


@pytest.mark.parametrize("line", WRONG)
def test_a_mistake_is_reported(reported, line):
    assert all(word in reported.get(line, "") for word in WRONG[line])
