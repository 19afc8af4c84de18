"""A failure of a plugin has file and line."""

from __future__ import annotations

import pytest

import vitzoo
from plugin_helpers import state
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
