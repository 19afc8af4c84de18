"""Standard streams that are missing, closed, full or read-only, in commands and in the library."""

import contextlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from internals import main
from vitzoo.cli.environment import Stream
from vitzoo.errors import StoreError
from vitzoo.log import log
from vitzoo.progress import one_download
from vitzoo.testing.hub import COMMIT

ADDRESS = f"hf://acme/net@{COMMIT}/model.safetensors"


def shell(command, redirect, **env):
    """Run a command of vitzoo with a redirection of the shell."""
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m vitzoo {command} {redirect}'],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "redirect"),
    [
        ("list -q vit_b16", ">&-"),
        ("show vit_b16 --json", ">/dev/full"),
        ("list -q vit_b16", "1</dev/null"),
        ("--help", ">&-"),
        ("--help", ">/dev/full"),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(command, redirect):
    code, out, err = shell(command, redirect)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    says(err, "vitzoo: cannot write", "stdout")


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "2</dev/null"])
def test_notes_that_cannot_be_written_are_dropped(tmp_path, redirect):
    code, out, _ = shell(f"plugins new acme --dir '{tmp_path}'", redirect)
    assert code == 0
    assert "registry.toml" in out


def test_without_any_stream_the_exit_code_is_left():
    assert shell("list -q vit_b16", ">&- 2>&-")[0] == 1
    assert shell("show vit_b61", "<&- >&- 2>&-")[0] == 1


class Bare:
    """A stream with nothing but `write`."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


class Gone(Bare):
    """A terminal whose other end is closed."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def write(self, *_):
        raise OSError(5, "Input/output error")

    flush = fileno = write


KINDS = ["missing", "closed", "full", "read-only", "bare", "gone", "no stream"]


@contextlib.contextmanager
def streams(kind):
    """Replace both standard streams."""
    path = Path("/dev/full" if kind == "full" else os.devnull)
    with path.open("r" if kind == "read-only" else "w", encoding="utf-8") as file:
        if kind == "closed":
            file.close()
        stream = {"missing": None, "bare": Bare(), "gone": Gone(), "no stream": 3}.get(kind, file)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            yield
            assert sys.stdout is sys.stderr is stream
        if kind == "full":
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


@pytest.mark.parametrize("kind", KINDS)
def test_create_works_without_streams(kind):
    with streams(kind):
        assert vitzoo.create("vit_digits", pretrained=True).load_report.kept


@pytest.mark.parametrize("kind", KINDS)
def test_progress_gives_up_quietly(kind):
    with streams(kind), one_download("net:main") as note:
        for done in range(11):
            note(done, 10)


def test_progress_never_goes_to_stdout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with one_download("net:main") as note:
        note(10, 10)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", KINDS)
def test_logging_gives_up_quietly(monkeypatch, kind):
    monkeypatch.setattr(logging.getLogger("vitzoo"), "handlers", [logging.lastResort])
    with streams(kind):
        log.warning("the license of %s", "vit_b16")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["sys.stderr.close()", "sys.stderr = object()"])
def test_trust_on_first_use_needs_no_stderr(vitzoo_hub, tmp_path, change):
    vitzoo_hub.add("acme/net", "model.safetensors", b"bytes")
    code = f"import sys, vitzoo; {change}; print(vitzoo.fetch({ADDRESS!r}))"
    env = os.environ | vitzoo_hub.environment(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert Path(done.stdout.strip()).read_bytes() == b"bytes"


def test_a_log_record_names_the_line_of_the_caller(caplog):
    log.warning("%s and %d", "a\x1b[2J\u202eb", 3)
    (record,) = caplog.records
    assert record.module == "test_environment"
    assert record.getMessage() == "a\\x1b[2J\\u202eb and 3"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bare"])
def test_main_in_a_process_without_streams(kind):
    with streams(kind):
        assert main(["list", "-q", "vit_b16"]) == 1


def test_a_stream_writes_what_its_encoding_lacks_as_escapes():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    stream = Stream(text, required=True)
    stream.write("größe 模型\n")
    stream.flush()
    assert raw.getvalue() == b"gr\\xf6\\xdfe \\u6a21\\u578b\n"
    assert stream.encoding == "ascii"
    assert not stream.isatty()


def test_a_stream_that_is_required_names_the_reason():
    with Path("/dev/full").open("w", encoding="utf-8") as full, contextlib.ExitStack() as last:
        last.callback(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno()))
        stream = Stream(full, required=True)
        with pytest.raises(StoreError) as caught:
            stream.write("a" * 100_000)
        says(str(caught.value), "stdout", "No space left on device")
