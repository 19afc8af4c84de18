"""A plugin that fails affects no other: switches, metadata, limits, threads, the index."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, UNTOUCHABLE as ACME, refuses, says
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    PluginError,
    RegistryError,
    UnknownName,
    VitzooError,
)
from vitzoo.registry.registry import registry
from vitzoo.schema.manifest import MAX_PLUGIN_MANIFEST, read_manifest

plugins = importlib.import_module("vitzoo.plugin.host")
discovery = importlib.import_module("vitzoo.plugin.entry_points")
requirements = importlib.import_module("vitzoo.plugin.requirements")
index = importlib.import_module("vitzoo.registry.listing_cache")

MANIFEST = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[checkpoint_formats.layout]
target = "acme.formats:layout"
summary = "a layout"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"

[variants.other]
summary = "another"
size = "s"
params = 22050664
source = "made up"

[aliases]
former = "net"
"""


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))


@pytest.fixture
def acme(install, tmp_path):
    """The plugin `acme` with a manifest."""

    def make(text: str = MANIFEST, name: str = "acme-parts", value: str = "acme:registry.toml"):
        install(name, f"acme = {value}", ACME | {"acme/registry.toml": text})
        return tmp_path / "site" / "acme" / "registry.toml"

    return make


@pytest.fixture
def switch(monkeypatch, new_registry):
    """Set the switches."""

    def switch(only=None, off=None, strict=None):
        for name, value in (
            ("PLUGINS", only),
            ("DISABLE_PLUGINS", off),
            ("STRICT_PLUGINS", strict),
        ):
            if value is not None:
                monkeypatch.setenv(f"VITZOO_{name}", value)
        new_registry()

    return switch


def state(namespace: str, distribution: str | None = None) -> vitzoo.PluginInfo:
    (found,) = (
        info
        for info in vitzoo.plugins()
        if info.namespace == namespace and distribution in (None, info.distribution)
    )
    return found


def names(pattern: str = "*") -> list[str]:
    return [variant.name for variant in vitzoo.variants(pattern)]


@pytest.fixture(autouse=True)
def _the_core_goes_on_working(request, new_registry):
    """After every test that installs a plugin the core's names, a listing and the states work."""
    yield
    if "install" in request.fixturenames and not os.environ.get("VITZOO_STRICT_PLUGINS"):
        assert vitzoo.create("vit_ti16", device="meta").spec.embed_dim == 192
        assert "vit_b16" in names()
        assert vitzoo.plugins()[0].state == "core"
    new_registry()


# Discovery of distributions and their metadata (module discovery)


@pytest.fixture
def here(acme, tmp_path, monkeypatch):
    """The plugin `acme` in the current directory."""
    acme()
    monkeypatch.chdir(tmp_path / "site")


@pytest.mark.usefixtures("here")
def test_a_plugin_in_the_current_directory_is_shown_and_not_used():
    info = state("acme")
    assert info.state == "disabled"
    says(info.cause, "current directory", "VITZOO_PLUGINS")
    says(info.remedy, "VITZOO_PLUGINS")
    with refuses(PluginError, "'acme'", info.cause, info.remedy):
        vitzoo.describe("acme/net")


@pytest.mark.parametrize("only", ["acme", "Acme.Parts", "*"])
@pytest.mark.usefixtures("here")
def test_a_plugin_in_the_current_directory_is_used_where_it_is_named(switch, only):
    switch(only=only)
    assert state("acme").state == ("disabled" if only == "*" else "loaded")


@pytest.mark.usefixtures("here")
def test_an_installed_plugin_wins_over_one_in_the_current_directory(switch, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    info = elsewhere / "installed_acme-2.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: installed-acme\nVersion: 2.0"
    )
    info.joinpath("entry_points.txt").write_text("[vitzoo]\nacme = acme:registry.toml\n")
    monkeypatch.syspath_prepend(elsewhere)
    for only in (None, "acme"):
        switch(only=only)
        assert state("acme", "installed-acme").state == "loaded"
        assert state("acme", "acme-parts").state == "disabled"
    says(state("acme", "acme-parts").cause, "current directory", "installed-acme 2.0")


def test_metadata_in_the_current_directory_hides_no_installed_plugin(
    acme, tmp_path, monkeypatch, new_registry
):
    acme()
    work = tmp_path / "work"
    (work / "acme_parts.egg-info").mkdir(parents=True)
    (work / "acme_parts.egg-info/PKG-INFO").write_text("Name: acme-parts\nVersion: 0")
    monkeypatch.syspath_prepend(work)
    monkeypatch.chdir(work)
    new_registry()
    assert state("acme").state == "loaded"


def test_the_first_of_two_versions_counts(acme, tmp_path, new_registry):
    acme()
    old = tmp_path / "old" / "Acme.Parts-0.1.dist-info"
    old.mkdir(parents=True)
    old.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: Acme.Parts\nVersion: 0.1\n")
    old.joinpath("entry_points.txt").write_text("[vitzoo]\nacme = acme:gone.toml\n")
    sys.path.append(str(old.parent))
    new_registry()
    try:
        assert (state("acme").state, state("acme").version) == ("loaded", "1.0")
        sys.path.insert(0, sys.path.pop())
        new_registry()
        assert (state("acme").state, state("acme").version) == ("broken", "0.1")
    finally:
        sys.path.remove(str(old.parent))


