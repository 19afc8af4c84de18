"""Packages that one test needs: `from packages import install`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def install(folder: Path, *arguments: str) -> None:
    """Install packages in a folder, which is a path for Python; `arguments` are those of pip."""
    quiet = ("-q", "--no-compile", "--no-cache-dir")
    pip = [sys.executable, "-m", "pip", "install", *quiet, "--target", folder, *arguments]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
