"""`vitzoo list` against timm's listing and against a bare interpreter, as whole processes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark


def process(*args):
    def run():
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)

    return run


def test_list_against_timm(compare):
    ours = process("-m", "vitzoo", "list")
    theirs = process("-c", "import timm; timm.list_models()")
    compare.check(compare("vitzoo list / timm.list_models()", ours, theirs, rounds=3), 25)


def test_list_within_fourteen_bare_interpreters(compare):
    # 150 ms where a bare interpreter takes 11
    ours, bare = process("-m", "vitzoo", "list"), process("-c", "pass")
    compare.check(compare("vitzoo list / bare interpreter", ours, bare, rounds=9), 11 / 150)
