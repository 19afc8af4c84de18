"""Configs on the Hub: fetched before the weights, verified and pinned like them."""

import hashlib
import json

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import close, fill, refuses, says
from internals import relock, reply
from vitzoo.errors import (
    CheckpointError,
    EntryNotFound,
    FirstUseWarning,
    IntegrityError,
    InvalidOption,
    NetworkError,
    Offline,
    PinError,
)

REPO = "acme/timm"
NAMES = ["ant", "bee", "cat", "dog", "elk"]
TINY = {"depth": 2, "embed_dim": 64, "num_heads": 4, "img_size": 32, "num_classes": 5}

pytestmark = pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")


@pytest.fixture
def folder(tmp_path, timm):
    """What timm's own function writes, for a network with a pool that no tensor shows."""
    from timm.models import save_for_hf

    torch.manual_seed(1)
    model = timm.create_model(
        "vit_tiny_patch16_224", global_pool="avg", fc_norm=False, **TINY
    ).eval()
    place = tmp_path / "pushed"
    save_for_hf(model, place, model_config={"label_names": NAMES}, safe_serialization=True)
    (place / "pytorch_model.bin").unlink(missing_ok=True)
    return place


@pytest.fixture
def pushed(hub, folder, net):
    """The folder as a repository; `config.json` is not stored in LFS."""
    assert net.hub is hub
    for path in folder.iterdir():
        hub.add(REPO, path.name, path.read_bytes())
    return folder


def asked(hub):
    """Return the names of the files that were requested."""
    return [path.rpartition("/")[2] for _, path, _ in hub.file_requests()]


def apis(hub):
    return [path for _, path, _ in hub.requests if path.startswith("/api/")]


@pytest.mark.parametrize("address", [f"hf://{REPO}", f"hf://{REPO}@main"])
@torch.inference_mode()
def test_an_address_alone_is_the_network_of_its_folder(pushed, hub, address):
    ours, beside = vitzoo.create(address).eval(), vitzoo.create(pushed).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(images), beside(images))
    assert ours.spec == beside.spec
    assert ours.labels == beside.labels == tuple(NAMES)
    assert ours.preprocessing == beside.preprocessing
    assert ours.load_report.assumed == beside.load_report.assumed
    data = (pushed / "model.safetensors").read_bytes()
    assert ours.load_report.sha256 == hashlib.sha256(data).hexdigest()
    assert len(apis(hub)) == 1
    assert vitzoo.labels(address) == tuple(NAMES)
    assert repr(vitzoo.transform(address)) == repr(vitzoo.transform(pushed))


