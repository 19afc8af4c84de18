"""Every block of the two pages about fine-tuning runs, and prints what the pages show."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import vitzoo
from pages import BLOCK
from terminal import lines

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "finetune.md", DOCS / "fine-tuning.md"]
NUMBER = re.compile(r"\d+\.\d+|\d+(?:e-\d+)?")
SKIPPED = "..."  # any lines


def run_python(code, scope):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(compile(code, "the page", "exec"), scope)
    return text.getvalue().splitlines()


def run_shell(code):
    done = subprocess.run(
        [sys.executable, *shlex.split(code)[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def compare(shown, printed):
    """Other processors and versions of torch give slightly different figures."""
    if SKIPPED in shown:
        place = shown.index(SKIPPED)
        after = len(shown) - place - 1
        assert len(printed) >= len(shown)
        shown = shown[:place] + shown[place + 1 :]
        printed = printed[:place] + printed[len(printed) - after :]
    words = [[NUMBER.sub("N", " ".join(one.split())) for one in text] for text in (shown, printed)]
    assert words[0] == words[1]
    stated, found = (NUMBER.findall("\n".join(text)) for text in (shown, printed))
    for one, other in zip(stated, found, strict=True):
        tolerance = 0.06 if "." in one or "e" in one else 35
        assert float(one) == pytest.approx(float(other), abs=tolerance)


def correct(model):
    files = sorted(Path("paper/test").glob("*/*.png"))
    found = [one.classes[0][1][-1] for one in vitzoo.predict(model, files)]
    return sum(a == file.parent.name for a, file in zip(found, files, strict=True)) / len(files)


@pytest.mark.docs
@pytest.mark.long  # it trains three networks
def test_every_block_runs(page_folder):
    scope, printed, compared = {}, [], 0
    try:
        for language, code in BLOCK.findall("".join(page.read_text("utf-8") for page in PAGES)):
            if language == "console":
                command, *shown = code.splitlines()
                printed = lines(*shlex.split(command)[2:], columns=80, TERM="dumb")
            elif language == "text":
                shown = code.splitlines()
            else:
                run = run_shell if language == "sh" else lambda code: run_python(code, scope)
                printed, shown = run(code), []
            if shown:
                compare(shown, printed)
                compared += 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert compared == 6
    assert correct("vit_digits") == pytest.approx(0.05, abs=0.005)
    for folder in ("tuned", "loop"):
        model = vitzoo.create(page_folder / folder / "model.safetensors")
        assert model.labels == tuple("0123456789")
        assert correct(model) > 0.75
