"""Text from files never reaches a terminal or a message raw, and names that are no UTF-8 are shown.

Generated texts stand in keys, metadata, names of files, locks and manifests. They are made of
terminal escapes, line ends, marks that reverse text, rich's markup, and bytes that are no UTF-8.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import vitzoo
from helpers import says
from internals import main
from plugin_files import NET
from tables import cases
from terminal import on_terminal
from vitzoo import LoadReport, errors
from vitzoo.cli import output
from vitzoo.testing.hub import COMMIT

PIECES = (
    "\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\x7f", "\b\b", "\r", "\nFORGED", "\t", "\u202e",
    "\u2066", "\u200b", "\u2028", "\ufeff", "[/foo]", "[red]", "[link=http://x]", ":smile:",
    "\udcff", "name", "größe", "模型",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
STATED = TEXTS.filter(lambda text: "\udcff" not in text)  # JSON and TOML files are UTF-8
NAMES = TEXTS.map(lambda text: text.replace("/", ":"))  # of files
HOSTILE = "".join(PIECES)


def harmless(text: str) -> bool:
    """Tell whether a terminal shows this text as it is, line by line."""
    lines = text.replace("\t", "").split("\n")  # tabs separate cells
    return all(line.isprintable() and not line.startswith("FORGED") for line in lines)


def all_errors(base=errors.VitzooError):
    for cls in base.__subclasses__():
        yield cls
        yield from all_errors(cls)


def test_long_texts_of_files_are_cut():
    long = errors.CheckpointError("\x07" * 10**6)
    assert str(long) == r"\x07" * 10_000 + "..."
    assert errors.did_you_mean("pooled" + "d" * 10**7, ["pooled", "labels"]) == ""
    assert str(errors.CheckpointError("x" * 10_000)) == "x" * 10_000


@pytest.mark.slow
@cases("error", [errors.VitzooError, *all_errors()])
def test_messages_are_escaped(error):
    @given(TEXTS)
    def escaped(text):
        said = str(error(f"cannot read {text}"))
        assert said.isprintable()
        assert str(error(said)) == said  # a message in a message is not escaped twice
        assert "\\x1b" in said or "\x1b" not in text

    escaped()


@pytest.mark.slow
@given(TEXTS)
def test_load_reports_are_escaped(text):
    report = LoadReport(text, "ab" * 32, text, text, kept=(text,), assumed=(text,))
    assert harmless(str(report))
    assert report.summary().isprintable()


FILES = {
    "spec": (".toml", lambda text: text),
    "key": (".toml", lambda text: f"{json.dumps(text)} = 1"),
    "value": (".json", lambda text: json.dumps({"variant": text, "pool": text})),
    "table": (".json", lambda text: json.dumps({"block": {text: {text: text}}})),
    "damaged": (".json", lambda text: '{"a": ' + text),
    "metadata": (".safetensors", lambda text: tensors({"a": 1}, {"vitzoo": text})),
    "metadata keys": (
        ".safetensors",
        lambda text: tensors({"a": 1}, {"vitzoo": json.dumps({"api": 1, text: text})}),
    ),
    "saved": (
        ".safetensors",
        lambda text: tensors(
            {"a": 1},
            {
                "vitzoo": json.dumps(
                    {"api": 1, "spec": {"variant": text, text: 1}, "labels": [text]}
                )
            },
        ),
    ),
    "names": (".safetensors", lambda text: tensors({text: 1, f"blocks.0.{text}": 2}, {})),
    "index": (".safetensors.index.json", lambda text: json.dumps({"weight_map": {text: text}})),
    "text": (".npz", lambda text: text),
}


def saved(text):
    """Return metadata of `vitzoo.save`."""
    return json.dumps({"api": 1, "spec": {"variant": text, text: 1}, "labels": [text]})


def tensors(values, metadata):
    """Return the bytes of a safetensors file."""
    arrays = {name: np.full(3, value, np.float32) for name, value in values.items()}
    header, data = {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": "F32", "shape": [3], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.slow
@pytest.mark.needs("names")
@cases("kind", FILES)
def test_files_and_their_names(kind):
    ending, contents = FILES[kind]

    @given(STATED, NAMES)
    def refused(text, name):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name + ending)
            made = contents(text)
            path.write_bytes(made if isinstance(made, bytes) else made.encode())
            for call in (
                lambda: vitzoo.create(path),
                lambda: vitzoo.create("vit_digits", weights=path),
                lambda: vitzoo.convert(path, "timm", Path(folder, f"out{name}.safetensors")),
            ):
                with pytest.raises(errors.VitzooError) as caught:
                    call()
                assert str(caught.value).isprintable()

    refused()


def call(*args, **env):
    """Run a command in this process; gives (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, str(value))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = main(list(args))
    assert harmless(out.getvalue()), ascii(out.getvalue())
    assert harmless(err.getvalue()), ascii(err.getvalue())
    return code, out.getvalue(), err.getvalue()


LOCKS = {
    "source": lambda text, pin: {text: pin},
    "table": lambda text, _: {text: {text: text}},
    "sha256": lambda text, pin: {"hf://a/b@c/d": pin | {"sha256": text}},
    "list": lambda text, _: [text],
}


