"""What is in the store, and the commands that change it."""

import hashlib
import importlib.util
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
import safetensors.torch

import vitzoo
from helpers import refuses, says
from plugin_files import FRESH, NET, ROW
from tables import cases
from vitzoo.errors import (
    EntryNotFound,
    HashMismatch,
    PinError,
    RegistryError,
    SizeMismatch,
    StoreError,
    UnknownName,
    WeightsUnavailable,
)
from vitzoo.inventory import import_file, local, remove

# The Hub on loopback and the network `faulty/net` are those of the fault tests.
_found = importlib.util.spec_from_file_location(
    "faults_conftest", Path(__file__).parent / "faults" / "conftest.py"
)
faults = importlib.util.module_from_spec(_found)
sys.modules["faults_conftest"] = faults
_found.loader.exec_module(faults)
hub, second_hub, net = faults.hub, faults.second_hub, faults.net

COMMIT = faults.COMMIT
NAME = "faulty/net"
LABEL = "faulty/net:main"


@pytest.fixture
def fetched(net):
    """The network with its weights in the store."""
    vitzoo.fetch(NAME)
    return net


@pytest.fixture
def offline(monkeypatch):
    """From the call on, no socket may be opened."""
    import socket

    def refuse(*_):
        raise AssertionError("a socket was opened")

    def switch():
        monkeypatch.setenv("VITZOO_OFFLINE", "1")
        monkeypatch.setattr(socket.socket, "connect", refuse)

    return switch


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def states(found):
    return {row.name: row.state for row in found}


# fetch


def test_fetch_gives_the_path(net, hub):
    path = vitzoo.fetch(NAME)
    assert path == net.stored
    assert path.read_bytes() == net.data
    assert vitzoo.fetch(NAME, "main") == path
    assert len(hub.file_requests()) == 1


def test_fetch_reports_progress(net):
    seen = []
    vitzoo.fetch(NAME, on_progress=lambda *report: seen.append(report))
    assert seen[-1] == (len(net.data), len(net.data), NAME)
    assert seen == sorted(seen)
    for wrong, value in (("note", print), ("progress", print)):
        with refuses(vitzoo.VitzooError, wrong, "as on_progress", "(done, total, text)"):
            vitzoo.fetch(NAME, **{wrong: value})


@pytest.mark.usefixtures("net")
def test_verify_reports_the_files():
    vitzoo.fetch(NAME)
    seen = []
    rows = vitzoo.verify(on_progress=lambda *report: seen.append(report))
    names = [*(row.name for row in rows), ""]
    assert seen == [(done, len(rows), name) for done, name in enumerate(names)]
    assert "faulty/net:main" in [row.name for row in rows if row.state == "ok"]


@pytest.mark.usefixtures("net")
def test_fetch_of_unknown_names():
    with refuses(UnknownName, "variant 'faulty/nat'", "'faulty/net'"):
        vitzoo.fetch("faulty/nat")
    with refuses(WeightsUnavailable, NAME, "weights 'mian'", "'main'"):
        vitzoo.fetch(NAME, "mian")


def test_fetch_command(net, run):
    code, out, err = run("fetch", NAME)
    assert code == 0
    assert out == f"name\tsize\tpath\n{NAME}\t{len(net.data)}\t{net.stored}\n"
    says(err.splitlines()[-1], NAME, "100 %", f"{len(net.data)} bytes")
    assert run("fetch", NAME, "-q") == (0, f"{net.stored}\n", "")
    code, out, err = run("fetch", NAME, "--json", "--weights", "main")
    assert json.loads(out) == [{"name": NAME, "size": len(net.data), "path": str(net.stored)}]
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_fetch_command_that_fails(net, hub, run, monkeypatch):
    code, out, err = run("fetch", "nothing")
    assert (code, out) == (1, "")
    says(err, "vitzoo:", "variant 'nothing'")
    assert run("fetch")[0] == 2
    assert run("fetch", "hf://acme")[0] == 2
    saved = dict(hub.files)
    hub.files.clear()
    code, out, err = run("fetch", NAME)
    assert (code, out) == (4, "")
    says(err, LABEL, hub.host, "revision", COMMIT)
    hub.files.update(dict.fromkeys(saved, net.data + b"x"))
    code, out, err = run("fetch", NAME)
    assert (code, out) == (3, "")
    says(err, LABEL, hub.host, f"{len(net.data) + 1} bytes", str(len(net.data)))
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    code, out, err = run("fetch", NAME)
    assert (code, out) == (4, "")
    says(err, LABEL, "offline", f"vitzoo fetch {NAME}")
    assert "Traceback" not in err
    monkeypatch.setenv("VITZOO_DEBUG", "1")
    with pytest.raises(vitzoo.errors.Offline):
        run("fetch", NAME)


