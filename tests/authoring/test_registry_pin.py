"""`vitzoo registry pin --all`: several manifests, and every answer of a Hub.

The tests of `vitzoo registry pin FILE` are in tests/test_inventory.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import sys
import threading
import time
import tomllib
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import refuses, says
from internals import COMMIT, editable_manifests, reply
from plugin_files import DETAILS, NET
from vitzoo.errors import InvalidOption
from vitzoo.inventory import AT_ONCE
from vitzoo.testing import Hub

ROOT = Path(__file__).parents[2]

FIRST = 'pin = "first-use"\npredicted_size = 98000'
DATA = b"bytes"
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
ADDED = f'pin = "reported"\nrevision = "{COMMIT}"\nsha256 = "{SHA256}"\nsize = {len(DATA)}'


def pinned(sha256=SHA256):
    """Return the keys of a pinned entry."""
    return f'pin = "confirmed"\nrevision = "{COMMIT}"\nsha256 = "{sha256}"\nsize = {len(DATA)}'


def unsized(sha256=SHA256):
    """Return the keys of an entry that lacks its size alone."""
    keys = f'pin = "reported"\nrevision = "{COMMIT}"\nsha256 = "{sha256}"\n'
    return f"{keys}predicted_size = {len(DATA)}"


def entry(name, keys=FIRST, file="model.safetensors", repo=""):
    """Return an entry, whose repository has its name if no other is given."""
    place = f'repo = "acme/{repo or name}"\nfile = "{file}"'
    return f"\n[variants.net.weights.{name}]  # {name}\n{place}\n{keys}\n{DETAILS}"


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
def passing(monkeypatch):
    """Waits between tries pass at once; a function that is set as `wait` gets their seconds."""
    waits = SimpleNamespace(wait=lambda _: False)
    event = type("Event", (threading.Event,), {"wait": lambda _, seconds: waits.wait(seconds)})
    monkeypatch.setattr("vitzoo.inventory.threading", SimpleNamespace(Event=event))
    return waits


@pytest.fixture
def pin_all(run):
    """Run the command; return the exit code, and the states and causes by entry."""

    def call(*args):
        code, out, err = run("registry", "pin", "--all", "--json", *args)
        return code, {row["weights"]: row["state"] for row in json.loads(out)} if out else err

    return call


def test_every_kind_of_entry(clone, hub, pin_all):
    """Only entries that lack a part of their pin change; each other one is named with its cause."""
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
        "sized": entry("sized", unsized()),
        **{name: entry(name) for name in hub.answers if name != "commit"},
        "commit": entry("commit", bound),
        "changed": entry("changed", unsized("ab" * 32)),
    }
    (file,) = clone(acme=before.values())
    code, states = pin_all()
    assert code == 1
    assert [*states] == [f"acme/net:{name}" for name in before]
    states = {name.removeprefix("acme/net:"): state for name, state in states.items()}
    kinds = {name: state.partition(": ")[0] for name, state in states.items()}
    assert kinds == {
        **dict.fromkeys(("fresh", "bound", "sized", "renamed"), "pinned"),
        "known": "already",
        **dict.fromkeys(("token", "terms"), "gated"),
        **dict.fromkeys(("absent", "no_file"), "missing"),
        **dict.fromkeys(("away", "commit", "small", "changed"), "failed"),
    }
    for name, state in states.items():  # a pin of the registry needs no trust on first use
        assert f"acme/net:{name}" not in state
        assert "first use" not in state
    says(states["token"], "401", "acme/token")
    says(states["terms"], "403")
    says(states["absent"], "no repository acme/absent")
    says(states["no_file"], "acme/no_file@main/model.safetensors")
    says(states["away"], host, "refused")
    says(states["commit"], OTHER)
    says(states["small"], "LFS")
    says(states["changed"], "ab" * 32, SHA256)
    written = before | {name: before[name].replace(FIRST, ADDED) for name in ("fresh", "renamed")}
    written |= {name: entry(name, ADDED) for name in ("bound", "sized")}
    assert file.read_text() == NET + "".join(written.values())
    asked = [path for _, path, _ in hub.requests if "/bound/" in path]
    assert asked == [f"/api/models/acme/bound/revision/{COMMIT}?blobs=true"]
    assert not any("/known/" in path for _, path, _ in hub.requests), "its pin is complete"
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


def test_a_repository_is_asked_once_for_each_revision(clone, hub, pin_all):
    """Its entries may be in several manifests; a refused repository answers for all of them."""
    shared, bound = {"repo": "shared"}, f'{FIRST}\nrevision = "{OTHER}"'
    clone(
        acme=[entry("a", **shared), entry("b", repo="terms"), entry("c", bound, **shared)],
        zoo=[entry("a", **shared), entry("b", repo="terms"), entry("d", **shared, file="no.npz")],
    )
    hub.answers = {
        "terms": status(403),
        "shared": lambda h: stated(h, commit=OTHER if OTHER in h.path else COMMIT),
    }
    code, states = pin_all()
    assert code == 0
    kinds = {name: state.partition(": ")[0] for name, state in states.items()}
    assert kinds == {
        **dict.fromkeys(("acme/net:a", "acme/net:c", "zoo/net:a"), "pinned"),
        **dict.fromkeys(("acme/net:b", "zoo/net:b"), "gated"),
        "zoo/net:d": "missing",
    }
    assert states["acme/net:b"] == states["zoo/net:b"]
    asked = sorted(path.removeprefix("/api/models/acme/") for _, path, _ in hub.requests)
    revisions = (f"shared/revision/{OTHER}", "shared/revision/main", "terms/revision/main")
    assert asked == [f"{place}?blobs=true" for place in revisions]


def test_a_file_without_a_hash_leaves_the_other_files_of_its_repository(clone, hub, pin_all):
    def answer(handler):
        good = {"rfilename": "a", "lfs": {"size": len(DATA), "sha256": SHA256}}
        data = {"sha": COMMIT, "siblings": [{"rfilename": "b", "size": 1}, good]}
        reply(handler, 200, (), json.dumps(data).encode())

    hub.answers["shared"] = answer
    clone(acme=[entry(name, repo="shared", file=name) for name in "ba"])
    code, states = pin_all()
    assert (code, states["acme/net:a"]) == (1, "pinned")
    says(states["acme/net:b"], "failed", "LFS")


def test_an_entry_with_a_hash_gets_the_commit_where_the_hub_has_its_bytes(clone, hub, pin_all):
    """A hash without a commit is asked for at `main`; one of a pull request there."""
    keys = {
        name: f'pin = "reported"\n{revision}sha256 = "{sha256}"\npredicted_size = {len(DATA)}'
        for name, revision, sha256 in (
            ("same", "", SHA256),
            ("request", 'revision = "refs/pr/4"\n', SHA256),
            ("moved", "", "ab" * 32),
        )
    }
    (file,) = clone(acme=[entry(name, text) for name, text in keys.items()])
    code, states = pin_all()
    assert code == 1
    says(states.pop("acme/net:moved"), "failed", "ab" * 32, "revision main", SHA256, "the commit")
    assert {*states.values()} == {"pinned"}
    written = [entry("same", ADDED), entry("request", ADDED), entry("moved", keys["moved"])]
    assert file.read_text() == NET + "".join(written)
    asked = sorted(path.partition("/revision/")[2] for _, path, _ in hub.requests)
    assert asked == ["main?blobs=true", "main?blobs=true", "refs%2Fpr%2F4?blobs=true"]


def test_recheck_compares_complete_entries_too(clone, hub, pin_all):
    keys = {"known": pinned(), "changed": pinned("ab" * 32), "longer": pinned() + "0"}
    (file,) = clone(acme=[entry(*one) for one in keys.items()])
    before = file.read_bytes()
    assert pin_all() == (0, {f"acme/net:{name}": "already" for name in keys})
    assert hub.requests == []
    code, states = pin_all("--recheck")
    assert (code, states["acme/net:known"]) == (1, "already")
    says(states["acme/net:changed"], "failed", "ab" * 32, SHA256, "was not changed")
    says(states["acme/net:longer"], "failed", "size 50", "size 5", "was not changed")
    assert file.read_bytes() == before


def test_a_reviewer_reads_failures_and_odd_sizes_first(clone, hub, run):
    sizes = {"exact": len(DATA), "small": 2 * len(DATA), "near": len(DATA) + 1}
    clone(
        acme=[
            *(entry(n, f'pin = "first-use"\npredicted_size = {s}') for n, s in sizes.items()),
            *(entry(name) for name in ("terms", "broken", "absent")),
            entry("known", pinned()),
        ]
    )
    hub.answers = {"terms": status(403), "broken": status(418), "absent": status(404)}
    code, out, err = run("registry", "pin", "--all")
    head, *lines = [line.split("\t") for line in out.splitlines()]
    assert (code, head) == (1, ["weights", "size", "difference", "sha256", "revision", "state"])
    pin = ["5", SHA256[:8], COMMIT[:8], "pinned"]
    assert [line[0].rpartition(":")[2] for line in lines] == [
        *("broken", "absent", "terms"),
        *("small", "near", "exact"),
    ]
    assert [line[-1].partition(":")[0] for line in lines[:3]] == ["failed", "missing", "gated"]
    assert [line[2] for line in lines[3:]] == ["-50.00 %", "-16.67 %", "+0.00 %"]
    assert all([line[1], *line[3:]] == pin for line in lines[3:])
    says(err, "7 entries", "3 pinned", "1 gated", "1 failed", "1 missing", "1 already")


def test_files_that_are_gated_or_missing_are_no_failure(clone, hub, pin_all):
    """Unless no file is found: a wrong token gets 401 for everything."""
    clone(acme=[entry("fresh"), entry("terms"), entry("absent")])
    hub.answers = {"terms": status(403), "absent": status(404, X_Error_Code="RepoNotFound")}
    code, states = pin_all()
    assert (code, states["acme/net:fresh"]) == (0, "pinned")
    hub.answers["fresh"] = status(401)
    code, states = pin_all("--recheck")
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


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_keeps_its_pins(clone, hub, pin_all, caplog):
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
    assert kinds == dict.fromkeys("abcz", "reported") | {"last": "first-use"}
    says(caplog.text, "1 of 5 entries are still open")
    hub.answers = {}
    code, states = pin_all()
    assert code == 0
    assert [*states.values()] == ["already"] * 3 + ["pinned", "already"]


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize("fault", [status(418), status(503), cut], ids=["418", "503", "cut"])
def test_a_fault_of_one_repository_leaves_the_others(clone, hub, pin_all, fault):
    clone(acme=[entry("fresh"), entry("good")])
    hub.answers["fresh"] = fault
    code, states = pin_all()
    assert code == 1
    says(states["acme/net:fresh"], "failed", hub.host)
    assert states["acme/net:good"] == "pinned"


@pytest.mark.usefixtures("passing")
def test_without_a_network_the_first_error_ends_the_run(clone, hub, pin_all):
    first, last = clone(acme=[entry(f"n{i}") for i in range(50)], zoo=[entry("z")])
    before = first.read_bytes(), last.read_bytes()
    hub.close()
    code, err = pin_all()
    assert code == 4
    says(err, "acme/net:n0", hub.host, "cannot ask")
    assert err.count("cannot ask") == 1
    assert "first use" not in err
    assert (first.read_bytes(), last.read_bytes()) == before


def test_a_bar_counts_the_answers(clone, pin_all, monkeypatch):
    clone(core=[entry("a"), entry("b")], zoo=[entry("c")])
    moves = []

    @contextmanager
    def bar(name):
        yield lambda done, total: moves.append((name, done, total))

    monkeypatch.setattr("vitzoo.authoring.registry_pin.bar", bar)
    assert pin_all()[0] == 0
    assert moves[-1] == ("pins", 3, 3)


def lost(hub):
    """Return a function whose answer is the last: nothing listens there afterwards."""

    def answer(handler):
        hub.close()
        handler.send_response = partial(closing, handler, handler.send_response)
        stated(handler)

    return answer


def closing(handler, send_response, status):
    send_response(status)
    handler.send_header("Connection", "close")


LIMITED = status(429, RateLimit='"api";r=0;t=3600')


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize(
    ("end", "words"),
    [(None, ("cannot ask",)), (LIMITED, ("429", "3601 s"))],
    ids=["network", "rate-limit"],
)
def test_a_run_that_ends_keeps_its_pins_and_the_next_one_continues(
    run, clone, hub, monkeypatch, caplog, end, words
):
    """What the Hub has answered is written; the others are `open`, and are asked for alone."""
    monkeypatch.setattr("vitzoo.inventory.AT_ONCE", 1)
    names = ("a", "b", "c", "d")
    first, last = clone(acme=[entry("a"), entry("b")], zoo=[entry("c"), entry("d")])
    hub.answers = dict.fromkeys(names[1:], end) if end else {"a": lost(hub)}
    code, out, err = run("registry", "pin", "--all", "--json")
    states = {row["weights"]: row["state"] for row in json.loads(out)}
    assert code == 1
    assert [*states.values()] == ["pinned", "open", "open", "open"]
    says(caplog.text, *words, "3 of 4 entries are still open")
    says(err, "4 entries: 1 pinned, 3 open")
    assert [pins(path)[name][0] for path, name in ((first, "a"), (first, "b"), (last, "c"))] == [
        "reported",
        "first-use",
        "first-use",
    ]
    if not end:
        return
    hub.answers, hub.requests = {}, []
    code, out, _ = run("registry", "pin", "--all", "--json")
    assert (code, [row["state"] for row in json.loads(out)]) == (0, ["already", *["pinned"] * 3])
    asked = {path.split("/")[4] for _, path, _ in hub.requests}
    assert asked == {*names[1:]}


def test_a_contradiction_does_not_hide_that_a_run_of_one_file_ended(
    run, clone, hub, monkeypatch, caplog
):
    monkeypatch.setattr("vitzoo.inventory.AT_ONCE", 1)
    (file,) = clone(core=[entry("a", unsized("ab" * 32)), entry("b"), entry("c")])
    hub.answers["c"] = LIMITED
    code, out, _ = run("registry", "pin", file, "--json")
    states = [row["state"].partition(":")[0] for row in json.loads(out)]
    assert (code, states) == (1, ["failed", "pinned", "open"])
    says(caplog.text, "429", "1 of 3 entries are still open")
    assert pins(file)["b"][0] == "reported"


def entries_of(manifest):
    """Return the entries of a manifest whose files are on the Hub."""
    variants = tomllib.loads(manifest.read_text()).get("variants", {}).values()
    rows = [row for variant in variants for row in variant.get("weights", {}).values()]
    return [row for row in rows if "repo" in row]


def only_manifests(_, names):
    """Ignore all other files, for `copytree`."""
    return [name for name in names if not name.endswith((".toml", "__init__.py"))]


class Bucket:
    """The limit of the Hub's API: 500 answers in five minutes, by a clock that waits move."""

    def __init__(self, files):
        self.files, self.now, self.lock = files, 0.0, threading.Lock()
        self.answered, self.refused = Counter(), 0

    def __call__(self, handler, path):
        repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        with self.lock:
            window, passed = divmod(self.now, 300)
            if self.answered[window] == 500:
                self.refused += 1
                left = f'"api";r=0;t={300 - passed:.0f}'
                return reply(handler, 429, {"RateLimit": left})
            self.answered[window] += 1
        commit = revision if len(revision) == 40 else hashlib.sha1(repo.encode()).hexdigest()
        siblings = [{"rfilename": name, "lfs": lfs} for name, lfs in self.files[repo].items()]
        data = {"sha": commit, "siblings": siblings}
        return reply(handler, 200, (), json.dumps(data).encode())

    def wait(self, seconds):
        """Let time pass."""
        with self.lock:
            self.now += seconds
        return False