def damage(
    root: Path, data: bytes, name: str = "acme_parts", file: str = "entry_points.txt"
) -> None:
    folder = root / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(file).write_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[vitzoo]\nacme = acme:\xff.toml\n",
        b"[vitzoo]\nacme\n",
        b"[vitzoo]\n" + b"# a comment\n" * 100_000,
    ],
)
def test_a_plugins_own_damaged_entry_points_are_shown(install, acme, data, new_registry):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    root = acme().parents[1]
    damage(root, data)
    new_registry()
    info = state("acme-parts")
    assert info.state == "broken"
    says(info.cause, "metadata", "/acme_parts-1.0.dist-info/entry_points.txt")
    says(info.remedy, "pip uninstall acme-parts", "VITZOO_DISABLE_PLUGINS=acme-parts")
    with refuses(UnknownName, "'acme/net'", "acme-parts", info.cause, info.remedy):
        vitzoo.describe("acme/net")
    assert vitzoo.describe("globex/net").namespace == "globex"


@pytest.mark.parametrize(
    "data", [b"[console_scripts]\nx = \xff", b"\xff\xfe[\0v\0", b"[x]\nvitzoo"]
)
def test_damaged_metadata_of_other_distributions_is_ignored(acme, data, new_registry):
    damage(acme().parents[1], data, "unrelated")
    new_registry()
    assert "unrelated" not in {info.distribution for info in vitzoo.plugins()}
    assert state("acme").state == "loaded"


@pytest.mark.parametrize("data", [b"\xff\xfe\0", b"", b"Name: \x1b[31mred\nVersion: \x07\n"])
def test_a_plugin_with_damaged_metadata_is_used(acme, data, new_registry):
    damage(acme().parents[1], data, file="METADATA")
    new_registry()
    info = state("acme")
    assert info.state == "loaded"
    assert info.distribution.isprintable()
    assert info.version.isprintable()


def test_unprintable_entry_points_are_shown_printable(install):
    install("acme-parts", "a\x1b[31mcme = acme:\x07.toml", ACME)
    (info,) = (i for i in vitzoo.plugins() if i.distribution == "acme-parts")
    assert info.state == "broken"
    assert all(text.isprintable() for text in (info.namespace, info.cause, *info.trace))


def test_an_import_hook_that_fails_hides_no_plugin(acme, monkeypatch, new_registry):
    class Hook:
        def find_spec(self, *args):
            return None

        def find_distributions(self, context):
            raise OSError("no such registry")

    acme()
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    new_registry()
    assert state("acme").state == "loaded"


def test_an_import_hook_that_fails_at_a_package_breaks_that_plugin_alone(acme, monkeypatch):
    class Hook:
        def find_spec(self, name, *args):
            if name == "acme":
                raise ZeroDivisionError("odd hook")

    acme()
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    assert state("acme").state == "broken"
    assert "ZeroDivisionError: odd hook" in state("acme").cause


# States: namespaces, entry points, conflicts (module plugin_states)


def test_the_same_namespace_twice_in_one_distribution_is_a_conflict(install):
    install("acme-parts", "acme = acme:a.toml\nacme = acme:b.toml", ACME)
    info = state("acme")
    assert info.state == "conflict"
    says(info.cause, "acme-parts 1.0", "'acme'", "acme:a.toml", "acme:b.toml")


def test_a_conflict_ends_when_one_side_is_off(acme, install, switch):
    acme()
    install("acme-fork", "acme = acme:registry.toml")
    assert state("acme").state == "conflict"
    assert "VITZOO_DISABLE_PLUGINS" in state("acme").remedy
    switch(off="acme-fork")
    assert state("acme", "acme-parts").state == "loaded"
    assert state("acme", "acme-fork").state == "disabled"
    assert vitzoo.describe("acme/net").namespace == "acme"


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("kind", ["hybrid:registry.toml", "acme"])
def test_a_reserved_namespace_is_refused_to_other_distributions(
    install, monkeypatch, new_registry, real, kind
):
    every = discovery.find_plugins
    monkeypatch.setattr(
        plugins,
        "find_plugins",
        lambda: [f for f in every() if real or f.distribution != "vitzoo-hybrid"],
    )
    root = install(
        "evil", f"hybrid = {kind}", {"hybrid/registry.toml": MANIFEST, "acme.py": "1 / 0"}
    )
    if real and not any(f.distribution == "vitzoo-hybrid" for f in every()):
        damage(root, b"[vitzoo]\nhybrid = acme_hybrid:registry.toml\n", "vitzoo_hybrid")
        damage(root, b"Name: vitzoo-hybrid\nVersion: 1.0\n", "vitzoo_hybrid", "METADATA")
        (root / "acme_hybrid").mkdir()
        text = MANIFEST.replace("acme.", "acme_hybrid.")
        (root / "acme_hybrid/registry.toml").write_text(text)
    new_registry()
    info = state("hybrid", "evil")
    assert info.state == "broken"
    says(info.cause, "'hybrid'", "reserved", "vitzoo-hybrid")
    says(info.remedy, "pip uninstall evil", "VITZOO_DISABLE_PLUGINS=evil")  # and not the real one
    if real:
        assert state("hybrid", "vitzoo-hybrid").state == "loaded"
        assert names("hybrid/*")
    else:
        with refuses(UnknownName, "'hybrid/net'", "plugin 'hybrid'"):
            vitzoo.describe("hybrid/net")
    assert "acme" not in sys.modules


@pytest.mark.parametrize("value", ["vitzoo:registry.toml", "vitzoo.plugins", "vitzoo"])
def test_an_entry_point_into_the_core_is_refused(install, value):
    install("acme-parts", f"acme = {value}")
    assert state("acme").state == "broken"
    says(state("acme").cause, "acme-parts 1.0", repr(value), "vitzoo")


# The host: modules, threads, what is not read (module plugins)


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


def together(function, count: int = 8) -> list:
    """Call a function in threads that start at once; return results, or errors."""
    barrier, found = threading.Barrier(count), []

    def work():
        barrier.wait(30)
        try:
            found.append(function())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count, "a thread hangs"
    return found


