"""Licenses that have to be read, and repositories whose terms have to be accepted."""

import importlib
import json
import logging
import subprocess
import sys

import pytest

import vitzoo
from helpers import refuses
from internals import reply
from vitzoo import Weights
from vitzoo.errors import AuthenticationError, GatedRepo, Offline, PluginError, ServerError

PAGE = "https://huggingface.co/acme/net"
NOTICE = ("faulty/net:main", "cc-by-nc-4.0", PAGE)
LOG_IN = ("hf auth login", "HF_TOKEN")


@pytest.fixture(autouse=True)
def nothing_shown(monkeypatch):
    monkeypatch.setattr(importlib.import_module("vitzoo.store.obtain"), "_SHOWN", set())


def notices(caplog):
    return [message for message in caplog.messages if PAGE in message]


def assert_shown(lines, *words):
    """Check that exactly one notice was shown, and that it holds every word."""
    (line,) = lines
    for word in words:
        assert word in line
    return line


def test_terms_are_shown_before_the_download_and_in_the_report(net, hub, faults, caplog):
    net.register(license="cc-by-nc-4.0")
    seen = []

    def serve(handler, data):
        seen.append(notices(caplog))
        faults.serve(handler, data)

    hub.always = serve
    model = net.create()
    (before,) = seen
    assert_shown(before, *NOTICE)
    assert notices(caplog) == before
    assert caplog.records[0].levelno == logging.WARNING
    assert model.load_report.license == "cc-by-nc-4.0"
    assert "\n  license cc-by-nc-4.0\n" in str(model.load_report)


def test_terms_are_shown_once(net, caplog):
    net.register(license="cc-by-nc-4.0")
    net.create()
    net.create()  # from the store
    net.stored.unlink()
    net.create()  # fetched again
    assert "gated" not in assert_shown(notices(caplog), *NOTICE)


@pytest.mark.usefixtures("clock")
@pytest.mark.filterwarnings("ignore::vitzoo.errors.FirstUseWarning")
def test_terms_are_shown_before_the_trusted_endpoint_is_asked(net, hub, faults, caplog):
    net.first_use(license="cc-by-nc-4.0")
    seen = []

    def refuse(handler, data):
        seen.append(notices(caplog))
        faults.answer(503)(handler, data)

    hub.api = refuse
    with pytest.raises(ServerError):
        net.create()
    assert_shown(seen[0], *NOTICE)
    hub.api = None
    net.assert_right(net.create())
    assert notices(caplog) == seen[0], "neither by the second request nor by the download"


def test_terms_are_not_shown_offline(net, caplog, monkeypatch):
    net.first_use(license="cc-by-nc-4.0")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with pytest.raises(Offline):
        net.create()
    assert notices(caplog) == []


def test_terms_are_not_shown_for_a_file_in_the_store(net, caplog, monkeypatch):
    net.register(license="cc-by-nc-4.0")
    net.create()
    caplog.clear()
    monkeypatch.setattr(importlib.import_module("vitzoo.store.obtain"), "_SHOWN", set())
    assert net.create().load_report.license == "cc-by-nc-4.0"
    assert notices(caplog) == []


@pytest.mark.parametrize("license", ["Apache-2.0", "apache-2.0", "MIT", "BSD-3-Clause", "CC0-1.0"])
def test_permissive_license_is_not_shown(net, caplog, license):  # noqa: A002  # the row's key
    net.register(license=license)
    assert net.create().load_report.license == license
    assert notices(caplog) == []


def test_gated_repository_is_shown_with_any_license(net, caplog):
    net.register(gated=True)
    model = net.create()
    assert_shown(notices(caplog), "faulty/net:main", "Apache-2.0", PAGE, "gated", *LOG_IN)
    assert model.load_report.license == "Apache-2.0 (gated)"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("code", [None, "GatedRepo"])
