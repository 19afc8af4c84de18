"""`push`: the folder, its model card, and the upload with huggingface_hub's client."""

import hashlib
import json
import re

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import fill, randn, refuses, says
from upload_hub import COMMIT, UploadHub
from vitzoo import errors
from vitzoo.checkpoint.saved import Trunk
from vitzoo.errors import CheckpointError, HashMismatch, InvalidOption, Offline, UnknownName
from vitzoo.exporting import push as module
from vitzoo.files.folder_manifest import MANIFEST
from vitzoo.saving import save_classifier

REPO = "acme/net"
TOKEN = "hf_secret"


@pytest.fixture
def hub(monkeypatch):
    """A Hub on loopback that vitzoo trusts, and a token for it."""
    with UploadHub() as server:
        monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", server.endpoint)
        monkeypatch.setenv("VITZOO_TOKEN_HOSTS", server.host)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield server


@pytest.fixture
def model(small):
    found = fill(vitzoo.create(small))
    found.labels = ("a", "b", "c", "d", "e")
    found.preprocessing = vitzoo.Preprocessing(crop_pct=0.875)
    return found


def front_matter(text):
    """Return the lines between the marks of the model card."""
    return re.fullmatch(r"---\n(.*?)\n---\n\n.*", text, re.DOTALL)[1].splitlines()


def test_a_folder_is_written_and_uploaded(hub, model, tmp_path, images):
    out = tmp_path / "out"
    done = vitzoo.push(model, REPO, folder=out, license="mit", private=True)
    names = {"README.md", "config.json", "model.safetensors", MANIFEST}
    assert {path.name for path in out.iterdir()} == names
    assert hub.repos == {REPO: {name: (out / name).read_bytes() for name in names}}
    assert hub.private[REPO] == "private"
    assert (done.commit, done.library, done.folder) == (COMMIT, "timm", out)
    for name, (size, sha256) in done.files.items():
        data = hub.repos[REPO][name]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size, sha256)
    assert {row.state for row in vitzoo.verify(out)} == {"ok"}
    again = vitzoo.create(f"{out}/").eval()
    assert torch.equal(again(images), model(images))
    assert (again.labels, again.preprocessing) == (model.labels, model.preprocessing)
    assert again.spec.to_data() == model.spec.to_data()