@pytest.fixture
def _quick_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


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
    stdout = sys.stdout
    registry()
    found = together(lambda: vitzoo.describe(name))
    assert [getattr(v, "name", v) for v in found] == [name] * len(found)
    assert len({id(v) for v in found}) == 1
    assert sys.stdout is stdout
    if name == "globex/net":
        assert tmp_path.joinpath("runs").read_text() == "1\n"


@pytest.mark.usefixtures("_quick_switching")
def test_threads_that_ask_for_a_broken_plugin_all_get_its_error(install):
    install("globex-vit", "globex = globex", {"globex.py": "import time\ntime.sleep(0.05)\n1 / 0"})
    found = together(lambda: vitzoo.describe("globex/net"))
    assert {type(error) for error in found} == {PluginError}
    assert len({str(error) for error in found}) == 1


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


# Switches (module switches)


@pytest.mark.parametrize(
    ("only", "off", "expected"),
    [
        (None, None, True),
        ("acme", None, True),
        (" acme ,, ", None, True),
        ("acme-parts", None, True),
        ("Acme_Parts", None, True),
        ("ACME.parts", None, True),
        ("*", None, True),
        ("globex", None, ("VITZOO_PLUGINS",)),
        ("", None, ("VITZOO_PLUGINS",)),
        (" , ", None, ("VITZOO_PLUGINS",)),
        ("ACME", None, ("VITZOO_PLUGINS",)),
        ("acme/net", None, ("VITZOO_PLUGINS",)),
        (None, "", True),
        (None, " , ", True),
        (None, "globex", True),
        (None, "acme", ("VITZOO_DISABLE_PLUGINS", "'acme'")),
        (None, "globex, acme", ("VITZOO_DISABLE_PLUGINS", "'acme'")),
        (None, "acme-parts", ("VITZOO_DISABLE_PLUGINS", "'acme-parts'")),
        (None, "Acme_Parts", ("VITZOO_DISABLE_PLUGINS", "'Acme_Parts'")),
        (None, "*", ("VITZOO_DISABLE_PLUGINS", "'*'")),
        ("acme", "acme", ("VITZOO_DISABLE_PLUGINS", "'acme'")),
        ("acme", "*", ("VITZOO_DISABLE_PLUGINS", "'*'")),
        ("acme", "globex", True),
        ("acme-parts", "acme/net", True),
    ],
)
def test_switches_say_which_plugins_may_be_used(acme, switch, only, off, expected):
    acme()
    switch(only, off)
    if expected is True:
        assert state("acme").state == "loaded"
        assert vitzoo.describe("acme/other").namespace == "acme"
        return
    info = state("acme")
    assert info.state == "disabled"
    says(info.cause, *expected)
    assert info.trace[-1].endswith(info.cause)
    assert info.remedy.endswith(expected[0])
    with refuses(PluginError, "'acme'", info.cause, info.remedy):
        vitzoo.describe("acme/other")
    assert not names("*/net")


def test_a_plugin_that_is_off_is_not_read(acme, switch, monkeypatch):
    acme("no TOML at all")
    switch(off="acme")
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "manifest_path", fails)
        assert state("acme").state == "disabled"
        assert "acme/net" not in names()


@pytest.mark.parametrize("off", ["acme/net", " acme/net , globex", "acme/net,acme/net"])
def test_one_variant_is_off_and_so_is_its_alias(acme, switch, off):
    acme()
    switch(off=off)
    assert names("acme/*") == ["acme/other"]  # read
    assert names("acme/*") == ["acme/other"]  # from the index
    for name in ("acme/net", "acme/former"):
        with refuses(PluginError, "'acme/net'", "VITZOO_DISABLE_PLUGINS"):
            vitzoo.create(name, device="meta")
    says(state("acme").trace[-1], "3 contributions", "1", "VITZOO_DISABLE_PLUGINS")


def test_an_alias_that_is_off_is_off_alone(acme, switch):
    acme()
    switch(off="acme/former")
    assert vitzoo.describe("acme/net").name == "acme/net"
    with refuses(PluginError, "'acme/former'", "VITZOO_DISABLE_PLUGINS"):
        vitzoo.describe("acme/former")


@pytest.mark.parametrize(("kind", "name"), [("head", "flat"), ("checkpoint format", "layout")])
def test_one_part_is_off(acme, switch, kind, name):
    acme()
    switch(off=f"acme/{name}")
    assert f"acme/{name}" not in registry().parts[kind]
    with refuses(PluginError, f"'acme/{name}'", "VITZOO_DISABLE_PLUGINS"):
        registry().part(kind, f"acme/{name}")
    assert vitzoo.describe("acme/net").name == "acme/net"


def test_names_of_a_module_plugin_are_off(install, switch):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    switch(off="globex/net,globex/late")
    with refuses(PluginError, "'globex/net'", "VITZOO_DISABLE_PLUGINS"):
        vitzoo.describe("globex/net")
    assert state("globex").state == "loaded"


def test_what_is_off_is_never_suggested(acme, switch):
    acme()
    switch(off="acme/net,acme/former")
    with pytest.raises(UnknownName) as caught:
        vitzoo.describe("acme/nett")
    assert "acme/net'" not in str(caught.value)
    with pytest.raises(UnknownName) as caught:
        vitzoo.describe("acme/forme")
    assert "acme/former" not in str(caught.value)


@pytest.mark.parametrize(
    "off", ["vit_b16", "core", "core/vit_b16", "core/conv", "core/timm", "conv"]
)
def test_nothing_of_the_core_can_be_switched_off(switch, off):
    switch(off=off)
    assert vitzoo.create("vit_b16", device="meta").spec.variant == "vit_b16"
    assert registry().part("checkpoint format", "timm")


def test_the_users_own_names_are_not_switched_off(switch, local_registry):
    local_registry()
    switch(off="local/net,local")
    assert vitzoo.describe("local/net").namespace == "local"


