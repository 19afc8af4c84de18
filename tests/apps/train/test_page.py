"""Every block of the page about fine-tuning runs and prints what stands on it."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "fine-tuning.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
VARYING = re.compile(r"loss [\d.]+|[\d.]+ % of")  # between processors and versions of torch


def run_python(code, scope):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, str(PAGE), "exec"), scope)
    return text.getvalue()


def run_shell(code):
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.docs
@pytest.mark.long  # it trains several networks
def test_every_block_runs(page_folder):
    (page_folder / "finetune.py").symlink_to(ROOT / "docs" / "examples" / "finetune.py")
    scope, printed, compared = {}, "", 0
    for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "text":
            assert VARYING.sub("", printed).strip() == VARYING.sub("", code).strip()
            stated, found = (re.findall(r"([\d.]+) % of", text) for text in (code, printed))
            assert [float(n) for n in found] == pytest.approx([float(n) for n in stated], abs=4)
            compared += 1
        else:
            printed = run_python(code, scope) if language == "python" else run_shell(code)
    assert compared == 5
    assert scope["before"] < 0.1
    assert scope["after"] == pytest.approx(0.93, abs=0.04)
    assert scope["tuned"].labels[:2] == ("digit 0", "digit 1")
