"""What a part requires is checked when that part is asked for."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version

import pytest

import vitzoo
from helpers import refuses, says
from plugin_helpers import MANIFEST, damage, state
from tables import cases
from vitzoo.errors import MissingDependency, PluginError

requirements = importlib.import_module("vitzoo.plugin.requirements")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


PLUGGY = f"pluggy {version('pluggy')}"


@cases(
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
        "no-such-lib; python_version < '3'",
        "no-such-lib; extra == 'x'",
        "pluggy @ git+https://example.org/pluggy",
    ],
)
def test_a_requirement_that_is_met_passes(text):
    assert requirements.check_requirements([text], "x") is None


@pytest.mark.parametrize("text", ["globex[nosuch]", "globex[fast,nosuch]>=1", "initech[far]"])
def test_an_extra_that_does_not_exist_is_refused(install, text):
    extras = ("Provides-Extra: fast", "Provides-Extra: Very_Slow")
    requiring(install, "globex", *extras, "Requires-Dist: pluggy; extra == 'very-slow'")
    far = ("Provides-Extra: far", "Requires-Dist: globex[nosuch]; extra == 'far'")
    requiring(install, "initech", *far)
    expected = ("'flat'", repr(text), "globex", "'nosuch'", "fast, very-slow")
    with refuses(PluginError, *expected):
        requirements.check_requirements([text], "plugin 'acme' (acme-parts 1.0): 'flat'")
    with refuses(PluginError, "'pluggy[no_such_extra]'", PLUGGY, "has none"):
        requirements.check_requirements(["pluggy[no_such_extra]"], "x")
    for met in ("globex[fast]", "globex[Very.Slow]"):
        requirements.check_requirements([met], "x")


@pytest.mark.parametrize("data", [b"\xff", b"Name: globex\n"])
def test_a_requirement_with_damaged_metadata_counts_as_installed(install, data):
    root = install("globex", "globex = globex")
    damage(root, data, "globex", "METADATA")
    requirements.check_requirements(["globex", "globex[fast]"], "x")
    with refuses(PluginError, "'globex>=1'", "globex"):
        requirements.check_requirements(["globex>=1"], "x")


@pytest.mark.slow
def test_a_missing_requirement_stops_its_part_alone(acme):
    text = MANIFEST.replace('"a head"\n', '"a head"\nrequires = ["no-such-lib>=2"]\n')
    acme(text)
    part = "plugin 'acme' (acme-parts 1.0): 'flat'"
    with refuses(PluginError, part, "'no-such-lib>=2'", "pip install 'no-such-lib>=2'"):
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")
    assert state("acme").state == "loaded"
    assert vitzoo.create("acme/net", device="meta")
    assert "acme" not in sys.modules


def test_an_extra_of_vitzoo_names_what_to_install(monkeypatch):
    requirements.check_extra("parquet", "vitzoo.embed")
    marker = '; extra == "acme"'
    stated = [
        f"pyarrow>=20{marker}",
        f"wheel-of-acme[fast]>=2{marker}",
        "click",
        "x; extra == 'no'",
    ]
    monkeypatch.setattr(requirements, "requirements_of", lambda _: stated)
    with refuses(
        MissingDependency,
        "vitzoo.embed needs wheel-of-acme[fast]>=2",
        "pip install 'pyarrow>=20' 'wheel-of-acme[fast]>=2'",
    ):
        requirements.check_extra("acme", "vitzoo.embed")
    stated[0] = f"pyarrow>=9999{marker}"
    with refuses(MissingDependency, "needs pyarrow>=9999"):
        requirements.check_extra("acme", "vitzoo.embed")


def requiring(install, name: str, *lines: str) -> None:
    """Install a distribution with lines of metadata."""
    root = install(name, f"{name} = {name}")
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "\n".join(lines)
    damage(root, text.encode(), name, "METADATA")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("globex[fast]", "no-such-lib>=2"),
        ("globex[all]", "no-such-lib>=2"),  # by way of globex[fast]
        ("globex[new]>=1", "pluggy>=99"),
        ("initech", "no-such-lib>=2"),  # requires globex[fast] with an extra of its own
    ],
)
def test_a_missing_package_of_an_extra_is_named_with_the_command(install, text, missing):
    names = ("fast", "all", "new", "slow", "old")
    extras = (
        *(f"Provides-Extra: {name}" for name in names),
        "Requires-Dist: no-such-lib>=2; extra == 'fast'",
        "Requires-Dist: globex[fast]; extra == 'all'",
        "Requires-Dist: globex[all]; extra == 'all'",
        "Requires-Dist: pluggy>=99; extra == 'new'",
        "Requires-Dist: pluggy; extra == 'slow'",
        "Requires-Dist: no-such-lib; extra == 'old' and python_version < '3'",
    )
    requiring(install, "globex", *extras)
    far = ("Provides-Extra: far", "Requires-Dist: globex[fast]; extra == 'far'")
    requiring(install, "initech", *far)
    text = text.replace("initech", "initech[far]")
    with refuses(MissingDependency, "'flat'", repr(text), missing, text):
        requirements.check_requirements([text], "plugin 'acme' (acme-parts 1.0): 'flat'")
    for met in ("globex", "globex[slow]", "globex[old]"):
        requirements.check_requirements([met], "x")


def test_a_part_that_requires_an_extra_of_its_own_distribution(install):
    text = MANIFEST.replace('"a head"\n', '"a head"\nrequires = ["acme-parts[fast]"]\n')
    files = {"acme/__init__.py": "", "acme/registry.toml": text}
    root = install("acme-parts", "acme = acme:registry.toml", files)
    lines = "Name: acme-parts\nVersion: 1.0\nProvides-Extra: fast\n"
    lines += "Requires-Dist: no-such-lib; extra == 'fast'\n"
    damage(root, lines.encode(), "acme_parts", "METADATA")
    part = "plugin 'acme' (acme-parts 1.0): 'flat'"
    with refuses(MissingDependency, part, "no-such-lib", "pip install 'acme-parts[fast]'"):
        vitzoo.create("vit_ti16", head="acme/flat", device="meta")
    assert "acme.parts" not in sys.modules
