"""Weights in several files on the Hub: only the files that are needed, each of them verified."""

import hashlib
import json

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import refuses
from internals import relock, remove, reply
from vitzoo.errors import (
    CheckpointError,
    EntryNotFound,
    FirstUseWarning,
    HashMismatch,
    InvalidOption,
    Offline,
    PinError,
)

REPO = "acme/large"
INDEX = "model.safetensors.index.json"
NAMES = [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
VIT = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip
CONFIG = {"model_type": "large", "vision_config": VIT}

pytestmark = pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")


@pytest.fixture
def tower(net):
    """The tensors of a network as transformers names them."""
    spec = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64, "patch_size": 8}
    torch.manual_seed(3)
    model = vitzoo.create({**spec, "image_size": 32, "num_classes": 0})
    for parameter in model.parameters():
        parameter.data.normal_(std=0.1)
    assert net.hub.files
    layout = vitzoo.formats.transformers_vit
    return {k: t.contiguous() for k, t in layout.from_model(model.state_dict()).items()}


@pytest.fixture
def large(hub, tower):
    """A repository of four files, of which the last two have the tower; returns its index."""
    shards = {name: {} for name in NAMES}
    for i in range(6):
        shards[NAMES[i % 2]][f"language_model.layers.{i}.weight"] = torch.ones(3)
    for i, (key, tensor) in enumerate(tower.items()):
        shards[NAMES[2 + i % 2]][f"model.vision_tower.{key}"] = tensor
    for name, tensors in shards.items():
        hub.add(REPO, name, safetensors.torch.save(tensors))
    index = {"weight_map": {key: name for name, held in shards.items() for key in held}}
    hub.add(REPO, INDEX, json.dumps(index).encode())
    hub.add(REPO, "config.json", json.dumps(CONFIG).encode())
    return index["weight_map"]


def change_index(hub, weight_map):
    hub.add(REPO, INDEX, json.dumps({"weight_map": weight_map}).encode())


def asked(hub):
    """Return the names of the weights files that were requested; configs come twice."""
    names = [path.rpartition("/")[2] for _, path, _ in hub.file_requests()]
    return sorted(name for name in names if name.endswith(".safetensors"))


@pytest.mark.parametrize("address", [f"hf://{REPO}", f"hf://{REPO}@main/{INDEX}"])
def test_only_the_files_of_the_tower_are_fetched(large, hub, tower, address, caplog, monkeypatch):
    model = vitzoo.create(address)
    expected = vitzoo.formats.transformers_vit.to_model(tower)
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())
    assert asked(hub) == NAMES[2:]
    assert set(hub.ranges) == {None}, "each file is fetched whole"
    report = model.load_report
    assert {*report.dropped} == {key for key in large if key.startswith("language")}
    assert "prefix = model.vision_tower." in report.assumed
    hashes = [(hashlib.sha256(hub.files[REPO, name]).hexdigest(), name) for name in NAMES[2:]]
    lines = "".join(f"{sha256}  {name}\n" for sha256, name in hashes)
    assert report.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    (notice,) = [text for text in caplog.messages if "2 of 4 files" in text]
    assert "MB" in notice
    assert notice.startswith(f"hf://{REPO}@main/{INDEX}: ")
    monkeypatch.setenv("VITZOO_VERIFY", "tensors")
    caplog.clear()
    assert vitzoo.create(address).load_report.sha256 == report.sha256
    assert not caplog.messages


def test_all_files_of_a_network_alone_are_fetched(hub, tower):
    hub.add(REPO, "config.json", json.dumps(VIT).encode())
    held = {name: dict([*tower.items()][i::2]) for i, name in enumerate(NAMES[:2])}
    for name, tensors in held.items():
        hub.add(REPO, name, safetensors.torch.save(tensors))
    change_index(hub, {key: name for name, tensors in held.items() for key in tensors})
    model = vitzoo.create(f"hf://{REPO}")
    assert (model.load_report.dropped, asked(hub)) == ((), NAMES[:2])