@pytest.mark.slow
@pytest.mark.needs("names")
@given(STATED, NAMES, st.sampled_from(sorted(LOCKS)))
def test_lock_files(text, name, kind):
    pin = {"commit": COMMIT, "size": 5, "sha256": "ab" * 32, "endpoint": text}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(json.dumps({"version": 1, "weights": LOCKS[kind](text, pin)}), "utf-8")
        call("lock", VITZOO_LOCK=path)
        code, out, _ = call("lock", "--json", VITZOO_LOCK=path)
        assert code or [row["source"] for row in json.loads(out)] == [text]
        path.write_text(text, "utf-8")
        assert call("lock", VITZOO_LOCK=path)[0] == 3


MANIFESTS = {
    "summary": lambda text: NET.replace('"a small network"', json.dumps(text)),
    "source": lambda text: NET.replace("made by the test", f"made{json.dumps(text)[1:-1]}"),
    "name": lambda text: NET.replace("[variants.net]", f"[variants.{json.dumps(text)}]"),
    "key": lambda text: NET + f"{json.dumps(text)} = 1\n",
    "part": lambda text: NET + f"head = {json.dumps(text)}\n",
    "mapping": lambda text: NET + f"known_as = {{ {json.dumps(text)} = {json.dumps(text)} }}\n",
    "damaged": lambda text: text,
}


@pytest.mark.slow
@pytest.mark.needs("names")
@given(STATED, NAMES, st.sampled_from(sorted(MANIFESTS)))
def test_registry_files(text, name, kind):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(MANIFESTS[kind](text), "utf-8")
        alone = {"VITZOO_REGISTRY": path, "VITZOO_DISABLE_PLUGINS": "*"}
        call("show", "local/net", **alone)
        call("plugins", "why", "local", **alone)
        call("registry", "pin", str(path), "--dry-run", VITZOO_OFFLINE=1, **alone)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
@given(TEXTS)
def test_every_cell_of_a_table(terminal, text):
    rows = [{"name": text, "value": text}, {"name": None, "value": [text]}]
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(output, "on_terminal", lambda: terminal)
        for columns in ("20", "200"):
            patch.setenv("COLUMNS", columns)
            output.print_rows(rows, ("name", "value"), title=text)
            output.print_rows(rows * 2, ("name", "value", "name"), title=text)
            output.print_rows([{text: text}], (text,))
            output.print_fields({text: text}, text)
            output.print_rows(rows, ("name",), only="value")
            output.say(text)
    assert harmless(out.getvalue()), ascii(out.getvalue())
    assert out.getvalue().count("\t") == (0 if terminal else 30)


@pytest.mark.slow
@given(TEXTS)
def test_json_is_exact(text):
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        output.print_json({text: [text]})
    assert harmless(out.getvalue())
    assert json.loads(out.getvalue()) == {text: [text]}


@cases(
    "args",
    [
        (HOSTILE,),
        ("list", f"--{HOSTILE}"),
        ("list", HOSTILE),
        ("list", "--where", HOSTILE),
        ("list", "--sort", HOSTILE),
        ("show", HOSTILE),
        ("show", "vit_b16", HOSTILE),
        ("which", HOSTILE),
        ("summary", "vit_ti16", "--batch-size", HOSTILE),
        ("summary", "vit_ti16", "--image-size", HOSTILE),
        ("predict", "vit_digits", HOSTILE),
        ("verify", HOSTILE),
        ("verify", f"{HOSTILE}.npz"),
        ("import", HOSTILE),
        ("fetch", HOSTILE),
        ("fetch", f"hf://a/b@main/{HOSTILE}"),
        ("plugins", "why", HOSTILE),
        ("plugins", "new", HOSTILE),
    ],
    ids=lambda args: ascii(args)[:40],
)
def test_arguments(args):
    assert call(*args, VITZOO_OFFLINE=1)[0]


def test_markup_in_a_summary_is_shown(local_registry):
    text = "[/foo] [red]x[/red] [link=http://x]y :smile:"
    path = local_registry(NET.replace("a small network", text))
    for args in (("show", "local/net"), ("list", "local/*", "--columns", "name,summary")):
        screen = on_terminal(*args, columns=200, VITZOO_REGISTRY=str(path), NO_COLOR="1")
        assert text in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", screen).split())


@pytest.mark.slow
@pytest.mark.needs("names")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_are_no_utf_8(tmp_path, encoding):
    file = tmp_path / os.fsdecode(b"\xff\xe9") / "größe.npz"
    file.parent.mkdir()
    file.write_bytes(b"x")
    command = [sys.executable, "-m", "vitzoo", "verify", file, tmp_path / "no\udcff.npz"]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, env=env, capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr
    shown = done.stdout.decode(encoding)
    says(shown, r"\xff\xe9", r"no\xff.npz")
    assert ("größe" in shown) is (encoding != "ascii")
    _, out, _ = call("verify", str(file), "--json")
    assert [row["name"] for row in json.loads(out)] == [str(file)]


@pytest.mark.slow
def test_every_line_of_stderr_and_of_the_log_is_escaped():
    """`say` and `vitzoo.log` are the only ways."""
    package = Path(output.__file__).parents[1]
    for path in package.rglob("*.py"):
        if path.name in ("output.py", "log.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "logging.getLogger"), path
