"""A function in another process has limits, and none of the tokens of this one."""

import tempfile

import pytest

from helpers import refuses
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.plugin.limited import run_limited

MODULE = """
import os
from vitzoo.errors import InvalidOption

def copied(source, target, times):
    print("noise")
    target.write(source.read() * times)
    return sorted(os.environ)

def usage(source, target): raise InvalidOption("wrong; fix it")
def wrong(source, target): raise KeyError("a")
def large(source, target): return len(bytearray(2**40))
def ended(source, target): os.abort()
def talks(source, target): return "a" * 100_000
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    tmp_path.joinpath("untrusted.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "secret")

    def run(function, *arguments, memory=2**30, output=2**20):
        limits = {"memory": memory, "seconds": 60, "output": output}
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
            source.write(b"data")
            source.flush()
            name = f"untrusted:{function}"
            result = run_limited(name, *arguments, source=source, target=target, **limits)
            target.seek(0)
            return result, target.read()

    return run


@pytest.mark.slow
def test_a_function_reads_and_writes_without_tokens(call):
    names, written = call("copied", 2)
    assert written == b"datadata"  # without what it printed
    assert {"HF_TOKEN", "PYTHONPATH"}.isdisjoint(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "kind", "parts"),
    [
        ("usage", InvalidOption, ("wrong; fix it",)),
        ("wrong", VitzooError, ("KeyError", "'a'")),
        ("misspelled", VitzooError, ("untrusted", "no attribute 'misspelled'")),
        ("large", VitzooError, ("1024 MiB of memory",)),
        ("ended", VitzooError, ("SIGABRT",)),
        ("talks", VitzooError, ("exit code 0",)),
    ],
)
def test_its_errors_have_their_kind(call, function, kind, parts):
    with refuses(kind, *parts):
        call(function)


@pytest.mark.slow
def test_its_output_has_a_limit(call):
    with refuses(VitzooError, "more than 1000 bytes"):
        call("copied", 10_000, output=1000)