def test_only_the_files_of_the_network_behind_a_prefix_are_fetched(hub, tower):
    """Its classifier lies beside it, in a file of its own."""
    hub.add(REPO, "config.json", json.dumps(VIT).encode())
    classifier = {"fc.weight": torch.full((3, 32), 0.1), "fc.bias": torch.ones(3)}
    held = {NAMES[i]: {} for i in range(4)}
    for i, (key, tensor) in enumerate(tower.items()):
        held[NAMES[0]][f"model.vit.{key}"] = tensor.clone()
        held[NAMES[1 + i % 2]][f"ema.vit.{key}"] = tensor + 1
    held[NAMES[3]] = {f"ema.{key}": tensor for key, tensor in classifier.items()}
    for name, tensors in held.items():
        hub.add(REPO, name, safetensors.torch.save(tensors))
    change_index(hub, {key: name for name, tensors in held.items() for key in tensors})
    with refuses(CheckpointError, "'ema.vit.' (transformers_vit)", "'model.vit.'", "prefix="):
        vitzoo.create(f"hf://{REPO}")
    assert not asked(hub)
    model = vitzoo.create(f"hf://{REPO}", prefix="ema.", num_classes=3)
    assert asked(hub) == NAMES[1:]
    expected = vitzoo.formats.transformers_vit.to_model({k: t + 1 for k, t in tower.items()})
    expected |= {"head.weight": classifier["fc.weight"], "head.bias": classifier["fc.bias"]}
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())
    assert "classifier = ema.fc" in model.load_report.assumed


def test_a_single_file_of_a_larger_model(hub, tower, caplog):
    """It is fetched whole and once, and its size is logged before."""
    tensors = {f"vision_model.{key}": tensor for key, tensor in tower.items()}
    data = safetensors.torch.save(tensors | {"lm_head.weight": torch.ones(2**18)})
    hub.add(REPO, "model.safetensors", data)
    hub.add(REPO, "config.json", json.dumps(CONFIG).encode())
    before = []

    def serve(handler, found):
        before.append([*caplog.messages])
        reply(handler, 200, {"X-Repo-Commit": None}, found)

    hub.always = serve
    model = vitzoo.create(f"hf://{REPO}")
    assert model.load_report.dropped == ("lm_head.weight",)
    assert asked(hub) == ["model.safetensors"]
    assert "needed whole to verify its tower; fetching 1." in before[-1][-1]
    assert model.load_report.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.usefixtures("large")
def test_fetch_then_offline_then_remove(hub, net, monkeypatch):
    path = vitzoo.fetch(f"hf://{REPO}")
    assert path.read_bytes() == hub.files[REPO, INDEX]
    assert asked(hub) == NAMES[2:]
    lock = json.loads((net.home / "vitzoo.lock").read_text())["weights"]
    locked = {source.rpartition("/")[2] for source, pin in lock.items() if pin["size"]}
    assert locked == {"config.json", INDEX, *NAMES[2:]}
    hub.requests.clear()
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_PINS", "required")
    assert vitzoo.create(f"hf://{REPO}").load_report.kept
    for address in (f"hf://{REPO}", f"hf://{REPO}@main/{INDEX}"):
        rows = {row.name.rpartition("/")[2]: row.state for row in vitzoo.verify(address)}
        assert rows == dict.fromkeys(locked, "ok")
    assert [row.state for row in vitzoo.verify(f"hf://{REPO}@main/{NAMES[2]}")] == ["ok"]
    freed = remove(f"hf://{REPO}")
    assert freed >= sum(len(hub.files[REPO, name]) for name in locked)
    assert {row.state for row in vitzoo.verify(f"hf://{REPO}")} == {"missing"}
    with refuses(Offline, "config.json", "offline"):
        vitzoo.create(f"hf://{REPO}")
    assert hub.requests == []


def test_an_address_that_is_not_in_the_lock(net):
    assert net.home
    with refuses(InvalidOption, "hf://owner/repo@revision/file"):
        vitzoo.verify(f"hf://{REPO}")
    assert [row.state for row in vitzoo.verify(f"hf://{REPO}@main/{INDEX}")] == ["missing"]


@pytest.mark.usefixtures("large")
def test_each_new_pin_is_warned_of():
    with pytest.warns(FirstUseWarning) as caught:
        vitzoo.create(f"hf://{REPO}")
    named = {str(w.message).partition(": ")[0].rpartition("/")[2] for w in caught}
    assert named == {*NAMES[2:]}


@pytest.mark.usefixtures("large")
def test_a_new_commit_changes_nothing_until_the_lock_is_updated(hub, tower):
    first = vitzoo.create(f"hf://{REPO}").state_dict()
    tensors = safetensors.torch.load(hub.files[REPO, NAMES[3]])
    for tensor in tensors.values():
        tensor.add_(1)
    hub.add(REPO, NAMES[3], safetensors.torch.save(tensors), revision="f" * 40)
    assert tower
    again = vitzoo.create(f"hf://{REPO}").state_dict()
    assert all(torch.equal(t, first[name]) for name, t in again.items())
    relock(f"hf://{REPO}")
    later = vitzoo.create(f"hf://{REPO}").state_dict()
    assert not all(torch.equal(t, first[name]) for name, t in later.items())


