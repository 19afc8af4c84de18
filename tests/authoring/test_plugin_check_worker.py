"""The process of a plugin check reports the problems of each contribution."""

from __future__ import annotations

import hashlib
import io
import json

import pytest

from helpers import says
from plugin_files import ACME, MANIFEST
from vitzoo.authoring.plugin_check_worker import Notes, probe

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def probed(new_registry):
    """Check a plugin in this process; return the problems by contribution."""

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
    says(causes.pop("head acme/angry"), "in_dim=32", "ValueError: no")
    assert found["head acme/angry"]["location"] == f"{root}/acme/parts.py:13"
    says(causes.pop("head acme/gone"), "'acme.parts:Gone'", "AttributeError:")
    says(causes.pop("head acme/far"), "pip install 'nonesuch-package>=2'")
    says(causes.pop("checkpoint format acme/kind"), "class Layout", "`layout = Layout()`")
    half = causes.pop("checkpoint format acme/half")
    says(half, "no vitzoo.formats.Format", "Format(name, keymap=..., marks=...)")
    says(causes.pop("variant acme/net"), "head 'acme/none_of_mine'")
    says(causes.pop("variant acme/counted"), "params", "5", "5717416")
    assert found["variant acme/counted"]["location"] == f"{root}/acme/registry.toml:21"  # of params
    assert causes == {}


BUNDLED = """
[variants.net.weights.first]
file = "first.safetensors"
size = {size}
sha256 = "{sha256}"
pin = "confirmed"
format = "timm"
license = "apache-2.0"
source = "made up"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""


def test_check_looks_for_bundled_weights(probed, install):
    entry = BUNDLED.format(size=22869664, sha256="0" * 64)
    text = MANIFEST.replace("\n[aliases]", entry + "\n[aliases]")
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    found = probed("acme")
    assert list(found) == ["variant acme/net"]
    says(
        found["variant acme/net"]["cause"],
        "acme/net:first",
        "/acme/data/first.safetensors",
    )


@pytest.mark.parametrize(("size", "right"), [(9, False), (8, False), (9, True)])
def test_checks_hash_bundled_weights_and_print_the_lines_to_paste(
    probed, install, run, size, right
):
    data = b"weights!!"
    sha256 = hashlib.sha256(data).hexdigest()
    entry = BUNDLED.format(size=size, sha256=sha256 if right else "0" * 64)
    files = ACME | {"acme/registry.toml": MANIFEST.replace("\n[aliases]", entry + "\n[aliases]")}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    file = root / "acme" / "data" / "first.safetensors"
    file.parent.mkdir()
    file.write_bytes(data)
    found = probed("acme")
    code, _, err = run("registry", "check", root / "acme" / "registry.toml")
    if right:
        assert (found, code, err) == ({}, 0, "")
        return
    for cause in (found["variant acme/net"]["cause"], err):
        says(cause, "net:first", file, len(data), size, f'size = {len(data)}, sha256 = "{sha256}"')
    assert code == 1


PARTS_OF_ALL_KINDS = """\
from vitzoo.parts.heads import LinearHead, NoHead
from vitzoo.parts.patch_embed import ConvPatchEmbed
from vitzoo.errors import InvalidOption


class Pair(LinearHead):
    tokens = 2

    def forward(self, x, pre_logits=False):
        return x.mean(1) if pre_logits else super().forward(x.mean(1))

    def reset(self, num_classes):
        return pair(in_dim=self.pre_logits_dim, num_classes=num_classes)


class NoPair(NoHead):
    tokens = 2
    reset = Pair.reset

    def forward(self, x, pre_logits=False):
        return x.mean(1)


def pair(*, in_dim, num_classes):
    return Pair(in_dim=in_dim, num_classes=num_classes) if num_classes else NoPair(in_dim=in_dim)


def odd(*, in_dim, num_classes):
    found = pair(in_dim=in_dim, num_classes=num_classes)
    found.forward = lambda x, pre_logits=False: x.mean(1)[..., None]
    return found


class Stride32(ConvPatchEmbed):
    grid_multiple = (3, 3)

    def __init__(self, *, patch_size, in_chans, embed_dim):
        if patch_size != (32, 32):
            raise InvalidOption(f"the stem has a stride of 32, got patch_size {patch_size}")
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)

    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows % 3 or columns % 3:
            raise InvalidOption(f"{rows}x{columns}")
        return rows, columns


def late(*, depth, rate):
    return [0.0] * (depth - 1) + [rate]
"""
ALL_KINDS = """\
api = 1
heads.pair = { target = "acme.parts:pair", summary = "reads two tokens" }
heads.odd = { target = "acme.parts:odd", summary = "logits with an axis too many" }
patch_embedders.stride = { target = "acme.parts:Stride32", summary = "says its grids" }
drop_path_policies.late = { target = "acme.parts:late", summary = "needs a rate" }
"""


def test_check_runs_the_conformance_tests_of_parts(probed, install):
    """Heads that read several tokens, embedders of few grids and policies with a rate pass."""
    files = {"acme/__init__.py": "", "acme/parts.py": PARTS_OF_ALL_KINDS}
    install("acme-parts", "acme = acme:registry.toml", files | {"acme/registry.toml": ALL_KINDS})
    found = probed("acme")
    assert found.keys() == {"head acme/odd"}
    says(found["head acme/odd"]["cause"], "head 'acme/odd'", (2, 5), (2, 32, 1))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["core", "deit", "dinov2", "mim", "clip"])
def test_check_passes_what_the_conformance_tests_pass(probed, namespace):
    assert probed(namespace) == {}


FAR = """\
import torch
from vitzoo.parts import LinearHead

class Wide(LinearHead):
    def forward(self, x, pre_logits=False):
        return torch.nn.Linear(
            3, 5
        )(x)

class Wrong(LinearHead):
    def forward(self, x, pre_logits=False):
        return x[:1]

def build():
    return LinearHead
"""
FAR_MANIFEST = """\
api = 1
heads.wide = { target = "acme.parts:Wide", summary = "s" }
heads.wrong = { target = "acme.parts:Wrong", summary = "s" }

[variants.net]
summary = "a network"
size = "ti"
params = 5
source = "made up"
builder = "acme.parts:build"
"""


def test_each_problem_is_located_in_the_plugin(probed, install):
    """Not in torch, which raised the error, and not in the manifest if the code is wrong."""
    files = {"acme/__init__.py": "", "acme/parts.py": FAR, "acme/registry.toml": FAR_MANIFEST}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    found = {what: problem["location"] for what, problem in probed("acme").items()}
    assert found == {
        "head acme/wide": f"{root}/acme/parts.py:6",
        "head acme/wrong": f"{root}/acme/parts.py:10",
        "variant acme/net": f"{root}/acme/parts.py:14",
    }