# verify


def test_verify(fetched, offline):
    offline()
    (row,) = vitzoo.verify(NAME)
    assert row == vitzoo.Verification(
        LABEL, "ok", fetched.stored, len(fetched.data), fetched.sha256
    )
    damage(fetched.stored)
    (row,) = vitzoo.verify(NAME)
    assert (row.state, row.sha256) == ("damaged", fetched.sha256)
    actual = hashlib.sha256(fetched.stored.read_bytes()).hexdigest()
    says(row.detail, f"{len(fetched.data)} bytes", f"sha256 {actual}")
    assert fetched.stored.exists(), "verifying changes nothing"
    fetched.stored.unlink()
    (row,) = vitzoo.verify(NAME)
    detail = row.detail
    says(detail, "store")
    assert row == vitzoo.Verification(LABEL, "missing", sha256=fetched.sha256, detail=detail)


def test_verify_ignores_stamps(fetched, offline):
    """A stamp that fits a damaged file does not help it."""
    offline()
    from dataclasses import asdict
    from time import sleep, time_ns

    from internals import state_of
    from vitzoo.store.stamp import Stamp

    damage(fetched.stored)
    sleep(0.1)
    stamp = Stamp.of(state_of(fetched.stored), fetched.sha256, time_ns())
    (fetched.home / "stamps" / f"{fetched.sha256}.json").write_text(json.dumps(asdict(stamp)))
    assert states(vitzoo.verify(NAME)) == {LABEL: "damaged"}


def test_verify_everything(fetched, offline):
    offline()
    found = states(vitzoo.verify())
    assert found[LABEL] == "ok"
    assert set(found.values()) == {"ok"}
    stranger = hashlib.sha256(b"other").hexdigest()
    path = fetched.home / "sha256" / stranger[:2] / stranger
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"other")
    assert states(vitzoo.verify())[f"sha256:{stranger[:12]}"] == "ok"
    path.write_bytes(b"wrong")
    assert states(vitzoo.verify())[f"sha256:{stranger[:12]}"] == "damaged"


def test_weights_by_their_label(fetched, offline):
    offline()
    assert vitzoo.fetch(LABEL) == vitzoo.fetch(NAME, "main")
    assert states(vitzoo.verify(LABEL)) == {LABEL: "ok"}
    with refuses(vitzoo.InvalidOption, LABEL, "'main'", "'other'"):
        vitzoo.fetch(LABEL, "other")
    with pytest.raises(vitzoo.VitzooError, match="mian"):
        vitzoo.verify(f"{NAME}:mian")
    assert remove(LABEL) >= len(fetched.data)  # and its stamp


def test_verify_path(fetched, tmp_path, offline):
    offline()
    path = tmp_path / "own.safetensors"
    path.write_bytes(fetched.data)
    (row,) = vitzoo.verify(path)
    assert (row.name, row.state, row.sha256) == (str(path), "ok", fetched.sha256)
    assert row.detail == LABEL
    damage(path)
    (row,) = vitzoo.verify(str(path))
    assert row.state == "unpinned"
    says(row.detail, "registry", "lock", "sha256")
    assert states(vitzoo.verify(tmp_path / "no.safetensors")) == {
        str(tmp_path / "no.safetensors"): "missing"
    }
    assert states(vitzoo.verify(tmp_path)) == {str(path): "unpinned"}  # the one file in it
    path.rename(tmp_path / "own.bin")
    with refuses(vitzoo.CheckpointError, str(tmp_path), "folder"):
        vitzoo.verify(tmp_path)


