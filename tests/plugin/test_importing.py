"""Exceptions in the middle of imports: the call can be repeated."""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import signal
import sys

import pytest
import torch

import vitzoo
from helpers import LAZY_MODULE as MODULE, refuses
from internals import registry
from plugin_helpers import EVENTS, MANIFEST, state
from vitzoo.errors import NetworkError, PluginError

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


class Expired(Exception):
    pass


@pytest.fixture
def handled():
    """Install a handler of SIGALRM for one test."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGALRM, before)


# Imports of parts and plugins

PLUGIN = {"acme/__init__.py": "", "acme/registry.toml": MANIFEST, "initech.py": EVENTS}
INTERRUPTED = "import builtins\nif hasattr(builtins, 'stop'): builtins.stop()\n"
TARGETS = {
    "acme/parts.py": f"{INTERRUPTED}Flat = object",
    "acme/plugin.py": INTERRUPTED + MODULE.replace("globex", "acme"),
}
POINTS = {"manifest": "acme = acme:registry.toml", "module": "acme = acme.plugin"}
ASKS = {
    "manifest": lambda: registry().part("head", "acme/flat"),
    "module": lambda: vitzoo.describe("acme/net"),
}


def alarm():
    signal.raise_signal(signal.SIGALRM)


def throw(error):
    raise error


@pytest.fixture(params=["manifest", "module"])
def ask(request, install, monkeypatch):
    """Use a plugin for the first time, after `stop` was called in its import."""
    install("acme-parts", POINTS[request.param], PLUGIN | TARGETS)

    def ask(stop=None):
        if stop is None:
            monkeypatch.delattr("builtins.stop", raising=False)
        else:
            monkeypatch.setattr("builtins.stop", stop, raising=False)
        return ASKS[request.param]()

    return ask


class Odd(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Odd])
def test_base_exceptions_of_a_plugin_pass_and_the_call_can_be_repeated(ask, kind):
    before = state("acme")
    with pytest.raises(kind):
        ask(lambda: throw(kind))
    assert state("acme") == before
    assert ask()
    assert state("acme").state == "loaded"


@pytest.mark.parametrize("kind", [Expired, TimeoutError, NetworkError])
def test_an_exception_of_a_signal_handler_is_not_kept(ask, kind, handled):
    """Python raises it in the code of the plugin, and so it is an error of the plugin."""
    handled(lambda *_: throw(kind("stop")))
    with refuses(PluginError, "'acme'", "stop", "acme-parts"):
        ask(alarm)
    assert ask()
    info = state("acme")
    assert (info.state, info.trouble) == ("loaded", "")


def test_an_import_error_of_a_module_is_kept(install):
    root = install("globex-vit", "globex = globex", {"globex.py": "import no_such"})
    for _ in range(2):
        with refuses(PluginError, "'globex'", "No module named 'no_such'"):
            vitzoo.describe("globex/net")
        root.joinpath("globex.py").write_text(MODULE)


@pytest.mark.parametrize("kind", [SystemExit, RuntimeError, MemoryError])
def test_exceptions_of_a_plugin_become_plugin_errors_with_their_cause(ask, kind):
    error = kind("own fault")
    with refuses(PluginError, "'acme'", f"{kind.__name__}: own fault", "acme-parts") as caught:
        ask(lambda: throw(error))
    assert caught.value.__cause__ is error
    assert state("acme").state in ("failed", "broken")


# Imports of the core


class Failing(importlib.abc.MetaPathFinder):
    """Calls a function in the middle of the import of one module."""

    def __init__(self, module, function):
        self.module, self.function = module, function

    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            self.function()


@pytest.fixture
def core_import(monkeypatch):
    """Import a module of the core again, and call a function in the middle of that."""
    module = "vitzoo.formats.google"
    importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("vitzoo.formats.google", vitzoo.formats.google)  # restored at the end

    def ask(function=lambda: None):
        with monkeypatch.context() as patch:
            patch.setattr("sys.meta_path", [Failing(module, function), *sys.meta_path])
            return registry().part("checkpoint format", "google")

    return ask


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ImportError, Expired, OSError]
)
@pytest.mark.parametrize("how", ["signal", "code"])
def test_no_exception_in_an_import_of_the_core_is_wrapped(core_import, kind, how, handled):
    handled(lambda *_: throw(kind("stop")))
    with pytest.raises(kind, match=r"^stop$") as caught:
        core_import(alarm if how == "signal" else lambda: throw(kind("stop")))
    assert type(caught.value) is kind
    assert state("core").state == "core"
    assert core_import().name == "google"


MODULE_TENSOR = """\
import torch
from torch import nn

class Mean(nn.Module):
    norm_first = True

    def __init__(self, *, embed_dim, scale=torch.tensor(2.0)):
        super().__init__()
        self.scale = scale.item()

    def forward(self, tokens, num_prefix_tokens, grid_size):
        return tokens[:, num_prefix_tokens:].mean(1) * self.scale
"""


def test_a_module_of_a_plugin_is_imported_on_the_cpu(install):
    """A network is built on `meta` first, and a default of a part may be a tensor."""
    manifest = 'api = 1\npools.mean = { target = "acme.parts:Mean", summary = "s" }\n'
    files = {"acme/__init__.py": "", "acme/parts.py": MODULE_TENSOR, "acme/registry.toml": manifest}
    install("acme-parts", "acme = acme:registry.toml", files)
    with torch.device("meta"):
        model = vitzoo.create("vit_ti16", pool="acme/mean")
        assert torch.empty(1).is_meta
    assert model.pool.scale == 2.0
    assert model.norm.weight.is_meta
