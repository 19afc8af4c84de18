"""Inputs, outputs, figures and training are the same under other defaults of torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDERS = [
    ("images", "apps/plot", "apps/train"),
    ("apps/predict", "apps/embed", "apps/probe"),
]


@pytest.mark.workflows
@pytest.mark.long
@pytest.mark.parametrize(
    "folders", FOLDERS, ids=lambda folders: "-".join(folders).replace("apps/", "")
)
def test_results_do_not_follow_torchs_defaults(folders):
    """The quick tests of these folders, with the plugin `other_defaults`."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(TESTS / "helpers"), "HYPOTHESIS_PROFILE": "vitzoo"}
    options = ("-q", "-p", "other_defaults", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", *options, *(TESTS / folder for folder in folders))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-10_000:]}\n{done.stderr}"