def test_verify_of_unpinned_weights(net, offline):
    offline()
    net.first_use()
    (row,) = vitzoo.verify(NAME)
    assert (row.state, row.sha256) == ("missing", "")


def test_verify_command(fetched, run, tmp_path, offline):
    offline()
    code, out, err = run("verify", NAME)
    assert (code, err) == (0, "1 file: 1 ok\n")
    assert out == (
        f"name\tstate\tsize\tsha256\tdetail\n{LABEL}\tok\t{len(fetched.data)}\t{fetched.sha256}\t\n"
    )
    code, out, _ = run("verify", NAME, "--json")
    assert json.loads(out) == [
        {
            "name": LABEL,
            "state": "ok",
            "path": str(fetched.stored),
            "size": len(fetched.data),
            "sha256": fetched.sha256,
            "detail": "",
        }
    ]
    assert run("verify", "--all")[0] == 0
    assert run("verify")[0] == 2
    assert run("verify", NAME, "--all")[0] == 2
    assert run("verify", "nothing")[0] == 1
    damage(fetched.stored)
    for arguments in ((NAME,), ("--all",), (NAME, "--json"), (NAME, tmp_path / "no.safetensors")):
        code, out, err = run("verify", *arguments)
        assert code == 3
        assert "damaged" in out
        assert "1 damaged" in err
    fetched.stored.unlink()
    code, out, _ = run("verify", NAME)
    assert code == 1
    assert f"{LABEL}\tmissing\t0\t{fetched.sha256}\t" in out
    assert run("verify", "--all")[0] == 0


def test_verify_command_when_one_of_two_is_missing(fetched, run, tmp_path):
    path = tmp_path / "own.safetensors"
    path.write_bytes(fetched.data)
    assert run("verify", path, NAME)[0] == 0
    fetched.stored.unlink()
    assert run("verify", path, NAME)[0] == 1


def test_verify_command_on_an_unpinned_file(fetched, run, tmp_path):
    path = tmp_path / "own.safetensors"
    path.write_bytes(fetched.data[:-1])
    code, out, _ = run("verify", path)
    assert code == 1
    assert "\tunpinned\t" in out
    says(out, str(path), "registry", "lock", "sha256")


def test_verify_command_without_a_shard(run, tmp_path):
    net = vitzoo.create({"size": "ti", "depth": 1, "image_size": 32, "num_classes": 3})
    path = tmp_path / "a.safetensors"
    vitzoo.save(net, path)
    names = {"weight_map": {"cls_token": "a.safetensors", "pos_embed": "b.safetensors"}}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(names))
    code, out, err = run("verify", index)
    assert code == 1
    assert "b.safetensors\tmissing" in out.splitlines()[1]
    assert err == "2 files: 1 unpinned, 1 missing\n"


# rm, import, local


def test_remove(fetched, hub):
    (fetched.home / "partial" / fetched.sha256).write_bytes(b"12345")
    stamp = (fetched.home / "stamps" / f"{fetched.sha256}.json").stat().st_size
    assert remove(NAME) == len(fetched.data) + stamp + 5
    assert [f for f in fetched.files() if fetched.sha256 in f and "locks" not in f] == []
    assert remove(NAME) == 0
    fetched.assert_right(fetched.create())
    assert len(hub.file_requests()) == 2
    with refuses(vitzoo.WeightsUnavailable, NAME, "weights 'other'"):
        remove(NAME, "other")


def test_remove_what_cannot_be_removed(fetched):
    fetched.stored.unlink()
    fetched.stored.mkdir()
    with refuses(StoreError, str(fetched.stored), "Is a directory"):
        remove(NAME)


def test_rm_command(fetched, run):
    code, out, _ = run("rm", NAME, "--weights", "main")
    name, freed = out.splitlines()[1].split("\t")
    assert (code, name) == (0, NAME)
    assert int(freed) > len(fetched.data)
    assert run("rm", NAME) == (0, f"name\tfreed\n{NAME}\t0\n", "")
    assert run("rm", "nothing")[0] == 1
    assert run("rm")[0] == 2