@pytest.mark.usefixtures("pushed")
def test_the_processor_of_a_whole_model(hub):
    table = {"size": 32, "resample": 0, "image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    hub.add(REPO, "processor_config.json", json.dumps({"image_processor": table}).encode())
    expected = vitzoo.Preprocessing((0.1,) * 3, (0.2,) * 3, "nearest", 1.0, "squash")
    assert vitzoo.create(f"hf://{REPO}").preprocessing == expected
    assert len(apis(hub)) == 1


@pytest.mark.parametrize("weights", [None, "hf://acme/resnet@main/model.safetensors"])
def test_another_network_is_refused_before_its_weights_are_fetched(hub, net, weights):
    hub.add("acme/resnet", "config.json", b'{"model_type": "resnet"}')
    hub.add("acme/resnet", "model.safetensors", net.data)
    name = "vit_b16" if weights else "hf://acme/resnet"
    with refuses(CheckpointError, "hf://acme/resnet"):
        vitzoo.create(name, weights=weights)
    assert {*asked(hub)} == {"config.json"}


@torch.inference_mode()
def test_an_address_without_pooler_has_no_pre_logits(hub, net, tmp_path, transformers):
    assert net.hub is hub
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    reference = fill(
        transformers.ViTModel(transformers.ViTConfig(**sizes), add_pooling_layer=False)
    )
    reference.save_pretrained(tmp_path / "vit")
    for path in (tmp_path / "vit").iterdir():
        hub.add(REPO, path.name, path.read_bytes())
    images = torch.randn(2, 3, 32, 32)
    expected = reference(images).last_hidden_state[:, 0]
    for given in ({}, {"num_classes": 0}, {}):
        model = vitzoo.create(f"hf://{REPO}", **given).eval()
        close(model(images), expected)
        assert "the file has no pre-logits" in str(model.load_report)
        assert not model.load_report.reinitialised


def unknown(hub, tmp_path, **config):
    """Push weights with a config of an unknown model type; return their address."""
    data = vitzoo.save(vitzoo.create("vit_digits"), tmp_path / "own.safetensors").read_bytes()
    hub.add(REPO, "model.safetensors", safetensors.torch.save(safetensors.torch.load(data)))
    hub.add(REPO, "config.json", json.dumps({"model_type": "vit_new", **config}).encode())
    return f"hf://{REPO}@main/model.safetensors"


def test_settings_of_an_unknown_model_type_are_named(hub, net, tmp_path, caplog):
    assert net.hub is hub
    vitzoo.create("vit_digits", weights=unknown(hub, tmp_path, layer_norm_eps=1e-3))
    says(caplog.text, "vit_new", "layer_norm_eps = 0.001", "norm_eps = 1e-06")


def test_sizes_of_an_unknown_model_type_cost_no_weights(hub, net, tmp_path):
    assert net.hub is hub
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create("vit_digits", weights=unknown(hub, tmp_path, hidden_size=7))
    says(str(caught.value), "embed_dim = 7", "the model has embed_dim")
    assert set(asked(hub)) == {"config.json"}


@pytest.mark.usefixtures("pushed")
def test_weights_at_an_address_follow_their_config():
    named = {"variant": "vit_ti16", **TINY, "image_size": 32}
    del named["img_size"]
    model = vitzoo.create(named, weights=f"hf://{REPO}@main/model.safetensors")
    assert model.spec.pool.name == "mean"
    assert model.labels == tuple(NAMES)


@pytest.mark.usefixtures("pushed")
def test_a_wrong_argument_costs_no_weights(hub):
    with pytest.raises(InvalidOption, match="nonsense"):
        vitzoo.create(f"hf://{REPO}", head={"name": "linear", "nonsense": 1})
    assert set(asked(hub)) == {"config.json"}


@pytest.mark.usefixtures("pushed")
def test_a_contradiction_costs_no_weights(hub):
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create("vit_ti16", weights=f"hf://{REPO}@main/model.safetensors")
    says(str(caught.value), "depth = 2", "depth = 12")
    assert set(asked(hub)) == {"config.json"}


def test_all_files_are_locked_and_then_no_socket_is_opened(pushed, hub, net, monkeypatch):
    vitzoo.create(f"hf://{REPO}")
    lock = json.loads((net.home / "vitzoo.lock").read_text())["weights"]
    sizes = {source.rpartition("/")[2]: pin["size"] for source, pin in lock.items()}
    assert sizes == {
        "model.safetensors": (pushed / "model.safetensors").stat().st_size,
        "config.json": (pushed / "config.json").stat().st_size,
        "open_clip_config.json": 0,
        "preprocessor_config.json": 0,
        "processor_config.json": 0,
        "open_clip_model.safetensors": 0,
    }
    hub.requests.clear()
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    monkeypatch.setenv("VITZOO_PINS", "required")
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES)
    assert hub.requests == []


def test_a_new_commit_changes_nothing_until_the_lock_is_updated(pushed, hub):
    vitzoo.create(f"hf://{REPO}")
    config = json.loads((pushed / "config.json").read_text())
    other = json.dumps(config | {"label_names": NAMES[::-1]}).encode()
    hub.add(REPO, "config.json", other, revision="f" * 40)
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES)
    relock(f"hf://{REPO}")
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES[::-1])


@pytest.mark.usefixtures("pushed")
def test_a_config_that_came_later_is_of_the_commit_of_the_weights(hub, net):
    """Weights that were locked alone, and a branch that has moved on."""
    vitzoo.create(f"hf://{REPO}")
    path = net.home / "vitzoo.lock"
    lock = json.loads(path.read_text())
    lock["weights"] = {k: v for k, v in lock["weights"].items() if k.endswith("model.safetensors")}
    path.write_text(json.dumps(lock))
    hub.requests.clear()
    vitzoo.create(f"hf://{REPO}")
    commit = next(iter(lock["weights"].values()))["commit"]
    assert all(commit in path for path in apis(hub))


