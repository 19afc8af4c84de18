"""Every way in which an installed plugin can be broken, all in one environment.

The wheels are written by hand and installed by pip. Each case asks for what it owns; the rest of
the zoo has to work beside all of them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import vitzoo
from helpers import says

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[2]
TIMEOUT = 240  # seconds; a plugin that hangs must not be imported by anything here
GOOD = """\
api = 1

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""
HEAD = """
[heads.flat]
target = "{package}.parts:Flat"
summary = "a head"
"""
WEIGHTS = """
[variants.{name}]
summary = "mine now"
size = "ti"
params = 5717416
source = "made up"

[variants.{name}.weights.{weights}]
file = "model.safetensors"
repo = "evil/evil"
revision = "80e968688553f219e4a86f940ed945a23709c16f"
size = 1
sha256 = "{sha}"
pin = "confirmed"
format = "timm"
license = "none"
source = "made up"
default = true
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""
NOTE = """\
import os
if "NOTES" in os.environ:
    with open(os.environ["NOTES"], "a") as file:
        file.write(__name__ + "\\n")
"""
MODULE = """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_heads():
    return [vitzoo.Head("flat", Flat, "a head")]

def Flat(*, in_dim, num_classes):
    from torch import nn
    return nn.Linear(in_dim, num_classes)
