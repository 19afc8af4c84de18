"""Exceptions of signal handlers during imports pass unchanged, and the import can be repeated."""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import signal
import sys
import types

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, refuses
from plugin_helpers import EVENTS, MANIFEST, state
from vitzoo.errors import PluginError
from vitzoo.plugin.importing import follows_signal, from_signal, ignoring_errors, import_module
from vitzoo.registry.registry import registry

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


class Expired(Exception):
    pass


class Handlers:
    def __call__(self, signum, frame):
        raise Expired

    def method(self, signum, frame):
        raise Expired


def later(_note, _signum, _frame):
    raise Expired


def restoring(number, _frame):
    signal.signal(number, signal.SIG_IGN)
    inner(number)


def inner(number):
    raise Expired(number)


def keeping(_signum, frame):
    def lines():
        return frame.f_lineno

    lines()
    raise Expired


@pytest.fixture
def handled():
    """Install a handler of SIGALRM for one test."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGALRM, before)


def raised(function) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


@pytest.mark.parametrize(
    "handler",
    [
        Handlers(), Handlers().method, functools.partial(later, "note"), restoring, keeping,
        lambda *_: inner(1),
        lambda _signum, *_rest: inner(1),
        lambda _signum, _frame=None: inner(1),
    ],
)  # fmt: skip
def test_the_exception_of_a_handler_is_known(handled, handler):
    handled(handler)
    error = raised(lambda: signal.raise_signal(signal.SIGALRM))
    assert type(error) is Expired
    assert from_signal(error)


def replacing(*given):
    given = len(given)
    raise Expired(given)


def with_frame(_number, _frame):
    raise Expired


@pytest.mark.parametrize(
    "code",
    [
        lambda: inner(14),
        lambda: with_frame(14, None),
        lambda: with_frame(14, sys._getframe(1)),
        lambda: with_frame(True, sys._getframe()),
        lambda: replacing(14, sys._getframe()),
        lambda: 1 / 0,
        lambda: import_module("vitzoo.no_such_module"),
    ],
)
def test_other_exceptions_are_no_handlers(code):
    assert not from_signal(raised(code))
    assert not follows_signal(raised(code))


def test_an_exception_caused_by_that_of_a_handler_is_known(handled):
    handled(with_frame)

    def hidden():
        try:
            signal.raise_signal(signal.SIGALRM)
        except Expired:
            raise ImportError("no acme") from None

    error = raised(hidden)
    assert not from_signal(error)
    assert follows_signal(error)


def test_only_exceptions_of_code_are_ignored(handled):
    handled(with_frame)
    with ignoring_errors():
        inner(14)
    with pytest.raises(Expired), ignoring_errors():
        signal.raise_signal(signal.SIGALRM)
    with pytest.raises(SystemExit), ignoring_errors():
        sys.exit(3)


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


@pytest.mark.parametrize("kind", [SystemExit, Expired, TimeoutError, ImportError, Odd])
def test_exceptions_of_a_signal_handler_pass_and_the_call_can_be_repeated(ask, kind, handled):
    before = state("acme")
    handled(lambda *_: throw(kind("stop")))
    with pytest.raises(kind, match=r"^stop$") as caught:
        ask(alarm)
    assert type(caught.value) is kind
    assert state("acme") == before
    assert ask()
    assert state("acme").state == "loaded"


def test_an_interruption_that_a_plugin_hides_is_an_error_that_is_not_kept(ask, handled):
    before = state("acme")
    handled(lambda *_: throw(TimeoutError("stop")))

    def hide():
        try:
            alarm()
        except TimeoutError as error:
            raise ImportError("no engine") from error

    with refuses(PluginError, "'acme'", "ImportError: no engine", "pip uninstall acme-parts"):
        ask(hide)
    assert state("acme") == before
    assert ask()
    assert state("acme").state == "loaded"


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
    import_module(module)
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


def test_a_package_gets_its_submodules_back_after_a_failed_import(tmp_path, monkeypatch):
    files = {
        "acme/__init__.py": f"import acme.first\n{INTERRUPTED}import acme.second.third",
        "acme/first.py": "",
        "acme/second/__init__.py": "",
        "acme/second/third.py": "",
    }
    for name, text in files.items():
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.stop", lambda: throw(KeyboardInterrupt), raising=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            import_module("acme")
        assert "acme" not in sys.modules
        monkeypatch.delattr("builtins.stop")
        acme = import_module("acme")
        assert acme.first is sys.modules["acme.first"]
        assert acme.second.third is sys.modules["acme.second.third"]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
            del sys.modules[name]


def test_an_interrupted_search_for_plugins_is_repeated(install, handled, monkeypatch):
    install("acme-parts", POINTS["manifest"], PLUGIN | TARGETS)
    handled(lambda *_: throw(Expired("stop")))
    with monkeypatch.context() as patch:
        finder = types.SimpleNamespace(find_distributions=lambda _: alarm())
        patch.setattr("sys.meta_path", [finder, *sys.meta_path])
        with pytest.raises(Expired, match="stop"):
            vitzoo.describe("acme/net")
    assert vitzoo.describe("acme/net").name == "acme/net"
