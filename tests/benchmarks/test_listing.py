"""Start of the command line

Whole processes, against timm's listing and against a bare interpreter. As on a user's machine, the
modules are compiled, and the home is one in which `vitzoo list` ran before.
"""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark

BARE = ("-I", "-c", "pass")
CONDITION = "imagenet_a>55 and license=apache-2.0 and params<100M"
WITHIN = {  # bare interpreters
    ("list",): 12,
    ("list", "--where", CONDITION, "--sort", "imagenet_v2:desc"): 12,
    ("--help",): 7,
    ("show", "vit_b16"): 9,
    ("which", "vit_b16"): 12,
    ("plugins",): 12,
}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """Return functions that run Python; each of them has run once."""
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"VITZOO_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def of(*args):
        def run():
            command = [sys.executable, *args]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

        run()
        return run

    return of


def test_list_against_timm(compare, process):
    ours = process("-m", "vitzoo", "list")
    reference = process("-c", "import timm; timm.list_models()")
    result = compare("vitzoo list", {"vitzoo": ours, "timm.list_models()": reference}, rounds=3)
    result.check("timm.list_models()", at_least=35)


@pytest.mark.parametrize("args", WITHIN, ids=lambda args: " ".join(args[:2]))
def test_commands_against_a_bare_interpreter(compare, process, args):
    ours, bare = process("-m", "vitzoo", *args), process(*BARE)
    title = " ".join(["vitzoo", *args[:2]])
    result = compare(title, {"vitzoo": ours, "bare interpreter": bare}, rounds=25)
    result.check("bare interpreter", at_least=1 / WITHIN[args])
