"""The commands in docs/trust.md, run against a loopback Hub; docs/faults.md."""

import re
import subprocess
from pathlib import Path

import pytest

from internals import COMMIT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands():
    return [
        line.removeprefix("$ ").partition("    #")[0].strip()
        for block in BLOCK.findall((DOCS / "trust.md").read_text())
        for line in block.splitlines()
    ]


@pytest.fixture
def shell(net, tmp_path):
    """Run a documented command where vit_b16 is the small network and mirrors are loopback.

    For commands about the Hub cache, this cache has the file.
    """
    (tmp_path / "model.safetensors").write_bytes(net.data)

    def run(command):
        if "hub-cache" in command:
            (snapshot := net.hub_cache / "models--acme--net" / "snapshots" / COMMIT).mkdir(
                parents=True, exist_ok=True
            )
            (snapshot / "model.safetensors").write_bytes(net.data)
        command = re.sub(r"(\w+/)?vit_b16|vit_l16_384", net.name, command)
        command = command.replace("hf://owner/repo", "hf://acme/net")
        command = re.sub(
            r'VITZOO_ENDPOINTS="[^"]*"', f'VITZOO_ENDPOINTS="{net.hub.endpoint}"', command
        )
        command = command.replace("vitzoo ", "$PYTHON -m vitzoo ").replace("python ", "$PYTHON ")
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True, text=True, timeout=120, cwd=tmp_path, env=net.environment(),
        )  # fmt: skip

    return run


def test_every_documented_command_works(shell):
    lines = commands()
    assert len(lines) >= 5
    for line in lines:
        result = shell(line)
        assert result.returncode == 0, f"{line}\n{result.stderr}"


def test_list_local_shows_what_is_here(shell, net):
    assert net.name not in shell("vitzoo list --local -q").stdout
    assert shell("vitzoo fetch vit_b16").returncode == 0
    assert shell("vitzoo list --local -q").stdout.split() == ["vit_digits", net.name]


def test_offline_says_how_to_fetch_a_hub_file(net, monkeypatch):
    import vitzoo
    from vitzoo.errors import Offline

    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    address = "hf://acme/net@main/model.safetensors"
    with pytest.raises(Offline, match=f"vitzoo fetch {address}$"):
        vitzoo.create(net.spec, weights=address)


def test_faults_page_names_tests_that_exist():
    page = (DOCS / "faults.md").read_text()
    named = re.findall(r"`((?:plugins/[\w-]+/)?tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) == page.count("::test_"), "a name has another form"
    sources = {path: (ROOT / path).read_text() for path in {path for path, _ in named}}
    absent = [f"{path}::{name}" for path, name in named if f"def {name}(" not in sources[path]]
    assert absent == []
    modules = {f"tests/faults/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    assert modules - sources.keys() == set()
