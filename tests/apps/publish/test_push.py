"""`push`: the folder, its model card, and the upload with huggingface_hub's client."""

import hashlib
import json
import re
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from markdown_it import MarkdownIt

import vitzoo
from helpers import fill, randn, refuses, says
from tables import cases
from upload_hub import COMMIT, UploadHub
from vitzoo import errors
from vitzoo.apps.publish import push as module
from vitzoo.apps.publish.model_card import Card, Origin, model_card
from vitzoo.apps.publish.upload import upload
from vitzoo.checkpoint.saved import Trunk
from vitzoo.errors import CheckpointError, HashMismatch, InvalidOption, Offline, UnknownName
from vitzoo.files.folder_manifest import MANIFEST
from vitzoo.saving import save_classifier
from vitzoo.schema.preprocessing import UnreadPreprocessing

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
        f"POST /api/models/{REPO}/paths-info/{COMMIT}",
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
    with refuses(errors.AuthenticationError, hub.endpoint, "HF_TOKEN"):
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


def test_a_card_that_was_edited_is_kept(hub, model, tmp_path, run):
    out = tmp_path / "out"
    options = {"folder": out, "license": "mit", "dry_run": True, "force": True}
    for _ in range(2):
        vitzoo.push(model, REPO, **options)
    text = (out / "README.md").read_text()
    (out / "README.md").write_text(f"{text}\nMy results.\n")
    for change in ({}, {"dry_run": False}):
        with refuses(InvalidOption, out / "README.md", "changed", "kept"):
            vitzoo.push(model, REPO, **options | change)
    command = ("push", "vit_digits", REPO, "--folder", out, "--license", "mit", "--dry-run")
    code, _, notes = run(*command, "--force")
    assert code == 2
    says(notes, out / "README.md", "changed", "kept")
    assert (out / "README.md").read_text().endswith("My results.\n")
    assert not hub.repos


@pytest.mark.workflows
def test_a_temporary_folder_that_cannot_be_written_is_named(hub, model, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with refuses(errors.StoreError, "temporary folder", "No such file", "--folder DIR (folder=)"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.repos == {}


def test_a_repository_that_exists_needs_force(hub, model):
    vitzoo.push(model, REPO, license="mit")
    before = dict(hub.repos[REPO])
    model.head.bias.data.add_(1)
    with refuses(InvalidOption, REPO, "--force", "force=True"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.repos[REPO] == before
    vitzoo.push(model, REPO, license="mit", force=True)
    assert hub.repos[REPO] != before


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "its sha256 is"),
        (Path.unlink, "its sha256 is not known"),
    ],
    ids=["changed", "removed"],
)
def test_what_changed_after_it_was_written_is_not_uploaded(hub, model, monkeypatch, damage, found):
    write = module.write_manifest

    def meddle(folder, about):
        files = write(folder, about)
        if about:
            damage(folder / "model.safetensors")
        return files

    monkeypatch.setattr(module, "write_manifest", meddle)
    with refuses(HashMismatch, "model.safetensors", found, "nothing was uploaded", "push again"):
        vitzoo.push(model, REPO, license="mit")
    assert hub.requests == []


def test_the_bytes_of_a_small_file_that_are_sent_are_hashed(hub, tmp_path, monkeypatch):
    """Between two reads, the file may be written to."""
    sha256 = hashlib.sha256(b"right").hexdigest()
    (tmp_path / "config.json").write_bytes(b"wrong")
    monkeypatch.setattr(sys.modules[upload.__module__], "hash_file", lambda _: sha256)
    with refuses(HashMismatch, "config.json", sha256, "nothing was uploaded"):
        upload(tmp_path, {"config.json": (5, sha256)}, REPO, "", message="")
    assert hub.requests == []


# A Hub that is slow, wrong or hostile. Quick: without a model.


@pytest.fixture
def send(hub, tmp_path, monkeypatch):  # noqa: ARG001  # the environment names the Hub
    """Upload two files; the time limit of a request is 12 s."""
    monkeypatch.setenv("VITZOO_TIMEOUT", "2")
    (tmp_path / "README.md").write_bytes(b"# net")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 32)
    files = {
        path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in tmp_path.iterdir()
    }
    return lambda **options: upload(tmp_path, files, REPO, TOKEN, message="a", **options)