@pytest.mark.parametrize(
    ("variable", "entry", "warning"),
    [
        ("only", "acme, globx", ("VITZOO_PLUGINS", "'globx'")),
        ("only", "acme,acm", ("VITZOO_PLUGINS", "'acm'", "'acme'")),
        ("only", "acme,acme/net", ("VITZOO_PLUGINS", "'acme/net'")),
        ("off", "nobody", ("VITZOO_DISABLE_PLUGINS", "'nobody'")),
        ("off", "vit_b16", ("VITZOO_DISABLE_PLUGINS", "'vit_b16'")),
        ("off", "core", ("VITZOO_DISABLE_PLUGINS", "'core'")),
        ("off", "nobody/net", ("VITZOO_DISABLE_PLUGINS", "'nobody/net'")),
        ("off", "acme/nett", ("VITZOO_DISABLE_PLUGINS", "'acme/nett'", "'acme/net'")),
    ],
)
def test_an_entry_that_matches_nothing_is_logged_once_and_strict_refuses_it(
    acme, switch, caplog, variable, entry, warning
):
    acme()
    switch(**{variable: entry})
    for _ in range(2):
        vitzoo.plugins()
        vitzoo.variants()
        vitzoo.describe("acme/other")
    (record,) = (r for r in caplog.records if r.levelno == logging.WARNING)
    says(record.getMessage(), *warning)
    switch(**{variable: entry}, strict="1")
    with refuses(PluginError, "VITZOO_STRICT_PLUGINS", *warning):
        vitzoo.describe("vit_b16")


@pytest.mark.parametrize(
    "off", ["acme", "acme-parts", "ACME_parts", "acme/net", "acme/former", "*"]
)
def test_an_entry_that_matches_is_not_logged(acme, switch, caplog, off):
    acme()
    switch(off=off)
    vitzoo.plugins()
    assert not caplog.records
    switch(off=off, strict="1")
    assert vitzoo.describe("vit_b16")


@pytest.mark.parametrize("strict", ["1", " true ", "ON", "yes"])
def test_strict_makes_a_broken_plugin_an_error_for_every_call(acme, switch, strict):
    acme("api = ")
    switch(strict=strict)
    for call in (lambda: vitzoo.describe("vit_b16"), vitzoo.plugins, vitzoo.variants):
        with refuses(PluginError, "VITZOO_STRICT_PLUGINS", "'acme'", "acme-parts 1.0", "TOML"):
            call()


@pytest.mark.parametrize("strict", ["", "0", "off", "False"])
def test_strict_may_be_off(acme, switch, strict):
    acme("api = ")
    switch(strict=strict)
    assert vitzoo.describe("vit_b16")


def test_strict_with_another_value_is_refused(switch):
    switch(strict="perhaps")
    with refuses(InvalidOption, "VITZOO_STRICT_PLUGINS", "1", "0", "'perhaps'"):
        vitzoo.describe("vit_b16")
    switch(strict="")


def test_strict_leaves_a_module_lazy_and_what_is_off_alone(install, acme, switch):
    install("globex-vit", "globex = globex", {"globex.py": "1 / 0"})
    acme("api = ")
    switch(strict="1", off="acme")
    assert state("globex").state == "lazy"
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        vitzoo.describe("globex/net")


# Requirements (module requirements)


PLUGGY = f"pluggy {version('pluggy')}"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("no-such-lib", ("'no-such-lib'", "pip install no-such-lib")),
        ("no-such-lib>=2", ("'no-such-lib>=2'", "pip install 'no-such-lib>=2'")),
        ("pluggy>=99", ("'pluggy>=99'", PLUGGY, "pip install 'pluggy>=99'")),
        ("pluggy<1; python_version >= '3'", (PLUGGY, "pip install")),
        ("pluggy===odd", ("'pluggy===odd'", PLUGGY)),
        ("pluggy >", ("'pluggy >'",)),
        ("pluggy; nonsense == '1'", ("nonsense",)),
        ("pluggy; python_version ~= 'x'", ("python_version ~= 'x'",)),
        ("$(reboot)", ("'$(reboot)'",)),
        ("", ("''",)),
    ],
)
def test_a_requirement_that_is_not_met_is_refused(text, cause):
    with pytest.raises(PluginError) as caught:
        requirements.check_requirements([text], "plugin 'acme' (acme-parts 1.0): 'flat'")
    says(str(caught.value), "plugin 'acme' (acme-parts 1.0): 'flat'", *cause)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "pluggy",
        "Pluggy>=1",
        "pluggy[dev]>=1",
        "no-such-lib; python_version < '3'",
        "no-such-lib; extra == 'x'",
        "pluggy @ git+https://example.org/pluggy",
    ],
)
def test_a_requirement_that_is_met_passes(text):
    assert requirements.check_requirements([text], "x") is None


@pytest.mark.parametrize("data", [b"\xff", b"Name: globex\n"])
def test_a_requirement_with_damaged_metadata_counts_as_installed(install, data):
    root = install("globex", "globex = globex")
    damage(root, data, "globex", "METADATA")
    requirements.check_requirements(["globex"], "x")
    with refuses(PluginError, "'globex>=1'", "globex"):
        requirements.check_requirements(["globex>=1"], "x")


def test_a_missing_requirement_stops_its_part_alone(acme):
    text = MANIFEST.replace('"a head"\n', '"a head"\nrequires = ["no-such-lib>=2"]\n')
    acme(text)
    part = "plugin 'acme' (acme-parts 1.0): 'flat'"
    with refuses(PluginError, part, "'no-such-lib>=2'", "pip install 'no-such-lib>=2'"):
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")
    assert state("acme").state == "loaded"
    assert vitzoo.create("acme/net", device="meta")
    assert "acme" not in sys.modules


