"""Licences that have to be read, and repositories whose terms have to be accepted."""

import importlib
import json
import logging
import subprocess
import sys

import pytest

import vitzoo
from vitzoo.catalogue import Weights
from vitzoo.errors import AuthenticationError, GatedRepo, Offline, PluginError, ServerError

PAGE = "https://huggingface.co/acme/net"
NOTICE = f"faulty/net:main: licence cc-by-nc-4.0; read its terms before use: {PAGE}"
ACCEPT = "accept the terms on that page, then log in with `hf auth login` or set HF_TOKEN"


@pytest.fixture(autouse=True)
def nothing_shown(monkeypatch):
    monkeypatch.setattr(importlib.import_module("vitzoo.locate"), "_SHOWN", set())


def notices(caplog):
    return [r.getMessage() for r in caplog.records if "licence" in r.getMessage()]


def test_terms_are_shown_before_the_download_and_stand_in_the_report(net, hub, faults, caplog):
    net.register(license="cc-by-nc-4.0")
    seen = []

    def serve(handler, data):
        seen.append(notices(caplog))
        faults.serve(handler, data)

    hub.always = serve
    model = net.create()
    assert seen == [[NOTICE]]
    assert notices(caplog) == [NOTICE]
    assert caplog.records[0].levelno == logging.WARNING
    assert model.load_report.license == "cc-by-nc-4.0"
    assert "\n  license cc-by-nc-4.0\n" in str(model.load_report)


def test_terms_are_shown_once(net, caplog):
    net.register(license="cc-by-nc-4.0")
    net.create()
    net.create()  # from the store
    net.stored.unlink()
    net.create()  # fetched again
    assert notices(caplog) == [NOTICE]


@pytest.mark.filterwarnings("ignore::vitzoo.errors.FirstUseWarning")
def test_terms_are_shown_before_the_authority_is_asked(net, hub, faults, caplog):
    net.first_use(license="cc-by-nc-4.0")
    seen = []

    def refuse(handler, data):
        seen.append(notices(caplog))
        faults.answer(503)(handler, data)

    hub.api = refuse
    with pytest.raises(ServerError):
        net.create()
    assert seen[0] == [NOTICE]
    hub.api = None
    net.assert_right(net.create())
    assert notices(caplog) == [NOTICE], "neither by the second request nor by the download"


def test_terms_are_not_shown_where_nothing_may_be_asked(net, caplog, monkeypatch):
    net.first_use(license="cc-by-nc-4.0")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with pytest.raises(Offline):
        net.create()
    assert notices(caplog) == []


def test_a_store_that_has_the_file_shows_nothing(net, caplog, monkeypatch):
    net.register(license="cc-by-nc-4.0")
    net.create()
    caplog.clear()
    monkeypatch.setattr(importlib.import_module("vitzoo.locate"), "_SHOWN", set())
    assert net.create().load_report.license == "cc-by-nc-4.0"
    assert notices(caplog) == []


@pytest.mark.parametrize("license", ["Apache-2.0", "apache-2.0", "MIT", "BSD-3-Clause", "CC0-1.0"])
def test_a_permissive_licence_is_not_shown(net, caplog, license):  # noqa: A002  # the row's key
    net.register(license=license)
    assert net.create().load_report.license == license
    assert notices(caplog) == []


def test_a_gate_is_shown_whatever_the_licence(net, caplog):
    net.register(gated=True)
    model = net.create()
    line = (
        f"faulty/net:main: licence Apache-2.0; read its terms before use: {PAGE}; access is gated"
    )
    assert notices(caplog) == [f"{line}: {ACCEPT}"]
    assert model.load_report.license == "Apache-2.0 (gated)"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("code", [None, "GatedRepo"])
def test_a_refusal_of_a_gated_repository_says_the_way_in(net, hub, faults, status, code):
    net.register(gated=True, license="dinov3-license")
    hub.always = faults.answer(status, {"X-Error-Code": code} if code else {})
    net.fails(GatedRepo, "gated", f"{PAGE}", "accept its terms", "hf auth login", "HF_TOKEN")
    net.recovers()


@pytest.mark.filterwarnings("ignore::vitzoo.errors.FirstUseWarning")
def test_the_authority_refuses_a_gated_repository_on_first_use(net, hub, faults):
    net.first_use(gated=True)
    hub.api = faults.answer(401)
    with pytest.raises(GatedRepo, match=f"accept its terms on {PAGE}, then log in .* HF_TOKEN"):
        net.create()
    hub.api = None
    net.assert_right(net.create())


def test_without_a_gate_a_refusal_stays_what_it_was(net, hub, faults):
    hub.always = faults.answer(401)
    net.fails(AuthenticationError, "does not exist or needs a token")


def test_a_gate_needs_a_repository(net):
    net.register(gated=True, repo=None, revision=None)
    with pytest.raises(PluginError, match="gated = true needs a repo: it is the Hub"):
        vitzoo.describe("faulty/net")


def test_the_command_line_shows_both(net):
    net.register(gated=True, license="dinov3-license")

    def run(*words):
        command = [sys.executable, "-m", "vitzoo", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=net.environment(), timeout=120
        )
        return done.stdout, done.stderr

    out, err = run("fetch", "faulty/net")
    (line,) = [line for line in err.splitlines() if "licence" in line]
    assert line == (
        f"faulty/net:main: licence dinov3-license; read its terms before use: {PAGE}; access is "
        f"gated: {ACCEPT}"
    )
    assert "licence" not in out
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
