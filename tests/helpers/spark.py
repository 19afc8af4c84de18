"""Spark on this machine: `from spark import need_java, pyspark_in`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from debian import need
from packages import install

PYSPARK = "pyspark>=4,<5"


def need_java() -> None:
    """Install a Java runtime if it is missing; without root, fail with the command."""
    need(("java",), ("default-jre-headless",))


def pyspark_in(folder: Path) -> dict[str, str]:
    """Install pyspark in a folder; return the environment in which a script uses it locally."""
    install(folder, PYSPARK)
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