# Limits of manifests (module manifest)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("#" * (MAX_PLUGIN_MANIFEST + 1), ("1048576 bytes",)),
        ("a" + ".a" * 500_000 + " = 1", ("nested", "12", "line 1")),
        ("api = 1\n[" + "a . " * 200_000 + "a]", ("nested", "12", "line 2")),
        ("a" + '."b\\"."' * 100_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ".'b'" * 200_000 + " = 1", ("nested", "12", "line 1")),
        ("a" + ("\t" * 20 + ".b") * 40_000 + " = 1", ("nested", "12", "line 1")),
        ("x" + ".x" * 13 + " = 1", ("nested", "12")),
        ("x = " + "[" * 14 + "]" * 14, ("nested", "12")),
        ("x = " + "{a = " * 14 + "1" + "}" * 14, ("nested", "12")),
        ('"a\\u001b[31m" = 1', (r"key 'a\x1b[31m'", "128", "printable")),
        ('"a\\nb" = 1', (r"key 'a\nb'", "128", "printable")),
        ("k" * 129 + " = 1", ("128", "printable")),
        ("x = " + "9" * 5000, ("TOML",)),
        ("api = 1\n[heads]\n[heads.flat]\n[heads.flat]\n", ("TOML", "('heads', 'flat')")),
        ("\0", ("TOML",)),
        ("api = 2", ("api", "2", "1")),
    ],
)
def test_a_manifest_beyond_the_limits_is_refused(acme, text, cause):
    acme(text)
    info = state("acme")
    assert info.state == ("incompatible" if text == "api = 2" else "broken")
    says(info.cause, "acme-parts 1.0", "/acme/registry.toml", *cause)
    assert info.cause.isprintable()
    assert "acme" not in sys.modules


def test_dots_in_texts_do_not_count_as_nesting(acme):
    dotted = '"' + "a sentence, then one more. " * 50 + "pkg." * 20 + '"'
    acme(MANIFEST.replace('"made up"', dotted, 1))
    assert state("acme").state == "loaded"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"api = 1\n# \xff"])
def test_a_manifest_that_is_no_text_is_refused(acme, data, new_registry):
    acme().write_bytes(data)
    new_registry()
    says(state("acme").cause, "acme-parts 1.0", "/acme/registry.toml", "TOML")


def test_a_manifest_of_terabytes_is_refused_unread(acme, new_registry):
    path = acme()
    with path.open("wb") as file:
        file.truncate(8 * 1024**4)  # sparse
    new_registry()
    says(state("acme").cause, "/acme/registry.toml", "1048576 bytes")
    assert vitzoo.variants("vit_b16")


# Validation of module plugins (module contributed)


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ('Variant("net", "x", {}, 1)', ("vitzoo_variants", "spec", "Spec", "{} (dict)")),
        ('Variant("net", "x", SPEC, "1")', ("params", "whole number", "'1' (str)")),
        ('Variant("net", 5, SPEC, 1)', ("summary", "string", "5 (int)")),
        ('Variant("net", "\\x1b[31m", SPEC, 1)', ("summary", "printable", r"'\x1b[31m'")),
        ('Variant("net", "x", SPEC, 1, weights=("w",))', ("weights", "Weights objects", "'w'")),
        ('Variant("net", "x", SPEC, 1, weights=5)', ("weights", "list", "5 (int)")),
        ('Variant("net", "x", SPEC, 1, known_as=("a",))', ("known_as", "library")),
        ('Variant("net", "x", SPEC, 1, builder="os:abort")', ("builder", "'os:abort'", "'globex'")),
        ('Variant("net", "x", SPEC, 1, builder=None)', ("builder", "object")),
        ('Variant("net", "x", SPEC, 1, accepts=("wings",))', ("accepts", "spec")),
        ('Variant("net", "x", BAD, 1)', ("image_size", "whole number", "px")),
        ('Variant("net", "x", vitzoo.Spec(), 1)', ("embed_dim",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(sha256="abc"),))', ("sha256", "64", "'abc'")),
        ('Variant("net", "x", SPEC, 1, weights=(W(file="../x"),))', ("file", "'../x'")),
        ('Variant("net", "x", SPEC, 1, weights=(W(size="5"),))', ("size", "whole number")),
        ('Variant("net", "x", SPEC, 1, weights=(W(), W()))', ("weights",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(preprocessing=1),))', ("preprocessing",)),
        ('Variant("net", "x", SPEC, 1, weights=(W(top1=101.0),))', ("top1", "percentage")),
        ('Variant("net", "x", SPEC, 1, weights=(W(gated="no"),))', ("gated", "true", "false")),
        ('Variant(["net"], "x", SPEC, 1)', ("vitzoo_variants", "Variant objects")),
        ('Variant("net", "x", SPEC, 1, requires="timm")', ("requires", "list", "'timm' (str)")),
    ],
)
def test_a_row_with_a_wrong_field_is_an_error_of_its_plugin_alone(install, row, cause):
    code = f"""\
import vitzoo
SPEC = vitzoo.describe("vit_ti16").spec
BAD = vitzoo.Spec(image_size="xx", embed_dim=1, depth=1, num_heads=1, mlp_dim=1)
def W(**changes):
    good = dict(file="x.safetensors", size=1, sha256="a" * 64)
    return vitzoo.Weights("w", **(good | changes))
@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.{row}
"""
    install("globex-vit", "globex = globex", {"globex.py": code})
    own = ("net",) if row.startswith('Variant("net"') else ()
    with refuses(PluginError, "'globex'", "globex-vit 1.0", *own, *cause):
        vitzoo.describe("globex/net")
    assert state("globex").state == "broken"
    assert vitzoo.variants()
    assert not registry().host.manager.has_plugin("globex")