@cases("path", ["/api/repos/create", f"/api/models/{REPO}/preupload", "/lfs/"])
@cases("where", ["body", "header", "location", "cut", "line"])
def test_a_server_that_repeats_the_token(hub, send, path, where):
    """Neither the message nor a traceback has it, not even a part of it."""
    answers = {
        "body": (403, json.dumps({"error": f"Bearer {TOKEN} may not write"})),
        "header": (500, "", {"X-Error-Message": f"the token {TOKEN}"}),
        "location": (307, "", {"Location": f"https://elsewhere/?token={TOKEN}"}),
        "cut": (422, json.dumps({"error": f"{'x' * 295}{TOKEN}"})),
        "line": (500, TOKEN),
    }
    hub.status[path] = answers[where]
    with pytest.raises(errors.VitzooError) as caught:
        send()
    text = "".join(traceback.format_exception(caught.value))
    assert not re.search(f"{TOKEN[:4]}|{TOKEN[4:]}", text)
    if where in ("body", "location"):
        says(str(caught.value), "***")


CREATE, MODES, BATCH, OBJECT, COMMITS, LISTED = PATHS = (
    "/api/repos/create", f"/api/models/{REPO}/preupload", f"/{REPO}.git", "/lfs/",
    f"/api/models/{REPO}/commit", f"/api/models/{REPO}/paths-info",
)  # fmt: skip
ODD = ["null", "[]", "3", '"a"', "[null]", '{"files": [3]}', "[" * 100_000, "\x1b[31m", ""]


@pytest.mark.parametrize("path", [path for path in PATHS if path != OBJECT])
def test_answers_of_another_shape_are_errors(hub, send, path):
    for body in ODD:
        hub.repos.clear()
        hub.status[path] = (200, body)
        kind = errors.HashMismatch if (path, body) == (LISTED, "[]") else errors.ServerError
        with refuses(kind, REPO, hub.endpoint, "push again") as caught:
            send()
        assert type(caught.value) is kind
        assert str(caught.value).isprintable()


def test_the_address_of_a_commit_is_that_of_the_endpoint(hub, send):
    for wrong in ("main", COMMIT[:-1], "\x1b[31m", "../" * 13 + "a", 7, None, [COMMIT]):
        hub.repos.clear()
        found = {"commitUrl": f"{hub.endpoint}/{REPO}", "commitOid": wrong}
        hub.status[COMMITS] = (200, json.dumps(found))
        with refuses(errors.ServerError, REPO, "commit", "push again later"):
            send()
    del hub.status[COMMITS]
    hub.repos.clear()
    commit, other = hub._commit, f"https://huggingface.co/{REPO}/commit/{COMMIT}"
    hub._commit = lambda *a: (200, commit(*a)[1] | {"commitUrl": other})
    assert send() == (f"{hub.endpoint}/{REPO}/commit/{COMMIT}", COMMIT)


@pytest.mark.parametrize("how", ["silent", "slow"])
@pytest.mark.parametrize("path", PATHS)
def test_a_hub_that_does_not_answer_in_time(hub, send, path, how, monkeypatch):
    monkeypatch.setenv("VITZOO_TIMEOUT", "0.05")  # 0.3 s
    getattr(hub, how).add(path)
    with refuses(errors.TransferError, REPO, hub.endpoint, "check network"):
        send()
    assert len(hub.requests) == len(set(hub.paths()))  # nothing was tried again


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", [301, 307, 308])
def test_no_redirect_is_followed(hub, send, path, status):
    """The body of a request would go to another host."""
    with UploadHub() as other:
        hub.status[path] = (status, "", {"Location": f"{other.endpoint}/api\t"})
        with refuses(errors.RefusedResponse, REPO, other.endpoint, "redirect") as caught:
            send()
        assert str(caught.value).isprintable()
        assert other.requests == []


@pytest.mark.parametrize("path", PATHS)
def test_a_hub_that_answers_with_errors_again_and_again(hub, send, path, monkeypatch):
    """huggingface_hub would try six times, and sleep for as long as the Hub says."""
    slept = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    hub.status[path] = (503, "no", {"Retry-After": "86400"})
    with refuses(errors.ServerError, REPO, hub.endpoint, 503, "push again later"):
        send()
    assert sum(request[1].startswith(path) for request in hub.requests) <= 4
    assert sum(slept) <= 10


def test_a_busy_hub_is_asked_a_few_times(hub, send):
    """huggingface_hub would ask without an end."""
    busy = json.dumps({"error": "Cannot create repo: another conflicting operation is in progress"})
    end = iter([(409, busy)] * 50)
    hub.status[CREATE] = lambda: next(end, None)
    with refuses(errors.ServerError, REPO, 409, "push again later"):
        send()
    assert len(hub.requests) <= 4