def test_rm_says_that_bundled_weights_stay(run, caplog):
    assert run("rm", "vit_digits")[:2] == (0, "name\tfreed\nvit_digits\t0\n")
    says(caplog.text, "vit_digits:digits_v1", "part of the package vitzoo", "cannot be removed")


def test_import(net, hub, tmp_path, offline):
    offline()
    path = tmp_path / "carried.bin"
    path.write_bytes(net.data)
    assert import_file(path) == [LABEL]
    assert net.stored.read_bytes() == net.data
    assert net.stored.stat().st_nlink == 1
    assert path.read_bytes() == net.data
    net.assert_right(net.create())
    assert import_file(path) == [LABEL], "again does no harm"
    assert hub.requests == []
    assert [p for p in net.home.rglob("*") if "partial" in p.parts and p.is_file()] == []


def test_import_of_locked_weights(net, tmp_path):
    net.first_use()
    vitzoo.fetch(NAME)
    net.stored.unlink()
    path = tmp_path / "carried.bin"
    path.write_bytes(net.data)
    assert import_file(path) == [LABEL]


def test_import_of_an_unknown_file(net, tmp_path):
    path = tmp_path / "unknown.safetensors"
    path.write_bytes(net.data[:-1] + b"?")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with refuses(StoreError, str(path), f"sha256 {sha256}", "registry", "lock", "weights="):
        import_file(path)
    with refuses(StoreError, f"file {tmp_path / 'nothing'}"):
        import_file(tmp_path / "nothing")
    with refuses(StoreError, str(tmp_path), "regular file"):
        import_file(tmp_path)
    assert not (net.home / "sha256").exists()


@pytest.mark.usefixtures("net")
def test_import_into_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    with refuses(StoreError, "VITZOO_HOME", ":memory:"):
        import_file(tmp_path / "x")
    assert remove(NAME) == 0
    assert vitzoo.verify(NAME)[0].state == "missing"


def test_import_of_a_file_that_changes_meanwhile(net, tmp_path, monkeypatch):
    from vitzoo import inventory

    path = tmp_path / "carried.bin"
    path.write_bytes(net.data)
    real = inventory.hash_file

    def change_after(fd, _):
        sha256 = real(fd)
        damage(path)
        return sha256

    monkeypatch.setattr(inventory, "hash_file", change_after)
    with refuses(vitzoo.IntegrityError, str(path), "copied", "try"):
        import_file(path)
    assert not net.stored.exists()


def test_import_command(net, run, tmp_path):
    path = tmp_path / "carried.bin"
    path.write_bytes(net.data)
    assert run("import", path) == (0, f"file\tweights\n{path}\t{LABEL}\n", "")
    code, out, _ = run("import", path, "--json")
    assert (code, json.loads(out)) == (0, [{"file": str(path), "weights": [LABEL]}])
    path.write_bytes(b"x")
    code, out, err = run("import", path)
    assert (code, out) == (1, "")
    says(err, str(path), hashlib.sha256(b"x").hexdigest(), "registry", "lock")
    assert run("import")[0] == 2


@pytest.mark.usefixtures("net")
def test_local():
    assert NAME not in local()[0]
    vitzoo.fetch(NAME)
    assert local()[0][NAME] == ["main"]
    remove(NAME)
    assert NAME not in local()[0]


# Registry and lock contradict each other about one file.

ADDRESS = f"hf://acme/net@{COMMIT}/model.safetensors"


@pytest.fixture
def contradicted(fetched):
    """The lock names another sha256 for the file of `faulty/net`, and one more file."""
    good = fetched.home / "sha256" / "aa" / hashlib.sha256(b"other").hexdigest()
    good = good.parent.with_name(good.name[:2]) / good.name
    good.parent.mkdir(parents=True, exist_ok=True)
    good.write_bytes(b"other")
    pins = {ADDRESS: "cd" * 32, "hf://acme/other@main/model.npz": good.name}
    weights = {
        address: {"commit": COMMIT, "size": 5, "sha256": sha256, "endpoint": "x"}
        for address, sha256 in pins.items()
    }
    lock = fetched.home / "vitzoo.lock"
    lock.write_text(json.dumps({"version": 1, "weights": weights}))
    return fetched


