"""Weights without a pin: trust on first use writes the lock, and the lock decides from then on."""

import hashlib
import json
import os
import re
import subprocess
import sys
import warnings

import httpx2
import pytest
import safetensors.torch

import vitzoo
from helpers import refuses, says
from internals import main, system
from vitzoo.checkpoint import checkpoint
from vitzoo.errors import (
    EntryNotFound,
    FirstUseWarning,
    HashMismatch,
    InvalidOption,
    Offline,
    PinError,
    RepoNotFound,
    TransferError,
)
from vitzoo.foreign.sidecars import SIDECARS
from vitzoo.inventory import relock
from vitzoo.store import lockfile, locks

DEAD = "http://127.0.0.1:9"  # nothing answers there
SOURCE = "hf://acme/net@main/model.safetensors"
REVISION = "0123456789abcdef0123456789abcdef01234567"  # what the loopback Hub answers


@pytest.fixture
def fresh(net):
    """The network with weights that have no pin."""
    net.first_use()
    return net


@pytest.fixture
def locked(fresh):
    """The network after the trust on first use."""
    fresh.assert_right(fresh.create())
    return fresh


def lock_of(net):
    return net.home / "vitzoo.lock"


def edit(net, change):
    """Change the lock's data and write it back."""
    data = json.loads(lock_of(net).read_text())
    change(data)
    lock_of(net).write_text(json.dumps(data))


def other_bytes(net):
    """Return other valid weights of the same size."""
    return net.data[:-4] + net.data[-8:-4]


def serve(hub, data):
    for key in hub.files:
        hub.files[key] = data


def forget_bytes(net):
    """Empty the store, keep the lock."""
    net.stored.unlink()


def api_requests(hub):
    return [path for _, path, _ in hub.requests if path.startswith("/api/")]


# First use.