def test_an_error_that_passes_is_no_error(hub, send, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    end = iter([(500, ""), (503, "")])
    hub.status[OBJECT] = lambda: next(end, None) if hub.paths()[-1].startswith("PUT") else None
    assert send()[1] == COMMIT
    assert hub.paths().count(next(path for path in hub.paths() if path.startswith("PUT"))) == 3


@pytest.mark.parametrize("path", [CREATE, COMMITS, LISTED])
def test_a_large_answer_is_not_read(hub, send, path):
    hub.status[path] = (200, " " * 5_000_000)
    with refuses(errors.RefusedResponse, REPO, "more than 1048576 bytes"):
        send()


@pytest.mark.parametrize("names", [{"README.md"}, {"model.safetensors", "README.md"}])
@pytest.mark.parametrize("how", ["ignored", "dropped"])
def test_files_that_are_not_in_the_commit_are_an_error(hub, send, how, names):
    setattr(hub, how, names)
    with refuses(HashMismatch, REPO, COMMIT, ".gitignore", "--force", *names):
        send()


@pytest.mark.parametrize("name", ["README.md", "model.safetensors"])
def test_a_commit_with_other_bytes_is_an_error(hub, send, name):
    row = hub._row
    hub._row = lambda n, data: row(n, data[:-1] + b"?" if n == name else data)
    with refuses(HashMismatch, REPO, COMMIT, name):
        send()


def test_a_large_file_is_sent_in_parts(hub, tmp_path):
    data = randn(1_500_000).numpy().tobytes()  # more than is read at once
    (tmp_path / "model.safetensors").write_bytes(data)
    hub.chunk = 2**20
    files = {"model.safetensors": (len(data), hashlib.sha256(data).hexdigest())}
    assert upload(tmp_path, files, REPO, TOKEN, message="a")[1] == COMMIT
    assert hub.repos[REPO] == {"model.safetensors": data}
    assert len(hub.parts) == 6
    tokens = {h.get("authorization") for method, _, h in hub.requests if method == "PUT"}
    assert tokens == {None}


def test_the_same_files_are_pushed_again(hub, send):
    send()
    assert len(hub.repos[REPO]) == 2
    assert send(force=True)[1] == COMMIT


def test_texts_of_the_hub_are_not_shown_as_warnings(hub, send, capfd, recwarn):
    found = {"errors": [], "warnings": [{"message": "\x1b[31mred"}]}
    hub.status["/api/validate-yaml"] = (200, json.dumps(found), {"X-HF-Warning": "a; red\x9b"})
    send()
    shown = capfd.readouterr()
    assert "red" not in shown.out + shown.err
    assert not recwarn.list


def test_downloads_by_others_are_sent_as_always(hub, send):
    """The client of huggingface_hub belongs to the whole process."""
    from huggingface_hub import get_session

    with UploadHub() as other:
        other.status["/there"] = (200, "x" * 2_000_000)
        hub.status["/here"] = (302, "", {"Location": f"{other.endpoint}/there"})
        found = []
        commit = hub._commit
        hub._commit = lambda *a: (
            found.append(get_session().get(f"{hub.endpoint}/here")) or commit(*a)
        )
        send()
        assert [len(one.content) for one in found] == [2_000_000]
    assert "send" not in vars(get_session())


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


HOSTILE = (
    "<img src=x onerror=alert(1)>", "<!-- ", "[a](javascript:b)", "![a](http://x/y)", "a | b |",
    "`code` ``` ~~~", "*a* _b_ __c__ ~~d~~", "\n\n# title\n- a", "&lt;b&gt;", "a\\<b>", "$$x$$",
    "\u202e\x1b[31m", "---\nlicense: mit\n---", "a: b # 'c' \"d\"", "<http://x.y>",
)  # fmt: skip


@cases("text", HOSTILE)
def test_texts_of_a_registry_are_shown_as_they_are(model, text):
    """No text becomes HTML, a link, code, a row of the table or a line of the metadata."""
    variant = vitzoo.describe("vit_digits")
    row = replace(
        variant.default_weights, name=text, repo=text, source=text, pretraining_data=text,
        license=text, evaluation=text, sha256=text,
    )  # fmt: skip
    card = Card(
        repo=f"acme/{text}", library="timm", call="c", model=model, license=text, sha256=text,
        origin=Origin(replace(variant, name=text, paper=text), row, unchanged=True),
        base_model=[text], datasets=[text],
    )  # fmt: skip
    front, body = re.fullmatch(r"---\n(.*?)\n---\n\n(# .*)", model_card(card), re.DOTALL).groups()
    data = yaml.safe_load(front)
    assert (data["base_model"], data["datasets"]) == ([text], [text])
    assert data.keys() == {
        "license", "license_name", "library_name", "pipeline_tag", "tags", "base_model", "datasets"
    }  # fmt: skip
    body = body[: body.index("## Use")] + body[body.index("## Results") :]
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    assert {one.type for one in inline} <= {"text", "text_special", "code_inline", "softbreak"}
    assert [one.type for one in tokens].count("tr_open") == 8
    assert [one.type for one in tokens].count("heading_open") == 3
    assert not {one.type for one in tokens} & {"html_block", "fence", "code_block", "hr", "list"}
    shown = ["".join(c.content for c in one.children or ()) for one in tokens]
    assert sum(errors.printable(text) in line for line in shown) >= 4


def test_the_card_of_a_network_without_classes(small, tmp_path):
    features = fill(vitzoo.create(small | {"num_classes": 0}))
    vitzoo.push(features, REPO, folder=tmp_path / "out", dry_run=True, license="mit")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: image-feature-extraction" in front_matter(text)
    says(text, "for image features")


def test_the_card_of_a_regression(small, tmp_path):
    model = fill(vitzoo.create(small | {"num_classes": 1}))
    model.labels, model.output_activation = ("age",), "identity"
    vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True, license="mit")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "- regression" in front_matter(text)
    assert "pipeline_tag" not in text  # the Hub has no task of this kind
    says(text, "for 1 number", "| numbers | 1 (names in")


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
    with refuses(InvalidOption, "license", "--license", "license="):
        vitzoo.push(model, REPO, folder=tmp_path / "out", dry_run=True)
    for wrong in ("", "a\nb", 'x"', "x" * 200):
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
    for key in ("repo", "license", "library", "message"):
        with refuses(InvalidOption, key, "text", "3 (int)"):
            vitzoo.push(model, **{"repo": REPO, **out, key: 3})
    for wrong in ("net", "a/b/c", "", "a/../b"):
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