def test_verify_goes_on_after_a_contradiction(contradicted, run, offline):
    offline()
    found = {row.name: row for row in vitzoo.verify()}
    assert found[LABEL].state == "conflict"
    lock = contradicted.home / "vitzoo.lock"
    says(found[LABEL].detail, ADDRESS, lock, contradicted.sha256, "cd" * 32)
    del found[LABEL]
    assert found["hf://acme/other@main/model.npz"].state == "ok"
    assert {row.state for row in found.values()} == {"ok"}
    assert "vit_digits:digits_v1" in found
    code, out, _ = run("verify", "--all")
    assert code == 3
    assert f"{LABEL}\tconflict\t" in out
    code, out, _ = run("verify", NAME)
    assert code == 3
    assert "conflict" in out
    assert run("verify", "hf://acme/other@main/model.npz")[0] == 0


def test_listing_goes_on_after_a_contradiction(contradicted, run, offline):
    offline()
    code, out, err = run("list", "--local", "-q")
    assert (code, out.split()) == (3, ["vit_digits"])
    says(err, LABEL, ADDRESS, contradicted.sha256, "cd" * 32)
    code, out, err = run("list", "vit_*", "--local", "-q")
    assert (code, out.split(), err) == (0, ["vit_digits"], "")


def test_a_damaged_lock_is_no_contradiction_of_one_file(contradicted, run):
    (contradicted.home / "vitzoo.lock").write_text("{")
    for command in (("verify", "--all"), ("list", "--local")):
        code, out, err = run(*command)
        assert (code, out) == (3, "")
        says(err, contradicted.home / "vitzoo.lock", "JSON")


# registry check


def manifest_of(net):
    return net.root / "site" / "faulty" / "registry.toml"


@pytest.mark.slow
def test_registry_check_command(net, run, monkeypatch):
    code, out, err = run("registry", "check", manifest_of(net))
    assert (code, err) == (0, "")
    counts = dict(line.split("\t") for line in out.splitlines()[1:])
    assert counts == {
        "variants": "1", "weights": "1", "confirmed": "1", "reported": "0", "first-use": "0",
        "without commit": "0", "without sha256": "0",
    }  # fmt: skip  # one line
    # Of all plugins: plugins/test_plugins.py checks each.
    monkeypatch.setenv("VITZOO_PLUGINS", "faulty")
    net.forget()
    code, out, _ = run("registry", "check", "--json")
    report = json.loads(out)
    assert (code, report["problems"]) == (0, [])
    assert report["counts"]["variants"] > 15


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"size": 10**9}, ("1000000000 bytes", "24069 parameters")),
        ({"size": 100}, ("100 bytes", "24069 parameters")),
        ({"format": "tim"}, ("checkpoint format 'tim'",)),
        ({"labels": ["a", "b"]}, ("2 labels", "classes")),
    ],
    ids=str,
)
def test_registry_check_finds_problems(net, run, changes, text):
    net.register(**changes)
    code, _, err = run("registry", "check", manifest_of(net))
    assert code == 1
    says(err, f"problem: {manifest_of(net)}:", "net:main:", *text)


def test_registry_check_of_a_broken_file(net, run, tmp_path):
    net.register(sha256="ab")
    code, out, err = run("registry", "check", manifest_of(net))
    assert (code, out) == (1, "")
    says(err, "[variants.net.weights.main]", "sha256", "64 lower-case hex digits", "'ab'")
    code, out, err = run("registry", "check", tmp_path / "no.toml")
    assert (code, out) == (1, "")
    says(err, f"vitzoo: {tmp_path / 'no.toml'}: ")


# registry pin


OTHER = b"other bytes"
PINNED = f"""\
# A registry with comments.
{NET.replace("net]", "net]  # the only one")}
# Not pinned yet.{FRESH}
[variants.net.weights.known]
sha256 = "SHA256"   # keys in another order
pin = "confirmed"
revision = "REVISION"
size = SIZE
{ROW}"""