def test_a_good_row_with_weights_passes(install):
    code = """\
import vitzoo
@vitzoo.hookimpl
def vitzoo_variants():
    w = vitzoo.Weights("w", file="x.safetensors", size=1, sha256="a" * 64, top1=80.0, default=True)
    spec = vitzoo.describe("vit_ti16").spec
    known = (("timm", "x"),)
    yield vitzoo.Variant("net", "x", spec, 1, weights=(w,), known_as=known, accepts=("head",))
"""
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net").default_weights.top1 == 80


HEADS = "import vitzoo\n@vitzoo.hookimpl\ndef vitzoo_heads():"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            ("E: ", "unprintable E"),
        ),
        ("raise ValueError('x' * 10**6)", (f"ValueError: {'x' * 1000}...",)),
        ("raise ValueError('\\x1b[31m' + chr(10) + 'two')", ("ValueError: ?[31m two",)),
        ("raise BaseException('odd')", ("BaseException: odd",)),
        ("raise GeneratorExit", ("GeneratorExit",)),
        ("import sys; sys.exit('bye')", ("SystemExit: bye",)),
        ("import vitzoo\n__file__ = 5", ("globex", "@vitzoo.hookimpl")),
        ("def f(:\n", ("SyntaxError: ",)),
        ("import no_such_module", ("ModuleNotFoundError: ", "'no_such_module'")),
        (
            "import vitzoo\n@vitzoo.hookimpl(wrapper=True)\ndef vitzoo_heads(): return (yield)",
            ("globex.vitzoo_heads", "wraps"),
        ),
        (
            "import vitzoo\n@vitzoo.hookimpl(specname='vitzoo_hats')\ndef heads():\n    return []",
            ("hook 'vitzoo_hats'", "globex", "'vitzoo_heads'"),
        ),
        (
            f"import itertools\n{HEADS} return (vitzoo.Head('a', 1, 'x') for _ in ENDLESS)".replace(
                "ENDLESS", "itertools.count()"
            ),
            ("vitzoo_heads", "20000 rows"),
        ),
        (
            f"{HEADS} return [vitzoo.Head('a', 1, 'x'), vitzoo.Head('a', 2, 'y')]",
            ("vitzoo_heads", "'a'", "rename"),
        ),
        (
            f"{HEADS} return [vitzoo.Head('a', 'globex.x', 'x')]",
            ("target", "'globex.x'", "package 'globex'"),
        ),
    ],
)
def test_a_module_that_fails_is_broken_with_its_cause(install, code, cause):
    install("globex-vit", "globex = globex", {"globex.py": code})
    with pytest.raises(PluginError) as caught:
        vitzoo.describe("globex/net")
    says(str(caught.value), "'globex'", "globex-vit 1.0", *cause)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).isprintable()
    assert state("globex").state == "broken"
    says(state("globex").remedy, "pip uninstall globex-vit", "VITZOO_DISABLE_PLUGINS=globex")


def test_mock_objects_in_a_module_are_no_hooks(install):
    code = f"from unittest.mock import MagicMock, call\nthing = MagicMock()\n{MODULE}"
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net")


def test_a_hook_function_with_a_specname_is_used(install):
    code = MODULE.replace("@vitzoo.hookimpl", "@vitzoo.hookimpl(specname='vitzoo_variants')", 2)
    code = code.replace("(specname='vitzoo_variants')", "", 1).replace(
        "def vitzoo_variants", "def rows"
    )
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net")


def test_an_undecorated_hook_from_another_file_of_the_package_is_found(install):
    files = {
        "globex/__init__.py": "",
        "globex/hooks.py": "def vitzoo_heads():\n    return []\n",
        "globex/plugin.py": f"from globex.hooks import vitzoo_heads\n{MODULE}",
    }
    install("globex-vit", "globex = globex.plugin", files)
    with refuses(PluginError, "globex.plugin.vitzoo_heads", "@vitzoo.hookimpl"):
        vitzoo.describe("globex/net")


def test_an_interrupt_is_not_swallowed_and_leaves_the_plugin_as_it_was(install, monkeypatch):
    code = f"import builtins\nif hasattr(builtins, 'stop'): raise KeyboardInterrupt\n{MODULE}"
    install("globex-vit", "globex = globex", {"globex.py": code})
    monkeypatch.setattr("builtins.stop", 1, raising=False)
    with pytest.raises(KeyboardInterrupt):
        vitzoo.describe("globex/net")
    monkeypatch.delattr("builtins.stop")
    assert state("globex").state == "lazy"
    assert vitzoo.describe("globex/net")


def test_a_plugin_that_asks_for_itself_during_its_import_is_loaded_later(install):
    ask = "try: vitzoo.describe('globex/net')\nexcept LookupError as error: said = str(error)\n"
    code = MODULE.replace("import vitzoo\n", f"import vitzoo\n{ask}")
    install("globex-vit", "globex = globex", {"globex.py": code})
    importlib.import_module("globex")  # by other code, not by vitzoo
    assert state("globex").state == "lazy"
    says(sys.modules["globex"].said, "variant 'globex/net'")
    assert vitzoo.describe("globex/net")


def test_a_hook_function_that_asks_for_its_own_plugin_does_not_recurse(install):
    ask = "    try: vitzoo.describe('globex/net')\n    except LookupError: pass\n"
    code = MODULE.replace("vitzoo_variants():\n", f"vitzoo_variants():\n{ask}")
    install("globex-vit", "globex = globex", {"globex.py": code})
    assert vitzoo.describe("globex/net").name == "globex/net"


# File and line of a failure (module reasons)


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


# Output of plugins (module quiet)


EVENTS = "import threading\nstarted, go = threading.Event(), threading.Event()\n"
WAIT = "import initech\ninitech.started.set()\ninitech.go.wait(60)\n"


