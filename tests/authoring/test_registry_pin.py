"""`vitzoo registry pin --all`: several manifests, and every answer of a Hub.

The tests of `vitzoo registry pin FILE` are in tests/test_inventory.py.
"""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import sys
import threading
import time
import tomllib
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

import pytest

from helpers import refuses, says
from internals import COMMIT, editable_manifests, reply
from plugin_files import DETAILS, NET
from vitzoo.errors import InvalidOption, TransferError
from vitzoo.testing import Hub

FIRST = 'pin = "first-use"\npredicted_size = 98000'
DATA = b"bytes"
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
ADDED = f'pin = "reported"\nrevision = "{COMMIT}"\nsha256 = "{SHA256}"\nsize = {len(DATA)}'


def pinned(sha256=SHA256):
    """Return the keys of a pinned entry."""
    return f'pin = "confirmed"\nrevision = "{COMMIT}"\nsha256 = "{sha256}"\nsize = {len(DATA)}'


def entry(name, keys=FIRST, file="model.safetensors"):
    """Return an entry, whose repository has its name."""
    return (
        f'\n[variants.net.weights.{name}]  # {name}\nrepo = "acme/{name}"\nfile = "{file}"\n'
        f"{keys}\n{DETAILS}"
    )


def pins(file):
    """Return (pin, revision, sha256, size) of the entries of a manifest."""
    rows = tomllib.loads(file.read_text())["variants"]["net"]["weights"]
    keys = ("pin", "revision", "sha256", "size")
    return {name: tuple(row.get(key) for key in keys) for name, row in rows.items()}


@pytest.fixture(autouse=True)
def hub(monkeypatch, tmp_path):
    """A Hub that has a file in every repository; `answers` replaces answers by repository."""
    with Hub() as server:
        for name, value in server.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        server.answers = {}
        server.api = lambda handler, path: answer(server, handler, path)
        yield server


def answer(hub, handler, path):
    repo = path.removeprefix("/api/models/").partition("/revision/")[0]
    hub.answers.get(repo.removeprefix("acme/"), stated)(handler)


def stated(handler, commit=COMMIT, file="model.safetensors", lfs=True):
    """State the pin of a file."""
    large = {"size": len(DATA), "sha256": SHA256, "pointerSize": 134}
    sibling = {"rfilename": file, "size": len(DATA), "blobId": "0" * 40}
    data = {"id": "x", "sha": commit, "siblings": [sibling | ({"lfs": large} if lfs else {})]}
    reply(handler, 200, {"Content-Type": "application/json"}, json.dumps(data).encode())


def status(number, **headers):
    """Return a function that answers with a status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: reply(handler, number, named)


def cut(handler):
    """Close the connection instead of answering."""
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Write the manifests that `--all` finds, instead of those of this clone."""

    def write(**entries):
        found = {}
        for namespace, texts in entries.items():
            package = tmp_path / f"vitzoo-{namespace}" / namespace
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
            found[namespace] = package / "registry.toml"
            found[namespace].write_text(NET + "".join(texts))
        monkeypatch.setattr("vitzoo.authoring.registry_pin.editable_manifests", lambda: found)
        return [*found.values()]

    return write


@pytest.fixture
def pauses(monkeypatch):
    """The seconds of all waits, which pass at once."""
    found = []
    monkeypatch.setattr("vitzoo.authoring.registry_pin.pause", found.append)
    return found


@pytest.fixture
def pin_all(run):
    """Run the command; return the exit code, and the states and causes by entry."""

    def call(*args):
        code, out, err = run("registry", "pin", "--all", "--json", *args)
        return code, {row["weights"]: row["state"] for row in json.loads(out)} if out else err

    return call


