"""Fixtures that the tests of the core and of the plugins share."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from sysconfig import get_path
from types import MappingProxyType
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["vitzoo.testing", "systems"]

# Before torch is imported: networks this small lose time to threads, far more on a busy machine.
# The full benchmarks use all cores, as users do.
if os.environ.get("VITZOO_BENCH") != "full":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The tests are about the CPU, those with the marker `gpu` excepted. Child processes inherit it.
os.environ["VITZOO_DEVICE"] = "cpu"

# The same examples in every run; HYPOTHESIS_PROFILE=thorough draws ten times as many.
hypothesis.settings.register_profile(
    "vitzoo", max_examples=20, deadline=None, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "thorough", max_examples=200, deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "vitzoo"))

# Files whose tests share large checkpoints, built distributions or environments.
SHARING = re.compile(
    r"parity|install|test_archives|test_docs_site|test_files|test_tools|test_interruptions"
)

LOCAL_REGISTRY = """\
api = 1

[sizes.small]
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
source = "made up"

[variants.net]
summary = "a small network"
size = "small"
image_size = 32
patch_size = 8
num_classes = 5
params = 24000
source = "made up"
"""


# The marker of a whole file, and an expression of `-m` that only excludes markers.
TIER = re.compile(r"^pytestmark = \[?pytest\.mark\.(\w+)", re.MULTILINE)
EXCLUDING = re.compile(r"not \w+( and not \w+)*")


def excluded(config: pytest.Config, path: Path) -> set[str]:
    """Return the markers whose tests of a file `-m` deselects; none if the command names it."""
    chosen = config.option.markexpr.strip()
    if not EXCLUDING.fullmatch(chosen):
        return set()
    if path in named(tuple(config.args)):
        return set()
    return {marker.removeprefix("not ") for marker in chosen.split(" and ")}


@functools.cache
def named(arguments: tuple[str, ...]) -> set[Path]:
    """Return the files that a command names."""
    return {Path(name.partition("::")[0]).resolve() for name in arguments}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose tests are all deselected, instead of importing it."""
    if collection_path.suffix != ".py" or not (names := excluded(config, collection_path)):
        return None
    tier = TIER.search(collection_path.read_text(encoding="utf-8"))
    return True if tier and tier[1] in names else None


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leave out deselected tests, instead of making an item for each of their parameters."""
    marks = vars(obj).get("pytestmark", ()) if hasattr(obj, "__dict__") else ()
    marks = marks if isinstance(marks, list | tuple) else (marks,)
    if not (names := {getattr(mark, "name", "") for mark in marks}):
        return None
    return [] if names & excluded(collector.config, collector.path) else None


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what vitzoo keeps, instead of the user's."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def timm() -> Any:
    """The library timm, whose import takes seconds: no test module imports it when it is read."""
    import timm

    return timm


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library transformers, as `timm`."""
    import transformers

    return transformers


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    kept = set() if request.node.get_closest_marker("gpu") else {"VITZOO_DEVICE"}
    for name in list(os.environ):
        if name.startswith("VITZOO_") and name not in kept:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(autouse=True)
def _quick_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """The parity tests draw the weights of hundreds of whole networks."""
    if request.node.get_closest_marker("parity") is None:
        yield
        return
    from draws import quick_draws

    with quick_draws():
        yield


@pytest.fixture
def new_registry() -> Iterator[Callable[[], None]]:
    """Forget the registry of this process now, on demand, and when the test is over."""
    from internals import _registry

    def forget() -> None:
        importlib.invalidate_caches()
        _registry.cache_clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def local_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_registry: Callable[[], None]
) -> Callable[..., Path]:
    """Write a user's own registry file, with `local/net` in it, and point vitzoo to it."""

    def write(text: str = LOCAL_REGISTRY) -> Path:
        path = tmp_path / "own.toml"
        path.write_text(text)
        monkeypatch.setenv("VITZOO_REGISTRY", str(path))
        new_registry()
        return path

    return write


@pytest.fixture
def small() -> dict[str, Any]:
    """The spec of a network that costs milliseconds."""
    return {
        "image_size": 32,
        "patch_size": 8,
        "num_classes": 5,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 64,
    }


@pytest.fixture
def images() -> Any:
    """Two images for `small`, (2, 3, 32, 32)."""
    import torch

    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))


@pytest.fixture
def randomise() -> Callable[..., Any]:
    """Fill a model with numbers that show every mistake; a fresh classifier gives only zeros."""
    import torch

    def fill(model: Any, seed: int = 0) -> Any:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                values = torch.randn(parameter.shape, generator=generator) * 0.2
                parameter.copy_(values + (parameter.dim() == 1))
        return model.eval()

    return fill