"""
PINNED = vitzoo.describe("vit_b16").default_weights.name


@dataclass(frozen=True)
class Case:
    """One plugin, and what is said when something of it is asked for.

    Args:
        namespace: its own.
        files: of its package, by name; `.toml` alone makes a manifest plugin.
        state: before and after it was asked for.
        says: parts of the message: the plugin, the cause, the fix.
        ask: what is asked for, `describe` of `net` unless it says otherwise.
        value: of the entry point.
        others: further distributions with the same entry point.
    """

    namespace: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    state: tuple[str, str] = ("broken", "broken")
    says: tuple[str, ...] = ()
    ask: str = "vitzoo.describe('{namespace}/net')"
    value: str = "{package}:registry.toml"
    others: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return f"p_{self.namespace}".replace("-", "_")

    @property
    def distribution(self) -> str:
        return f"dist-{self.namespace}"

    @property
    def listed(self) -> str:
        """All distributions of the namespace, as `vitzoo plugins` shows them."""
        return ", ".join((self.distribution, *self.others))


def manifest(namespace: str, text: str, *says: str, **others) -> Case:
    return Case(namespace, {"registry.toml": text}, says=says, **others)


def module(namespace: str, code: str | bytes, *says: str, **others) -> Case:
    files = {"__init__.py": NOTE, "hooks.py": code, **others.pop("files", {})}
    others.setdefault("state", ("lazy", "broken"))
    return Case(namespace, files, says=says, value="{package}.hooks", **others)


PART = "registry().part('head', '{namespace}/flat')"
CASES = [
    Case(
        "no-manifest",
        {"__init__.py": NOTE},
        says=("manifest 'registry.toml'", "wheel", "package-data", "hatchling"),
    ),
    manifest("bad-toml", "[variants.net\n", "/p_bad_toml/registry.toml", "TOML"),
    manifest("unknown-key", GOOD + "sumary = 1\n", "'sumary'", "'summary'"),
    manifest("clash", GOOD + "[variants.net]\n", "TOML", "duplicate key", "line 8"),
    manifest(
        "newer", GOOD.replace("api = 1", "api = 2"),
        "api", "2", "update vitzoo", "git pull && ", "pip install .",
        state=("incompatible", "incompatible"),
    ),
    manifest(
        "target", GOOD + HEAD.format(package="os"),
        "[heads.flat]", "target", "'p_target'", "'os.parts:Flat'",
    ),
    manifest(
        "builder", GOOD + 'builder = "vitzoo.network.build:build"\n',
        "[variants.net]", "builder", "'p_builder'", "'vitzoo.network.build:build'",
    ),
    manifest(
        "needy", GOOD + HEAD.format(package="p_needy") + 'requires = ["no-such-lib>=2"]\n',
        "'flat'", "'no-such-lib>=2'", "pip install 'no-such-lib>=2'",
        ask=PART, state=("loaded", "loaded"),
    ),
    Case(
        "native",
        {"registry.toml": GOOD + HEAD.format(package="p_native"), "__init__.py": NOTE,
         "parts.py": "from p_native import _ops\n", "_ops.abi3.so": b"\x7fELF, or not"},
        ask=PART, state=("loaded", "failed"),
        says=("'p_native.parts:Flat'", "ImportError: ", "/_ops.abi3.so: ", ".py:1)",
              "VITZOO_DISABLE_PLUGINS=native/flat"),
    ),
    module(
        "library", "import ctypes\nctypes.CDLL('libno_such.so.9')",
        "OSError: libno_such.so.9: cannot open shared object", "p_library/hooks.py:2)",
    ),
    module(
        "import-error", "\nimport no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module'", "p_import_error/hooks.py:2)",
    ),
    module("exception", "\n\n1 / 0", "ZeroDivisionError: division by zero", "hooks.py:3)"),
    module("syntax", "def f(:\n", "SyntaxError: ", "p_syntax/hooks.py:1)"),
    module("exit", "import sys\nsys.exit(3)", "SystemExit: 3", "p_exit/hooks.py:2)"),
    module(
        "unknown-hook", MODULE.replace("vitzoo_heads", "vitzoo_hedas"),
        "'vitzoo_hedas'", "p_unknown_hook.hooks", "'vitzoo_heads'",
    ),
    module(
        "undecorated", MODULE.replace("@vitzoo.hookimpl\n", ""),
        "p_undecorated.hooks.vitzoo_heads", "@vitzoo.hookimpl",
    ),
    module(
        "signature", MODULE.replace("vitzoo_heads()", "vitzoo_heads(zoo)"),
        "vitzoo_heads", "'zoo'", "no arguments",
    ),
    module(
        "twice", MODULE.replace('[vitzoo.Head("flat", Flat, "a head")]',
                                '[vitzoo.Head("flat", Flat, "a head")] * 2'),
        "vitzoo_heads", "'flat'", "rename",
    ),
    module(
        "outside", MODULE.replace("Flat, ", '"torch.nn:Linear", '),
        "target", "'torch.nn:Linear'", "'p_outside'",
    ),
    Case(
        "twins", {"registry.toml": GOOD}, others=("other-twins",), state=("conflict", "conflict"),
        says=("'twins'", "dist-twins 1.0", "other-twins 1.0", "VITZOO_DISABLE_PLUGINS"),
    ),
    manifest(
        "dino", GOOD, "'dino'", "reserved", "vitzoo-dino",
        ask="raise_(next(i for i in vitzoo.plugins() if i.distribution == 'dist-dino').trouble)",
    ),
    manifest(
        "core", GOOD, "'core'", "reserved",
        ask="raise_(next(i for i in vitzoo.plugins() if i.distribution == 'dist-core').trouble)",
    ),
    manifest(
        "override",
        GOOD + WEIGHTS.format(name="vit_b16", weights=PINNED, sha="a" * 64)
        + '[variants.vit_b16.known_as]\ntimm = "vit_base_patch16_224"\n[aliases]\nvit_l16 = "net"\n'
        + HEAD.format(package="p_override").replace("flat", "linear"),
        "no_such",
        ask="vitzoo.describe('override/no_such')", state=("loaded", "loaded"),
    ),
    module(
        "greedy",
        "import vitzoo\nclass Format:\n    def matches(self, keys): return True\n"
        "    def to_model(self, tensors): raise RuntimeError('not yours')\n"
        "@vitzoo.hookimpl\ndef vitzoo_checkpoint_formats():\n"
        "    yield vitzoo.CheckpointFormat('all', Format(), 'takes everything')\n",
        "'greedy/net'", state=("lazy", "loaded"),
    ),
]  # fmt: skip
HANGING = module("hanging", "import time\ntime.sleep(3600)\n", state=("lazy", "lazy"))
GOOD_ONES = [
    Case(
        "acme",
        {
            "__init__.py": NOTE,
            "registry.toml": GOOD + HEAD.format(package="p_acme") + "[aliases]\nold = 'net'\n",
            "parts.py": """\
from torch import nn


class Flat(nn.Linear):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim, num_classes)
        self.num_classes, self.pre_logits_dim = num_classes, in_dim

    def reset(self, num_classes):
        return Flat(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x, pre_logits=False):
        return x if pre_logits else super().forward(x)
