"""The switches in the environment: which plugins and names may be used, and strict mode."""

from __future__ import annotations

import logging

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, refuses, says
from internals import registry
from plugin_helpers import fails, names, state
from vitzoo.errors import InvalidOption, PluginError, UnknownName

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


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
    assert info.fix.endswith(expected[0])
    with refuses(PluginError, "'acme'", info.cause, info.fix):
        vitzoo.describe("acme/other")
    assert not names("*/net")


def test_a_plugin_that_is_off_is_not_read(acme, switch, monkeypatch):
    acme("no TOML at all")
    switch(off="acme")
    with monkeypatch.context() as patch:
        patch.setattr("vitzoo.plugin.package_files.manifest_path", fails)
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


@pytest.mark.slow
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
