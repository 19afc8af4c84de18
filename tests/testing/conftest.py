"""Fixtures for tests of `vitzoo.testing`: a plugin on the path, and messages of checks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vitzoo import testing


def pytest_collection_modifyitems(items):
    """Mark every test of this folder; many of them start pytest in another process."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.conformance)


MANIFEST = """\
api = 1

[heads.cosine]
target = "acme_vit.parts:Cosine"
summary = "cosine similarity"

[variants.net]
summary = "a small network"
embed_dim = 32
depth = 3
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
num_classes = 5
params = 32613
source = "made up"

[variants.own]
summary = "a network of its own"
builder = "acme_vit.parts:build"
patch_size = 8
image_size = 32
num_classes = 5
params = 965
source = "made up"

[variants.net.weights.main]
repo = "acme/net"
file = "model.safetensors"
pin = "reported"
revision = "0123456789abcdef0123456789abcdef01234567"
size = 130964
sha256 = "abababababababababababababababababababababababababababababababab"
format = "timm"
license = "Apache-2.0"
source = "made up"

[variants.net.weights.main.preprocessing]
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
interpolation = "bicubic"
"""
PARTS = """\
import torch
from torch import nn


class Cosine(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        super().__init__()
        self.num_classes, self.pre_logits_dim = num_classes, in_dim
        self.prototypes = nn.Parameter(torch.randn(num_classes, in_dim))

    def reset(self, num_classes):
        return Cosine(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x, pre_logits=False):
        if pre_logits or not self.num_classes:
            return x
        unit = nn.functional.normalize
        return unit(x, dim=-1) @ unit(self.prototypes, dim=-1).T


def build(spec):
    return nn.Sequential(nn.Flatten(), nn.AvgPool1d(16), nn.Linear(192, spec.num_classes))
"""


@pytest.fixture
def acme(distribution, monkeypatch, new_registry):
    """Put a plugin on the path; `changes` are (old text, new text) pairs for its files."""

    def install(*changes, entry_point="acme_vit:registry.toml", files=None):
        files = {"acme_vit/parts.py": PARTS, **(files or {"acme_vit/registry.toml": MANIFEST})}
        for old, new in changes:
            assert any(old in text for text in files.values()), old
            files = {name: text.replace(old, new) for name, text in files.items()}
        files = {"acme_vit/__init__.py": "", **files}
        root = distribution("acme-vit", f"acme = {entry_point}", files)
        monkeypatch.syspath_prepend(str(root))
        # Bytecode of a file of the same size and second would be that of the former code.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        testing.checks.plugin.in_worker.cache_clear()
        testing.checks.plugin._listing.cache_clear()
        new_registry()
        return root

    install.manifest, install.parts = MANIFEST, PARTS
    yield install
    testing.checks.plugin.in_worker.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_vit"]:
        del sys.modules[name]


CONFTEST = 'pytest_plugins = ["vitzoo.testing"]\n'
SUITE = """\
from vitzoo.testing import PluginTests, Sizes


class TestAcme(PluginTests):
    namespace = "acme"
    archives = False
"""


@pytest.fixture
def author(tmp_path, acme):
    """Run pytest as the author of a plugin does; return its output."""

    def run(*args, more="", conftest=CONFTEST, suite=SUITE, changes=(), files=None):
        if not (tmp_path / "site").exists():
            acme(*changes, files=files)
        tests = tmp_path / "tests"
        tests.mkdir(exist_ok=True)
        (tests / "conftest.py").write_text(conftest)
        (tests / "test_acme.py").write_text(suite + textwrap.indent(more, "    "))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *args]
        done = subprocess.run(
            command,
            cwd=tests,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    return run


@pytest.fixture
def complaint():
    """Return the message of a check that fails; it must contain a fix."""

    def run(check, *args, **kwargs):
        with pytest.raises(AssertionError) as caught:
            check(*args, **kwargs)
        problem, _, fix = str(caught.value).partition("\n  ")
        assert fix.strip(), f"no fix: {problem}"
        return str(caught.value)

    return run


@pytest.fixture
def blames(complaint):
    """Expect that a check of a broken part says these words, and that all checks name the part."""

    def expect(kind, part, subject, check, words, check_all):
        name = getattr(part, "__name__", type(part).__name__)
        said = complaint(check, subject(part))
        assert f"{kind} {name!r}" in said
        assert words in said
        assert f"{kind} {name!r}" in complaint(check_all, part)

    return expect