def test_the_folder_is_checked_before_a_network_is_made(tmp_path, monkeypatch):
    (tmp_path / "other").touch()
    monkeypatch.setattr(module, "open_network", None)  # a call raises
    with refuses(InvalidOption, tmp_path, "other"):
        vitzoo.push("vit_digits", REPO, folder=tmp_path, dry_run=True)
    with refuses(InvalidOption, "message", "''"):
        vitzoo.push("vit_digits", REPO, folder=tmp_path / "new", dry_run=True, message="")


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


UNREAD = UnreadPreprocessing("preprocessor_config.json", "size", "{}", "no size")


def test_a_statement_that_cannot_be_followed_stays_in_a_folder_for_vitzoo(model, tmp_path):
    model.preprocessing = UNREAD
    for library in ("timm", "transformers"):
        with refuses(
            InvalidOption, "preprocessor_config.json", "size", "model.preprocessing", "vitzoo"
        ):
            vitzoo.push(
                model, REPO, folder=tmp_path / library, library=library, license="mit",
                dry_run=True,
            )  # fmt: skip
        assert not (tmp_path / library).exists()
    found = vitzoo.push(model, REPO, folder=tmp_path / "out", license="mit", dry_run=True)
    assert found.library == "vitzoo"
    assert vitzoo.create(tmp_path / "out").preprocessing == UNREAD


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("library", ["timm", "transformers"])
@pytest.mark.parametrize("values", [{"scale": 4095.0}, {"bands": (2, 1, 0)}, {"crop_mode": "none"}])
def test_images_that_a_library_prepares_in_another_way(tmp_path, caplog, library, values):
    model = vitzoo.create("vit_ti16", num_classes=2)
    options = {"folder": tmp_path / "out", "library": library, "license": "mit", "dry_run": True}
    vitzoo.push(model, REPO, **options)
    assert caplog.text == ""
    model.preprocessing = vitzoo.Preprocessing(**values)
    vitzoo.push(model, REPO, force=True, **options)
    says(caplog.text, library, "vitzoo.transform", "scale" if "scale" in values else "bicubic")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert "crop_mode" not in config.get("pretrained_cfg", {})


def test_a_section_beside_the_weights_is_part_of_the_card(model, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    vitzoo.save(model, run / "model.safetensors")
    for name in ("curves.png", "metrics.csv", "mistakes.png"):
        (run / name).write_bytes(name.encode())
    text = "## Training\n\n![Loss](curves.png) and ![mistakes](mistakes.png)"
    (run / "card.md").write_text(f"{text}\n\n")
    options = {"license": "mit", "dry_run": True, "force": True}
    for given in (f"{run}/", run / "model.safetensors"):
        done = vitzoo.push(given, REPO, folder=tmp_path / "out", **options)
        assert text in (tmp_path / "out" / "README.md").read_text()
        assert done.files["curves.png"][1] == hashlib.sha256(b"curves.png").hexdigest()
        # mistakes.png has images of the data
        assert not {"metrics.csv", "mistakes.png", "card.md"} & done.files.keys()
    (run / "card.md").write_text("[all](run.toml)")
    with refuses(InvalidOption, run / "card.md", "run.toml", "missing"):
        vitzoo.push(f"{run}/", REPO, folder=tmp_path / "out", **options)
    (run / "card.md").write_bytes(b"\xff")
    with refuses(InvalidOption, run / "card.md", "UTF-8"):
        vitzoo.push(f"{run}/", REPO, folder=tmp_path / "out", **options)