def test_every_kind_of_entry(clone, hub, pin_all, pauses):
    """Only entries with trust on first use change; each other one is named with its cause."""
    with ThreadingHTTPServer(("127.0.0.1", 0), None) as elsewhere:
        host = f"127.0.0.1:{elsewhere.server_address[1]}"
    hub.answers = {
        "token": status(401),
        "terms": status(403, X_Error_Code="GatedRepo"),
        "absent": status(404, X_Error_Code="RepoNotFound"),
        "no_file": lambda handler: stated(handler, file="other.safetensors"),
        "renamed": lambda handler: (
            stated(handler)
            if "again" in handler.path
            else reply(handler, 307, {"Location": "/api/models/acme/renamed/revision/again"})
        ),
        "away": status(302, Location=f"http://{host}/api/models/acme/away"),
        "commit": lambda handler: stated(handler, commit=OTHER),
        "small": lambda handler: stated(handler, lfs=False),
    }
    bound = f'{FIRST}\nrevision = "{COMMIT}"'
    before = {
        "fresh": entry("fresh"),
        "bound": entry("bound", bound),
        "known": entry("known", pinned()),
        "sized": entry("sized", pinned().rpartition("\n")[0] + "\npredicted_size = 9"),
        **{name: entry(name) for name in hub.answers if name != "commit"},
        "commit": entry("commit", bound),
        "changed": entry("changed", pinned(sha256="ab" * 32)),
    }
    (file,) = clone(acme=before.values())
    code, states = pin_all()
    assert code == 1
    assert [*states] == [f"acme/net:{name}" for name in before]
    states = {name.removeprefix("acme/net:"): state for name, state in states.items()}
    kinds = {name: state.partition(": ")[0] for name, state in states.items()}
    assert kinds == {
        **dict.fromkeys(("fresh", "bound", "renamed"), "pinned"),
        **dict.fromkeys(("known", "sized"), "already"),
        **dict.fromkeys(("token", "terms"), "gated"),
        **dict.fromkeys(("absent", "no_file"), "missing"),
        **dict.fromkeys(("away", "commit", "small", "changed"), "failed"),
    }
    for name, state in states.items():  # a pin of the registry needs no trust on first use
        assert f"acme/net:{name}" not in state
        assert "first use" not in state
    says(states["token"], "401", "acme/token")
    says(states["terms"], "403", "accept its terms")
    says(states["absent"], "no repository acme/absent")
    says(states["no_file"], "acme/no_file@main/model.safetensors", "no such file")
    says(states["away"], host, "refused", "run the command again")
    says(states["commit"], OTHER)
    says(states["small"], "LFS")
    says(states["changed"], "ab" * 32, SHA256)
    revision = f'revision = "{COMMIT}"\n'
    written = before | {name: before[name].replace(FIRST, ADDED) for name in ("fresh", "renamed")}
    written["bound"] = entry("bound", ADDED.replace(revision, "") + "\n" + revision[:-1])
    assert file.read_text() == NET + "".join(written.values())
    asked = [path for _, path, _ in hub.requests if "/bound/" in path]
    assert asked == [f"/api/models/acme/bound/revision/{COMMIT}?blobs=true"]
    assert pauses == [], "no such answer changes when it is asked for again"
    assert hub.file_requests() == [], "no weights are downloaded"


def test_an_entry_whose_keys_are_dotted(clone, pin_all):
    (file,) = clone(acme=[])
    keys = f'repo = "acme/fresh"\nfile = "model.safetensors"\n{FIRST}\n{DETAILS}'
    file.write_text(NET + "".join(f"weights.fresh.{line}\n" for line in keys.splitlines()))
    assert pin_all() == (0, {"acme/net:fresh": "pinned"})
    assert pins(file)["fresh"] == ("reported", COMMIT, SHA256, len(DATA))
    assert "predicted_size" not in file.read_text()


def test_a_pinned_file_has_been_seen(clone, pin_all):
    (file,) = clone(acme=[entry("fresh", f"{FIRST}\nfile_seen = false")])
    assert pin_all() == (0, {"acme/net:fresh": "pinned"})
    assert file.read_text() == NET + entry("fresh", ADDED)


