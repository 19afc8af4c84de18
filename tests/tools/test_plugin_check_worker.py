"""What the process of a check finds wrong with each contribution."""

from __future__ import annotations

import io
import json

import pytest

from helpers import says
from plugin_files import ACME, MANIFEST
from vitzoo.tools.plugin_check_worker import Notes, probe

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def probed(new_registry):
    """Do what the process of a check does, in this one; return its problems by what they are of."""

    def probed(namespace: str) -> dict[str, dict[str, str]]:
        new_registry()
        file = io.StringIO()
        probe(namespace, Notes(file))
        notes = [json.loads(line) for line in file.getvalue().splitlines()]
        found = [note["problem"] for note in notes if "problem" in note]
        assert len({problem["what"] for problem in found}) == len(found)
        return {problem["what"]: problem for problem in found}

    return probed


BAD_PARTS = """\
import vitzoo
from torch import nn

def short(*, depth):
    return [0.0]

class Blind(nn.Module):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()

class Angry(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        raise ValueError("no")

class Needy(nn.Module):
    def __init__(self, *, in_dim, num_classes, prototypes):
        super().__init__()

class Layout:
    def matches(self, keys):
        return False

half = Layout()
"""
BAD_MANIFEST = """\
api = 1
drop_path_policies.short = { target = "acme.parts:short", summary = "s" }
patch_embedders.blind = { target = "acme.parts:Blind", summary = "s" }
heads.angry = { target = "acme.parts:Angry", summary = "s" }
heads.needy = { target = "acme.parts:Needy", summary = "s" }
heads.gone = { target = "acme.parts:Gone", summary = "s" }
heads.far = { target = "acme.parts:Needy", summary = "s", requires = ["nonesuch-package>=2"] }
checkpoint_formats.kind = { target = "acme.parts:Layout", summary = "s" }
checkpoint_formats.half = { target = "acme.parts:half", summary = "s" }

[variants.net]
summary = "a network"
size = "ti"
head = "acme/none_of_mine"
params = 5
source = "made up"

[variants.counted]
summary = "a network"
size = "ti"
params = 5
source = "made up"
"""


def test_check_finds_what_is_wrong_with_each_contribution(probed, install):
    files = {"acme/__init__.py": "", "acme/parts.py": BAD_PARTS, "acme/registry.toml": BAD_MANIFEST}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    found = probed("acme")
    causes = {what: problem["cause"] for what, problem in found.items()}
    says(causes.pop("drop-path policy acme/short"), "1 rates", "2 blocks")
    says(causes.pop("patch embedder acme/blind"), "Blind", "grid, in_chans")
    assert causes.pop("head acme/angry") == "ValueError: no"
    assert found["head acme/angry"]["location"] == f"{root}/acme/parts.py:13"
    says(causes.pop("head acme/gone"), "'acme.parts:Gone'", "AttributeError:")
    says(causes.pop("head acme/far"), "pip install 'nonesuch-package>=2'")
    says(causes.pop("checkpoint format acme/kind"), "class Layout", "`layout = Layout()`")
    half = causes.pop("checkpoint format acme/half")
    says(half, "Layout object", "vitzoo.formats.Format", "`class Layout(Format)`")
    says(causes.pop("variant acme/net"), "head 'acme/none_of_mine'")
    says(causes.pop("variant acme/counted"), "params", "5", "5717416")
    assert found["variant acme/counted"]["location"] == f"{root}/acme/registry.toml:18"
    assert causes == {}


def test_check_looks_for_bundled_weights(probed, install):
    weights = """
[variants.net.weights.first]
file = "first.safetensors"
size = 22869664
sha256 = "{}"
pin = "confirmed"
format = "timm"
license = "apache-2.0"
source = "made up"
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""
    text = MANIFEST.replace("\n[aliases]", weights.format("0" * 64) + "\n[aliases]")
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    found = probed("acme")
    assert list(found) == ["variant acme/net"]
    says(found["variant acme/net"]["cause"], "acme/net:first", "first.safetensors", "data folder")
