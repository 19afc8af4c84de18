"""A failure of a plugin has file and line, and what a plugin prints goes to stderr."""

from __future__ import annotations

import importlib
import sys
import threading

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE
from plugin_helpers import EVENTS, WAIT, state
from vitzoo.errors import PluginError

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


@pytest.mark.parametrize(
    "code",
    [
        "def f(:\n", "\n\nimport no_such_module", "\n\n1 / 0", "import json\n\njson.loads('')",
        "def f():\n    import json\n    json.loads('')\nf()",
    ],
)  # fmt: skip
def test_file_and_line_are_those_of_the_plugin(install, code):
    install("globex-vit", "globex = globex", {"globex.py": code})
    with pytest.raises(PluginError):
        vitzoo.describe("globex/net")
    line = 1 if code.startswith("def f(:") else 3
    assert state("globex").cause.endswith(f"site/globex.py:{line})")


def test_what_a_plugin_prints_goes_to_stderr(install, capsys):
    code = f"import sys\nprint('hello')\nsys.stdout.write('again')\nsys.stdout = None\n{MODULE}"
    install("globex-vit", "globex = globex", {"globex.py": code})
    stdout = sys.stdout
    vitzoo.describe("globex/net")
    assert sys.stdout is stdout
    assert capsys.readouterr() == ("", "hello\nagain")


def test_prints_of_other_threads_during_an_import_go_to_stdout(install, capsys):
    files = {
        "initech.py": EVENTS,
        "globex.py": f"print('mine')\n{WAIT}{MODULE}",
    }
    install("globex-vit", "globex = globex", files)
    events = importlib.import_module("initech")
    stdout = sys.stdout
    thread = threading.Thread(target=vitzoo.describe, args=("globex/net",), daemon=True)
    thread.start()
    assert events.started.wait(30)
    sys.stdout.write("yours\n")
    events.go.set()
    thread.join(30)
    assert sys.stdout is stdout
    assert capsys.readouterr() == ("yours\n", "mine\n")