def test_gated_repository_names_its_page_and_the_login(net, hub, faults, status, code):
    net.register(gated=True, license="dinov3-license")
    hub.always = faults.answer(status, {"X-Error-Code": code} if code else {})
    net.fails(GatedRepo, "gated", f"{PAGE}", "accept its terms", "hf auth login", "HF_TOKEN")
    net.recovers()


@pytest.mark.filterwarnings("ignore::vitzoo.errors.FirstUseWarning")
def test_gated_repository_at_the_trusted_endpoint(net, hub, faults):
    net.first_use(gated=True)
    hub.api = faults.answer(401)
    with refuses(GatedRepo, "faulty/net:main", PAGE, *LOG_IN):
        net.create()
    hub.api = None
    net.assert_right(net.create())


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("card", "license"),
    [
        ({"license": "cc-by-nc-nd-4.0"}, "(license cc-by-nc-nd-4.0)"),
        ({"license": "other", "license_name": "dinov3-license"}, "(license dinov3-license)"),
        ({"license": ["a", "b"], "license_name": "x\n\x1b[0m"}, ""),
        (None, ""),
        (["license"], ""),
    ],
)
def test_an_address_of_a_gated_repository(net, hub, faults, status, card, license):  # noqa: A002
    """The Hub states license and gate to everyone, and refuses the first file."""
    data = hub.files["acme/net", "model.safetensors"]
    lfs = {"size": len(data), "sha256": net.sha256}
    files = [{"rfilename": "model.safetensors", "lfs": lfs}, {"rfilename": "config.json"}]
    info = {"sha": "f" * 40, "siblings": files, "cardData": card, "gated": "manual"}
    hub.api = lambda handler, _: reply(handler, 200, {}, json.dumps(info).encode())
    hub.always = faults.answer(status)
    words = "hf://acme/net@main/config.json", f"answered {status}", "gated", "a token is needed"
    with refuses(GatedRepo, *words, f"accept its terms {license}".strip(), PAGE, *LOG_IN) as caught:
        vitzoo.create("hf://acme/net")
    assert ("license" in str(caught.value)) == bool(license)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_well_known_gated_repository(net, hub, faults, status):
    """Its license is known even if the Hub states nothing."""
    assert net.hub is hub
    hub.api = faults.answer(status)
    page = "https://huggingface.co/MahmoodLab/UNI"
    with refuses(GatedRepo, "(license CC-BY-NC-ND-4.0)", page, *LOG_IN):
        vitzoo.create("hf://MahmoodLab/UNI")


def test_401_without_gate_is_an_authentication_error(net, hub, faults):
    hub.always = faults.answer(401)
    net.fails(AuthenticationError, " 401", "hf auth login")


def test_gated_entry_without_a_repository_is_refused(net):
    net.register(gated=True, repo=None, revision=None)
    with pytest.raises(PluginError, match=r"gated = true .*repo"):
        vitzoo.describe("faulty/net")


def test_command_line_shows_license_and_gate(net):
    net.register(gated=True, license="dinov3-license")

    def run(*words):
        command = [sys.executable, "-m", "vitzoo", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=net.environment(), timeout=120
        )
        return done.stdout, done.stderr

    out, err = run("fetch", "faulty/net")
    lines = [line for line in err.splitlines() if PAGE in line]
    assert_shown(lines, "faulty/net:main", "dinov3-license", "gated", *LOG_IN)
    assert "license" not in out
    assert "dinov3-license (gated)" in run("show", "faulty/net")[0]
    row = json.loads(run("show", "faulty/net", "--json")[0])["weights"][0]
    assert (row["license"], row["gated"]) == ("dinov3-license", True)
    (row,) = json.loads(run("list", "faulty/*", "--json")[0])
    assert row["license"] == "dinov3-license"


@pytest.mark.parametrize(
    ("license", "gated", "terms"),
    [("", False, False), ("MIT", False, False), ("MIT", True, True), ("CC-BY-NC-4.0", False, True)],
)
def test_which_weights_have_terms(license, gated, terms):  # noqa: A002  # the row's key
    assert Weights("w", file="f", license=license, gated=gated).has_terms is terms