@pytest.fixture
def python() -> Callable[..., str]:
    """Run code in a fresh interpreter and return what it prints; its failure is the test's."""

    def run(code: str, *flags: str, path: Path | None = None, **env: str) -> str:
        env = {**os.environ, **env}
        if path is not None:
            env["PYTHONPATH"] = str(path)
        command = [sys.executable, *flags, "-W", "error", "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command of vitzoo in this process; gives (exit code, stdout, stderr)."""
    from internals import main

    def call(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def run_command(*command: object, cwd: Path | None = None) -> str:
    """Run a command without the caller's Python settings and return what it prints."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VITZOO_", "PIP_"))}
    env["VITZOO_DEVICE"] = "cpu"
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Environment:
    """A virtual environment that sees torch and the rest, but no vitzoo and none of its plugins."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = Path(get_path("scripts", "venv", {"base": str(folder)}), "python")
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        self.site = Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        others = folder / "others"
        others.mkdir()
        for place in (path for path in sys.path if path.endswith("-packages")):
            for item in Path(place).glob("*"):
                known = others.joinpath(item.name).is_symlink() or item.suffix == ".pth"
                if not known and not item.name.startswith("vitzoo"):
                    others.joinpath(item.name).symlink_to(item)
        # Folders named in a .pth file come after the environment's own.
        self.site.joinpath("others.pth").write_text(str(others))

    def install(self, *what: object) -> None:
        """Install without a network, over what the other interpreter has."""
        run_command(
            *(sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"),
            *("install", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed"),
            *what,
            cwd=Path(__file__).parent,  # paths in requirement files
        )

    def uninstall(self, name: str) -> None:
        """Remove a distribution."""
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        run_command(*pip, "uninstall", "--yes", name)

    def run(self, code: str) -> str:
        """Run code in another working directory and return what it prints."""
        return self.call("python", "-c", textwrap.dedent(code))

    def call(self, command: str, *args: object) -> str:
        """Run a command of the environment in another working directory."""
        return run_command(self.python.with_name(command), *args, cwd=self.elsewhere)


@pytest.fixture(scope="session")
def command() -> Callable[..., str]:
    """Run a command and return what it prints; its failure is the test's."""
    return run_command


@pytest.fixture(scope="session")
def built(shared_folder: Path) -> Callable[[Path], Path]:
    """Build a distribution, and return the folder of its sdist and of the wheel made from it.

    Each distribution is built once, also when several processes run the tests.
    """
    return partial(_build, shared_folder, ())


@pytest.fixture(scope="session")
def built_from_tree(shared_folder: Path) -> Path:
    """A wheel of vitzoo that is made without an sdist."""
    folder = _build(shared_folder, ("--wheel",), Path(__file__).parent)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one run of pytest share; a lock file has to guard its use."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Callable[[str, Callable[[Path], object]], Path]:
    """Write a folder once for all processes of one run of pytest; tests may only read it."""
    return partial(_once, shared_folder)


@pytest.fixture
def page_folder(
    request: pytest.FixtureRequest,
    shared_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """The working directory for the examples of a page: one folder for all pages, in any order.

    So no page may write what another page writes. Which page writes what is kept for all processes.
    """
    folder = tmp_path_factory.getbasetemp() / "pages"
    if not folder.exists():
        folder.mkdir()
        folder.joinpath("docs").symlink_to(Path(__file__).parent / "docs")
    monkeypatch.chdir(folder)
    before = _stamps(folder)
    yield folder
    written = {path.parts[0] for path, _ in _stamps(folder) ^ before}
    _claim(shared_folder / "pages.json", request.node.nodeid, written)


def _stamps(folder: Path) -> set[tuple[Path, int]]:
    """Return each file in a folder with the time of its last change; links are not followed."""
    return {
        (path.relative_to(folder), path.lstat().st_mtime_ns)
        for place, _, names in os.walk(folder)
        for path in (Path(place, name) for name in names)
    }


def _claim(table: Path, page: str, written: set[str]) -> None:
    """Note which page writes a name in the folder of all pages."""
    from filelock import FileLock

    with FileLock(table.with_suffix(".lock")):
        owners = json.loads(table.read_text("utf-8")) if table.exists() else {}
        taken = {name: owners[name] for name in written if owners.get(name, page) != page}
        assert not taken, f"{page} writes what other pages write: {taken}"
        table.write_text(json.dumps(owners | dict.fromkeys(written, page)), "utf-8")


def _once(shared: Path, name: str, write: Callable[[Path], object]) -> Path:
    from filelock import FileLock

    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            write(folder)
            done.touch()
    return folder


def _build(shared: Path, options: tuple[str, ...], project: Path) -> Path:
    def build(folder: Path) -> None:
        command = (sys.executable, "-m", "build", "--no-isolation", project, "--outdir", folder)
        run_command(*command, *options)

    return _once(shared, "".join((project.name, *options)), build)


@pytest.fixture(scope="session")
def new_environment() -> type[Environment]:
    """Make a virtual environment in a folder that does not exist yet."""
    return Environment


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., Path]:
    """Write what an installed distribution leaves on disk, and return its folder."""

    from plugin_files import write_distribution

    return partial(write_distribution, tmp_path / "site")


@pytest.fixture
def install(
    distribution: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    new_registry: Callable[[], None],
) -> Iterator[Callable[..., Path]]:
    """Put distributions on sys.path, as if they had been installed; returns the folder."""
    modules = set(sys.modules)

    def install(*args: Any, **kwargs: Any) -> Path:
        root = distribution(*args, **kwargs)
        if str(root) not in sys.path:
            monkeypatch.syspath_prepend(root)
        new_registry()
        return root

    yield install
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("acme", "globex", "initech"):
            del sys.modules[name]


@pytest.fixture
def to_toml() -> Callable[[dict[Any, Any]], str]:
    """Write a mapping as TOML, nested tables inline."""

    def value(item: Any) -> str:
        match item:
            case bool():
                return str(item).lower()
            case str():
                return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
            case dict():
                return (
                    "{" + ", ".join(f"{value(str(k))} = {value(v)}" for k, v in item.items()) + "}"
                )
            case list() | tuple():
                return "[" + ", ".join(map(value, item)) + "]"
            case dt.date():
                return item.isoformat()
        return repr(item)

    def write(table: dict[Any, Any]) -> str:
        return "".join(f"{value(str(k))} = {value(v)}\n" for k, v in table.items())

    return write


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark conformance tests, whose functions are in `vitzoo.testing`, and what CI leaves out."""
    for item in items:
        name = getattr(item, "originalname", "")
        if name == "test_part_compiles":
            item.add_marker(pytest.mark.compile)
        if name in PARTLY and item.get_closest_marker("one_in") is None:
            item.add_marker(pytest.mark.one_in(4))
    keep_one_in(items)


# Conformance tests that run networks, or start processes for each plugin: CI takes a fourth. It
# builds and counts every variant.
PARTLY = {
    *("test_variant_runs", "test_variant_lora", "test_plugin_archives"),
    *("test_plugin_can_be_disabled", "test_plugin_in_a_spawned_worker"),
}


def keep_one_in(items: list[pytest.Item]) -> None:
    """Mark as `long` all but the first and every n-th test of a function with `one_in(n)`.

    Tests that are `long` anyway do not count. The plugins count as parameters.
    """
    before: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None or item.get_closest_marker("long"):
            continue
        function = item.nodeid.partition("[")[0]
        if (name := function.rpartition("::")[2]).startswith("test_plugin_"):
            function = name
        if before[function] % marker.args[0]:
            item.add_marker(pytest.mark.long)
        before[function] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, keep the tests of a file that share checkpoints or environments.

    All tests with random examples are one group: each process that draws some reads the source of
    all modules first. All other tests are distributed one by one. Groups that are markers have no
    effect: xdist 3.8 writes them into the ids of tests, which pytest 9 does not let it change.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if draws_examples(config.rootpath / file):
                return "hypothesis"
            return file if SHARING.search(file) else nodeid

    return ByFile(config, log)


@functools.cache
def draws_examples(path: Path) -> bool:
    """Tell whether a test module imports hypothesis."""
    text = path.read_text("utf-8")
    return re.search(r"^(import|from) hypothesis", text, re.MULTILINE) is not None


@pytest.fixture(scope="session", autouse=True)
def _manifests_are_parsed_once() -> Iterator[None]:
    """Parse the manifests of this repository once, however often a test forgets the registry.

    Every other file, and each of these when it changes on disk, is parsed at each call. Tests that
    call `read_manifest` themselves get the original.
    """
    from internals import Manifest

    plugins = importlib.import_module("vitzoo.plugin.host")  # `vitzoo.plugins` is a function, too

    root = Path(__file__).parent
    original = plugins.read_manifest
    parsed: dict[Any, Manifest] = {}

    def read_manifest(path: Path, **arguments: Any) -> Manifest:
        own = any(path.is_relative_to(root / name) for name in ("registry.toml", "plugins"))
        if not own or not path.is_file():
            return original(path, **arguments)
        file = path.stat()
        sizes = tuple((arguments.get("sizes") or {}).items())
        others = (arguments["package"], sizes, arguments.get("limit"))
        key = (path, file.st_mtime_ns, file.st_size, others)
        if key not in parsed:
            found = original(path, **arguments)
            frozen = {name: MappingProxyType(getattr(found, name)) for name in ("sizes", "aliases")}
            parsed[key] = dataclasses.replace(found, **frozen)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "read_manifest", read_manifest)
        yield
