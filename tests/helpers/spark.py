"""Spark on this machine: `from spark import need_java, pyspark_in`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

APT = "apt-get update && apt-get install -y --no-install-recommends default-jre-headless"
PYSPARK = "pyspark>=4,<5"


def need_java() -> None:
    """Install a Java runtime if it is missing; without root, fail with the command."""
    if shutil.which("java"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(["sh", "-c", APT], env=env, capture_output=True, text=True)
        said = f"this command failed: {APT}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    else:
        said = f"as root, run: {APT}"
    if not shutil.which("java"):
        pytest.fail(f"the tests of Spark need java; {said}", pytrace=False)


def pyspark_in(folder: Path) -> dict[str, str]:
    """Install pyspark in a folder; return the environment in which a script uses it locally."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--target",
        folder,
        PYSPARK,
    ]
    done = subprocess.run([*pip, "--no-cache-dir"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    scratch = folder / "scratch"
    scratch.mkdir()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
    }
    options = [f"--conf {name}={value}" for name, value in settings.items()]
    return os.environ | {
        "PYTHONPATH": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join(["--master local[2]", *options, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
