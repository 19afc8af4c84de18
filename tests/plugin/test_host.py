"""A plugin that fails affects no other: one module each, threads, what the core does without."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, refuses, says
from internals import read_manifest, registry
from plugin_helpers import EVENTS, MANIFEST, WAIT, fails, names, state, together
from vitzoo.errors import PluginError, RegistryError, UnknownName, VitzooError

plugins = importlib.import_module("vitzoo.plugin.host")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


def test_one_module_cannot_be_two_plugins(install):
    install("globex-vit", "globex = globex\ninitech = globex", {"globex.py": MODULE})
    assert vitzoo.describe("globex/net")
    with refuses(PluginError, "'initech'", "module globex", "plugin 'globex'"):
        vitzoo.describe("initech/net")
    assert vitzoo.describe("globex/net")


def test_a_plugin_overrides_nothing_of_the_core(acme):
    core = vitzoo.describe("vit_b16")
    text = MANIFEST.replace("variants.net]", "variants.vit_b16]").replace(
        "heads.flat", "heads.linear"
    )
    text = text.replace('former = "net"', 'vit_l16 = "vit_b16"')
    text += '[variants.vit_b16.known_as]\ntimm = "vit_base_patch16_224"\n'
    acme(text)
    assert vitzoo.describe("acme/vit_b16").spec.embed_dim == 192
    assert vitzoo.describe("vit_b16") == core
    assert vitzoo.describe("vit_l16").name == "vit_l16"
    assert registry().contribution("head", "linear")[0] == "core"
    with refuses(UnknownName, "timm", "vitzoo.create('vit_b16'"):
        vitzoo.describe("vit_base_patch16_224")


@pytest.mark.usefixtures("_quick_switching")
def test_threads_that_ask_first_get_one_registry(acme):
    acme()
    zoos = together(registry)
    assert len({id(zoo) for zoo in zoos}) == 1


@pytest.mark.usefixtures("_quick_switching")
@pytest.mark.parametrize("name", ["acme/net", "globex/net"])
def test_threads_that_ask_for_one_plugin_at_once_all_get_it(acme, install, name, tmp_path):
    acme()
    note = f"with open({str(tmp_path / 'runs')!r}, 'a') as file:\n    print(1, file=file)\n"
    slow = f"{note}import time\ntime.sleep(0.05)\n"
    install("globex-vit", "globex = globex", {"globex.py": slow + MODULE})
    registry()
    found = together(lambda: vitzoo.describe(name))
    assert [getattr(v, "name", v) for v in found] == [name] * len(found)
    assert len({id(v) for v in found}) == 1
    if name == "globex/net":
        assert tmp_path.joinpath("runs").read_text() == "1\n"


def test_a_module_that_another_thread_has_registered_meanwhile_is_no_error(install, monkeypatch):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    registry()
    original = plugins.import_module

    def late(name):
        monkeypatch.setattr(plugins, "import_module", original)
        other = threading.Thread(target=vitzoo.describe, args=["globex/net"])
        other.start()
        other.join(60)
        return original(name)

    monkeypatch.setattr(plugins, "import_module", late)
    monkeypatch.setattr(plugins.PluginHost, "_failed", fails)
    assert vitzoo.describe("globex/net").name == "globex/net"


@pytest.mark.usefixtures("_quick_switching")
def test_threads_that_ask_for_a_broken_plugin_all_get_its_error(install):
    install("globex-vit", "globex = globex", {"globex.py": "import time\ntime.sleep(0.05)\n1 / 0"})
    found = together(lambda: vitzoo.describe("globex/net"))
    assert {type(error) for error in found} == {PluginError}
    assert len({str(error) for error in found}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_switching")
def test_threads_list_while_plugins_are_loaded(install, new_registry):
    files = {"acme/__init__.py": ""} | {f"acme/m{i}.toml": MANIFEST for i in range(6)}
    points = "\n".join(f"acme{i} = acme:m{i}.toml" for i in range(6))
    install("acme-parts", points, files)
    for _ in range(3):
        new_registry()
        todo = iter([*range(6)] * 2)

        def work(todo=todo):
            vitzoo.describe(f"acme{next(todo)}/net")
            registry().core_parts("head")
            dict(registry().parts["head"])
            return len(names("acme?/*"))

        assert together(work, 12) == [12] * 12


def test_a_plugin_that_hangs_blocks_no_other_thread(install, acme):
    files = {
        "initech.py": EVENTS,
        "globex.py": f"{WAIT}{MODULE}",
    }
    acme()
    install("globex-vit", "globex = globex", files)
    install("other-vit", "another = another", {"another.py": MODULE})
    events = importlib.import_module("initech")
    slow = threading.Thread(target=vitzoo.describe, args=("globex/net",), daemon=True)
    slow.start()
    assert events.started.wait(30)
    done = []

    def others():
        done.append(vitzoo.create("vit_ti16", device="meta").num_classes)
        done.append(len(names("acme/*")))
        done.append(state("globex").state)
        done.append(vitzoo.describe("another/net").name)

    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    thread.join(30)
    events.go.set()
    slow.join(30)
    sys.modules.pop("another", None)
    assert done == [1000, 2, "lazy", "another/net"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: vitzoo.create("vit_ti16", device="meta"),
        lambda: vitzoo.describe("vit_b16"),
        lambda: registry().part("head", "linear"),
        lambda: registry().core_parts("checkpoint format"),
    ],
)
def test_the_core_looks_for_no_plugin(acme, ask, monkeypatch, local_registry):
    acme()
    local_registry()
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "find_plugins", fails)
        ask()


def test_every_error_about_a_plugin_is_a_vitzoo_error():
    assert issubclass(PluginError, VitzooError)
    with pytest.raises(RegistryError):
        read_manifest(Path("/nowhere"), package="acme")


# Targets that cannot be imported


TARGETS = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[drop_path_policies.late]
target = "acme.policies:late"
summary = "a policy that works"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "cause", "wanted"),
    [
        (
            {"acme/part.py": ""},
            ("ModuleNotFoundError", "'acme.parts'"),
            ("correct the target in {}/acme/registry.toml", "did you mean 'part'"),
        ),
        (
            {"acme/parts.py": "import torch.no_such"},
            ("ModuleNotFoundError", "'torch.no_such'"),
            ("correct {}/acme/parts.py:1",),
        ),
        (
            {"acme/parts.py": "import acme.no_such"},
            ("ModuleNotFoundError", "'acme.no_such'"),
            ("correct {}/acme/parts.py:1",),
        ),
        (
            {"acme/parts.py": "def __getattr__(name):\n    return {}[name]"},
            ("KeyError", "'Flat'"),
            ("correct {}/acme/parts.py:2",),
        ),
        (
            {"acme/parts/__init__.py": "1 / 0", "acme/parts/flat.py": ""},
            ("parts/__init__.py:1", "by zero"),
            ("correct {}/acme/parts/__init__.py:1",),
        ),
    ],
)
def test_a_target_that_cannot_be_imported_is_a_state_with_a_fix(install, files, cause, wanted):
    policy = "def late(*, depth):\n    return [0.0] * depth"
    files = {"acme/__init__.py": "", "acme/policies.py": policy, **files}
    root = install(
        "acme-parts", "acme = acme:registry.toml", files | {"acme/registry.toml": TARGETS}
    )
    assert state("acme").state == "loaded"
    fix = (
        *(text.replace("{}", str(root)) for text in wanted),
        "pip uninstall acme-parts",
        "VITZOO_DISABLE_PLUGINS=acme/flat",
    )
    said = ("plugin 'acme' (acme-parts 1.0)", "'acme.parts:Flat'", *cause)
    with refuses(PluginError, *said, *fix):
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")
    info = state("acme")
    assert info.state == "failed"
    says(info.cause, *said)
    says(info.fix, *fix)
    assert ("did you mean" in info.fix) == (len(wanted) == 2)
    assert ("correct the target" in info.fix) == (len(wanted) == 2)
    assert vitzoo.create("vit_ti16", drop_path="acme/late", device="meta")
    assert state("acme").state == "failed"


def test_a_target_that_is_corrected_is_imported(install):
    files = {"acme/__init__.py": "", "acme/parts.py": "", "acme/registry.toml": TARGETS}
    install("acme-parts", "acme = acme:registry.toml", files)
    with refuses(
        PluginError, "'acme.parts:Flat'", "correct the target", "pip install --upgrade acme-parts"
    ):
        registry().part("head", "acme/flat")
    sys.modules["acme.parts"].Flat = object
    assert registry().part("head", "acme/flat") is object
    assert (state("acme").state, state("acme").trouble) == ("loaded", "")