def test_what_a_plugin_prints_goes_to_stderr(install, capsys):
    code = f"import sys\nprint('hello')\nsys.stdout.write('again')\nsys.stdout = None\n{MODULE}"
    install("globex-vit", "globex = globex", {"globex.py": code})
    stdout = sys.stdout
    vitzoo.describe("globex/net")
    assert sys.stdout is stdout
    assert capsys.readouterr() == ("", "hello\nagain")


def test_prints_of_other_threads_during_an_import_go_to_stdout(install, capsys):
    files = {
        "initech.py": EVENTS,
        "globex.py": f"print('mine')\n{WAIT}{MODULE}",
    }
    install("globex-vit", "globex = globex", files)
    events = importlib.import_module("initech")
    stdout = sys.stdout
    thread = threading.Thread(target=vitzoo.describe, args=("globex/net",), daemon=True)
    thread.start()
    assert events.started.wait(30)
    sys.stdout.write("yours\n")
    events.go.set()
    thread.join(30)
    assert sys.stdout is stdout
    assert capsys.readouterr() == ("yours\n", "mine\n")


# Checkpoint formats of plugins (module asking)


FORMATS = """\
import vitzoo
class Format:
    def claims(self, keys): {claims}
    def canonical(self, tensors): return dict(tensors)
    def inverse(self, tensors): return dict(tensors)
    def facts(self, config, keys): return {{}}
@vitzoo.hookimpl
def vitzoo_checkpoint_formats():
    yield vitzoo.CheckpointFormat("greedy", Format(), "takes everything")
"""


def formats(install, claims: str) -> None:
    install("globex-vit", "globex = globex", {"globex.py": FORMATS.format(claims=claims)})
    registry().part("checkpoint format", "globex/greedy")


def test_a_format_that_claims_everything_gets_no_file_of_the_core(install, small, tmp_path):
    saved = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    formats(install, "return True")
    report = vitzoo.create(small, weights=str(saved)).load_report
    assert "globex" not in str(report)


@pytest.mark.parametrize("claims", ["return 1 / 0", "raise vitzoo.PluginError('x')"])
def test_a_format_that_fails_does_not_take_files_from_others(
    install, acme, small, tmp_path, claims
):
    from safetensors.torch import load_file, save_file

    saved = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    odd = tmp_path / "odd.safetensors"
    save_file({f"mine.{key}": value for key, value in load_file(saved).items()}, odd)
    acme()  # its format cannot be imported
    formats(install, claims)
    failed = ("globex/greedy", "acme/layout", "plugin 'acme' (acme-parts 1.0)", "ImportError:")
    with refuses(CheckpointError, *failed):
        vitzoo.create(small, weights=str(odd))
    good = "return all(k.startswith('mine.') for k in keys)"
    code = FORMATS.format(claims=good).replace("greedy", "fair")
    code = code.replace("return dict(tensors)", "return {k[5:]: v for k, v in tensors.items()}", 1)
    install("initech-vit", "initech = initech", {"initech.py": code})
    formats_known = registry().part("checkpoint format", "initech/fair")
    assert formats_known
    assert vitzoo.create(small, weights=str(odd)).load_report


# Names of plugins that are gone (module registry)


def test_a_spec_whose_plugin_is_gone_names_it(small, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(small | {"head": "acme/flat"}))
    with refuses(UnknownName, "'acme/flat'", "plugin 'acme'"):
        vitzoo.create(path)
    path.write_text(json.dumps({"variant": "acme/net"}))
    with refuses(UnknownName, "'acme/net'", "plugin 'acme'"):
        vitzoo.create(path)


# The index of listings (module listing_index)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "home" / "cache" / "listing"


@pytest.fixture
def entry(acme, folder, new_registry):
    """The plugin `acme`, listed once: the file of its index."""
    acme()
    assert names("acme/*") == ["acme/net", "acme/other"]
    paths = [path for path in folder.iterdir() if b"acme/net" in path.read_bytes()]
    new_registry()
    (path,) = paths
    return path


def fails(*_, **__):
    raise AssertionError("a manifest is parsed")


@pytest.mark.usefixtures("entry")
def test_a_listing_does_not_parse_again(monkeypatch):
    registry()
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "read_manifest", fails)
        assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/net", "acme/other"]
        assert [row["name"] for row in registry().listing(["vit_b16"])] == ["vit_b16"]


@pytest.mark.usefixtures("entry")
def test_the_index_says_what_the_manifest_says():
    rows = {row["name"]: row for row in registry().listing(["acme/*"])}
    vitzoo.describe("acme/net")
    assert {row["name"]: row for row in registry().listing(["acme/*"])} == rows


@pytest.mark.usefixtures("entry")
def test_an_edited_manifest_is_read_again(tmp_path, new_registry):
    path = tmp_path / "site/acme/registry.toml"
    path.write_text(path.read_text().replace('"a network"', '"an edited one"'))
    new_registry()
    assert "an edited one" in [row["summary"] for row in registry().listing(["acme/*"])]


@pytest.mark.parametrize("change", ["version", "core", "namespace", "place"])
def test_what_an_index_was_made_from_is_in_its_name(entry, tmp_path, monkeypatch, change):
    manifest, namespace = tmp_path / "site/acme/registry.toml", "acme"
    assert index.index_path(manifest, namespace) == entry
    index._version.cache_clear()
    if change == "version":
        monkeypatch.setattr(index, "__version__", "99")
    elif change == "core":
        other = tmp_path / "core.toml"
        other.write_text("another")
        monkeypatch.setattr(index, "CORE_MANIFEST", other)
    elif change == "namespace":
        namespace = "globex"
    else:
        (tmp_path / "copy").mkdir()
        manifest = manifest.rename(tmp_path / "copy/registry.toml")
    assert index.index_path(manifest, namespace) != entry
    monkeypatch.undo()
    index._version.cache_clear()


