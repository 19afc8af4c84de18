"""Plugins: how they are found, what a broken one does, and that the core is one of them."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, UNTOUCHABLE as ACME, refuses, says
from internals import registry
from vitzoo.errors import IntegrityError, PluginError, UnknownName, WeightsUnavailable
from vitzoo.schema import kinds

plugins = importlib.import_module("vitzoo.plugin.host")
hookspecs = importlib.import_module("vitzoo.plugin.hookspecs")

MANIFEST = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""


def info(namespace: str) -> vitzoo.PluginInfo:
    (found,) = (plugin for plugin in vitzoo.plugins() if plugin.namespace == namespace)
    return found


def the_core_works() -> bool:
    return vitzoo.describe("vit_b16").params == 86567656 and vitzoo.plugins()[0].state == "core"


# The core is a plugin


def test_the_core_is_registered_with_pluggy_as_a_plugin():
    manager = registry().host.manager
    assert dict(manager.list_name_plugin())["core"] is manager.get_plugin("core")


@pytest.mark.parametrize(
    ("hook", "names"),
    [
        ("vitzoo_patch_embedders", {"conv", "unfold"}),
        ("vitzoo_position_embeddings", {"learned", "sincos_2d", "none"}),
        ("vitzoo_pools", {"class", "mean", "class_mean", "prefix", "attention"}),
        ("vitzoo_heads", {"linear", "tanh", "mlp", "none"}),
        ("vitzoo_drop_path_policies", {"linear", "constant", "none"}),
        ("vitzoo_checkpoint_formats", {"timm"}),
        ("vitzoo_variants", {"vit_b16", "vit_gg14"}),
    ],
)
def test_the_parts_of_the_core_arrive_through_the_hooks(hook, names):
    host = plugins.PluginHost()
    results = getattr(host.manager.hook, hook)()
    assert names <= {row.name for rows in results for row in rows}


def test_what_the_hooks_give_is_what_the_registry_has():
    known = registry().parts["head"]  # a plugin's are `namespace/name` there; all are read now
    rows = [row for rows in registry().host.manager.hook.vitzoo_heads() for row in rows]
    assert sorted(row.name for row in rows) == sorted(name.rpartition("/")[2] for name in known)
    assert registry().contribution("head", "mlp")[1] in rows


def test_every_hook_has_a_specification():
    manager = registry().host.manager
    named = {name for name in vars(hookspecs) if name.startswith("vitzoo_")}
    specified = {name for name in named if getattr(manager.hook, name).spec is not None}
    assert specified == named == set(kinds.HOOKS)


def test_every_hook_is_implemented_by_the_core():
    manager = registry().host.manager
    callers = manager.get_hookcallers(manager.get_plugin("core"))
    assert {caller.name for caller in callers} == set(kinds.HOOKS)


@pytest.mark.parametrize("hook", kinds.HOOKS)
def test_every_specification_shows_an_example_that_is_python(hook):
    doc = inspect.getdoc(getattr(hookspecs, hook))
    example = inspect.cleandoc(doc.partition("::\n")[2])
    assert example.startswith("@vitzoo.hookimpl\ndef " + hook)
    compile(example, hook, "exec")


def test_every_part_of_the_core_can_be_imported():
    for kind, rows in registry().parts.items():
        for namespace, row in rows.values():
            if namespace == "core":
                target = registry().host.import_target(namespace, row)
                assert kind == "checkpoint format" or callable(target), row.name
                assert kind != "checkpoint format" or target.matches({}) in (True, False), row.name


# Manifest plugins


def test_a_manifest_is_listed_without_importing_its_package(install):
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    assert [v.name for v in vitzoo.variants("acme/*")] == ["acme/net"]
    assert registry().contribution("head", "acme/flat")[1].summary == "a head"
    assert "acme" not in sys.modules


def test_a_manifest_plugin_says_what_it_is(install):
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    found = info("acme")
    assert (found.state, found.distribution, found.version) == ("loaded", "acme-parts", "1.0")
    assert found.location.endswith("site/acme/registry.toml")
    assert (found.entry_point, found.cause) == ("acme:registry.toml", "")


def test_a_manifest_may_lie_in_a_subpackage(install):
    files = ACME | {"acme/vit/zoo.toml": MANIFEST}
    install("acme-parts", "acme = acme.vit:zoo.toml", files)
    assert vitzoo.describe("acme/net").namespace == "acme"


def test_one_distribution_may_have_two_namespaces(install):
    files = ACME | {"acme/a.toml": MANIFEST, "acme/b.toml": MANIFEST}
    install("acme-parts", "one = acme:a.toml\ntwo = acme:b.toml", files)
    assert [v.name for v in vitzoo.variants(["one/*", "two/*"])] == ["one/net", "two/net"]


def test_plugins_come_sorted_after_the_core(install):
    files = ACME | {"acme/a.toml": MANIFEST}
    install("acme-parts", "zeta = acme:a.toml\nalpha = acme:a.toml", files)
    found = [p.namespace for p in vitzoo.plugins()]
    assert found == ["core", *sorted(found[1:])]  # others may be installed
    assert {"alpha", "zeta"} <= set(found)


def test_a_part_whose_package_cannot_be_imported_names_the_distribution(install):
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    with pytest.raises(PluginError) as caught:
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")
    says(str(caught.value), "'acme'", "acme-parts 1.0", "'acme.parts:Flat'", "ImportError: nobody")
    assert re.search(r"acme/__init__\.py:1\); correct /.*acme/__init__\.py:1,", str(caught.value))


def test_a_part_whose_package_exits_names_the_distribution(install):
    files = {"acme/__init__.py": "raise SystemExit(3)", "acme/registry.toml": MANIFEST}
    install("acme-parts", "acme = acme:registry.toml", files)
    with refuses(PluginError, "acme-parts 1.0", "'acme.parts:Flat'", "SystemExit: 3"):
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")


def test_an_alias_of_a_plugin_works(install):
    text = MANIFEST + '[aliases]\nold = "net"\n'
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    assert vitzoo.describe("acme/old").name == "acme/net"


# Module plugins


def test_a_module_is_lazy_until_something_of_it_is_asked_for(install):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    assert not [v for v in vitzoo.variants() if v.namespace == "globex"]
    assert vitzoo.variants("*/net") == []
    assert info("globex").state == "lazy"
    assert "globex" not in sys.modules
    assert vitzoo.describe("globex/net").spec.embed_dim == 192
    assert info("globex").state == "loaded"
    assert info("globex").location.endswith("globex.py")
    assert [v.name for v in vitzoo.variants("*/net")] == ["globex/net"]


def test_a_pattern_inside_a_namespace_asks_for_it(install):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    assert [v.name for v in vitzoo.variants("globex/*")] == ["globex/net"]


def test_a_part_of_a_module_plugin_is_used_by_name(install):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    drop_path = {"name": "globex/late", "rate": 0.5}
    model = vitzoo.create("vit_ti16", drop_path=drop_path, device="meta")
    assert [block.drop_path.rate for block in model.blocks] == [0.0] * 11 + [0.5]


def test_asking_for_something_a_module_does_not_have_suggests(install):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    with refuses(UnknownName, "'globex/nett'", "'globex/net'"):
        vitzoo.describe("globex/nett")


# Plugins that fail


def broken(*causes: str) -> None:
    """Check that the plugin `acme` is broken for these reasons, and that nothing else is."""
    for ask in (
        lambda: vitzoo.describe("acme/net"),
        lambda: vitzoo.create("vit_ti16", head="acme/flat", device="meta"),
        lambda: vitzoo.create("acme/net", device="meta"),
        lambda: vitzoo.variants("acme/*"),
    ):
        with pytest.raises(PluginError) as caught:
            ask()
        says(str(caught.value), "'acme'", "acme-parts 1.0", *causes)
    assert info("acme").state == "broken"
    assert str(caught.value).endswith(info("acme").trouble)
    assert the_core_works()


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("api = ", ("TOML", "line 1")),
        ("", ("'api'",)),
        (MANIFEST.replace("acme.parts", "os"), ("[heads.flat]", "target", "'acme'", "'os:Flat'")),
        (MANIFEST.replace('"ti"', '"tiny"'), ("[variants.net]", "size", "ti, s, b, l", "'tiny'")),
        ("api = " + "[" * 5000, ("TOML",)),
    ],
)
def test_a_broken_manifest_is_a_state_with_its_cause(install, text, causes):
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    broken("acme/registry.toml:", *causes)
    assert "acme" not in sys.modules


def test_a_manifest_that_is_not_there_is_a_state(install):
    install("acme-parts", "acme = acme:registry.toml", ACME)
    broken("'registry.toml'", "site/acme", "wheel", "package-data")


def test_a_package_that_is_not_there_is_a_state(install):
    install("acme-parts", "acme = acme:registry.toml")
    broken("'registry.toml'", "package")


def test_a_module_that_is_not_there_is_a_state(install):
    install("acme-parts", "acme = acme")
    broken("ModuleNotFoundError: No module named 'acme'")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("\n\n1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError: "),
        ("raise RecursionError('deep')", "RecursionError: deep"),
    ],
)
def test_a_module_that_raises_is_a_state_with_its_cause(install, code, cause):
    install("acme-parts", "acme = acme", {"acme.py": code})
    assert info("acme").state == "lazy"
    broken(cause)


def test_a_broken_module_names_file_and_line(install):
    install("acme-parts", "acme = acme", {"acme.py": "\n\n1 / 0"})
    broken("acme.py:3)")


def test_a_module_that_contributes_nothing_is_told_the_likely_cause(install):
    code = MODULE.replace("@vitzoo.hookimpl\n", "")
    install("acme-parts", "acme = acme", {"acme.py": code})
    broken("acme.vitzoo_drop_path_policies", "@vitzoo.hookimpl")


def test_a_module_without_hooks_is_told_the_likely_cause(install):
    install("acme-parts", "acme = acme", {"acme.py": "import vitzoo"})
    broken("acme", "@vitzoo.hookimpl")


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("vitzoo_variants", "vitzoo_variant", "hook 'vitzoo_variant'"),
        ("vitzoo_variants()", "vitzoo_variants(zoo)", "takes 'zoo', expected no arguments"),
        ('yield vitzoo.DropPathPolicy("late"', 'yield ("late"', "DropPathPolicy objects"),
        (
            "yield vitzoo.DropPathPolicy",
            "return vitzoo.DropPathPolicy",
            "expected a list of entries; return [entry]",
        ),
        ('"late"', '"Late/"', "'Late/'"),
        ('vitzoo.Variant("net"', 'vitzoo.Head("net"', "Variant objects"),
        ("yield vitzoo.Variant", "1 / 0; yield vitzoo.Variant", "ZeroDivisionError"),
        ("yield vitzoo.Variant", "raise SystemExit(3); yield vitzoo.Variant", "SystemExit: 3"),
    ],
)
def test_a_module_whose_hooks_are_wrong_is_a_state(install, old, new, cause):
    assert MODULE.count(old) == 1
    install("acme-parts", "acme = acme", {"acme.py": MODULE.replace(old, new)})
    broken(cause)


def test_a_broken_module_leaves_nothing_behind(install):
    code = MODULE.replace("yield vitzoo.Variant", "1 / 0; yield vitzoo.Variant")
    install("acme-parts", "acme = acme", {"acme.py": code})
    broken("ZeroDivisionError")
    assert not registry().host.manager.has_plugin("acme")
    assert not [name for name in registry().parts["drop-path policy"] if name.startswith("acme/")]


def test_two_distributions_with_one_namespace_are_both_off(install):
    files = ACME | {"acme/registry.toml": MANIFEST}
    install("acme-parts", "acme = acme:registry.toml", files)
    install("acme-fork", "acme = acme:registry.toml", files)
    claimants = ("acme-parts 1.0", "acme-fork 1.0")
    with refuses(PluginError, "'acme'", *claimants, "VITZOO_DISABLE_PLUGINS", "uninstall"):
        vitzoo.describe("acme/net")
    assert info("acme").state == "conflict"
    assert vitzoo.variants("*/net") == []
    assert the_core_works()


def test_a_conflict_between_modules_imports_neither(install):
    install("acme-parts", "acme = acme", {"acme.py": MODULE})
    install("acme-fork", "acme = acme")
    with refuses(PluginError, "acme-parts 1.0", "acme-fork 1.0"):
        vitzoo.describe("acme/net")
    assert "acme" not in sys.modules


@pytest.mark.parametrize("name", ["Acme", "1acme", "ac.me", "ac me", "con"])
def test_a_malformed_namespace_is_a_state(install, name):
    install("acme-parts", f"{name} = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    assert info(name).state == "broken"
    says(info(name).cause, repr(name), "64", "Windows")
    assert the_core_works()


def test_the_namespace_of_the_core_is_reserved(install):
    install("acme-parts", "core = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    assert the_core_works()
    assert not vitzoo.variants("*/net")
    assert "acme-parts" in str(vitzoo.plugins())


def test_the_namespace_of_the_users_own_file_is_reserved(install, local_registry):
    install("acme-parts", "local = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    assert info("local").state == "broken"
    local_registry()
    assert vitzoo.describe("local/net").spec.embed_dim == 32


@pytest.mark.parametrize("value", ["not valid", "acme:my-registry.toml", "acme:data/zoo.toml", "!"])
def test_a_malformed_entry_point_is_a_state(install, value):
    install("acme-parts", f"acme = {value}", ACME | {"acme/registry.toml": MANIFEST})
    broken(value)


def test_a_distribution_without_metadata_is_used(install):
    files = ACME | {"acme/registry.toml": MANIFEST}
    install("acme-parts", "acme = acme:registry.toml", files, metadata=False)
    assert the_core_works()
    assert vitzoo.describe("acme/net").name == "acme/net"


def test_an_unknown_namespace_is_not_a_broken_plugin():
    with refuses(UnknownName, "'acme/net'", "plugin 'acme'"):
        vitzoo.describe("acme/net")


# Weights that a plugin brings

WEIGHTS = """
[variants.net.weights.first]
file = "first.safetensors"
size = {size}
sha256 = "{sha256}"
pin = "confirmed"
format = "timm"
license = "apache-2.0"
source = "made up"
default = true
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""