@pytest.mark.usefixtures("pushed")
def test_pins_of_several_commits_are_refused(net):
    vitzoo.create(f"hf://{REPO}")
    path = net.home / "vitzoo.lock"
    lock = json.loads(path.read_text())
    lock["weights"][f"hf://{REPO}@main/config.json"]["commit"] = "f" * 40
    path.write_text(json.dumps(lock))
    with pytest.raises(PinError) as caught:
        vitzoo.create(f"hf://{REPO}")
    says(str(caught.value), "several commits", "f" * 40, "vitzoo lock --update")


def lies(right, wrong):
    """Return an answer with other bytes for one file."""

    def answer(handler, data):
        reply(handler, 200, {}, wrong if data == right else data)

    return answer


def test_wrong_bytes_of_a_config_are_refused(pushed, hub):
    right = (pushed / "config.json").read_bytes()
    hub.always = lies(right, right.replace(b"avg", b"map"))
    with pytest.raises(PinError) as caught:
        vitzoo.create(f"hf://{REPO}")
    says(str(caught.value), "config.json", "git hash")


@pytest.mark.usefixtures("hub")
def test_a_mirror_cannot_change_a_config(pushed, second_hub, monkeypatch):
    vitzoo.create(f"hf://{REPO}")
    monkeypatch.setenv("VITZOO_HOME", str(pushed.parent / "other"))
    monkeypatch.setenv("VITZOO_LOCK", str(pushed.parent / "home" / "vitzoo.lock"))
    right = (pushed / "config.json").read_bytes()
    for path in pushed.iterdir():
        second_hub.add(REPO, path.name, path.read_bytes())
    second_hub.always = lies(right, right.replace(b"avg", b"map"))
    monkeypatch.setenv("VITZOO_ENDPOINTS", second_hub.endpoint)
    with pytest.raises(IntegrityError):
        vitzoo.create(f"hf://{REPO}")


def test_a_config_of_several_megabytes(pushed, hub):
    names = [f"{'n' * 50}{i}" for i in range(60_000)]
    config = json.loads((pushed / "config.json").read_text())
    hub.add(REPO, "config.json", json.dumps(config | {"label_descriptions": names}).encode())
    assert len(hub.files[REPO, "config.json"]) > 3e6
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES)


@pytest.mark.parametrize("size", [2**23 + 1, 2**24])
@pytest.mark.usefixtures("pushed")
def test_a_large_config_is_refused(hub, size, net):
    hub.add(REPO, "config.json", b" " * size)
    with pytest.raises((NetworkError, PinError)) as caught:
        vitzoo.create(f"hf://{REPO}")
    says(str(caught.value), "8388608 bytes")
    assert not [name for name in net.files() if name.startswith("home/sha256")]


@pytest.mark.usefixtures("pushed")
def test_no_network_and_no_lock(hub, monkeypatch):
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    with pytest.raises(Offline) as caught:
        vitzoo.create(f"hf://{REPO}")
    says(str(caught.value), f"hf://{REPO}@main", "offline")
    assert hub.requests == []


@pytest.mark.usefixtures("pushed")
def test_pins_are_required(hub, monkeypatch):
    monkeypatch.setenv("VITZOO_PINS", "required")
    with pytest.raises(PinError, match="VITZOO_PINS=required"):
        vitzoo.create(f"hf://{REPO}")
    assert hub.requests == []


@pytest.mark.usefixtures("pushed")
def test_a_repository_without_weights(hub):
    del hub.files[REPO, "model.safetensors"]
    with pytest.raises(EntryNotFound) as caught:
        vitzoo.create(f"hf://{REPO}")
    says(str(caught.value), "model.safetensors", "open_clip_model.safetensors", "/FILE")