def test_several_manifests_in_order(clone, hub, pin_all):
    """One that cannot be read hides no other; the core's names have no namespace."""
    core, bad, last = clone(core=[entry("a"), entry("b")], bad=[], zoo=[entry("c")])
    bad.write_text("api = 1\napi = 2\n")
    slow = threading.Event()
    hub.answers = {"a": lambda h: (slow.wait(5), stated(h)), "b": lambda h: (slow.set(), stated(h))}
    code, states = pin_all()
    assert [*states] == ["net:a", "net:b", "bad/*", "zoo/net:c"]
    assert code == 1
    says(states.pop("bad/*"), "failed", bad, "TOML")
    assert {*states.values()} == {"pinned"}
    assert pins(core) == dict.fromkeys("ab", ("reported", COMMIT, SHA256, len(DATA)))
    assert pins(last) == {"c": ("reported", COMMIT, SHA256, len(DATA))}
    bad.write_text(NET)
    assert pin_all() == (0, dict.fromkeys(("net:a", "net:b", "zoo/net:c"), "already"))


def test_files_that_are_gated_or_missing_are_no_failure(clone, hub, pin_all):
    """Unless no file is found: a wrong token gets 401 for everything."""
    clone(acme=[entry("fresh"), entry("terms"), entry("absent")])
    hub.answers = {"terms": status(403), "absent": status(404, X_Error_Code="RepoNotFound")}
    code, states = pin_all()
    assert (code, states["acme/net:fresh"]) == (0, "pinned")
    hub.answers["fresh"] = status(401)
    code, states = pin_all()
    assert (code, states["acme/net:fresh"].partition(":")[0]) == (1, "gated")


def test_a_file_that_cannot_be_written(clone, pin_all, monkeypatch):
    full, good = clone(acme=[entry("a")], zoo=[entry("b")])
    write = sys.modules["vitzoo.authoring.registry_pin"].write_atomic

    def write_atomic(path, data):
        if path == full:
            raise OSError(30, "Read-only file system")
        write(path, data)

    monkeypatch.setattr("vitzoo.authoring.registry_pin.write_atomic", write_atomic)
    code, states = pin_all()
    assert (code, [*states]) == (1, ["acme/*", "zoo/net:b"])
    says(states["acme/*"], "failed", full, "Read-only file system")
    assert pins(full)["a"][0] == "first-use"
    assert pins(good)["b"][0] == "reported"


def test_nothing_is_written_on_a_dry_run_or_offline(clone, hub, pin_all, monkeypatch):
    (file,) = clone(acme=[entry("fresh")])
    before = file.read_bytes()
    assert pin_all("--dry-run") == (0, {"acme/net:fresh": "pinned"})
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    code, err = pin_all()
    assert code == 4
    says(err, "acme/net:fresh", "VITZOO_OFFLINE")
    assert file.read_bytes() == before
    assert len(hub.requests) == 1


@pytest.mark.parametrize("args", [(), ("--all", "registry.toml")])
def test_a_file_or_all(run, clone, hub, args):
    clone(acme=[entry("fresh")])
    code, _, err = run("registry", "pin", *args)
    assert code == 2
    says(err, "FILE or --all", "both" if args else "neither")
    assert hub.requests == []


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also in a process that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_keeps_its_pins(clone, hub, pin_all):
    """What the Hub has answered is written, and the next run does the rest."""
    first, file, never = clone(
        acme=[entry("a")], beta=[entry("b"), entry("c"), entry("last")], zoo=[entry("z")]
    )
    ended = threading.Event()

    def interrupt(_):
        time.sleep(1)  # the other answers arrive
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        ended.wait(5)

    hub.answers = {"last": interrupt}
    code, _ = pin_all()
    ended.set()
    assert code == 130
    kinds = {name: row[0] for path in (first, file, never) for name, row in pins(path).items()}
    assert kinds == dict.fromkeys("abc", "reported") | dict.fromkeys(("last", "z"), "first-use")
    hub.answers = {}
    code, states = pin_all()
    assert code == 0
    assert [*states.values()] == ["already"] * 3 + ["pinned"] * 2


