"""What a command cannot do is said before torch is imported."""

import json
import os
import subprocess
import sys

import pytest

from refusals import NEED_PACKAGES, NO_TOKEN, REFUSED, UNKNOWN, make_files, without_token
from tables import cases

RUN = """
import contextlib, io, json, sys
for name in ("torch", "PIL", "numpy", "httpx2", "httpcore2"):
    sys.modules[name] = None  # an import of it raises
from vitzoo.cli.main import main
from vitzoo.plugin import requirements

def run(text):
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        try:
            code = main(text.split())
        except BaseException as error:
            code = repr(error)
    return code, shown.getvalue()

refused, need, unknown = json.loads(sys.argv[1])
found = {text: run(text) for text in refused + unknown}
requirements._present = lambda name: None
print(json.dumps([found, {text: run(text) for text in need}]))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Exit code and stderr of all commands, in a process that cannot import torch."""
    folder = tmp_path_factory.mktemp("refused")
    make_files(folder)
    found = in_process(folder, REFUSED, NEED_PACKAGES, UNKNOWN, VITZOO_OFFLINE="1")
    assert {path.name for path in folder.iterdir()} == {"taken.png", "taken.safetensors", "full"}
    return found


def in_process(folder, refused, need, unknown, **variables):
    texts = [[text for text, _, _ in refused], need, unknown]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(texts)], cwd=folder, capture_output=True,
        text=True, env=os.environ | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cases(("text", "code", "words"), REFUSED, ids=[row[0] for row in REFUSED])
def test_arguments_and_paths_are_checked_without_torch(found, text, code, words):
    status, shown = found[0][text]
    assert (status, words in shown) == (code, True), (status, shown)


@cases("text", UNKNOWN)
def test_names_are_checked_without_torch(found, text):
    status, shown = found[0][text]
    assert (status, "unknown variant 'vit_nope'" in shown) == (1, True), (status, shown)


def test_a_token_is_looked_for_without_torch_and_network_libraries(tmp_path):
    make_files(tmp_path)
    text, *_ = row = NO_TOKEN
    status, shown = in_process(tmp_path, [row], [], [], **without_token(tmp_path))[0][text]
    assert (status, "there is no token" in shown) == (4, True), (status, shown)


@pytest.mark.parametrize("text", NEED_PACKAGES)
def test_packages_are_checked_without_torch(found, text):
    status, shown = found[1][text]
    assert (status, "pip install" in shown) == (1, True), (status, shown)


@pytest.mark.parametrize("text", ["plot rollout vit_digits . --out a.png", "predict vit_digits ."])
def test_a_folder_without_images_is_refused_before_torch_is_imported(tmp_path, text):
    code = "import sys; sys.modules['torch'] = None; from vitzoo.cli.main import main\n"
    code += "sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *text.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "contains no images" in done.stderr