""",
        },
    ),
    module(
        "globex",
        """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    yield vitzoo.DropPathPolicy("late", late, "the rate in the last block only")

@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.Variant("net", "a network", vitzoo.describe("vit_ti16").spec, 5717416)

def late(*, depth, rate):
    return [0.0] * (depth - 1) + [rate]
""",
    ),
    manifest("leaver", GOOD),
]


def wheels(case: Case, folder: Path) -> list[Path]:
    """Write the wheels of a case: files, metadata, entry point, record."""
    made = []
    for name in (case.distribution, *case.others):
        stem = f"{name.replace('-', '_')}-1.0"
        info = f"{stem}.dist-info"
        value = case.value.format(package=case.package)
        files: dict[str, str | bytes] = {
            **({f"{case.package}/{n}": t for n, t in case.files.items()} if not made else {}),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[vitzoo]\n{case.namespace} = {value}\n",
        }
        path = folder / f"{stem}-py3-none-any.whl"
        record = ""
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                data = text if isinstance(text, bytes) else text.encode()
                archive.writestr(file, data)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                record += f"{file},sha256={digest.decode()},{len(data)}\n"
            archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
        made.append(path)
    return made


@pytest.fixture(scope="module")
def zoo(tmp_path_factory, command, new_environment):
    """An environment with vitzoo and every plugin of this file."""
    folder = tmp_path_factory.mktemp("isolation")
    build = (sys.executable, "-m", "build", "--no-isolation", ROOT, "--outdir")
    command(*build, folder / "dist", "--wheel")
    environment = new_environment(folder / "venv")
    made = [path for case in (*CASES, HANGING, *GOOD_ONES) for path in wheels(case, folder)]
    environment.install(*(folder / "dist").glob("*.whl"), *made)
    return environment


@dataclass
class Done:
    """What a process left."""

    out: str
    err: str
    imported: set[str]


@pytest.fixture
def call(zoo, tmp_path):
    """Run a command of the environment, in bounded time."""

    def call(name: str, *args: object, timeout: float = TIMEOUT, **env: str) -> Done:
        notes = tmp_path / "notes"
        notes.unlink(missing_ok=True)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VITZOO_"))}
        base |= {"VITZOO_HOME": str(tmp_path / "home"), "NOTES": str(notes), **env}
        done = subprocess.run(
            [str(zoo.python.with_name(name)), *map(str, args)],
            cwd=zoo.elsewhere, env=base, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
        imported = set(notes.read_text().split()) if notes.exists() else set()
        return Done(done.stdout, done.stderr, imported)

    return call


@pytest.fixture
def run(call):
    """Run code in the environment and return the JSON that it prints."""

    def run(code: str, *args: object, **env: str):
        head = "import json, sys, vitzoo\nfrom vitzoo.registry.registry import registry\n"
        head += "def raise_(text): raise vitzoo.PluginError(text)\n"
        done = call("python", "-c", head + textwrap.dedent(code), *args, **env)
        return json.loads(done.out), done

    return run


STATES = "{i.distribution: i.state for i in vitzoo.plugins()}"
CORE = list(json.loads(ROOT.joinpath("tests/released.json").read_text()))
LISTED = {"needy/net", "native/net", "override/net", "override/vit_b16", "acme/net", "leaver/net"}


def test_listing_imports_no_plugin_and_reports_the_broken_ones(call):
    for _ in range(2):  # reading manifests, then their index
        done = call("vitzoo", "list", "-q")
        assert set(done.out.split()) == {*CORE, *LISTED}
        assert done.imported == set()
        for case in CASES:
            if case.state[0] in ("broken", "incompatible", "conflict"):
                assert case.distribution in done.err, case.namespace
                says(done.err, *case.says)
            elif case.state[0] == "lazy":
                assert case.distribution not in done.err


def test_plugins_shows_all_and_imports_none(run):
    states, done = run(f"print(json.dumps({STATES}))")
    expected = {case.listed: case.state[0] for case in (*CASES, HANGING)}
    good = {"dist-acme": "loaded", "dist-globex": "lazy", "dist-leaver": "loaded", "vitzoo": "core"}
    assert states == expected | good
    assert done.imported == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.namespace)
def test_a_broken_plugin_names_its_cause_and_the_rest_works(run, case):
    code = f"""
        error = None
        try:
            {case.ask.format(namespace=case.namespace)}
        except vitzoo.VitzooError as caught:
            error = [type(caught).__name__, str(caught)]
        names = [v.name for v in vitzoo.variants()]
        core = vitzoo.describe("vit_b16")
        pin = [core.spec.embed_dim, core.default_weights.sha256, vitzoo.describe("vit_l16").name]
        head = registry().contribution("head", "linear")[0]
        print(json.dumps([error, names, {STATES}, pin, head]))
    """
    (error, names, states, pin, head), done = run(code)
    assert error, "nothing was raised"
    says(error[1], *case.says)
    unknown = case.state[1] == "loaded" and "describe" in case.ask
    assert error[0] == ("UnknownName" if unknown else "PluginError")
    if case.state[1] in ("broken", "incompatible", "conflict"):
        assert case.distribution in error[1] or case.namespace in ("dino", "core")
        fixes = {"conflict": "VITZOO_DISABLE_PLUGINS", "incompatible": "update vitzoo"}
        fix = fixes.get(case.state[1], "pip install --upgrade")
        assert fix in error[1]
    assert states[case.listed] == case.state[1]
    assert set(names) == {*CORE, *LISTED}
    released = vitzoo.describe("vit_b16")
    assert pin == [768, released.default_weights.sha256, "vit_l16"]
    assert head == "core"
    others = {c.package for c in (*CASES, HANGING, *GOOD_ONES)} - {case.package}
    assert not done.imported & others


def test_the_core_creates_after_everything_was_asked_for(run, tmp_path):
    asks = [case.ask.format(namespace=case.namespace) for case in CASES]
    code = f"""
        import torch
        caught = 0
        for ask in {asks!r}:
            try:
                eval(ask)
            except vitzoo.VitzooError:
                caught += 1
        small = dict(image_size=32, patch_size=8, num_classes=5, embed_dim=32, depth=2, num_heads=2)
        small |= dict(mlp_dim=64)
        model = vitzoo.create(small).eval()
        path = vitzoo.save(model, {str(tmp_path / "net.safetensors")!r})
        again = vitzoo.create(small, weights=str(path)).eval()
        images = torch.randn(2, 3, 32, 32)
        same = torch.equal(model(images), again(images))
        digits = vitzoo.create("vit_digits", pretrained=True)(torch.zeros(1, 1, 28, 28)).shape
        other = vitzoo.create("vit_ti16", head="acme/flat", num_classes=7, device="meta")
        rates = {{"name": "globex/late", "rate": 0.5}}
        late = vitzoo.create("globex/net", device="meta", drop_path=rates)
        print(json.dumps([caught, same, list(digits), type(other.head).__module__,
                          late.blocks[-1].drop_path.rate, len(vitzoo.variants("vit_*"))]))
    """
    found, _ = run(code)
    caught, same, digits, head, rate, count = found
    assert caught == len(CASES)
    assert (same, digits, head, rate) == (True, [1, 10], "p_acme.parts", 0.5)
    assert count == len(CORE)


def test_a_plugin_that_hangs_is_imported_by_nothing_but_its_own_names(run):
    code = f"""
        states = {STATES}
        vitzoo.create("vit_ti16", device="meta")
        vitzoo.variants("vit_*")
        print(json.dumps([states["dist-hanging"], {STATES}["dist-hanging"]]))
    """
    states, done = run(code)
    assert states == ["lazy", "lazy"]
    assert "p_hanging" not in done.imported


def test_a_plugin_that_hangs_may_be_switched_off(run):
    code = """
        try:
            vitzoo.create("hanging/net", device="meta")
        except vitzoo.PluginError as error:
            print(json.dumps(str(error)))
    """
    message, done = run(code, VITZOO_DISABLE_PLUGINS="dist_hanging")
    says(message, "plugin 'hanging'", "VITZOO_DISABLE_PLUGINS", "'dist_hanging'")
    assert "p_hanging" not in done.imported


def test_switched_off_all_leave_the_core(call):
    done = call("vitzoo", "list", "-q", VITZOO_DISABLE_PLUGINS="*")
    assert set(done.out.split()) == set(CORE)
    assert done.err == ""
    done = call("vitzoo", "list", "-q", VITZOO_PLUGINS="acme,Dist.Globex")
    assert set(done.out.split()) == {*CORE, "acme/net"}
    assert done.err == ""


def test_a_conflict_ends_when_one_distribution_is_off(run):
    code = f"""
        print(json.dumps([vitzoo.describe("twins/net").name, {STATES}]))
    """
    (name, states), _ = run(code, VITZOO_DISABLE_PLUGINS="other-twins")
    assert name == "twins/net"
    assert (states["dist-twins"], states["other-twins"]) == ("loaded", "disabled")


def test_strict_names_every_broken_plugin(run):
    code = """
        try:
            vitzoo.describe("vit_b16")
        except vitzoo.PluginError as error:
            print(json.dumps(str(error)))
    """
    message, done = run(code, VITZOO_STRICT_PLUGINS="1")
    for case in CASES:
        if case.state[0] in ("broken", "incompatible", "conflict"):
            says(message, *case.says)
    assert done.imported == set()


# Workers

WORKER = """\
import multiprocessing, sys
import torch, vitzoo
from torch.utils.data import DataLoader, Dataset


