"""The recipe for Spark on its page gives the rows of `Predictor`."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import vitzoo
from spark import need_java, pyspark_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment():
    """The environment of a script that uses Spark; pyspark is removed after the tests."""
    need_java()
    with tempfile.TemporaryDirectory(prefix="spark") as folder:
        yield pyspark_in(Path(folder))


@pytest.mark.spark
def test_the_recipe_gives_the_rows_of_the_predictor(environment, tmp_path):
    digits = tmp_path / "docs" / "examples" / "digits"
    shutil.copytree(ROOT / "docs" / "examples" / "digits", digits)
    (digits / "broken.png").write_bytes(b"no image")
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"^```python\n(.*?)^```", page.partition("## Spark")[2], re.MULTILINE | re.DOTALL
    )
    script = tmp_path / "recipe.py"
    script.write_text(f"{code}\nspark.stop()\n")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = parquet.read_table(tmp_path / "from_spark").sort_by("key").to_pylist()
    files = sorted(file for file in digits.iterdir() if file.suffix == ".png")
    assert [Path(row["key"]).name for row in found] == [file.name for file in files]
    data = [file.read_bytes() for file in files]
    for said, row in zip(found, vitzoo.Predictor("vit_digits")(data), strict=True):
        assert said["error"] == (row.error or None)
        assert said["sha256"] == row.sha256
        assert (said["width"], said["height"]) == (row.width or None, row.height or None)
        if row.error:
            assert said["pooled"] is None
        else:
            assert np.float32(said["pooled"]).tobytes() == row.outputs["pooled"].tobytes()
    assert sum(row["error"] is not None for row in found) == 1
