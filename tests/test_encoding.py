"""Text files are UTF-8 whatever the locale, with the same line ends on every system."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from internals import COMMIT
from plugin_files import FRESH, NET
from tables import cases
from vitzoo.testing import Hub

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "vitzoo", *ROOT.glob("plugins/*/vitzoo_*")]
REGISTRY = (
    "# Überlegt: größer als ½ π, 模型\n"
    + NET.replace("a small network", "naïve — 模型")
    + FRESH.replace("until pinned", "später")
)
PIN = (
    "import sys; from vitzoo.cli.main import main; sys.exit(main(['registry', 'pin', sys.argv[1]]))"
)


@pytest.fixture
def pin(tmp_path):
    """Run `vitzoo registry pin` where Python's default encoding is ASCII."""

    def run(file):
        with Hub() as hub:
            hub.add("acme/net", "model.safetensors", b"bytes", revision=COMMIT)
            locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
            env = {"PATH": "", "HOME": str(tmp_path)} | hub.environment(tmp_path / "home") | locale
            command = [sys.executable, "-W", "error", "-c", PIN, str(file)]
            done = subprocess.run(command, env=env, capture_output=True, timeout=120, cwd=ROOT)
        assert done.returncode == 0, done.stderr.decode()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pinning_keeps_bytes_mode_and_line_ends(tmp_path, pin, end):
    file = tmp_path / "registry.toml"
    before = REGISTRY.replace("\n", end).encode()
    file.write_bytes(before)
    file.chmod(0o640)
    pin(file)
    after = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o640
    assert after.count(b"\n") == after.count(end.encode())
    kept = [line for line in before.splitlines() if b"first-use" not in line]
    kept.remove(b"predicted_size = 98000")
    rest = iter(after.splitlines())
    assert all(line in rest for line in kept)
    assert "# später".encode() in after
    row = tomllib.loads(after.decode())["variants"]["net"]["weights"]["fresh"]
    assert (row["pin"], row["revision"], row["size"]) == ("reported", COMMIT, 5)


def text_calls(source: str) -> list[int]:
    """Return the lines of calls that read or write text and name no encoding."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = getattr(getattr(function, "value", None), "id", "")
        strings = [a.value for a in node.args if isinstance(a, ast.Constant)]
        named = {keyword.arg for keyword in node.keywords}
        if "encoding" in named or "utf-8" in strings:
            continue
        if owner in ("os", "tarfile", "archive") and name == "open":  # descriptors and archives
            continue
        text = name in ("read_text", "write_text") and owner != "distribution"
        opens = name in ("open", "fdopen") and not isinstance(function, ast.Attribute)
        opened = name in ("open", "fdopen") and any(
            isinstance(s, str) and set(s) <= set("rwxa+t") and s for s in strings
        )
        default = name == "open" and isinstance(function, ast.Attribute) and not node.args
        piped = "text" in named or "universal_newlines" in named
        binary = any(isinstance(s, str) and "b" in s and len(s) <= 3 for s in strings)
        if (text or opens or opened or default or piped) and not binary:
            found.append(node.lineno)
    return found


@cases(
    ("line", "good"),
    [
        ("path.read_text()", False),
        ("path.read_text('utf-8')", True),
        ("path.write_text(text)", False),
        ("path.write_text(text, encoding='utf-8')", True),
        ("open(path)", False),
        ("open(path, 'rb')", True),
        ("path.open()", False),
        ("path.open('w')", False),
        ("path.open('xb')", True),
        ("os.fdopen(fd, 'rb')", True),
        ("os.open(path, os.O_RDONLY)", True),
        ("subprocess.run(command, text=True)", False),
        ("subprocess.run(command, text=True, encoding='utf-8')", True),
    ],
)
def test_the_search_finds_calls_without_an_encoding(line, good):
    assert (text_calls(line) == []) is good


def line_ends(source: str) -> list[int]:
    """Return the lines of calls that write UTF-8 text with the line ends of the system."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "write_text"
        if not any(keyword.arg == "newline" for keyword in call.keywords)
        if "'ascii'" not in ast.unparse(call)  # the numbers that files of /proc take
    ]


@pytest.mark.slow
@pytest.mark.parametrize("search", [text_calls, line_ends])
def test_every_text_file_is_utf_8_and_is_written_with_line_feeds(search):
    files = [file for package in PACKAGES for file in package.rglob("*.py")]
    assert len(files) > 100
    found = {str(f.relative_to(ROOT)): search(f.read_text("utf-8")) for f in files}
    assert {file: lines for file, lines in found.items() if lines} == {}
