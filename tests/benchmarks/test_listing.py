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


CONDITION = "imagenet_a>55 and license=apache-2.0 and params<100M"


@pytest.mark.parametrize(
    "args", [[], ["--where", CONDITION, "--sort", "imagenet_v2:desc"]], ids=len
)
def test_list_within_fourteen_bare_interpreters(compare, args):
    # 150 ms where a bare interpreter takes 11
    ours, bare = process("-m", "vitzoo", "list", *args), process("-c", "pass")
    name = " ".join(["vitzoo list", *args[:1], "/ bare interpreter"])
    compare.check(compare(name, ours, bare, rounds=9), 11 / 150)
