"""What users' code and scripts rely on stays: tests/golden/contract.json."""

import json
import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).with_name("update_contract.py")))
FROZEN = json.loads(TOOL["CONTRACT"].read_text(encoding="utf-8"))
BY_HAND = "run `python tests/update_contract.py`, and read what the change breaks"


@pytest.mark.parametrize("path", FROZEN["api"])
def test_public_names_take_what_they_took(path):
    assert TOOL["api"]()[path] == FROZEN["api"][path], BY_HAND


def test_every_public_path_is_frozen():
    assert TOOL["api"]().keys() == FROZEN["api"].keys()


def test_commands_print_the_keys_they_printed(tmp_path, monkeypatch, new_registry):
    for name, value in TOOL["prepare"](tmp_path / "files").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "files")
    new_registry()
    found = {command: TOOL["keys"](TOOL["printed"](command)) for command in FROZEN["json"]}
    # Text, so that the order of the keys counts: JSON of one version reads like that of another.
    assert json.dumps(found, indent=1) == json.dumps(FROZEN["json"], indent=1), BY_HAND