@pytest.mark.usefixtures("net")
def test_a_repository_without_config(hub, small, tmp_path):
    save_file(vitzoo.create(small).state_dict(), tmp_path / "x.safetensors")
    hub.add("acme/bare", "model.safetensors", (tmp_path / "x.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create("hf://acme/bare")
    says(str(caught.value), "hf://acme/bare", "create('vit_b16', weights=")


@torch.inference_mode()
@pytest.mark.usefixtures("net")
def test_a_repository_with_a_saved_model(hub, small, tmp_path):
    model = vitzoo.create(small).eval()
    vitzoo.save(model, tmp_path / "x.safetensors")
    hub.add("acme/saved", "model.safetensors", (tmp_path / "x.safetensors").read_bytes())
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(vitzoo.create("hf://acme/saved").eval()(images), model(images))


def test_configs_beside_a_file_in_a_folder(pushed, hub):
    for path in pushed.iterdir():
        hub.add("acme/nested", f"a/{path.name}", path.read_bytes())
    assert vitzoo.create("hf://acme/nested@main/a/model.safetensors").labels == tuple(NAMES)


@pytest.mark.usefixtures("pushed", "hub")
def test_nothing_is_written_to_disk(net, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    monkeypatch.delenv("VITZOO_LOCK", raising=False)
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES)
    assert not net.home.exists()


@pytest.mark.usefixtures("pushed")
def test_the_user_is_warned_of_new_pins_but_not_of_those_of_configs(caplog):
    with pytest.warns(FirstUseWarning) as caught:
        vitzoo.create(f"hf://{REPO}")
    (warning,) = caught
    assert "model.safetensors: trust on first use" in str(warning.message)
    assert caplog.text == ""


@pytest.mark.usefixtures("hub")
def test_fetch_brings_the_configs(pushed, monkeypatch):
    path = vitzoo.fetch(f"hf://{REPO}")
    assert path.read_bytes() == (pushed / "model.safetensors").read_bytes()
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    assert vitzoo.create(f"hf://{REPO}").labels == tuple(NAMES)


# Repositories with only a pickle.

PICKLE = "a pickle can run code"


@pytest.mark.parametrize("revision", ["main", "refs/pr/1", "feature%2Fx", "a" * 40])
@pytest.mark.parametrize("file", ["pytorch_model.bin", "open_clip_pytorch_model.bin", "net.pth"])
def test_a_repository_with_only_a_pickle_names_the_command_that_converts_it(
    hub, net, revision, file
):
    assert net.hub is hub
    repo, command = "acme/pickle", f"vitzoo convert hf://acme/pickle@{revision}/{file}"
    hub.add(repo, "config.json", b'{"model_type": "vit"}', revision="a" * 40)
    hub.add(repo, "training_args.bin", b"x", revision="a" * 40)
    hub.add(repo, file, b"x" * 1000, revision="a" * 40)
    address = f"hf://acme/pickle@{revision}"
    for call in (
        lambda: vitzoo.create(address),
        lambda: vitzoo.create("vit_ti16", weights=address),
        lambda: vitzoo.create(f"{address}/model.safetensors"),
        lambda: vitzoo.fetch(address),
    ):
        with refuses(EntryNotFound, f"{command} {file[:-4]}.safetensors --from-pickle", PICKLE):
            call()
    with refuses(CheckpointError, f"{address}/{file}", command, "--from-pickle"):
        vitzoo.create(f"{address}/{file}")
    assert file not in asked(hub)


def test_without_a_pickle_the_file_is_asked_for(hub, net):
    assert net.hub is hub
    hub.add("acme/empty", "tf_model.h5", b"x")
    with refuses(EntryNotFound, "name the weights file: hf://acme/empty@main/FILE"):
        vitzoo.create("hf://acme/empty")


@pytest.mark.usefixtures("pushed")
def test_the_lock_has_one_form_of_a_revision(hub, net):
    for address in (f"hf://{REPO}@feature%2fx", f"hf://{REPO}@refs%2Fpr%2f1"):
        vitzoo.create(address)
    vitzoo.create(f"hf://{REPO}@feature%2Fx/model.safetensors")
    lock = json.loads((net.home / "vitzoo.lock").read_text())["weights"]
    revisions = {source.partition("@")[2].rpartition("/")[0] for source in lock}
    assert revisions == {"feature%2Fx", "refs/pr/1"}
    assert {path.rpartition("/revision/")[2] for path in apis(hub)} == {
        "feature%2Fx?blobs=true",
        "refs%2Fpr%2F1?blobs=true",
    }