@pytest.mark.usefixtures("large", "net")
def test_nothing_is_written_to_disk(net, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    monkeypatch.delenv("VITZOO_LOCK", raising=False)
    assert vitzoo.create(f"hf://{REPO}").load_report.kept
    assert not net.home.exists()


# Wrong bytes, and indexes that lie.


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("place", [30, -1], ids=["header", "data"])
def test_wrong_bytes_of_a_shard_are_refused(hub, faults, place, net):
    right = hub.files[REPO, NAMES[3]]
    wrong = bytearray(right)
    wrong[place] ^= 1
    hub.always = lambda handler, data: faults.serve(
        handler, bytes(wrong) if data == right else data
    )
    with refuses(HashMismatch, NAMES[3]):
        vitzoo.create(f"hf://{REPO}")
    lock = json.loads((net.home / "vitzoo.lock").read_text())["weights"]
    assert f"hf://{REPO}@main/{NAMES[3]}" not in lock
    hub.always = None
    assert vitzoo.create(f"hf://{REPO}").load_report.kept


@pytest.mark.usefixtures("large")
def test_wrong_bytes_of_the_index_are_refused(hub, faults):
    right = hub.files[REPO, INDEX]
    wrong = right.replace(NAMES[3].encode(), NAMES[2].encode())
    hub.always = lambda handler, data: faults.serve(handler, wrong if data == right else data)
    with refuses(PinError, INDEX, "git hash"):
        vitzoo.create(f"hf://{REPO}")
    assert asked(hub) == []


BAD = ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..", "x.bin", "x\n.safetensors", 7]


@pytest.mark.parametrize("shard", BAD, ids=ascii)
def test_an_unsafe_name_of_a_shard_is_refused(hub, large, shard):
    change_index(hub, large | {"language_model.layers.0.weight": shard})
    with refuses(CheckpointError, INDEX, "'language_model.layers.0.weight'", "expected"):
        vitzoo.create(f"hf://{REPO}")
    assert asked(hub) == []


def test_thousands_of_shards_are_refused(hub, large):
    change_index(hub, large | {f"x{i}": f"x{i}.safetensors" for i in range(3000)})
    with refuses(CheckpointError, INDEX, "3004 files", "128"):
        vitzoo.create(f"hf://{REPO}")
    assert asked(hub) == []


def test_a_shard_that_the_repository_lacks(hub, large):
    key = next(key for key, name in large.items() if name == NAMES[2])
    change_index(hub, large | {key: "other.safetensors"})
    with refuses(EntryNotFound, INDEX, "other.safetensors", REPO):
        vitzoo.create(f"hf://{REPO}")
    assert asked(hub) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: m | {"model.vision_tower.more": NAMES[2]},
            ("'model.vision_tower.more'", "in no"),
        ),
        (lambda m: dict([*m.items()][:-1]), ("not in the index",)),
        (lambda m: m | {[*m][-1]: NAMES[2]}, (NAMES[3], f"the index says {NAMES[2]}")),
        (lambda m: m | {[*m][-1]: NAMES[0]}, (NAMES[3], f"the index says {NAMES[0]}")),
    ],
    ids=["more", "fewer", "in another shard", "in a shard of others"],
)
def test_an_index_that_disagrees_with_its_shards(hub, large, change, words):
    change_index(hub, change(large))
    with refuses(CheckpointError, INDEX, "disagree", *words):
        vitzoo.create(f"hf://{REPO}")


def test_two_towers_are_refused_before_a_download(hub, large, tower):
    change_index(hub, large | {f"video_tower.{key}": NAMES[0] for key in tower})
    with refuses(CheckpointError, INDEX, "'model.vision_tower.'", "'video_tower.'"):
        vitzoo.create(f"hf://{REPO}")
    assert asked(hub) == []


def test_an_index_of_a_large_repository(hub, large):
    """An index has at most 8 MiB."""
    more = {f"language_model.{'x' * 100}{i}": NAMES[0] for i in range(9000)}
    change_index(hub, large | more)
    assert len(hub.files[REPO, INDEX]) > 2**20
    assert vitzoo.create(f"hf://{REPO}").load_report.kept