def test_only_the_upload_is_requested_and_only_the_endpoint_sees_the_token(hub, model, monkeypatch):
    """No telemetry, no list of coding agents, no second protocol; the switches are set back."""
    from huggingface_hub import constants

    for name in ("HF_HUB_DISABLE_TELEMETRY", "CI", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    with UploadHub() as other:
        other.status["/verify"] = (200, "{}")
        hub.verify = f"{other.endpoint}/verify"
        vitzoo.push(model, REPO, license="mit")
        assert other.paths() == ["POST /verify"]
        assert "authorization" not in other.requests[0][2]
    sha256 = hashlib.sha256(hub.repos[REPO]["model.safetensors"]).hexdigest()
    assert [path for path in hub.paths() if path != "POST /api/validate-yaml"] == [
        "POST /api/repos/create",
        f"POST /api/models/{REPO}/preupload/main",
        f"POST /{REPO}.git/info/lfs/objects/batch",
        f"PUT /lfs/{sha256}",
        f"POST /api/models/{REPO}/commit/main",
    ]
    for method, path, headers in hub.requests:
        agent = headers["user-agent"]
        assert "torch" not in agent
        assert "agent/" not in agent
        if method == "POST":
            assert headers["authorization"] == f"Bearer {TOKEN}", path
    assert constants.HF_HUB_DISABLE_TELEMETRY is False
    assert constants.HF_HUB_DISABLE_XET is False


@pytest.mark.parametrize("variable", ["VITZOO_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_requested_or_written(hub, model, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with refuses(Offline, REPO, "offline", "--dry-run", "dry_run=True"):
        vitzoo.push(model, REPO, folder=tmp_path / "out", license="mit")
    assert hub.requests == []
    assert not (tmp_path / "out").exists()
    vitzoo.push(model, REPO, folder=tmp_path / "out", license="mit", dry_run=True)
    assert hub.requests == []


def test_a_token_is_needed_and_goes_to_named_hosts_alone(hub, model, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.delenv("VITZOO_TOKEN_HOSTS")
    with refuses(errors.AuthenticationError, hub.endpoint, "VITZOO_TOKEN_HOSTS"):
        vitzoo.push(model, REPO, license="mit")
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", hub.host)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no"))
    with refuses(errors.AuthenticationError, hub.endpoint, "hf auth login", "HF_TOKEN"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.requests == []


@pytest.mark.workflows
@pytest.mark.parametrize(
    ("path", "status", "kind", "words"),
    [
        ("/api/repos/create", 401, errors.AuthenticationError, ["hf auth login", "HF_TOKEN"]),
        ("/api/repos/create", 403, errors.AccessDenied, ["token", "may not write"]),
        ("/api/repos/create", 500, errors.ServerError, ["500", "later"]),
        ("/api/models/acme/net/preupload", 404, errors.RepoNotFound, ["404"]),
        ("/acme/net.git", 422, errors.ServerError, ["422"]),
        ("/lfs/", 403, errors.AccessDenied, ["403"]),
        ("/acme/net.git", 200, errors.ServerError, ["does not accept"]),
        ("/api/models/acme/net/commit", 403, errors.AccessDenied, ["403"]),
    ],
)
def test_answers_of_the_hub_become_errors(hub, model, tmp_path, path, status, kind, words):
    hub.status[path] = (status, '{"error": "no\\u001b[31m"}')
    with refuses(kind, REPO, hub.endpoint, *words) as caught:
        vitzoo.push(model, REPO, folder=tmp_path / "out", license="mit")
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
    assert not hub.repos.get(REPO)
    assert not (tmp_path / "out").exists()
    assert TOKEN not in str(caught.value)


@pytest.mark.usefixtures("hub")
def test_a_hub_that_cannot_be_reached(model, monkeypatch):
    monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", "127.0.0.1:9")
    with refuses(errors.TransferError, REPO, "127.0.0.1:9", "network"):
        vitzoo.push(model, REPO, license="mit")


@pytest.mark.workflows
def test_a_repository_that_exists_needs_force(hub, model):
    vitzoo.push(model, REPO, license="mit")
    before = dict(hub.repos[REPO])
    model.head.bias.data.add_(1)
    with refuses(InvalidOption, REPO, "--force", "force=True"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.repos[REPO] == before
    vitzoo.push(model, REPO, license="mit", force=True)
    assert hub.repos[REPO] != before


def test_what_changed_after_it_was_written_is_not_uploaded(hub, model, monkeypatch):
    write = module.write_manifest

    def meddle(folder, about):
        files = write(folder, about)
        if about:
            data = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        return files

    monkeypatch.setattr(module, "write_manifest", meddle)
    with refuses(HashMismatch, "model.safetensors", "nothing was uploaded"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.requests == []


# The folder.


def test_the_card(model, tmp_path):
    vitzoo.push(
        model, REPO, folder=tmp_path / "out", dry_run=True, license="cc-by-nc-4.0",
        datasets=["acme/photos"], base_model=["acme/base"],
    )  # fmt: skip
    text = (tmp_path / "out" / "README.md").read_text()
    assert {
        "license: cc-by-nc-4.0", "library_name: timm", "pipeline_tag: image-classification",
        "base_model:", "- acme/base", "datasets:", "- acme/photos", "- vitzoo",
    } <= set(front_matter(text))  # fmt: skip
    sha256 = hashlib.sha256((tmp_path / "out" / "model.safetensors").read_bytes()).hexdigest()
    says(text, "# net", sha256, "32x32 px", 'vitzoo.create("hf://acme/net")', "crop_pct 0.875",
         'timm.create_model("hf-hub:acme/net", pretrained=True)')  # fmt: skip


def test_a_license_that_the_hub_does_not_know(model, tmp_path):
    vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True, license="My License 2")
    text = (tmp_path / "out" / "README.md").read_text()
    assert {"license: other", "license_name: my-license-2"} <= set(front_matter(text))


def test_the_card_of_a_classifier_names_its_trunk(tmp_path):
    model, weights = vitzoo.create("vit_digits"), vitzoo.describe("vit_digits").default_weights
    head = {name: randn(*t.shape) for name, t in model.state_dict().items() if "head" in name}
    file, trunk = tmp_path / "a.safetensors", Trunk(weights.sha256, weights="vit_digits:digits_v1")
    save_classifier(file, model.spec, head, trunk, labels=list("0123456789"), preprocessing=None)
    vitzoo.push(file, REPO, folder=tmp_path / "out", dry_run=True, license="mit")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "license: mit" in front_matter(text)
    says(text, "trained on the features of `vit_digits:digits_v1`", "Apache-2.0")
    assert "The weights are those of" not in text
    says(text, "10 classes, with the network `vit_digits` of vitzoo.", "28x28 px, 1 channel, ",
         "| classes | 10 (names in config.json) |")  # fmt: skip


@pytest.mark.workflows
def test_registered_weights_bring_their_license_and_results(tmp_path):
    vitzoo.push("vit_digits", "acme/digits", folder=tmp_path / "out", dry_run=True)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "license: apache-2.0" in front_matter(text)
    says(text, "vit_digits:digits_v1", "Top-1 accuracy 100.0", "scikit-learn digits")
    says(text, "its SHA-256 differs", vitzoo.describe("vit_digits").default_weights.sha256)
    model = vitzoo.create("vit_digits", pretrained=True)
    vitzoo.push(model, "acme/digits", folder=tmp_path / "tuned", dry_run=True)
    text = (tmp_path / "tuned" / "README.md").read_text()
    says(text, "was loaded from", "vit_digits:digits_v1")
    assert "Top-1" not in text  # it may have been trained since


def test_the_license_must_be_known(zoo, small, model, tmp_path, caplog):
    with refuses(InvalidOption, "license", "not known", "--license", "license="):
        vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True)
    for wrong in ("", "a\nb", 'x"', "x" * 200, 3):
        with refuses(InvalidOption, "license", "apache-2.0"):
            vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True, license=wrong)
    zoo.put(fill(vitzoo.create(small)), license="CC-BY-NC-4.0")
    vitzoo.push(zoo.name, REPO, folder=tmp_path / "out", dry_run=True)
    says(caplog.text, "CC-BY-NC-4.0", "terms")


@pytest.mark.workflows
def test_a_network_that_only_vitzoo_has(small, tmp_path, images):
    model = fill(vitzoo.create(small, head="mlp"))
    done = vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True, license="mit")
    assert (done.library, "config.json" in done.files) == ("vitzoo", False)
    assert torch.equal(vitzoo.create(f"{tmp_path / 'out'}/").eval()(images), model(images))
    says((tmp_path / "out" / "README.md").read_text(), "No other library has this network.")
    with refuses(CheckpointError, "timm", "head"):
        vitzoo.push(model, REPO, folder=tmp_path / "o", dry_run=True, license="mit", library="timm")
    assert not (tmp_path / "o").exists()
    merging = fill(vitzoo.create(small, block={"merge": 2}))
    vitzoo.push(merging, REPO, folder=tmp_path / "merging", dry_run=True, license="mit")
    card = (tmp_path / "merging" / "README.md").read_text()
    says(card, "| token merging | each block merges 2 patch tokens into others |")


def test_wrong_arguments(model, tmp_path):
    out = {"folder": tmp_path / "out", "dry_run": True, "license": "mit"}
    for wrong in ("net", "a/b/c", "", 3, "a/../b"):
        with refuses(InvalidOption, "owner/name"):
            vitzoo.push(model, wrong, **out)
    with refuses(InvalidOption, "folder", "--folder"):
        vitzoo.push(model, REPO, dry_run=True, license="mit")
    with refuses(InvalidOption, "library", "'torchvision'", "timm"):
        vitzoo.push(model, REPO, library="torchvision", **out)
    for key in ("datasets", "base_model"):
        for wrong in ("acme/x", ["a: b"], ["a\nb"], [3]):
            with refuses(InvalidOption, key, "list"):
                vitzoo.push(model, REPO, **out, **{key: wrong})
    with refuses(InvalidOption, "model", 3):
        vitzoo.push(3, REPO, **out)
    with refuses(InvalidOption, "Linear", "vitzoo.create"):
        vitzoo.push(torch.nn.Linear(2, 2), REPO, **out)
    with refuses(UnknownName, "'vit_b17'"):
        vitzoo.push("vit_b17", REPO, **out)
    assert not (tmp_path / "out").exists()


def test_the_command(hub, model, tmp_path, run):
    file = vitzoo.save(model, tmp_path / "saved.safetensors")
    given = ("push", file, REPO, "--license", "mit")
    code, text, _ = run(*given, "--folder", tmp_path / "out", "--dry-run")
    assert code == 0
    assert {line.split("\t")[0] for line in text.splitlines()[1:]} == {
        "README.md", "config.json", "model.safetensors"
    }  # fmt: skip
    assert hub.requests == []
    code, text, notes = run(*given, "--json")
    assert (code, json.loads(text)["commit"]) == (0, COMMIT)
    says(notes, f"{hub.endpoint}/{REPO}/commit/{COMMIT}")
    assert run(*given)[0] == 2
    assert run("push", file, REPO)[0] == 2


def test_weights_are_those_of_the_model(model, tmp_path):
    vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True, license="mit")
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