class Features(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        head = {"name": "acme/flat"}
        model = vitzoo.create("acme/net", head=head, num_classes=3, image_size=32).eval()
        rates = {"name": "globex/late", "rate": 0.5}
        late = vitzoo.create("globex/net", drop_path=rates, device="meta")
        return model(torch.randn(1, 3, 32, 32))[0].detach(), late.blocks[-1].drop_path.rate


def classes(name):
    return vitzoo.create(name, head="acme/flat", num_classes=3, device="meta").num_classes


if __name__ == "__main__":
    if sys.argv[1] == "loader":
        how = {"num_workers": 1, "multiprocessing_context": "spawn"}
        loader = DataLoader(Features(), batch_size=2, **how)
        for features, rates in loader:
            print(tuple(features.shape), rates.tolist(), "vitzoo.registry.registry" in sys.modules)
    elif sys.argv[1] == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(classes, ["acme/net", "globex/net", "acme/old"]))
    else:
        import ray

        quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
        ray.init(num_cpus=1, object_store_memory=100_000_000, _temp_dir=sys.argv[2], **quiet)
        remote = ray.remote(classes)
        print(ray.get([remote.remote(n) for n in ["acme/net", "globex/net"]], timeout=300))
        ray.shutdown()
"""


@pytest.fixture
def worker(zoo, call):
    script = zoo.elsewhere / "worker.py"
    script.write_text(WORKER)
    return lambda *args, **env: call("python", script, *args, **env)


def test_parts_reach_the_workers_of_a_spawned_loader(worker):
    done = worker("loader")
    assert done.out == "(2, 3) [0.5, 0.5] False\n"


@pytest.mark.long
def test_parts_reach_spawned_processes(worker):
    assert worker("spawn").out == "[3, 3, 3]\n"


# Ray starts its own servers; on a busy machine each may take longer than Ray waits by itself.
PATIENCE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_worker_register_timeout_seconds": "240",
}


@pytest.fixture
def short_folder():
    """A folder with a path that leaves room for Ray's sockets: they have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield folder


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed, so no part was sent to a Ray worker: pip install 'vitzoo[ray]'",
)
def test_parts_reach_a_ray_worker(worker, short_folder):
    done = worker("ray", short_folder, timeout=2 * TIMEOUT, **PATIENCE)
    assert done.out.splitlines()[-1] == "[3, 3]"


# Last, for it changes the environment


def test_a_saved_spec_of_an_uninstalled_plugin_names_it(zoo, run, tmp_path):
    save = f"""
        model = vitzoo.create("leaver/net", image_size=32, num_classes=2)
        vitzoo.save(model, {str(tmp_path / "net.safetensors")!r})
        print(json.dumps(model.spec.variant))
    """
    assert run(save)[0] == "leaver/net"
    ask = f"""
        try:
            vitzoo.create({str(tmp_path / "net.safetensors")!r})
        except vitzoo.CheckpointError as error:
            print(json.dumps([str(error), [v.name for v in vitzoo.variants()], {STATES}]))
    """
    zoo.uninstall("dist-leaver")
    (message, names, states), _ = run(ask)
    says(message, "net.safetensors", "plugin 'leaver'", "distribution 'dist-leaver'", "trust")
    assert set(names) == {*CORE, *LISTED} - {"leaver/net"}
    assert "dist-leaver" not in states