@pytest.fixture
def with_weights(install, small, tmp_path):
    """Install a plugin whose variant has weights, in a file of its package."""
    saved = vitzoo.save(vitzoo.create(small), tmp_path / "first.safetensors").read_bytes()
    numbers = "".join(f"{key} = {value}\n" for key, value in small.items())
    text = MANIFEST.replace('size = "ti"\n', numbers)
    text += WEIGHTS.format(size=len(saved), sha256=hashlib.sha256(saved).hexdigest())

    def write(data: bytes = saved, where: str = "acme/data") -> None:
        install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
        path = tmp_path / "site" / where / "first.safetensors"
        path.parent.mkdir()
        path.write_bytes(data)

    write.saved = saved
    return write


def test_the_weights_of_a_plugin_are_loaded_without_importing_it(with_weights):
    with_weights()
    model = vitzoo.create("acme/net", pretrained=True)
    assert model.load_report.source == "acme/net:first"
    assert model.load_report.sha256 == vitzoo.describe("acme/net").default_weights.sha256
    assert "acme" not in sys.modules


@pytest.mark.parametrize("place", [0, 50, -1])
def test_weights_of_a_plugin_with_one_other_bit_are_refused(with_weights, place):
    data = bytearray(with_weights.saved)
    data[place] ^= 1
    with_weights(bytes(data))
    pinned = hashlib.sha256(with_weights.saved).hexdigest()
    found = hashlib.sha256(data).hexdigest()
    with refuses(IntegrityError, f"{len(data)} bytes", f"sha256 {pinned}", f"sha256 {found}"):
        vitzoo.create("acme/net", pretrained=True)


