"""The cache of huggingface_hub: its files are hashed, pinned and copied, without a network.

A cache is made as huggingface_hub 0.x to 2.x makes it, with and without links.
"""

import hashlib
import json
import os
import shutil
import socket

import pytest
import safetensors.torch
import torch
from huggingface_hub import try_to_load_from_cache

import vitzoo
from helpers import refuses, says
from vitzoo.errors import (
    HashMismatch,
    Offline,
    PinError,
    TransferError,
    VitzooError,
    WeightsUnavailable,
)

REPO = "acme/net"
ADDRESS = f"hf://{REPO}@main/model.safetensors"
FIRST, SECOND = "a" * 40, "b" * 40
XET = "c" * 64  # the name of a file in the shared store, which is no sha256
LAYOUTS = ("links", "shared", "no links")

pytestmark = pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")


def sha256_of(data):
    return hashlib.sha256(data).hexdigest()


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Cache:
    """A Hub cache; `layout` is one of `LAYOUTS`."""

    def __init__(self, root, layout="links"):
        self.root, self.layout = root, layout

    def folder(self, repo=REPO):
        return self.root / ("models--" + repo.replace("/", "--"))

    def snapshot(self, file, commit=FIRST, repo=REPO):
        return self.folder(repo) / "snapshots" / commit / file

    def add(self, file, data, commit=FIRST, repo=REPO, *, ref="main", etag=None):
        """Put a file into a snapshot; return the path of its bytes."""
        if ref:
            self.ref(ref, commit, repo)
        pointer = self.snapshot(file, commit, repo)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if self.layout == "no links":
            pointer.write_bytes(data)
            return pointer
        small = file.endswith(".json")
        blob = self.folder(repo) / "blobs" / (etag or (git_hash if small else sha256_of)(data))
        blob.parent.mkdir(exist_ok=True)
        held = blob
        if self.layout == "shared" and not small:
            held = self.root / "blobs" / XET[:2] / XET
            held.parent.mkdir(parents=True, exist_ok=True)
            blob.symlink_to(os.path.relpath(held, blob.parent))
        held.write_bytes(data)
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        return held

    def ref(self, name, commit, repo=REPO):
        path = self.folder(repo) / "refs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)

    def lacks(self, file, commit=FIRST, repo=REPO):
        """State that a commit has no such file, as huggingface_hub does after a 404."""
        path = self.folder(repo) / ".no_exist" / commit / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def list(self, files, commit=FIRST, repo=REPO):
        """Write the list of all files of a commit, as `hf download` does since 2.x."""
        table = {}
        for name, data in files.items():
            table[name] = {"size": len(data), "blob_id": git_hash(data)}
            if not name.endswith(".json"):
                table[name] |= {"lfs_sha256": sha256_of(data), "lfs_size": len(data)}
        path = self.folder(repo) / "trees" / f"{commit}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format_version": 1, "files": table}))


@pytest.fixture
def _sealed(hub, monkeypatch):
    """Let every use of a socket fail, once the Hub has its own."""
    assert hub.requests == []

    def refuse(*_args, **_keywords):
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def unpinned(net, request):
    """The network without a pin; no socket can be opened."""
    request.getfixturevalue("_sealed")
    net.first_use()
    return net


@pytest.fixture(params=LAYOUTS)
def cached(unpinned, request):
    return Cache(unpinned.hub_cache, request.param)


@pytest.fixture
def linked(unpinned):
    return Cache(unpinned.hub_cache)


def pins(net):
    """The lock: (standing, commit, size, sha256) by source."""
    path = net.home / "vitzoo.lock"
    lock = json.loads(path.read_text())["weights"] if path.exists() else {}
    return {k: (p["endpoint"], p["commit"], p["size"], p["sha256"]) for k, p in lock.items()}


def pin_of(data, commit=FIRST):
    return ("hub-cache", commit, len(data), sha256_of(data))


def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# One file: which commit, which bytes.