@pytest.mark.parametrize(
    ("faults", "waits"),
    [
        ([status(429, Retry_After="7")], [7.0]),
        ([status(429, RateLimit='"api";r=0;t=55')], [56.0]),  # as the Hub asks for it
        ([status(429, RateLimit=f'"api";r=0;t={"9" * 5000}')], [0.4]),
        ([status(503), status(500)], [0.4, 0.8]),
        ([status(503, RateLimit='"api";r=499;t=280')], [0.4]),  # requests are left
        ([cut], [0.4]),
    ],
    ids=["retry-after", "rate-limit", "malformed", "5xx", "not-limited", "cut"],
)
def test_a_fault_that_passes(clone, hub, pin_all, pauses, faults, waits):
    clone(acme=[entry("fresh")])
    left = iter(faults)

    def answer(handler):
        next(left, stated)(handler)

    hub.answers["fresh"] = answer
    assert pin_all() == (0, {"acme/net:fresh": "pinned"})
    assert pauses == pytest.approx(waits)


@pytest.mark.parametrize(
    ("fault", "requests"),
    [(status(503), 5), (status(429, Retry_After="3600"), 1)],
    ids=["5xx", "too-long"],
)
@pytest.mark.usefixtures("pauses")
def test_a_fault_that_stays(clone, hub, pin_all, fault, requests):
    clone(acme=[entry("fresh"), entry("good")])
    hub.answers["fresh"] = fault
    code, states = pin_all()
    assert code == 1
    says(states["acme/net:fresh"], "failed", "try again")
    assert states["acme/net:good"] == "pinned"
    assert sum("/fresh/" in path for _, path, _ in hub.requests) == requests


def test_without_a_network_nothing_is_tried_again(clone, hub, pin_all, pauses):
    first, last = clone(acme=[entry(f"n{i}") for i in range(50)], zoo=[entry("z")])
    before = first.read_bytes(), last.read_bytes()
    hub.close()
    code, err = pin_all()
    assert code == 4
    says(err, "acme/net:n0", hub.host, "cannot be reached", "check the network")
    assert err.count("cannot be reached") == 1
    assert "first use" not in err
    assert (first.read_bytes(), last.read_bytes()) == before
    assert pauses == []


def test_a_bar_counts_the_answers(clone, pin_all, monkeypatch):
    clone(core=[entry("a"), entry("b")], zoo=[entry("c")])
    moves = []

    @contextmanager
    def bar(name):
        yield lambda done, total: moves.append((name, done, total))

    monkeypatch.setattr("vitzoo.authoring.registry_pin.bar", bar)
    assert pin_all()[0] == 0
    assert moves[-2:] == [("registry.toml", 2, 2), ("zoo", 1, 1)]


def test_a_network_that_ends_keeps_the_pins_before(clone, pin_all, monkeypatch):
    first, last = clone(acme=[entry("a")], zoo=[entry("b"), entry("c")])
    real = sys.modules["vitzoo.authoring.registry_pin"].request_pin

    def request_pin(file, fix):
        if file.label.startswith("zoo/"):
            raise TransferError("the Hub cannot be reached")
        return real(file, fix)

    monkeypatch.setattr("vitzoo.authoring.registry_pin.request_pin", request_pin)
    code, states = pin_all()
    assert (code, [*states]) == (1, ["acme/net:a", "zoo/*"])
    says(states["zoo/*"], "failed", last, "cannot be reached")
    assert pins(first)["a"][0] == "reported"


def test_all_means_editable_packages(install, monkeypatch):
    """A manifest in `site-packages` is a copy, which the next installation replaces."""
    files = {"acme/__init__.py": "", "acme/registry.toml": "api = 1\n"}
    site = install("acme-parts", "acme = acme:registry.toml", files)
    assert {*editable_manifests()} & {"acme", "globex"} == set()
    direct = site / "acme_parts-1.0.dist-info" / "direct_url.json"
    direct.write_text('{"dir_info": {"editable": true}, "url": "file:///acme"}')
    found = editable_manifests()
    assert found["acme"] == site / "acme" / "registry.toml"
    for damaged in ("{", "[]", '{"dir_info": null}'):
        direct.write_text(damaged)
        assert "acme" not in editable_manifests()
    first, *others = found
    assert (first, others) == ("core", sorted(others))
    monkeypatch.setattr("vitzoo.authoring.registry_target._editable", lambda _: False)
    with refuses(InvalidOption, "--all", "acme-parts", "vitzoo", "plugins/requirements.txt"):
        editable_manifests()