def test_trust_on_first_use_writes_the_lock(fresh, hub, caplog):
    caplog.set_level("INFO")
    fresh.assert_right(fresh.create())
    (line,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert line == f"faulty/net:main: trust on first use, 0.0989 MB, pinned now in {lock_of(fresh)}"
    says(caplog.text, SOURCE, hub.endpoint, REVISION, f"{len(fresh.data)} bytes", fresh.sha256)
    assert json.loads(lock_of(fresh).read_text()) == {
        "version": 1,
        "weights": {
            SOURCE: {
                "commit": REVISION,
                "size": len(fresh.data),
                "sha256": fresh.sha256,
                "endpoint": hub.endpoint,
            }
        },
    }
    strangers = [file for file in fresh.files() if not file.startswith("home/")]
    assert strangers == []


def test_trust_on_first_use_is_said_once_and_asks_once(fresh, hub, caplog):
    fresh.create()
    for _ in range(2):
        fresh.assert_right(fresh.create())
    forget_bytes(fresh)
    fresh.assert_right(fresh.create())
    assert caplog.text.count("trust on first use") == 1
    assert len(api_requests(hub)) == 1


def test_a_python_warning_of_trust_on_first_use_if_asked_for(fresh, monkeypatch, caplog):
    monkeypatch.setenv("VITZOO_PINS", "warn")
    with pytest.warns(FirstUseWarning) as warned:
        fresh.assert_right(fresh.create())
    assert len(warned) == 1
    assert warned[0].filename.endswith("/tests/faults/conftest.py")  # which calls create
    says(str(warned[0].message), "faulty/net:main: trust on first use", lock_of(fresh))
    assert "trust on first use" not in caplog.text


def test_the_load_report_says_that_the_registry_does_not_state_the_sha256(fresh):
    for _ in range(2):  # also later
        report = fresh.create().load_report
        assert report.first_use
        says(str(report), "not stated by the registry (trust on first use)")
        assert "trust on first use" in report._repr_html_()
    lock_of(fresh).unlink()
    assert not vitzoo.create("vit_digits", pretrained=True).load_report.first_use


def test_locked_commit_is_fetched(locked, hub):
    forget_bytes(locked)
    locked.create()
    assert {path for _, path, _ in hub.file_requests()} == {
        f"/acme/net/resolve/{REVISION}/model.safetensors"
    }


def test_changed_file_on_the_hub_contradicts_the_lock(locked, hub):
    forget_bytes(locked)
    serve(hub, other_bytes(locked))
    with pytest.raises(HashMismatch, match=f"expected.*{locked.sha256}"):
        locked.create()
    assert not locked.stored.exists()
    assert len(api_requests(hub)) == 1, "the trusted endpoint is not asked again"
    serve(hub, locked.data)
    locked.assert_right(locked.create())


def test_bytes_that_contradict_the_metadata_are_not_locked(fresh, hub, second_hub):
    second_hub.files.update(dict.fromkeys(hub.files, other_bytes(fresh)))
    fresh.monkeypatch.setenv("VITZOO_ENDPOINTS", second_hub.endpoint)
    with pytest.raises(HashMismatch):
        fresh.create()
    assert not lock_of(fresh).exists(), "what did not come is not locked"


def test_metadata_of_another_commit_is_refused(fresh):
    fresh.first_use()
    fresh.register(
        pin="first-use",
        sha256=None,
        size=None,
        predicted_size=len(fresh.data),
        revision="f" * 40,
    )
    with refuses(PinError, f"@{'f' * 40}", fresh.hub.endpoint, REVISION):
        fresh.create()
    assert not lock_of(fresh).exists()


def test_lock_with_another_commit_than_the_registry_is_refused(locked):
    address = f"hf://acme/net@{'f' * 40}/model.safetensors"

    def rename(data):
        data["weights"][address] = data["weights"].pop(SOURCE)

    edit(locked, rename)
    predicted = len(locked.data)
    locked.register(
        pin="first-use", sha256=None, size=None, predicted_size=predicted, revision="f" * 40
    )
    words = (str(lock_of(locked)), REVISION, f" {'f' * 40}", "vitzoo lock --update")
    with refuses(PinError, *words):
        locked.create()


# A lock of `main`, and an entry that has got a revision or a sha256.


def resolved(hub):
    return [path for _, path, _ in hub.file_requests()]


def test_the_commit_of_the_lock_is_fetched_for_an_entry_without_one(locked, hub):
    forget_bytes(locked)
    locked.register(pin="reported", size=None, predicted_size=len(locked.data), revision=None)
    locked.assert_right(locked.create())
    assert resolved(hub)[-1] == f"/acme/net/resolve/{REVISION}/model.safetensors"
    assert len(api_requests(hub)) == 1


def test_an_address_with_a_commit_is_not_bound_by_the_lock_of_main(locked, hub):
    serve(hub, other_bytes(locked))
    hub.commits["acme/net"] = "f" * 40
    address = f"hf://acme/net@{'f' * 40}/model.safetensors"
    spec = vitzoo.describe(locked.name).spec
    with pytest.warns(FirstUseWarning):
        report = vitzoo.create(spec, weights=address).load_report
    assert report.sha256 == hashlib.sha256(other_bytes(locked)).hexdigest()
    assert {SOURCE, address} <= json.loads(lock_of(locked).read_text())["weights"].keys()


def test_that_main_has_no_such_file_does_not_bind_an_entry_with_a_revision(net):
    absent = {"commit": REVISION, "size": 0, "sha256": "0" * 64, "endpoint": "x"}
    net.home.mkdir()
    lock_of(net).write_text(json.dumps({"version": 1, "weights": {SOURCE: absent}}))
    row = {"size": None, "predicted_size": len(net.data)}
    net.register(pin="reported", revision="refs/pr/4", **row)
    net.assert_right(net.create())
    forget_bytes(net)
    net.register(pin="first-use", sha256=None, revision=REVISION, **row)
    net.assert_right(net.create())
    net.register(pin="first-use", sha256=None, revision=None, **row)
    with refuses(EntryNotFound, SOURCE, REVISION, "vitzoo lock --update"):
        net.create()


# A pull request as revision.

PULL = "hf://acme/net@refs/pr/4/model.safetensors"


def test_an_entry_of_a_pull_request_is_fetched_there(net, hub):
    net.register(pin="reported", revision="refs/pr/4")
    net.assert_right(net.create())
    assert resolved(hub) == ["/acme/net/resolve/refs%2Fpr%2F4/model.safetensors"]
    assert api_requests(hub) == []
    assert not lock_of(net).exists()
    serve(hub, other_bytes(net))
    forget_bytes(net)
    with refuses(HashMismatch, "faulty/net:main", net.sha256):
        net.create()


def test_the_address_of_a_pull_request_is_trusted_on_first_use(net, hub):
    spec = vitzoo.describe(net.name).spec
    with pytest.warns(FirstUseWarning):
        net.assert_right(vitzoo.create(spec, weights=PULL))
    assert api_requests(hub) == ["/api/models/acme/net/revision/refs%2Fpr%2F4?blobs=true"]
    assert resolved(hub) == [f"/acme/net/resolve/{REVISION}/model.safetensors"]
    assert PULL in json.loads(lock_of(net).read_text())["weights"]
    assert [one.state for one in vitzoo.verify(PULL)] == ["ok"]
    assert [one.state for one in vitzoo.verify("hf://acme/net@refs/pr/4")] == ["ok"]
    relock(PULL)
    assert main(["rm", PULL]) == 0
    assert not net.stored.exists()


def test_store_in_memory_writes_no_lock(fresh, hub, monkeypatch, caplog):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    monkeypatch.setattr("vitzoo.store.obtain._TRUSTED", set())
    for _ in range(2):
        fresh.assert_right(fresh.create())
    assert len(api_requests(hub)) == 2
    assert caplog.text.count("not pinned: there is no lock file") == 1
    assert fresh.files() == []


def test_lock_path_from_the_environment(fresh, monkeypatch):
    path = fresh.root / "project" / "weights.lock"
    monkeypatch.setenv("VITZOO_LOCK", str(path))
    fresh.create()
    assert SOURCE in json.loads(path.read_text())["weights"]
    assert not lock_of(fresh).exists()


def test_file_outside_lfs_is_refused(fresh, hub):
    reply = sys.modules[type(hub).__module__].reply
    siblings = [{"rfilename": "model.safetensors", "size": 9, "blobId": "0" * 40}]
    info = {"id": "acme/net", "sha": REVISION, "siblings": siblings, "tags": []}
    hub.api = lambda handler, _: reply(handler, 200, {}, json.dumps(info).encode())
    with pytest.raises(PinError, match=f"{SOURCE}.*{hub.endpoint}.*LFS"):
        fresh.create()
    assert hub.file_requests() == []
    assert not lock_of(fresh).exists()


# Policies.


def test_pins_required_refuses_unpinned_weights(fresh, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_PINS", "required")
    with refuses(PinError, SOURCE, "VITZOO_PINS=required", "VITZOO_LOCK"):
        fresh.create()
    assert hub.requests == []
    assert fresh.files() == []


def test_pins_required_accepts_locked_weights(locked, monkeypatch):
    monkeypatch.setenv("VITZOO_PINS", "required")
    locked.assert_right(locked.create())


def test_unknown_value_of_vitzoo_pins_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("VITZOO_PINS", "yes")
    with refuses(InvalidOption, "VITZOO_PINS", "'required', 'warn'", "'yes'"):
        fresh.create()


@pytest.mark.parametrize("how", ["variable", "option"])
def test_frozen_lock_refuses_unknown_weights(fresh, hub, how, monkeypatch, capsys):
    monkeypatch.setenv("VITZOO_FROZEN", "1" if how == "variable" else "0")
    if how == "variable":
        with refuses(PinError, SOURCE, "--frozen"):
            fresh.create()
    else:
        assert main(["fetch", fresh.name, "--frozen"]) == 3
        assert re.search(rf"{SOURCE}.*is frozen.*--frozen", capsys.readouterr().err)
    assert hub.requests == []
    assert not lock_of(fresh).exists()


def test_frozen_lock_accepts_locked_weights(locked, monkeypatch):
    before = lock_of(locked).read_bytes()
    monkeypatch.setenv("VITZOO_FROZEN", "1")
    forget_bytes(locked)
    locked.assert_right(locked.create())
    assert lock_of(locked).read_bytes() == before


def test_entry_removed_from_a_frozen_lock_is_an_error(locked, hub, monkeypatch):
    edit(locked, lambda data: data["weights"].clear())
    before = lock_of(locked).read_bytes()
    monkeypatch.setenv("VITZOO_FROZEN", "1")
    with refuses(PinError, SOURCE, "--frozen"):
        locked.create()
    assert lock_of(locked).read_bytes() == before
    monkeypatch.delenv("VITZOO_FROZEN")
    locked.assert_right(locked.create())
    assert len(api_requests(hub)) == 2


def test_frozen_option_applies_to_one_command(fresh, monkeypatch):
    monkeypatch.delenv("VITZOO_FROZEN", raising=False)
    assert main(["fetch", fresh.name, "--frozen"]) == 3
    assert main(["fetch", fresh.name]) == 0


def test_unlocked_weights_offline_are_an_error(fresh, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    fix = ("VITZOO_LOCK", "docs/trust.md", "vitzoo fetch faulty/net --weights main")
    with refuses(Offline, "faulty/net:main", SOURCE, "sha256", "offline", *fix):
        fresh.create()
    assert hub.requests == []


def test_imported_file_with_its_lock_needs_no_network(locked, hub, monkeypatch, tmp_path):
    file, lock = tmp_path / "carried.safetensors", tmp_path / "carried.lock"
    file.write_bytes(locked.data)
    lock.write_bytes(lock_of(locked).read_bytes())
    forget_bytes(locked)
    lock_of(locked).unlink()
    before = len(hub.requests)
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_LOCK", str(lock))
    assert main(["import", str(file)]) == 0
    locked.assert_right(locked.create())
    assert len(hub.requests) == before


def test_trusted_endpoint_without_the_file_or_repository(fresh, hub):
    hub.files = {("acme/net", "other.bin"): b"x"}
    with refuses(EntryNotFound, "faulty/net:main", SOURCE, hub.endpoint):
        fresh.create()
    hub.files = {}
    with refuses(RepoNotFound, "faulty/net:main", " acme/net", hub.host):
        fresh.create()
    assert not lock_of(fresh).exists()


@pytest.mark.parametrize("there", [{}, {("acme/net", "other.bin"): b"x"}], ids=["no-repo", "file"])
def test_the_error_about_a_file_that_was_not_seen_names_registry_pin(fresh, hub, there):
    hub.files, expected = there, EntryNotFound if there else RepoNotFound
    with pytest.raises(expected) as plain:
        fresh.create()
    assert "registry pin" not in str(plain.value)
    fresh.first_use(file_seen=False)
    with refuses(expected, "faulty/net:main", "acme/net", "not to have", "vitzoo registry pin"):
        fresh.create()
    assert not lock_of(fresh).exists()
    hub.files = {("acme/net", "model.safetensors"): fresh.data}
    fresh.assert_right(fresh.create())


def test_a_missing_repository_is_named_with_the_other_weights(net):
    row = {"pin": "first-use", "sha256": None, "size": None, "predicted_size": len(net.data)}
    file = net.register_own(repo="acme/gone", file="model.safetensors", **row)
    text = file.read_text()
    other = text[text.index("[variants.net.weights.main]") :].replace("weights.main", "weights.b")
    other = other.replace("acme/gone", "acme/net").replace("default = true", "default = false")
    file.write_text(text + other)
    net.forget()
    with refuses(RepoNotFound, "local/net:main", "no repository acme/gone", "local/net:b"):
        net.create()
    assert not lock_of(net).exists()
    assert not net.stored.exists()
    net.assert_right(vitzoo.create("local/net:b"))


def test_unreachable_trusted_endpoint_is_an_error(fresh, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", DEAD)
    cause = ("faulty/net:main", SOURCE, DEAD, "ConnectError")
    with refuses(TransferError, *cause, "mirror", "VITZOO_LOCK", "docs/trust.md"):
        fresh.create()
    assert hub.requests == [], "no mirror is trusted instead"


# A lock that was edited.

PIN = {"commit": REVISION, "size": 9, "sha256": "ab" * 32, "endpoint": "x"}


def with_pin(**changes):
    pin = {key: value for key, value in (PIN | changes).items() if value is not None}
    return json.dumps({"version": 1, "weights": {SOURCE: pin}}).encode()


EDITED = {
    "empty": (b"", "JSON"),
    "not-json": (b"{", "JSON"),
    "half": (with_pin()[:-9], "JSON"),
    "binary": (bytes(range(256)), "JSON"),
    "deep": (b"[" * 100_000, "JSON"),
    "merge-conflict": (b"<<<<<<< ours\n" + with_pin(), "JSON"),
    "list": (b"[]", "version and weights"),
    "no-version": (b'{"weights": {}}', "version and weights"),
    "more": (b'{"version": 1, "weights": {}, "x": 1}', "version and weights"),
    "version-2": (b'{"version": 2, "weights": {}}', "version 1, got '2'"),
    "version-text": (b'{"version": "1", "weights": {}}', "version 1, got"),
    "weights-list": (b'{"version": 1, "weights": []}', "version 1, got"),
    "row-text": (b'{"version": 1, "weights": {"a": "b"}}', " 'a'"),
    "row-null": (b'{"version": 1, "weights": {"a": null}}', " 'a'"),
    "no-sha256": (with_pin(sha256=None), f" {SOURCE!r}"),
    "empty-sha256": (with_pin(sha256=""), f" {SOURCE!r}"),
    "short-sha256": (with_pin(sha256="ab" * 31), f" {SOURCE!r}"),
    "upper-sha256": (with_pin(sha256="AB" * 32), f" {SOURCE!r}"),
    "null-sha256": (with_pin().replace(b'"' + b"ab" * 32 + b'"', b"null"), f" {SOURCE!r}"),
    "newline-sha256": (with_pin(sha256="ab" * 32 + "\n"), f" {SOURCE!r}"),
    "short-commit": (with_pin(commit="main"), f" {SOURCE!r}"),
    "size-zero": (with_pin(size=0), f" {SOURCE!r}"),
    "size-negative": (with_pin(size=-1), f" {SOURCE!r}"),
    "size-text": (with_pin(size="9"), f" {SOURCE!r}"),
    "size-true": (with_pin(size=True), f" {SOURCE!r}"),
    "size-float": (with_pin(size=9.0), f" {SOURCE!r}"),
    "unknown-key": (with_pin(verify=False), f" {SOURCE!r}"),
}


@pytest.mark.parametrize(("data", "text"), EDITED.values(), ids=EDITED)
def test_malformed_lock_is_refused(fresh, hub, data, text):
    """A damaged lock is not an empty one."""
    refuse_lock(fresh, hub, data, text)


@pytest.mark.parametrize("kind", ["empty", "no-sha256"])
def test_malformed_lock_is_refused_for_weights_that_the_registry_pins(net, hub, kind):
    refuse_lock(net, hub, *EDITED[kind])


def refuse_lock(net, hub, data, text):
    net.home.mkdir()
    lock_of(net).write_bytes(data)
    with refuses(PinError, text, f" {lock_of(net)} "):
        net.create()
    assert hub.requests == []
    assert lock_of(net).read_bytes() == data


@pytest.mark.parametrize("how", ["", "VITZOO_FROZEN", "VITZOO_PINS"])
def test_two_entries_of_one_source_are_damage(locked, hub, monkeypatch, how):
    if how:
        monkeypatch.setenv(how, "required" if how == "VITZOO_PINS" else "1")
    text = lock_of(locked).read_text()
    row = json.dumps(PIN)
    twice = text.replace(f'"{SOURCE}"', f'"{SOURCE}": {row}, "{SOURCE}"')
    lock_of(locked).write_text(twice)
    before = len(hub.requests)
    with refuses(PinError, str(lock_of(locked)), SOURCE, locked.sha256, "ab" * 32, "restore"):
        locked.create()
    assert len(hub.requests) == before
    assert lock_of(locked).read_text() == twice


def test_giant_lock_is_refused_by_size(fresh, hub):
    fresh.home.mkdir()
    lock_of(fresh).touch()
    os.truncate(lock_of(fresh), 2**34)
    with refuses(PinError, f" {lock_of(fresh)} ", " 16777216 bytes"):
        fresh.create()
    assert hub.requests == []


def test_lock_that_is_a_folder_is_refused(fresh, hub):
    lock_of(fresh).mkdir(parents=True)
    with pytest.raises(PinError, match=f" {lock_of(fresh)} .*a folder"):
        fresh.create()
    assert hub.requests == []


def test_edited_sha256_in_the_lock_is_a_mismatch(locked):
    edit(locked, lambda data: data["weights"][SOURCE].update(sha256="ab" * 32))
    with pytest.raises(HashMismatch, match=f"expected.*{'ab' * 32}"):
        locked.create()


def test_unwritable_lock_is_an_error(fresh, monkeypatch):
    folder = fresh.root / "file"
    folder.write_text("")
    monkeypatch.setenv("VITZOO_LOCK", str(folder / "vitzoo.lock"))
    with refuses(PinError, f" {folder / 'vitzoo.lock'}", "File exists", "VITZOO_LOCK"):
        fresh.create()


# Lock, registry and command line.


def test_sha256_of_lock_and_registry_that_differ_are_refused(locked):
    address = f"hf://acme/net@{REVISION}/model.safetensors"

    def rename(data):
        data["weights"][address] = data["weights"].pop(SOURCE)

    edit(locked, rename)
    locked.register(sha256="cd" * 32)
    text = rf" {lock_of(locked)} .*{locked.sha256}.*registry.*{'cd' * 32}"
    with pytest.raises(PinError, match=text):
        locked.create()


def test_an_absence_at_main_does_not_bind_an_entry_with_a_sha256(net, hub):
    """A repository without the file was created by its address, before the file came."""
    absent = {"commit": "f" * 40, "size": 0, "sha256": "0" * 64, "endpoint": hub.endpoint}
    source = "hf://acme/net@main/model.safetensors"
    net.home.mkdir()
    lock = {"version": 1, "weights": {source: absent}}
    (net.home / "vitzoo.lock").write_text(json.dumps(lock))
    net.register(revision=None, pin="reported")
    net.assert_right(net.create())


def test_lock_that_agrees_with_the_registry_is_accepted(locked):
    address = f"hf://acme/net@{REVISION}/model.safetensors"
    edit(locked, lambda data: data["weights"].update({address: data["weights"].pop(SOURCE)}))
    locked.register()
    locked.assert_right(locked.create())


def test_lock_update_replaces_the_pin(locked, hub, capsys):
    changed = other_bytes(locked)
    serve(hub, changed)
    relock(locked.name)
    pin = json.loads(lock_of(locked).read_text())["weights"][SOURCE]
    assert pin["sha256"] == hashlib.sha256(changed).hexdigest()
    locked.create()
    with pytest.raises(AssertionError):
        locked.assert_right(locked.create())
    serve(hub, locked.data)
    assert main(["lock", "--update", locked.name]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header == "source\tsha256\tsize\tcommit\tendpoint"
    assert line == f"{SOURCE}\t{locked.sha256}\t{len(locked.data)}\t{REVISION}\t{hub.endpoint}"
    locked.assert_right(locked.create())


@pytest.mark.parametrize(
    ("variables", "error", "text"),
    [
        ({"VITZOO_FROZEN": "1"}, PinError, "is frozen.*--frozen"),
        ({"VITZOO_OFFLINE": "1"}, Offline, "faulty/net:main.*offline"),
        (
            {"VITZOO_TRUST_ENDPOINT": DEAD},
            TransferError,
            f"{DEAD} .*ConnectError",
        ),
    ],
)
def test_failed_lock_update_changes_nothing(locked, monkeypatch, variables, error, text):
    before = lock_of(locked).read_bytes()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=text):
        relock(locked.name)
    assert lock_of(locked).read_bytes() == before


def test_lock_update_without_a_lock_file_is_refused(locked, hub, monkeypatch, run):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    asked = len(hub.requests)
    code, out, err = run("lock", "--update", locked.name)
    assert (code, out) == (3, "")
    says(err, "VITZOO_HOME", ":memory:", "VITZOO_LOCK")
    assert len(hub.requests) == asked
    monkeypatch.setenv("VITZOO_LOCK", str(locked.root / "own.lock"))
    assert run("lock", "--update", locked.name)[0] == 0
    assert SOURCE in json.loads((locked.root / "own.lock").read_text())["weights"]


@pytest.mark.parametrize("there", [True, False])
def test_a_lock_file_that_is_a_link_is_written_at_its_target(fresh, monkeypatch, there):
    target, link = fresh.root / "shared" / "pins.lock", fresh.root / "project.lock"
    link.symlink_to("shared/pins.lock")
    if there:
        target.parent.mkdir()
        target.write_text('{"version": 1, "weights": {}}')
    monkeypatch.setenv("VITZOO_LOCK", str(link))
    fresh.assert_right(fresh.create())
    relock(fresh.name)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert SOURCE in json.loads(target.read_text())["weights"]
    assert sorted(path.name for path in fresh.root.glob("project.lock*")) == ["project.lock"]


def test_a_wait_for_another_writer_names_the_lock_file(locked, monkeypatch, caplog, run):
    monkeypatch.setattr(locks, "NOTICE", 0.1)
    monkeypatch.setattr(lockfile, "PATIENCE", 0.5)
    with locks.locked(locked.home / "vitzoo.lock.writing", "this test", 0.0):
        code, _, err = run("lock", "--update", locked.name)
    assert code == 3
    says(err, lock_of(locked), "another process", "remove", f"{lock_of(locked)}.writing")
    (waiting,) = (line for line in caplog.messages if "waiting" in line)
    says(waiting, lock_of(locked), "another process", f"{lock_of(locked)}.writing")


def test_lock_update_of_pinned_weights_is_refused(net):
    with refuses(PinError, "faulty/net:main", "registry"):
        relock(net.name)


def test_lock_command_as_json(locked, capsys):
    assert main(["lock", "--json"]) == 0
    row = {"source": SOURCE, **json.loads(lock_of(locked).read_text())["weights"][SOURCE]}
    assert json.loads(capsys.readouterr().out) == [row]


def test_a_command_prints_the_first_use_as_one_line(fresh):
    env = fresh.environment() | {"PYTHONWARNINGS": "always"}
    call = [sys.executable, "-m", "vitzoo", "fetch", "faulty/net"]
    done = subprocess.run(call, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ".py" not in done.stderr
    assert "FirstUseWarning" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "trust on first use" in line]
    assert line.startswith("faulty/net:main: ")
    says(line, "0.0989 MB", "vitzoo.lock")
    assert fresh.sha256 not in done.stderr
    forget_bytes(fresh)
    lock_of(fresh).unlink()
    done = subprocess.run([*call, "-v"], env=env, capture_output=True, text=True)
    says(done.stderr, fresh.sha256, f"{len(fresh.data)} bytes", REVISION)


def test_the_library_says_it_on_stderr_with_the_usual_logging(fresh):
    code = "import vitzoo; vitzoo.fetch('faulty/net')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=fresh.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    says(line, "faulty/net:main: trust on first use, 0.0989 MB", "vitzoo.lock")


# Authority and mirrors.


def test_mirror_is_never_asked_for_the_sha256(fresh, hub, second_hub, monkeypatch):
    second_hub.files.update(hub.files)
    monkeypatch.setenv("VITZOO_ENDPOINTS", second_hub.endpoint)
    fresh.assert_right(fresh.create())
    assert f'"{hub.endpoint}"' in lock_of(fresh).read_text()
    assert len(api_requests(hub)) == 1
    assert hub.file_requests() == []
    assert api_requests(second_hub) == []
    assert len(second_hub.file_requests()) == 1


def test_hf_endpoint_is_never_asked_for_the_sha256(fresh, hub, second_hub, monkeypatch):
    second_hub.files.update(hub.files)
    monkeypatch.delenv("VITZOO_ENDPOINTS")
    monkeypatch.setenv("HF_ENDPOINT", second_hub.endpoint)
    fresh.assert_right(fresh.create())
    assert f'"{hub.endpoint}"' in lock_of(fresh).read_text()
    assert api_requests(second_hub) == []
    assert len(second_hub.file_requests()) == 1


def test_trusted_endpoint_is_the_official_hub_by_default(fresh, monkeypatch):
    """Whatever mirrors are set; nothing is sent, the address is what counts."""
    from huggingface_hub.utils import _http

    from vitzoo import settings

    monkeypatch.delenv("VITZOO_TRUST_ENDPOINT")
    monkeypatch.setenv("HF_ENDPOINT", DEAD)
    asked = []

    def answer(request):
        asked.append(f"{request.url.scheme}://{request.url.host}")
        raise KeyboardInterrupt("enough")  # nothing may take it for an answer

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(_http, "_GLOBAL_CLIENT", client)
    with pytest.raises(KeyboardInterrupt, match="enough"):
        fresh.create()
    assert asked == [settings.OFFICIAL] == ["https://huggingface.co"]


def test_mirror_with_wrong_bytes_is_skipped_on_first_use(fresh, hub, second_hub, monkeypatch):
    second_hub.files.update(dict.fromkeys(hub.files, other_bytes(fresh)))
    monkeypatch.setenv("VITZOO_ENDPOINTS", f"{second_hub.endpoint},{hub.endpoint}")
    fresh.assert_right(fresh.create())


# Addresses.


def test_hub_address_is_locked_and_loaded(net, hub):
    with pytest.warns(FirstUseWarning, match=SOURCE):
        net.assert_right(vitzoo.create(net.spec, weights=SOURCE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = vitzoo.create(net.spec, weights=SOURCE)
    net.assert_right(model)
    assert model.load_report.sha256 == net.sha256
    assert model.load_report.source == SOURCE
    assert len(hub.file_requests()) == 1
    assert vitzoo.fetch(SOURCE) == net.stored


def test_hub_address_at_a_commit_is_locked(net):
    address = f"hf://acme/net@{REVISION}/model.safetensors"
    with pytest.warns(FirstUseWarning):
        net.assert_right(vitzoo.create(net.spec, weights=address))
    entries = json.loads(lock_of(net).read_text())["weights"]
    absent = {source for source, pin in entries.items() if pin["size"] == 0}
    assert entries.keys() - absent == {address}
    assert {source.rpartition("/")[2] for source in absent} == set(SIDECARS)


def test_hub_address_for_a_registered_variant(net):
    with pytest.warns(FirstUseWarning):
        net.assert_right(vitzoo.create(net.name, weights=SOURCE))


def test_hub_address_of_a_file_in_a_folder(net, hub):
    hub.files["acme/net", "a/b/model.safetensors"] = net.data
    address = "hf://acme/net@main/a/b/model.safetensors"
    with pytest.warns(FirstUseWarning):
        net.assert_right(vitzoo.create(net.spec, weights=address))


@pytest.mark.parametrize(
    "address",
    [
        "hf://",
        "hf://acme",
        "hf://acme/net@main/",
        "hf://acme@main/model.safetensors",
        "hf://acme/net@/model.safetensors",
        "hf://acme/net@main/../x",
        "hf://acme/net@../model.safetensors",
        "hf://acme/net@main//x",
        "hf://acme/net@main/x?y",
        "hf://user:token@host/acme/net@main/x",
        "hf://acme/net@main/\x1b[31m",
        "hf://acme/net@main/" + "x" * 5000,
    ],
    ids=lambda address: ascii(address[:40]),
)
def test_malformed_hub_address_is_refused(net, hub, address):
    with pytest.raises(InvalidOption, match="hf://owner/repo@revision/file") as caught:
        vitzoo.create(net.spec, weights=address)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert hub.requests == []
    assert net.files() == []


# Two at once.


def test_processes_that_write_the_lock_at_once(fresh, hub):
    code = "import vitzoo; print(vitzoo.fetch('faulty/net'))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=fresh.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    results = [process.communicate(timeout=120) for process in processes]
    assert [out for out, _ in results] == [f"{fresh.stored}\n"] * 3, results
    assert list(json.loads(lock_of(fresh).read_text())["weights"]) == [SOURCE]
    assert len(hub.file_requests()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.assert_right(fresh.create())


def test_lock_written_meanwhile_with_another_sha256_is_kept(fresh, hub, monkeypatch):
    """Another process locked other bytes while this one was fetching."""
    from vitzoo.store import obtain
    from vitzoo.store.lockfile import Lock, Pin

    real = obtain._bring

    def lock_first(remote, note):
        Lock(lock_of(fresh)).add(SOURCE, Pin(REVISION, 9, "ab" * 32, "another"))
        return real(remote, note)

    monkeypatch.setattr(obtain, "_bring", lock_first)
    text = f"{SOURCE}.*{'ab' * 32}.*{hub.endpoint}.*{fresh.sha256}"
    with pytest.raises(PinError, match=text):
        fresh.create()
    assert json.loads(lock_of(fresh).read_text())["weights"][SOURCE]["sha256"] == "ab" * 32


def sha256_of(model):
    """Return the sha256 of the file that `save` of safetensors writes for a model."""
    return hashlib.sha256(safetensors.torch.save(model.state_dict())).hexdigest()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_lock_update_during_a_download(locked, hub, monkeypatch, when):
    """The report names the bytes that were loaded, whatever another process locks meanwhile."""
    new = other_bytes(locked)
    old_sha256, new_sha256 = locked.sha256, hashlib.sha256(new).hexdigest()
    forget_bytes(locked)

    def update():
        serve(hub, new)
        relock(locked.name)

    def behave(handler, data):
        if when == "during":
            update()
        locked.hub.script.clear()
        sys.modules[type(hub).__module__].serve(handler, data)

    if when == "before":
        update()
    elif when == "during":
        hub.script.append(behave)
    else:
        real = checkpoint.open_hub_file

        def update_after(file):
            opened = real(file)
            update()
            return opened

        monkeypatch.setattr(checkpoint, "open_hub_file", update_after)
    model = locked.create()
    expected = new_sha256 if when == "before" else old_sha256
    assert sha256_of(model) == model.load_report.sha256 == expected
    pin = json.loads(lock_of(locked).read_text())["weights"][SOURCE]
    assert pin["sha256"] == new_sha256
    again = locked.create()
    assert sha256_of(again) == again.load_report.sha256 == new_sha256


def test_fetch_returns_the_file_that_it_fetched(locked, hub):
    """Another process updates the lock during the download."""
    new = other_bytes(locked)
    forget_bytes(locked)

    def behave(handler, data):
        serve(hub, new)
        relock(locked.name)
        sys.modules[type(hub).__module__].serve(handler, data)

    hub.script.append(behave)
    assert vitzoo.fetch(locked.name) == locked.stored
    assert locked.stored.read_bytes() == locked.data


def test_lock_update_during_the_first_use(fresh, hub):
    """The lock has other bytes than this process fetched: nothing is loaded."""
    new = other_bytes(fresh)

    def behave(handler, data):
        serve(hub, new)
        relock(fresh.name)
        sys.modules[type(hub).__module__].serve(handler, data)

    hub.script.append(behave)
    with refuses(PinError, SOURCE, fresh.sha256, "lock --update"):
        fresh.create()
    model = fresh.create()
    assert sha256_of(model) == model.load_report.sha256 == hashlib.sha256(new).hexdigest()


def test_interrupted_lock_update_keeps_the_old_lock(locked, monkeypatch):
    from vitzoo.store.lockfile import Lock, Pin

    before = lock_of(locked).read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(system, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            Lock(lock_of(locked)).add(SOURCE, Pin(REVISION, 9, "ab" * 32, "x"), replace=True)
    assert lock_of(locked).read_bytes() == before
    assert [f for f in locked.files() if ".vitzoo.lock." in f] == []
