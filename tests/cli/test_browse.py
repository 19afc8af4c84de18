"""`vitzoo list`, `show` and `which` with plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from plugin_files import GLOBEX, UNTOUCHABLE

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


def test_show_names_the_switch_of_a_first_party_plugin_that_is_off(run, install, monkeypatch):
    install("vitzoo-clip", "clip = acme:registry.toml", UNTOUCHABLE)
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "clip")
    code, _, err = run("show", "clip/net")
    assert code == 1
    says(err, "plugin 'clip'", "VITZOO_DISABLE_PLUGINS", "'clip'")


@pytest.mark.parametrize("value", ["acme:registry.toml", "acme.plugin"])
def test_list_of_a_namespace_suggests_its_pattern(run, install, value):
    module = {"acme/plugin.py": "raise ImportError('nobody may import me')"}
    install("acme-parts", f"acme = {value}", UNTOUCHABLE | module)
    code, out, err = run("list", "acme", "nothing")
    assert (code, out) == (1, "")
    says(err, "'acme'", "'nothing'", "'acme/*'")
    assert "nobody may import me" not in err
    says(run("list", "core")[2], "'core'", "`vitzoo list`")


def test_which_gives_file_and_line_without_importing(run, acme):
    code, out, _ = run("which", "acme/late", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert row["plugin"] == "acme (acme-parts 1.0)"
    assert row["target"] == "acme.parts:late"
    assert row["defined"] == f"{acme}/acme/parts.py:1"
    assert row["location"] == f"{acme}/acme/registry.toml:3"
    assert "acme" not in sys.modules


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("conv", "parts/patch_embed.py", "class ConvPatchEmbed(nn.Module):"),
        ("vit_b16", "build.py", "def build(spec: Spec, ready:"),
        ("timm", "formats/timm.py", "timm = TimmFormat()"),
    ],
)
def test_which_finds_the_line_of_the_cores_own(run, name, file, text):
    _, out, _ = run("which", name, "--json")
    path, _, line = json.loads(out)[0]["defined"].rpartition(":")
    assert Path(path) == Path(vitzoo.__file__).parent / file
    assert Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1].startswith(text)


def test_which_finds_the_line_of_an_object_of_a_module(run, install):
    root = install("globex-vit", "globex = globex.plugin", GLOBEX)
    _, out, _ = run("which", "globex/late", "--json")
    assert json.loads(out)[0]["defined"] == f"{root}/globex/plugin.py:12"