@pytest.fixture
def manifest(net, tmp_path):
    """A registry file with an unpinned row and a pinned one."""
    path = tmp_path / "x" / "registry.toml"
    path.parent.mkdir()
    text = PINNED.replace("REVISION", COMMIT).replace("SIZE", str(len(net.data)))
    path.write_text(text.replace("SHA256", net.sha256))
    return path


def test_pin_writes_and_keeps_the_rest(net, hub, manifest, run):
    before = manifest.read_text()
    code, out, err = run("registry", "pin", manifest)
    assert (code, err) == (0, "2 entries: 1 pinned, 1 already\n")
    size = len(net.data)
    change = 100 * (size / 98000 - 1)
    assert out == (
        "weights\tsize\tdifference\tsha256\trevision\tstate\n"
        f"net:fresh\t{size}\t{change:+.2f} %\t{net.sha256[:8]}\t{COMMIT[:8]}\tpinned\n"
    )
    after = manifest.read_text()
    row = tomllib.loads(after)["variants"]["net"]["weights"]["fresh"]
    assert row["pin"] == "reported"
    assert (row["revision"], row["size"], row["sha256"]) == (COMMIT, size, net.sha256)
    assert "predicted_size" not in row
    gone = ['pin = "first-use"  # until pinned\n', "predicted_size = 98000\n"]
    kept = [line for line in before.splitlines(keepends=True) if line not in gone]
    rest = iter(after.splitlines(keepends=True))
    assert all(line in rest for line in kept), "comments and order are kept"
    assert "# until pinned" in after
    known = before[before.index("[variants.net.weights.known]") :]
    assert after.endswith(known)
    assert run("registry", "check", manifest)[0] == 0
    assert [found.name for found in manifest.parent.iterdir()] == ["registry.toml"]
    assert hub.file_requests() == [], "only the authority is asked"
    code, out, _ = run("registry", "pin", manifest, "--json")
    assert [row["state"] for row in json.loads(out)] == ["already", "already"]
    assert manifest.read_text() == after


def test_pin_fills_in_sizes_that_are_not_given(net, manifest, run):
    size = f"size = {len(net.data)}\n"
    text = manifest.read_text().replace("predicted_size = 98000\n", "").replace(size, "")
    manifest.write_text(text)
    code, _, err = run("registry", "check", manifest)
    assert code == 1
    says(err, "net.weights.fresh", "'first-use'", "size or predicted_size")
    code, out, _ = run("registry", "pin", manifest, "--json")
    assert [row["state"] for row in json.loads(out)] == ["pinned", "pinned"]
    rows = tomllib.loads(manifest.read_text())["variants"]["net"]["weights"]
    assert [(row["size"], row["sha256"]) for row in rows.values()] == [
        (len(net.data), net.sha256)
    ] * 2
    assert [row["pin"] for row in rows.values()] == ["reported", "confirmed"]
    assert run("registry", "check", manifest)[0] == 0


def test_pin_through_a_link_writes_the_file(net, manifest, run):
    link = net.root / "link.toml"
    link.symlink_to(manifest)
    assert run("registry", "pin", link)[0] == 0
    assert link.is_symlink()
    assert net.sha256 in manifest.read_text().split("known")[0]


def test_pin_dry_run_writes_nothing(net, manifest, run):
    before, stat = manifest.read_bytes(), manifest.stat()
    code, out, _ = run("registry", "pin", manifest, "--dry-run")
    assert code == 0
    assert f"\t{net.sha256[:8]}\t{COMMIT[:8]}\tpinned\n" in out
    assert manifest.read_bytes() == before
    assert manifest.stat().st_ino == stat.st_ino


def test_pin_that_contradicts_writes_nothing(net, hub, manifest, run):
    before = manifest.read_bytes()
    other = net.data[:-1] + b"?"
    for key in hub.files:
        hub.files[key] = other
    code, out, err = run("registry", "pin", manifest, "--recheck")
    assert (code, out) == (3, "")
    stated = hashlib.sha256(other).hexdigest()
    says(err, "net:known", f"sha256 {net.sha256}", hub.endpoint, stated)
    assert manifest.read_bytes() == before


