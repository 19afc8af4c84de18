"""Start of the command line

Whole processes, against timm's listing and against a bare interpreter. As on a user's machine, the
modules are compiled.
"""

import os
import subprocess
import sys

import pytest

from plugin_files import ACME, write_distribution

pytestmark = pytest.mark.benchmark

BARE = ("-I", "-c", "pass")
CONDITION = "imagenet_a>55 and license=apache-2.0 and params<100M"
WITHIN = {  # bare interpreters
    ("list",): 12,
    ("list", "--where", CONDITION, "--sort", "imagenet_v2:desc"): 12,
    ("--help",): 9,  # a plugin has a command
    ("show", "vit_b16"): 9,
    ("which", "vit_b16"): 12,
    ("which", "vit_base_patch16_224"): 12,  # of timm
    ("plugins",): 12,
}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """Return functions that run Python; each of them has run once."""
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"VITZOO_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def of(*args, **variables):
        def run():
            command, env = [sys.executable, *args], environment | variables
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)

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


@pytest.mark.parametrize("args", [a for a in WITHIN if a[0] in ("list", "which")], ids=" ".join)
def test_commands_beside_the_plugin_of_an_author(compare, process, tmp_path, args):
    """No listing was generated from its manifest."""
    write_distribution(tmp_path, "acme-parts", "acme = acme:registry.toml", ACME)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    ours, bare = process("-m", "vitzoo", *args, PYTHONPATH=path), process(*BARE)
    title = " ".join(["vitzoo", *args[:2], "beside another plugin"])
    result = compare(title, {"vitzoo": ours, "bare interpreter": bare}, rounds=25)
    result.check("bare interpreter", at_least=1 / WITHIN[args])
