"""Commands that take more than two seconds show a bar on a terminal."""

import re
from pathlib import Path

import pytest

import vitzoo
from terminal import on_screen

DIGITS = Path(__file__).parents[2] / "docs" / "examples" / "digits"
RUN = """
import sys, threading
class Now(threading.Timer):  # in place of two seconds
    def start(self):
        self.function()
threading.Timer = Now
import torch
torch.export.export = lambda *_, **__: 1 / 0  # it takes most of the time
from vitzoo.cli.main import main
for line in {lines!r}:
    print("==", line, file=sys.stderr)
    assert main(line.split()) in (0, 1)  # no sha256 is known; no export
"""
COMMANDS = {  # and the name before the bar
    "verify {net}": "net.safetensors",
    "predict {net} {digits}": "net.safetensors",
    "predict vit_digits {digits}": "images",
    "plot filters vit_digits --out {tmp}/a.png": "plot",
    "probe vit_digits {tmp}/scans --embeddings {tmp}/e": "images",
    "bench vit_digits --ways eager --batch 1 --rounds 6 --seconds 1": "bench",
    "export vit_digits {tmp}/exported --to torch": "export",
}


@pytest.mark.workflows
def test_a_bar_is_shown_by_each_command_that_takes_long(tmp_path):
    net = vitzoo.save(vitzoo.create("vit_digits", pretrained=True), tmp_path / "net.safetensors")
    for i, file in enumerate(sorted(DIGITS.glob("*.png"))[:6]):
        (tmp_path / "scans" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "scans" / str(i % 2) / file.name).symlink_to(file)
    lines = [text.format(net=net, digits=DIGITS, tmp=tmp_path) for text in COMMANDS]
    screen = on_screen(RUN.format(lines=lines))
    parts = re.split("== .*", screen)[1:]
    for command, part in zip(COMMANDS, parts, strict=True):
        assert re.search(rf"{COMMANDS[command]} .*\u2501", part), (command, part)