@pytest.mark.parametrize("variable", [None, "HF_HUB_OFFLINE", "VITZOO_OFFLINE"])
def test_a_cached_file_is_pinned_and_loads_offline(unpinned, cached, run, variable, monkeypatch):
    held = cached.add("model.safetensors", unpinned.data)
    library_finds = try_to_load_from_cache(REPO, "model.safetensors", cached.root)
    assert library_finds == str(cached.snapshot("model.safetensors"))
    before = held.stat()
    if variable:
        monkeypatch.setenv(variable, "1")
    code, out, err = run("lock", "--from-hub-cache", "faulty/net", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["source"] == ADDRESS
    assert (row["endpoint"], row["commit"], row["size"], row["sha256"]) == pin_of(unpinned.data)
    assert pins(unpinned) == {ADDRESS: pin_of(unpinned.data)}
    after = held.stat()
    assert (after.st_mtime_ns, after.st_nlink) == (before.st_mtime_ns, 1)
    assert unpinned.stored.stat().st_ino != after.st_ino, "copied, never linked"
    held.chmod(0o644)
    held.write_bytes(bytes(len(unpinned.data)))  # nor mapped in place
    offline(monkeypatch)
    unpinned.assert_right(unpinned.create())
    assert unpinned.strays() == [n for n in unpinned.files() if n.startswith("hf/hub/")]


def test_fetch_gives_the_path_of_the_copy(unpinned, cached, run, caplog):
    cached.add("model.safetensors", unpinned.data)
    assert vitzoo.fetch("faulty/net", from_hub_cache=True) == unpinned.stored
    says(caplog.text, "main: hashed from the Hub cache, ", "vitzoo.lock")
    code, out, _ = run("fetch", "--from-hub-cache", "-q", "faulty/net:main")
    assert (code, out.strip()) == (0, str(unpinned.stored))
    assert pins(unpinned) == {ADDRESS: pin_of(unpinned.data)}


@pytest.mark.parametrize("how", ["ref", "only snapshot", "commit", "tag"])
def test_the_commit(unpinned, cached, how):
    ref = {"ref": "main", "tag": "v1.0"}.get(how)
    cached.add("model.safetensors", unpinned.data, SECOND, ref=ref)
    if ref:
        cached.add("config.json", b"{}", FIRST, ref="other")
    revision = {"commit": SECOND, "tag": "v1.0"}.get(how, "main")
    address = f"hf://{REPO}@{revision}/model.safetensors"
    vitzoo.fetch(address, from_hub_cache=True)
    assert pins(unpinned) == {address: pin_of(unpinned.data, SECOND)}


def test_several_snapshots_without_a_ref_are_refused(unpinned, cached):
    for commit in (FIRST, SECOND):
        cached.add("model.safetensors", unpinned.data, commit, ref=None)
        cached.layout = "no links"
    with refuses(PinError, "faulty/net:main", "refs/main", FIRST, SECOND, f"hf://{REPO}@COMMIT/"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}


def test_the_only_snapshot_of_another_branch_is_refused(unpinned, cached):
    cached.add("model.safetensors", unpinned.data, ref="other")
    with refuses(PinError, "refs/main", FIRST, f"hf://{REPO}@COMMIT/"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)


@pytest.mark.parametrize("text", ["", "main", "A" * 40, "a" * 39, "../../elsewhere", "a" * 300])
def test_a_damaged_ref_is_refused(unpinned, linked, text):
    linked.add("model.safetensors", unpinned.data)
    linked.ref("main", text)
    with refuses(PinError, "faulty/net:main", "refs/main", f"hf://{REPO}@COMMIT/"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}


def test_a_file_of_other_commits_is_named(unpinned, cached):
    cached.add("model.safetensors", unpinned.data, FIRST)
    cached.add("config.json", b"{}", SECOND)  # `main` has moved on
    with refuses(WeightsUnavailable, "faulty/net:main", SECOND, f"other commits have it: {FIRST}"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)


def test_an_empty_cache(unpinned, run):
    code, out, err = run("lock", "--from-hub-cache", "faulty/net")
    assert code == 1
    says(err, "faulty/net:main", str(unpinned.hub_cache), "download it", "HF_HUB_CACHE")
    code, out, err = run("lock", "--from-hub-cache", "--json")
    assert (code, json.loads(out)) == (0, [])
    says(err, "no registered weights without a pin")


DAMAGE = {
    "flip": lambda data: data[:-1] + b"\x01",
    "short": lambda data: data[:-1],
    "long": lambda data: data + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("layout", ["links", "shared"])
def test_a_blob_without_the_sha256_of_its_name_is_refused(unpinned, layout, damage, run):
    cached, wrong = Cache(unpinned.hub_cache, layout), damage(unpinned.data)
    cached.add("model.safetensors", wrong, etag=unpinned.sha256)
    place = str(cached.snapshot("model.safetensors"))
    with refuses(HashMismatch, place, unpinned.sha256, sha256_of(wrong), "download it again"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert run("lock", "--from-hub-cache")[0] == HashMismatch.exit_code
    assert pins(unpinned) == {}
    assert not (unpinned.home / "sha256").exists()
    assert unpinned.kept == b""


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_blob_beside_the_stored_file(unpinned, linked, damage):
    linked.add("model.safetensors", unpinned.data)
    vitzoo.fetch("faulty/net", from_hub_cache=True)
    (unpinned.home / "vitzoo.lock").unlink()
    linked.snapshot("model.safetensors").unlink()
    linked.add("model.safetensors", damage(unpinned.data), etag=unpinned.sha256)
    if damage is DAMAGE["flip"]:  # the store has the bytes that the name of the blob states
        vitzoo.fetch("faulty/net", from_hub_cache=True)
        assert pins(unpinned) == {ADDRESS: pin_of(unpinned.data)}
        return
    with refuses(HashMismatch, str(linked.snapshot("model.safetensors")), unpinned.sha256):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}
    assert unpinned.stored.read_bytes() == unpinned.data


def test_the_list_of_a_commit_states_the_sha256_of_a_file_without_a_blob(unpinned):
    cached = Cache(unpinned.hub_cache, "no links")
    cached.add("model.safetensors", DAMAGE["flip"](unpinned.data))
    cached.list({"model.safetensors": unpinned.data})
    with refuses(HashMismatch, str(cached.snapshot("model.safetensors")), unpinned.sha256):
        vitzoo.fetch("faulty/net", from_hub_cache=True)


@pytest.mark.parametrize("text", ["", "[]", '{"format_version": 1, "files": 5}', "{" * 9000])
def test_a_damaged_list_of_a_commit_is_ignored(unpinned, cached, text):
    cached.add("model.safetensors", unpinned.data)
    cached.list({})
    (cached.folder() / "trees" / f"{FIRST}.json").write_text(text)
    vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {ADDRESS: pin_of(unpinned.data)}


def test_an_etag_of_a_mirror_states_no_hash(unpinned, linked):
    linked.add("model.safetensors", unpinned.data, etag="W-5f-18c")
    vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {ADDRESS: pin_of(unpinned.data)}


ODD = {
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "dangling": lambda path: path.symlink_to("../../blobs/" + "d" * 64),
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_no_file_is_refused_at_once(unpinned, linked, make):
    path = linked.snapshot("model.safetensors")
    linked.ref("main", FIRST)
    path.parent.mkdir(parents=True)
    make(path)
    with refuses(VitzooError, str(path)):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}


# Pins that exist, and settings.


@pytest.mark.parametrize(
    ("variable", "value"), [("VITZOO_PINS", "required"), ("VITZOO_FROZEN", "1")]
)
@pytest.mark.parametrize("names", [(), ("faulty/net",)])
def test_strict_settings_refuse_pins_of_the_cache(
    unpinned, linked, run, variable, value, names, monkeypatch
):
    linked.add("model.safetensors", unpinned.data)
    monkeypatch.setenv(variable, value)
    code, _, err = run("lock", "--from-hub-cache", *names)
    assert code == PinError.exit_code
    says(err, f"unset {variable}")
    with refuses(PinError, f"unset {variable}"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}


def test_frozen_option(unpinned, linked, run):
    linked.add("model.safetensors", unpinned.data)
    for command in ("lock", "fetch"):
        code, _, err = run(command, "--from-hub-cache", "--frozen", "faulty/net")
        assert code == PinError.exit_code
        says(err, "leave --frozen out")


@pytest.mark.parametrize("where", ["lock", "registry"])
def test_a_pin_that_differs_is_kept(unpinned, cached, where):
    other = DAMAGE["flip"](unpinned.data)
    cached.add("model.safetensors", unpinned.data)
    if where == "lock":
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    else:
        unpinned.register(pin="reported", predicted_size=len(other), size=None, revision=SECOND)
    shutil.rmtree(cached.root)
    shutil.rmtree(unpinned.home / "sha256", ignore_errors=True)
    before = pins(unpinned)
    cached.add("model.safetensors", other, SECOND)
    named = ("acme/net", "model.safetensors", where, "lock --update")
    with refuses(PinError, *named, unpinned.sha256, sha256_of(other)):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == before


def test_a_pin_of_the_hub_keeps_its_standing(net, hub, run):
    net.first_use()
    net.create()
    before = pins(net)
    Cache(net.hub_cache).add("model.safetensors", net.data, SECOND)
    shutil.rmtree(net.home / "sha256")
    hub.requests.clear()
    code, out, _ = run("lock", "--from-hub-cache", "faulty/net", "--json")
    assert (code, [row["endpoint"] for row in json.loads(out)]) == (0, [hub.endpoint])
    assert pins(net) == before
    assert net.stored.read_bytes() == net.data
    assert hub.requests == []


def test_all_registered_weights_without_a_pin(unpinned, cached, run):
    cached.add("model.safetensors", unpinned.data)
    pinned = vitzoo.describe("vit_b16").default_weights
    assert pinned.sha256
    cached.layout = "no links"
    cached.add(pinned.file, b"x", repo=pinned.repo)
    code, out, _ = run("lock", "--from-hub-cache", "--json")
    assert (code, [row["source"] for row in json.loads(out)]) == (0, [ADDRESS])
    code, out, _ = run("lock", "--from-hub-cache", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_an_error_does_not_end_the_others(unpinned, linked, run):
    linked.add("model.safetensors", unpinned.data)
    code, out, err = run("lock", "--from-hub-cache", "vit_l16_384", "faulty/net")
    assert code == 1
    assert ADDRESS in out
    says(err, "vit_l16_384")


def test_without_a_store_only_the_pin_is_written(unpinned, cached, run, monkeypatch, tmp_path):
    cached.add("model.safetensors", unpinned.data)
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    code, _, err = run("lock", "--from-hub-cache", "faulty/net")
    assert code == PinError.exit_code
    says(err, "no lock file", "VITZOO_LOCK")
    monkeypatch.setenv("VITZOO_LOCK", str(tmp_path / "own.lock"))
    assert run("lock", "--from-hub-cache", "faulty/net")[0] == 0
    unpinned.assert_right(unpinned.create())
    assert not unpinned.home.exists()


def test_a_registered_file_that_the_commit_lacks_is_not_pinned_as_absent(unpinned, linked):
    """Else it would stay absent, with a network, too."""
    linked.add("config.json", b"{}")
    linked.lacks("model.safetensors")
    with refuses(WeightsUnavailable, "faulty/net:main", "download it"):
        vitzoo.fetch("faulty/net", from_hub_cache=True)
    assert pins(unpinned) == {}


def test_a_snapshot_with_other_bytes_costs_no_begun_download(net, hub, faults):
    """Without links, nothing but its bytes tells that it is another file."""
    net.limit(attempts=1)
    hub.always = faults.cut(50_000)
    with pytest.raises(TransferError):
        net.create()
    assert len(net.kept) == 50_000
    Cache(net.hub_cache, "no links").add("model.safetensors", bytes(len(net.data)))
    hub.always = None
    net.assert_right(net.create())
    assert hub.ranges[-1] == "bytes=50000-"


def test_weights_that_are_not_on_the_hub(run):
    code, _, err = run("lock", "--from-hub-cache", "vit_digits")
    assert code == PinError.exit_code
    says(err, "vit_digits", "not on the Hub")


@pytest.mark.parametrize(
    "arguments", [("faulty/net",), ("--from-hub-cache", "--update", "faulty/net")]
)
def test_arguments_that_do_not_belong_together(run, arguments):
    code, _, err = run("lock", *arguments)
    assert code == 2
    says(err, "--from-hub-cache", "--update")


# Offline, without the command.


def test_offline_the_error_names_the_command(unpinned, cached, run, monkeypatch):
    offline(monkeypatch)
    with refuses(Offline, "faulty/net:main", "vitzoo fetch faulty/net"):
        unpinned.create()
    cached.add("model.safetensors", unpinned.data)
    command = "lock --from-hub-cache faulty/net:main"
    with refuses(Offline, "faulty/net:main", f"vitzoo {command}"):
        unpinned.create()
    assert run(*command.split())[0] == 0
    unpinned.assert_right(unpinned.create())


@pytest.mark.usefixtures("_sealed")
@pytest.mark.parametrize("size", ["known", "unknown"])
@pytest.mark.parametrize("layout", ["links", "no links"])
def test_a_pinned_file_of_any_snapshot_is_used(net, monkeypatch, size, layout):
    more = {"size": None, "predicted_size": len(net.data)} if size == "unknown" else {}
    net.register(pin="reported", **more)
    cached = Cache(net.hub_cache, layout)
    cached.add("model.safetensors", net.data, FIRST, ref=None)
    cached.add("model.safetensors", DAMAGE["flip"](net.data), SECOND)
    cached.add("model.safetensors", DAMAGE["long"](net.data), "d" * 40)
    offline(monkeypatch)
    net.assert_right(net.create())
    assert not (net.home / "vitzoo.lock").exists()


@pytest.mark.usefixtures("_sealed")
def test_snapshots_without_a_ref_of_which_none_has_the_registered_bytes(net):
    net.register(pin="reported", revision=None)
    cached = Cache(net.hub_cache, "no links")
    for commit in (FIRST, SECOND):
        cached.add("model.safetensors", DAMAGE["flip"](net.data), commit, ref=None)
    with refuses(WeightsUnavailable, "no snapshot in", cached.folder(), sha256_of(net.data)):
        vitzoo.fetch("faulty/net", from_hub_cache=True)


@pytest.mark.usefixtures("_sealed")
def test_a_snapshot_is_read_once_and_only_if_it_may_be_the_file(net, monkeypatch, caplog):
    cached = Cache(net.hub_cache, "no links")
    wrong = cached.add("model.safetensors", DAMAGE["flip"](net.data), "d" * 40)
    for commit in (FIRST, SECOND):
        path = cached.snapshot("model.safetensors", commit)
        path.parent.mkdir(parents=True)
        os.link(wrong, path)
    cached.layout = "links"
    cached.add("model.safetensors", DAMAGE["short"](net.data), "e" * 40)
    offline(monkeypatch)
    caplog.set_level("DEBUG", "vitzoo")
    with refuses(Offline, "faulty/net:main"):
        net.create()
    assert caplog.text.count("it is ignored") == 1


# Addresses: the configs beside the weights.


@pytest.fixture
def model(tmp_path, transformers):
    """A network of transformers, as its library would leave it in the cache."""
    torch.manual_seed(4)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=3, layer_norm_eps=1e-5,
    )  # fmt: skip
    folder = tmp_path / "transformers"
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
    processor = {"size": 32, "resample": 0, "image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fill(cached, model, *names):
    for name in names or model:
        cached.add(name, model[name])


@pytest.mark.parametrize("known", ["markers", "list", "nothing"])
def test_an_address_works_offline(cached, model, known, monkeypatch, unpinned, tmp_path):
    fill(cached, model)
    if known == "list":
        cached.list(model)
    for name in ("processor_config.json", "open_clip_config.json") if known == "markers" else ():
        cached.lacks(name)
    assert (
        vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True).read_bytes()
        == (model["model.safetensors"])
    )
    found = {k.rpartition("/")[2]: pin for k, pin in pins(unpinned).items()}
    there = {name: pin_of(data) for name, data in model.items() if name != "README.md"}
    assert {name: pin for name, pin in found.items() if pin[2]} == there
    absent = {name for name, pin in found.items() if not pin[2]}
    absences = {"processor_config.json", "open_clip_config.json"}
    assert absent == (set() if known == "nothing" else absences)
    shutil.rmtree(cached.root)
    offline(monkeypatch)
    made = vitzoo.create(f"hf://{REPO}").eval()
    beside = vitzoo.create(tmp_path / "transformers").eval()
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(made(images), beside(images))
    assert made.spec == beside.spec
    assert made.preprocessing == beside.preprocessing
    notes = str(made.load_report)
    assert ("processor_config.json is not used" in notes) == (known == "nothing")


def test_what_the_cache_does_not_tell_is_asked_for_with_a_network(net, hub, model):
    for name, data in model.items():
        hub.add(REPO, name, data, revision=FIRST)
    hub.add(REPO, "open_clip_config.json", b'{"model_cfg": 5}', revision=FIRST)
    cached = Cache(net.hub_cache)
    fill(cached, model, "config.json", "model.safetensors")
    vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    assert hub.requests == []
    made = vitzoo.create(f"hf://{REPO}")
    assert made.preprocessing.mean == (0.1,) * 3
    assert [path for _, path, _ in hub.requests if path.startswith("/api/")] == [
        f"/api/models/{REPO}/revision/{FIRST}?blobs=true"
    ]


def test_weights_without_the_config_of_their_network_are_not_loaded(
    linked, model, monkeypatch, caplog
):
    """Its settings, such as an epsilon, cannot be seen in the tensors."""
    fill(linked, model, "model.safetensors", "preprocessor_config.json")
    vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    says(caplog.text, f"hf://{REPO}", "config.json", "create")
    offline(monkeypatch)
    with refuses(Offline, f"hf://{REPO}@main/", "config.json", "VITZOO_LOCK"):
        vitzoo.create(f"hf://{REPO}")
    fill(linked, model, "config.json")
    with refuses(Offline, f"vitzoo lock --from-hub-cache hf://{REPO}@main/config.json"):
        vitzoo.create(f"hf://{REPO}")


def test_a_config_without_the_git_hash_of_its_name_is_refused(linked, model, unpinned):
    fill(linked, model, "model.safetensors")
    right = model["config.json"]
    linked.add("config.json", right.replace(b"1e-05", b"1e-06"), etag=git_hash(right))
    with refuses(HashMismatch, str(linked.snapshot("config.json")), git_hash(right)):
        vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    assert pins(unpinned) == {}


@pytest.mark.parametrize("size", [0, 2**23 + 1])
def test_a_config_of_an_impossible_size_is_refused(cached, model, size):
    fill(cached, model, "model.safetensors")
    cached.add("config.json", b" " * size)
    with refuses(PinError, "config.json", f"{size} bytes", "download it again"):
        vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)


def test_configs_are_of_the_commit_of_locked_weights(cached, model, unpinned):
    fill(cached, model)
    vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    path = unpinned.home / "vitzoo.lock"
    lock = json.loads(path.read_text())
    lock["weights"] = {k: v for k, v in lock["weights"].items() if k.endswith("s")}
    path.write_text(json.dumps(lock))
    cached.add("config.json", b'{"model_type": "resnet"}', SECOND)  # `main` has moved on
    vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    assert pins(unpinned)[f"hf://{REPO}@main/config.json"] == pin_of(model["config.json"])


def test_weights_that_come_later_in_the_order_have_to_be_named(cached, model):
    cached.add("open_clip_model.safetensors", model["model.safetensors"])
    fill(cached, model, "config.json")
    named = f"hf://{REPO}@main/open_clip_model.safetensors"
    with refuses(WeightsUnavailable, f"hf://{REPO}", "model.safetensors, which comes first", named):
        vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    cached.lacks("model.safetensors")
    path = vitzoo.fetch(f"hf://{REPO}", from_hub_cache=True)
    assert path == vitzoo.fetch(named, from_hub_cache=True)


@pytest.mark.parametrize("address", [f"hf://{REPO}", ADDRESS])
def test_weights_that_the_commit_does_not_have(unpinned, cached, model, address):
    fill(cached, model, "config.json")
    cached.list({"config.json": model["config.json"]})
    with refuses(WeightsUnavailable, "model.safetensors", "download it"):
        vitzoo.fetch(address, from_hub_cache=True)
    assert pins(unpinned) == {}


def test_a_file_in_a_folder(cached, model, monkeypatch):
    for name, data in model.items():
        cached.add(f"a/{name}", data)
    address = f"hf://{REPO}@main/a/model.safetensors"
    vitzoo.fetch(address, from_hub_cache=True)
    offline(monkeypatch)
    assert vitzoo.create(address).spec.block.norm_eps == 1e-5


@pytest.mark.parametrize("missing", [False, True])
def test_weights_in_several_files(cached, model, monkeypatch, missing, caplog, run):
    tensors = safetensors.torch.load(model["model.safetensors"])
    keys = sorted(tensors)
    shards = {
        f"model-{i + 1:05}-of-00002.safetensors": {key: tensors[key] for key in keys[i::2]}
        for i in range(2)
    }
    index = {"weight_map": {key: name for name, held in shards.items() for key in held}}
    cached.add("model.safetensors.index.json", json.dumps(index).encode())
    for name, held in [*shards.items()][: 1 if missing else 2]:
        if cached.layout == "shared":
            cached.layout = "links"  # each file has another Xet hash
        cached.add(name, safetensors.torch.save(held))
    fill(cached, model, "config.json")
    for name in ("model.safetensors", "open_clip_model.safetensors"):
        cached.lacks(name)
    code, out, err = run("lock", "--from-hub-cache", f"hf://{REPO}", "--json")
    assert code == 0, err
    files = {row["source"].rpartition("/")[2] for row in json.loads(out)}
    assert {*[*shards][: 1 if missing else 2], "config.json"} < files
    offline(monkeypatch)
    if missing:
        says(caplog.text, [*shards][1], "create")
        with refuses(Offline, [*shards][1]):
            vitzoo.create(f"hf://{REPO}")
    else:
        made = vitzoo.create(f"hf://{REPO}")
        assert made.load_report.sha256