def test_weights_that_a_plugin_forgot_to_ship_are_named(with_weights):
    with_weights(where="acme/elsewhere")
    with refuses(WeightsUnavailable, "first.safetensors", "missing", "acme"):
        vitzoo.create("acme/net", pretrained=True)


MODULE_WITH_WEIGHTS = """\
import dataclasses, vitzoo

@vitzoo.hookimpl
def vitzoo_variants():
    weights = vitzoo.Weights(
        "first", file="first.safetensors", size={size}, sha256="{sha256}", default=True
    )
    spec = vitzoo.Spec(**{numbers})
    yield vitzoo.Variant("net", "a network", spec, 1, weights=(weights,))
"""


def test_the_weights_of_a_module_plugin_lie_in_its_package(install, small, tmp_path):
    saved = vitzoo.save(vitzoo.create(small), tmp_path / "first.safetensors").read_bytes()
    numbers = small | {"image_size": (32, 32), "patch_size": (8, 8)}
    code = MODULE_WITH_WEIGHTS.format(
        size=len(saved), sha256=hashlib.sha256(saved).hexdigest(), numbers=numbers
    )
    install(
        "globex-vit", "globex = globex.plugin", {"globex/__init__.py": "", "globex/plugin.py": code}
    )
    (tmp_path / "site/globex/data").mkdir()
    (tmp_path / "site/globex/data/first.safetensors").write_bytes(saved)
    assert vitzoo.create("globex/net", pretrained=True).load_report.source == "globex/net:first"


# Processes of their own

LISTING = """
import json, sys, vitzoo
rows = {p.namespace: p.state for p in vitzoo.plugins()}
print(json.dumps([rows, len(vitzoo.variants("vit_*")), "torch" in sys.modules]))
"""


def test_listing_with_good_lazy_and_broken_plugins_stays_light(distribution, python):
    distribution("a", "acme = acme:registry.toml", ACME | {"acme/registry.toml": MANIFEST})
    distribution("b", "globex = globex", {"globex.py": "import torch"})
    path = distribution("c", "broken = none:registry.toml")
    states, count, heavy = json.loads(python(LISTING, path=path))
    ours = {"core": "core", "acme": "loaded", "broken": "broken", "globex": "lazy"}
    assert states | ours == states  # others may be installed
    assert count == len(vitzoo.variants("vit_*"))
    assert not heavy
