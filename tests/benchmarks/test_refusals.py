"""Time of a refusal

Whole processes, against a bare interpreter: a command that cannot run says so before the expensive
work, which includes the import of torch.
"""

import os
import subprocess
import sys

import pytest

from refusals import NEED_PACKAGES, NO_TOKEN, REFUSED, make_files, without_token

pytestmark = pytest.mark.benchmark

WITHIN = 12  # bare interpreters
# Without the packages of an extra: the distributions are looked up in another environment.
WITHOUT = (
    "import sys; from vitzoo.plugin import requirements; requirements._present = lambda name: None;"
    "from vitzoo.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """Return a function that makes a function that runs Python; each of them has run once."""
    folder = tmp_path_factory.mktemp("refused")
    make_files(folder)
    environment = os.environ | {"VITZOO_HOME": str(folder / "home"), "VITZOO_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def of(code, *args, **variables):
        def run():
            done = subprocess.run(
                [sys.executable, *args], cwd=folder, env=environment | variables,
                capture_output=True,
            )  # fmt: skip
            assert done.returncode == code, done.stderr

        run()
        return run

    return of


@pytest.mark.parametrize(("text", "code"), [row[:2] for row in REFUSED])
def test_refusals_against_a_bare_interpreter(compare, process, text, code):
    ours, bare = process(code, "-m", "vitzoo", *text.split()), process(0, "-I", "-c", "pass")
    result = compare(f"vitzoo {text}", {"vitzoo": ours, "bare interpreter": bare}, rounds=11)
    result.check("bare interpreter", at_least=1 / WITHIN)


def test_a_push_without_a_token_against_a_bare_interpreter(compare, process, tmp_path):
    text, code, _ = NO_TOKEN
    ours = process(code, "-m", "vitzoo", *text.split(), **without_token(tmp_path))
    bare = process(0, "-I", "-c", "pass")
    result = compare(
        f"vitzoo {text}, no token", {"vitzoo": ours, "bare interpreter": bare}, rounds=11
    )
    result.check("bare interpreter", at_least=1 / WITHIN)


@pytest.mark.parametrize("text", NEED_PACKAGES)
def test_a_missing_package_against_a_bare_interpreter(compare, process, text):
    ours, bare = process(1, "-c", WITHOUT, *text.split()), process(0, "-I", "-c", "pass")
    result = compare(
        f"vitzoo {text}, no package", {"vitzoo": ours, "bare interpreter": bare}, rounds=11
    )
    result.check("bare interpreter", at_least=1 / WITHIN)