@pytest.mark.usefixtures("net")
def test_pin_of_what_the_hub_lacks(hub, manifest, run):
    hub.files = {("acme/net", "other.bin"): OTHER}
    before = manifest.read_bytes()
    code, out, _ = run("registry", "pin", manifest)
    assert "\tmissing: " in out
    says(out, "hf://acme/net@main/model.safetensors", hub.host)
    assert code == 1
    assert manifest.read_bytes() == before


@pytest.mark.usefixtures("net")
def test_pin_needs_a_file(run, tmp_path, hub):
    assert run("registry", "pin")[0] == 2
    assert run("registry", "pin", tmp_path / "no.toml")[0] == 1
    path = tmp_path / "broken.toml"
    path.write_text("api = 1\napi = 2\n")
    code, _, err = run("registry", "pin", path)
    assert code == 1
    says(err, str(path), "TOML")
    assert hub.requests == []


def test_errors_say_how_the_program_ends():
    """The exit codes that the help promises."""
    codes = {UnknownName: 1, WeightsUnavailable: 1, RegistryError: 1, StoreError: 1}
    codes |= {SizeMismatch: 3, PinError: 3, EntryNotFound: 4}
    assert {kind: kind.exit_code for kind in codes} == codes


def test_pinned_file_can_be_used(net, manifest, run):
    assert run("registry", "pin", manifest)[0] == 0
    (net.root / "site" / "faulty" / "registry.toml").write_text(manifest.read_text())
    net.forget()
    model = vitzoo.create(NAME, weights="fresh")
    net.assert_right(model)
    assert safetensors.torch.load(net.stored.read_bytes()).keys() == model.state_dict().keys()


# Weights of a user's registry file at a path.


@pytest.fixture
def own(net):
    """The registered path of a weights file beside the user's registry file."""
    path = net.root / "weights" / "net.safetensors"
    path.parent.mkdir()
    path.write_bytes(net.data)
    net.register_own(path="weights/net.safetensors")
    return path


def test_a_file_at_a_path_is_copied_to_the_store(net, own, hub, monkeypatch):
    """The user may rewrite or remove the file; the model keeps the verified bytes."""
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    (row,) = vitzoo.verify("local/net:main")
    assert (row.state, row.path) == ("ok", own)
    assert local()[0]["local/net"] == ["main"]
    model = net.create()
    own.write_bytes(b"x" * len(net.data))
    net.assert_right(model)
    net.assert_right(net.create())
    assert vitzoo.fetch("local/net") == net.stored
    assert hub.requests == []


def test_removing_keeps_the_file_of_the_user(net, own):
    vitzoo.fetch("local/net")
    assert remove("local/net") >= len(net.data)
    assert own.read_bytes() == net.data
    assert not net.stored.exists()
    net.assert_right(net.create())


def test_a_path_without_a_store_is_read_into_memory(net, own, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    model = net.create()
    own.write_bytes(b"x" * len(net.data))
    net.assert_right(model)
    with refuses(HashMismatch, "local/net:main", own, net.sha256):
        net.create()


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"x" * 98000, SizeMismatch, (98000,)),
        (None, WeightsUnavailable, ("no file",)),
        ("changed", HashMismatch, ("sha256",)),
    ],
    ids=["size", "missing", "bytes"],
)
def test_another_file_at_the_path_is_refused(net, own, data, kind, words):
    own.unlink()
    if data is not None:
        own.write_bytes(net.data[:-1] + b"?" if data == "changed" else data)
    with refuses(kind, "local/net:main", own, "registry file", *words):
        net.create()
    (row,) = vitzoo.verify("local/net")
    assert row.state == ("missing" if data is None else "damaged")
    assert not net.stored.exists()
    own.write_bytes(net.data)
    net.assert_right(net.create())


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_path_that_is_no_regular_file_is_refused_at_once(net, own, kind):
    own.unlink()
    if kind == "pipe":
        os.mkfifo(own)
    elif kind == "device":
        own.symlink_to("/dev/zero")
    else:
        own.mkdir()
    with refuses(StoreError, own, "regular file"):
        net.create()