@pytest.mark.workflows
def test_all_entries_of_this_project_within_the_limit_of_the_api(
    tmp_path, hub, pin_all, passing, monkeypatch
):
    found, files, places = {}, {}, set()
    for file in (ROOT / "registry.toml", *ROOT.glob("plugins/vitzoo-*/vitzoo_*/*.toml")):
        for row in entries_of(file):
            sha256 = row.get("sha256") or hashlib.sha256(row["file"].encode()).hexdigest()
            lfs = {"sha256": sha256, "size": row.get("size") or row["predicted_size"]}
            files.setdefault(row["repo"], {})[row["file"]] = lfs
            places.add((row["repo"], row.get("revision")))
        found[f"n{len(found)}"] = copy = tmp_path / file.relative_to(ROOT)
        shutil.copytree(file.parent, copy.parent, ignore=only_manifests, dirs_exist_ok=True)
    monkeypatch.setattr("vitzoo.authoring.registry_pin.editable_manifests", lambda: found)
    monkeypatch.setenv("VITZOO_TIMEOUT", "")
    hub.api = bucket = Bucket(files)
    passing.wait = bucket.wait
    code, states = pin_all("--recheck")
    assert {*states.values()} == {"pinned", "already"}
    assert (code, len(states) > 700) == (0, True)
    assert bucket.answered.total() == len(places) > 600, "each repository is asked once"
    assert 0 < bucket.refused <= AT_ONCE
    assert len(hub.requests) == len(places) + bucket.refused
    rows = [row for copy in found.values() for row in entries_of(copy)]
    assert all(row.keys() >= {"revision", "sha256", "size"} for row in rows)


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
