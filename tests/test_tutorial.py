"""docs/tutorial.md: its files are written and its commands run, in order, to a wheel."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
# A block of code, after the name of its file if it is one.
BLOCK = r"^(?:`([\w./]+)`\n\n)?```(\w+)\n(.*?)^```"

pytestmark = [pytest.mark.docs, pytest.mark.install]


def script(text: str) -> str:
    """Return all blocks but the entry of weights, which a command writes, for bash."""
    lines = ["set -euo pipefail"]
    for file, language, code in re.findall(BLOCK, text, re.MULTILINE | re.DOTALL):
        here = f" <<'END'\n{code}END"
        if file:
            lines.append(f"cat > {file}{here}")
        elif language in ("sh", "python"):
            lines.append(code if language == "sh" else f"python -{here}")
    return "\n".join(lines)


def test_the_tutorial_has_at_most_1500_words():
    assert len(PAGE.read_text().split()) <= 1500


@pytest.mark.long
def test_the_tutorial_ends_in_a_wheel(tmp_path, new_environment, built_from_tree):
    """In an environment with vitzoo and its dependencies, but without a network."""
    environment = new_environment(tmp_path / "venv")
    environment.install(built_from_tree)
    pip = environment.python.with_name("pip")
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    pip.chmod(0o755)
    own = {"VITZOO_HOME": str(tmp_path / "home"), "PATH": f"{pip.parent}:{os.environ['PATH']}"}
    own |= dict.fromkeys(("PIP_NO_INDEX", "PIP_NO_DEPS", "PIP_DISABLE_PIP_VERSION_CHECK"), "1")
    own["PIP_NO_BUILD_ISOLATION"] = "0"  # 0 means that the option is set
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VITZOO_", "PIP_"))}
    done = subprocess.run(
        ["bash", "-c", script(PAGE.read_text())],
        cwd=tmp_path,
        env=usual | own,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    said = done.stdout + done.stderr
    assert re.search(r"^photo\.png\t1\t(street|field|harbour)\t", said, re.MULTILINE)
    assert "note: " not in said  # network, format and variant agree on all settings
    assert "5 contributions, ok" in said
    project = tmp_path / "acme-vit"
    (wheel,) = project.glob("dist/*.whl")
    bundled = "acme_vit/data/vit_micro16.v1.safetensors"
    with ZipFile(wheel) as archive:
        assert {"acme_vit/registry.toml", "acme_vit/formats.py", bundled} <= {*archive.namelist()}
    environment.uninstall("acme-vit")
    environment.install(wheel)
    environment.call("vitzoo", "verify", "acme/vit_micro16")  # fails unless the hash is right
    entry = re.search(r"^```toml\n(\[variants.+?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    written = project.joinpath("acme_vit", "registry.toml").read_text()
    assert masked(written).endswith(masked(entry[1])), written
    found = {name: one["params"] for name, one in tomllib.loads(written)["variants"].items()}
    assert found == {"vit_micro16": 523395, "mixer16": 123267}


def masked(text: str) -> str:
    """Leave out what depends on the numbers of the weights and on the version of vitzoo."""
    return re.sub(r'^(size|sha256) = ("[0-9a-f]{64}"|\d{7})$', r"\1", text, flags=re.MULTILINE)