def test_a_link_to_the_file_of_the_user_is_followed(net, own):
    target = own.rename(own.with_name("elsewhere.safetensors"))
    own.symlink_to(target)
    assert vitzoo.verify("local/net")[0].state == "ok"
    net.assert_right(net.create())
    assert own.is_symlink()


def test_paths_are_relative_to_the_registry_file(net, own, monkeypatch):
    assert vitzoo.describe("local/net").weights[0].path == str(own)
    net.register_own(path=str(own))
    assert vitzoo.describe("local/net").weights[0].path == str(own)
    monkeypatch.setenv("HOME", str(net.root))
    net.register_own(path="~/weights/net.safetensors")
    assert vitzoo.describe("local/net").weights[0].path == str(own)


@cases(
    ("changes", "words"),
    [
        ({"path": "a\nb"}, ("path", "printable")),
        ({"path": "model.safetensors.index.json"}, ("path", "one weights file", "convert")),
        ({"path": "~nosuchuser/net.safetensors"}, ("path", "'~nosuchuser/net.safetensors'")),
        ({"path": "n.npz", "sha256": None}, ("path", "sha256")),
        ({"path": "n.npz", "size": None}, ("path", "size")),
        ({"path": "n.npz", "pin": "first-use", "sha256": None}, ("path", "first use")),
        ({"path": "n.npz", "repo": "acme/net"}, ("repo", "path")),
        ({"file": "net.safetensors"}, ("repo", "url", "path")),
    ],
    ids=str,
)
def test_an_entry_must_name_one_pinned_file(net, changes, words):
    file = net.register_own(**changes)
    with refuses(RegistryError, file, "[variants.net.weights.main]", *words):
        net.create()


def test_a_repository_of_the_hub_may_be_registered_by_a_user(net, hub, monkeypatch):
    """As in a plugin: pinned, or trusted on first use and locked."""
    net.register_own(repo=faults.REPO, file=faults.FILE, revision=COMMIT)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    net.assert_right(net.create())
    (headers,) = [headers for _, _, headers in hub.requests]
    assert headers["authorization"] == "Bearer hf_secret"  # the repository may be private
    assert [path for _, path, _ in hub.requests] == [
        f"/{faults.REPO}/resolve/{COMMIT}/{faults.FILE}"
    ]
    remove("local/net")
    size = len(net.data)
    net.register_own(
        repo=faults.REPO, file=faults.FILE, pin="first-use", sha256=None, size=None,
        predicted_size=size,
    )  # fmt: skip
    net.assert_right(net.create())
    assert net.sha256 in (net.home / "vitzoo.lock").read_text()


def test_the_users_weights_are_listed_shown_and_searched(run, net, own):
    net.register_own(path=str(own), pretraining_data="catalogue")
    where = "pretraining_data=catalogue and license=apache-2.0"
    found = run("list", "--where", where, "-q")
    assert found[:2] == (0, "local/net\n")
    assert str(own) in run("show", "local/net")[1]
    assert json.loads(run("which", "local/net", "--json")[1])[0]["plugin"] == "local"
    net.register_own(repo="acme/products", file="m.safetensors", revision=COMMIT)
    assert "local/net" in run("which", "acme/products")[1]


@pytest.mark.slow
def test_the_registry_commands_know_the_users_files(run, net, own):
    file = net.register_own(path="weights/net.safetensors")
    assert run("registry", "check", file)[0] == 0
    assert run("--no-plugins", "registry", "check")[0] == 0
    data = own.read_bytes()
    changes = {
        "bytes": data + b"x",
        "sha256": data[:-1] + bytes([data[-1] ^ 1]),
        "no such file": b"",
    }
    for what, new in changes.items():
        own.write_bytes(new) if new else own.unlink()
        code, _, err = run("registry", "check", file)
        assert code == 1
        says(err, "net:main", own, what)
    file = net.register_own(
        repo=faults.REPO, file=faults.FILE, pin="first-use", sha256=None, size=None
    )
    assert run("registry", "pin", file)[0] == 0
    row = tomllib.loads(file.read_text())["variants"]["net"]["weights"]["main"]
    assert (row["sha256"], row["size"], row["pin"]) == (net.sha256, len(net.data), "reported")
