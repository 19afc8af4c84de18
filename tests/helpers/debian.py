"""Programs that a test needs, from Debian: `from debian import need`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest


def need(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install packages if a program is missing; without root, fail with the command."""
    if not missing(programs):
        return
    install = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
    if os.geteuid() == 0 and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        # apt-get fails where another one runs, so the workers of pytest take turns.
        command = ["flock", "/var/lib/apt", "sh", "-c", install]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        said = f"this command failed: {install}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    else:
        said = f"as root, run: {install}"
    if absent := missing(programs):
        pytest.fail(f"the test needs {' and '.join(absent)}; {said}", pytrace=False)


def missing(programs: Sequence[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in programs if shutil.which(name) is None]