def rows_of(entry: Path) -> list:
    return json.loads(entry.read_text(encoding="utf-8"))


WRONG_FIELDS = {
    "params": ["9", -1, 1.5, None, True, 10**400, {}],
    "name": ["globex/net", "vit_b16", 5, None, ["acme/net"], "acme/\x1b[31m"],
    "namespace": ["core", None, 5],
    "summary": [None, 5, "two\nlines", "\x1b[31m"],
    "image_size": [None, [224, 224], -5, "\x07"],
    "top1": ["80", float("nan"), 1e400, -1, {}],
    "weights": [5, ["x"]],
    "known_as": [None, "timm", [["timm"]], [["timm", 5]], [5], {"timm": "x"}],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG_FIELDS.items() for value in values],
)
def test_a_row_of_the_index_with_a_wrong_field_is_replaced(entry, new_registry, field, value):
    rows = rows_of(entry)
    rows[0][index.COLUMNS.index(field)] = value
    entry.write_text(json.dumps(rows))
    new_registry()
    listed = {row["name"]: row for row in registry().listing(["acme/*"])}
    assert listed["acme/net"]["params"] == 5717416
    assert listed["acme/net"]["summary"] == "a network"
    assert rows_of(entry)[0][index.COLUMNS.index(field)] != value  # written anew


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"5", b'"x"', b"{}", b"[5]", b"[[]]", b"[[1]]", b"\xff\xfe",
        b"[" * 10**5, b'[{"name": "acme/net"}]', b"9" * 5000,
    ],
)  # fmt: skip
def test_garbage_in_the_index_is_replaced(entry, new_registry, data):
    entry.write_bytes(data)
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]
    assert rows_of(entry)[0][0] == "acme/net"


def test_a_cut_index_is_replaced(entry, new_registry):
    data = entry.read_bytes()
    for end in (0, 1, len(data) // 2, len(data) - 1):
        entry.write_bytes(data[:end])
        new_registry()
        assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/net", "acme/other"]


def test_a_folder_in_place_of_an_index_is_ignored(entry, new_registry):
    entry.unlink()
    entry.mkdir()
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]


def add_unregistered(entry: Path) -> None:
    """Write rows that fit, for variants that the manifest does not have."""
    row = rows_of(entry)[0]
    row[index.COLUMNS.index("name")] = "acme/ghost"
    row[index.COLUMNS.index("known_as")] = [["timm", "acme/ghost"], ["timm", "acme/gone"]]
    entry.write_text(json.dumps([*rows_of(entry), row]), encoding="utf-8")


def test_a_variant_that_only_the_index_has_is_no_variant(entry, new_registry):
    add_unregistered(entry)
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]
    new_registry()
    for name in ("acme/ghost", "acme/gone", "ghost"):
        with refuses(UnknownName, repr(name)):
            vitzoo.describe(name)
    assert vitzoo.describe("acme/net").params == 5717416


def test_pins_are_never_taken_from_the_index(entry, new_registry):
    rows = rows_of(entry)
    for field, value in (
        ("weights", "evil"),
        ("pin", "confirmed"),
        ("params", 1),
        ("embed_dim", 7),
    ):
        rows[0][index.COLUMNS.index(field)] = value
    entry.write_text(json.dumps(rows))
    new_registry()
    (listed,) = registry().listing(["acme/net"])
    assert listed["weights"] == "evil"  # what is shown comes from it
    (variant,) = vitzoo.variants("acme/net")
    assert (variant.weights, variant.params, variant.spec.embed_dim) == ((), 5717416, 192)
    (listed,) = registry().listing(["acme/net"])
    assert listed["weights"] is None


@pytest.mark.usefixtures("entry")
def test_a_variant_that_is_off_is_in_the_index_but_not_listed(switch):
    switch(off="acme/net")
    assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/other"]
    assert [row["name"] for row in registry().listing(["*/net"])] == []
    switch(off="")
    assert names("acme/*") == ["acme/net", "acme/other"]


def test_an_index_written_while_a_name_is_off_has_it(acme, switch):
    acme()
    switch(off="acme/net")
    assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/other"]
    switch(off="")
    assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/net", "acme/other"]


def test_listing_works_where_the_index_cannot_be_written(acme, folder):
    folder.parent.parent.mkdir()
    folder.parent.write_text("a file where a folder should be")
    acme()
    assert names("acme/*") == ["acme/net", "acme/other"]


@pytest.mark.parametrize("home", [":memory:", "~nobody-of-that-name/x", "/proc/nowhere"])
def test_without_a_home_listing_works(acme, monkeypatch, home, new_registry):
    acme()
    monkeypatch.setenv("VITZOO_HOME", home)
    new_registry()
    assert [row["name"] for row in registry().listing(["acme/*"])] == ["acme/net", "acme/other"]


def test_concurrent_writers_leave_a_whole_index(acme, folder):
    path = acme()
    place = index.index_path(path, "acme")
    registry().listing(["acme/*"])
    rows = index.read_rows(place, "acme")
    together(lambda: [index.write_rows(place, rows) for _ in range(10)])
    assert index.read_rows(place, "acme") == rows
    assert not [p for p in folder.iterdir() if p.suffix != ".json"]


def test_old_entries_are_cleared(acme, folder, monkeypatch, new_registry):
    monkeypatch.setattr(index, "MAX_ENTRIES", 2)
    path = acme()
    for i in range(4):
        path.write_text(MANIFEST + f"# {i}\n")
        new_registry()
        registry().listing(["acme/*"])
    assert len(list(folder.iterdir())) <= 2


# Pickling (package vitzoo)


def test_a_function_that_uses_vitzoo_can_be_sent_to_a_worker():
    # Ray and dask send globals by cloudpickle, which sends plain modules by name.
    assert type(vitzoo) is type(pickle)
