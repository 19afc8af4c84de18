"""What an earlier version wrote (tests/fixtures) is read, and gives the results of that version."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.errors import CheckpointError, Offline, PinError, VitzooError

pytestmark = pytest.mark.usefixtures("_one_thread")
FIXTURES = Path(__file__).parent / "fixtures" / "ec83163"
HIDDEN = FIXTURES.with_name("ee1f85a9") / "hidden"
DIGITS = Path(__file__).parents[1] / "docs" / "examples" / "digits"
STATED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
SAVED = sorted({path.stem for path in FIXTURES.glob("*.safetensors")} & STATED.keys() - {"mim"})
SPEC = STATED["plain"]["spec"]
SCANS = [f"scans/{number}.png" for number in (4, 6, 7)]
ROWS = {
    "embedded": ("scans.parquet", {"outputs": ["pooled", "labels", "blocks.0"]}),
    "embedded_float16": ("scans", {"vectors": "float16"}),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working directory: a copy of all files, with the settings of their user."""
    shutil.copytree(FIXTURES, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "files" / "home"))
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    return tmp_path / "files"


def near(actual, name):
    """Compare every element with those of the earlier version."""
    with np.load(FIXTURES / "expected.npz") as expected:
        stored = torch.from_numpy(expected[name])
    largest = stored.abs().max().item()
    assert largest > 0.1
    atol = 5e-6 * max(1, largest)
    torch.testing.assert_close(torch.as_tensor(actual), stored, rtol=0, atol=atol)


@torch.no_grad()
def compare(name, model):
    """Compare results and descriptions of a model with those of the earlier version."""
    shape = (2, model.spec.in_chans, *model.spec.image_size)
    images = (torch.arange(int(np.prod(shape))) * 37 % 101).view(shape).float() / 50 - 1
    model.float().eval()
    near(model.forward_features(images), f"{name}/tokens")
    near(model(images), f"{name}/logits")
    stated, spec = STATED[name], model.spec.to_data()
    assert {key: spec["block"][key] for key in stated["spec"]["block"]} == stated["spec"]["block"]
    assert spec | {"block": stated["spec"]["block"]} == spec | stated["spec"]
    assert list(model.labels or ()) == stated["labels"]
    for key, value in (stated["preprocessing"] or {}).items():
        found = getattr(model.preprocessing, key)
        assert (list(found) if isinstance(found, tuple) else found) == value


# Saved networks


def test_every_saved_network_is_compared():
    beside = {"mim", "adapter", "digits", "stored", "pushed", "linked"}
    assert {*SAVED} == STATED.keys() - beside
    assert len(SAVED) == 13


@cases("name", SAVED)
def test_a_saved_network_computes_what_it_did(name):
    model = vitzoo.create(FIXTURES / f"{name}.safetensors")
    assert str(next(model.parameters()).dtype) == STATED[name]["dtype"]
    compare(name, model)
    again = vitzoo.create(STATED[name]["spec"], weights=FIXTURES / f"{name}.safetensors")
    compare(name, again)


@pytest.mark.slow
@cases("name", SAVED)
def test_a_saved_network_is_written_as_it_was(name, tmp_path):
    stored = FIXTURES / f"{name}.safetensors"
    now = vitzoo.save(vitzoo.create(stored), tmp_path / "now.safetensors")
    before, after = load_file(stored), load_file(now)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key].to(before[key].dtype), before[key]) for key in before)


def test_a_network_with_a_new_head(files):
    with safe_open(files / "digits_head.safetensors", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(vitzoo.fetch("vit_digits")) | load_file(files / "digits_head.safetensors")
    save_file(tensors, files / "digits.safetensors", metadata)
    compare("digits", vitzoo.create("vit_digits", weights=files / "digits.safetensors"))
    compare("digits", vitzoo.create(files / "digits.safetensors"))


@pytest.mark.parametrize("file", ["converted.safetensors", "converted.npz"])
def test_a_converted_file(files, file):
    model = vitzoo.create(SPEC, weights=files / file)
    assert not model.load_report.reinitialised
    compare("plain", model)


def test_tensors_out_of_a_pickle(files):
    stored = load_file(files / "labelled.safetensors")
    model = vitzoo.create(SPEC, weights=files / "unpickled.safetensors")
    state = model.state_dict()
    assert state.keys() == stored.keys()
    assert all(torch.equal(state[key], stored[key]) for key in stored)


def test_an_adapter_is_merged(files):
    compare("adapter", vitzoo.create(files / "labelled.safetensors", adapter=files / "adapter"))
    with refuses(CheckpointError, "trained on weights"):
        vitzoo.create(files / "plain.safetensors", adapter=files / "adapter")


def test_a_classifier_of_probe(files):
    predictor = vitzoo.Predictor(
        files / "classifier.safetensors",
        weights=files / "labelled.safetensors",
        outputs=("logits", "labels"),
    )
    rows = predictor(SCANS)
    near(np.stack([row.outputs["logits"] for row in rows]), "classifier/logits")
    names = {name for row in rows for _, name, _ in row.outputs["labels"]}
    assert names == {"dark", "light"}


# Folders of other libraries


@pytest.mark.parametrize("folder", ["pushed", "linked"])
def test_a_pushed_and_a_linked_folder(files, folder):
    compare(folder, vitzoo.create(files / folder))
    assert [one.state for one in vitzoo.verify(files / folder)] == ["ok"] * 3
    with (files / folder / "config.json").open("a") as file:
        file.write(" ")
    assert sorted(one.state for one in vitzoo.verify(files / folder)) == ["damaged", "ok", "ok"]


# Folders of `embed`


def of_this_machine(folder, model="labelled.safetensors"):
    """Write the versions of this machine into a folder, without which `embed` refuses it.

    Returns:
        whether this machine computes and writes the bytes of the folder.
    """
    manifest = json.loads((folder / "_manifest.json").read_text())
    now = vitzoo.Predictor(model).fingerprint().to_data()["versions"]
    before, manifest["fingerprint"]["versions"] = manifest["fingerprint"]["versions"], now
    if before == now:
        files = folder.glob("*.parquet")
        writers = {pq.read_metadata(path).created_by.rpartition(" ")[2] for path in files}
        return writers == {pa.__version__} and on_intel()
    (folder / "_manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    text = json.dumps(manifest["fingerprint"], sort_keys=True).encode()
    for part in folder.glob("*.parquet"):
        table = pq.read_table(part)
        metadata = {**table.schema.metadata, b"vitzoo.fingerprint": text}
        pq.write_table(table.replace_schema_metadata(metadata), part)
    return False


def on_intel():
    """Return whether the processor is Intel's, as that of the fixtures was.

    MKL takes other code for other makers, though torch states the same set of instructions.
    """
    information = Path("/proc/cpuinfo")
    return information.exists() and "GenuineIntel" in information.read_text("utf-8")


def embed(out, **options):
    source, arguments = ROWS[Path(out).name]
    return vitzoo.embed("labelled.safetensors", source, out, workers=1, **arguments, **options)


def read(folder):
    """Return the tables of a folder by the names of the parts."""
    return {part.name: pq.read_table(part) for part in sorted(folder.glob("*.parquet"))}


@pytest.mark.slow
def test_a_folder_of_embed_is_complete(files):
    for name, shards in (("embedded", [(0, 2), (1, 2), None]), ("embedded_float16", [None])):
        before = {path.name: path.read_bytes() for path in (files / name).iterdir()}
        of_this_machine(files / name)
        for shard in shards:
            done = embed(name, shard=shard)
            assert (done.computed, done.errors) == (0, 1)
        assert [path for path in (files / name).glob("[!.]*") if path.name not in before] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("embedded", "part-000000.parquet"),
        ("embedded", "part-000001.parquet"),
        ("embedded_float16", "part-000000.parquet"),
    ],
)
def test_a_missing_part_is_computed_as_it_was(files, name, part):
    stored = files / name / part
    written, before = stored.read_bytes(), pq.read_table(stored)
    same = of_this_machine(files / name)
    stored.unlink()
    manifest = json.loads((files / name / "_manifest.json").read_text())
    done = embed(name)
    assert done.computed == before.num_rows
    now = json.loads((files / name / "_manifest.json").read_text())
    assert now.pop("device") == "cpu"  # which earlier versions did not state
    assert now == manifest
    assert not same or stored.read_bytes() == written
    now = pq.read_table(stored)
    assert now.schema.equals(before.schema)
    for column in before.column_names:
        left, right = now[column].to_pylist(), before[column].to_pylist()
        if column in ("pooled", "blocks.0"):
            atol = 1e-5 if name == "embedded" else 1e-2
            np.testing.assert_allclose(left, right, rtol=0, atol=atol)
        elif column == "labels":
            assert [row and row[0]["label"] for row in left] == [
                row and row[0]["label"] for row in right
            ]
        elif column == "error":  # with the formats that Pillow reads, in parentheses
            assert [row and row.split(" (")[0] for row in left] == [
                row and row.split(" (")[0] for row in right
            ]
        else:
            assert left == right


@pytest.mark.parametrize("whole", [True, False])
def test_a_folder_that_counted_hidden_images_is_continued(tmp_path, monkeypatch, whole):
    """Commit ee1f85a9 took hidden files for data; a new folder has none of them."""
    monkeypatch.chdir(tmp_path)
    scans = sorted(DIGITS.glob("*.png"))
    for number, name in ((0, "4.png"), (1, "._6.png"), (2, ".ipynb_checkpoints/7-checkpoint.png"),
                         (2, "@eaDir/7.png")):  # fmt: skip
        (tmp_path / "scans" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(scans[number], tmp_path / "scans" / name)
    shutil.copytree(HIDDEN, tmp_path / "out")
    same = of_this_machine(tmp_path / "out", "vit_digits")
    part = tmp_path / "out" / "part-000000.parquet"
    written, before = part.read_bytes(), pq.read_table(part)
    manifest = (tmp_path / "out" / "_manifest.json").read_bytes()
    if not whole:
        part.unlink()
    arguments = {"outputs": ["pooled", "labels"], "workers": 1}
    done = vitzoo.embed("vit_digits", "scans", "out", **arguments)
    assert (done.inputs, done.computed, done.missing) == (4, 0 if whole else 4, 0)
    after = (tmp_path / "out" / "_manifest.json").read_bytes()
    assert after == manifest if whole else after.replace(b'  "device": "cpu",\n', b"") == manifest
    now = pq.read_table(part)
    assert now["key"].to_pylist() == before["key"].to_pylist()
    np.testing.assert_allclose(
        *(np.stack(t["pooled"].to_numpy()) for t in (now, before)), atol=1e-5
    )
    assert not same or part.read_bytes() == written
    assert vitzoo.embed("vit_digits", "scans", "new", **arguments).inputs == 1


@pytest.mark.parametrize("part", ["part-000000.parquet", "part-000001.parquet"])
def test_rows_of_a_damaged_parquet_file_are_what_they_were(tmp_path, monkeypatch, part):
    """Commit ee1f85a9 read it in its own process; a row group is damaged from row 48 on."""
    shutil.copytree(FIXTURES.parent / "ee1f85a9", tmp_path / "rows")
    monkeypatch.chdir(tmp_path / "rows")
    stored = Path("embedded_rows", part)
    written, before = stored.read_bytes(), pq.read_table(stored)
    same = of_this_machine(stored.parent, "vit_digits")
    stored.unlink()
    done = vitzoo.embed("vit_digits", "rows.parquet", "embedded_rows", workers=1)
    assert (done.inputs, done.computed, done.errors) == (96, before.num_rows, 20)
    assert not same or stored.read_bytes() == written
    now = pq.read_table(stored)
    for name in ("key", "sha256", "width", "height"):
        assert now[name].to_pylist() == before[name].to_pylist()
    errors = zip(now["error"].to_pylist(), before["error"].to_pylist(), strict=True)
    for left, right in errors:  # pyarrow and Pillow end the text
        assert left == right or left.split(" (")[0][:50] == right.split(" (")[0][:50]


# Image processors that commit ee1f85a9 read as transformers does


PROCESSORS = FIXTURES.with_name("ee1f85a9")
READ = json.loads((PROCESSORS / "stated.json").read_text(encoding="utf-8"))


@pytest.fixture
def processors(tmp_path, monkeypatch):
    """The working directory: a copy of what that commit wrote."""
    shutil.copytree(PROCESSORS, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return tmp_path / "files"


@pytest.mark.parametrize("name", READ)
def test_what_a_processor_stated_is_stated_as_it_was(processors, tmp_path, name):
    text = json.dumps(READ[name]["processor"])
    (processors / "folder" / "preprocessor_config.json").write_text(text)
    model = vitzoo.create("folder/")
    saved = vitzoo.save(vitzoo.create("folder/", image_size=8), tmp_path / "now.safetensors")
    with safe_open(saved, "pt") as file:
        metadata = json.loads(file.metadata()["vitzoo"])
    assert metadata["preprocessing"] == READ[name]["preprocessing"]
    for found in (model, saved):
        predictor = vitzoo.Predictor(found)
        assert predictor.fingerprint().to_data()["preprocessing"] == READ[name]["fingerprint"]
        (row,) = predictor([Path("scans/0.png")])
        np.testing.assert_allclose(row.outputs["pooled"], READ[name]["pooled"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "model"), [("embedded", "folder/"), ("embedded_saved", "saved.safetensors")]
)
def test_a_folder_with_a_processor_is_continued_as_it_was(processors, name, model):
    stored = processors / name / "part-000000.parquet"
    written, before = stored.read_bytes(), pq.read_table(stored)
    same = of_this_machine(processors / name, model)
    assert vitzoo.embed(model, "scans", name, workers=1).computed == 0
    stored.unlink()
    assert vitzoo.embed(model, "scans", name, workers=1).computed == before.num_rows
    assert not same or stored.read_bytes() == written
    now = pq.read_table(stored)["pooled"].to_pylist()
    np.testing.assert_allclose(now, before["pooled"].to_pylist(), rtol=0, atol=1e-5)


# The store


def fit(stamp, file, path):
    """Write a stamp of the earlier version for this copy of its file."""
    os.utime(file, ns=(10**18, 10**18))
    time.sleep(0.1)  # a stamp as recent as the last change of its file does not count
    status = file.stat()
    device = {"device": status.st_dev, "inode": status.st_ino, "hashed_ns": time.time_ns()}
    times = {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    path.write_text(json.dumps(json.loads(stamp.read_text()) | device | times))
    return path, path.read_bytes()


@pytest.fixture
def store(files, monkeypatch, new_registry):
    monkeypatch.setenv("VITZOO_REGISTRY", str(files / "registry.toml"))
    monkeypatch.setenv("VITZOO_PINS", "required")
    new_registry()
    return files / "home"


def test_the_store_and_the_lock_file_are_used_offline(store):
    compare("stored", vitzoo.create("local/tiny", pretrained=True))
    (checked,) = vitzoo.verify("local/tiny")
    (stored,) = store.glob("sha256/??/*")
    assert (checked.state, checked.path, checked.sha256) == ("ok", stored, stored.name)
    (store / "vitzoo.lock").unlink()
    with pytest.raises(VitzooError, match="local/tiny"):
        vitzoo.create("local/tiny", pretrained=True)


def test_a_file_that_is_not_in_the_store_is_an_offline_error(store):
    shutil.rmtree(store / "sha256")
    with pytest.raises(Offline):
        vitzoo.create("local/tiny", pretrained=True)


KNOWN = "6f360a42138ced574f91b494fad98620e2923f97873beb8eebd896b9c620726f"  # in the lock file
OTHER = "f" * 40  # not the commit in the lock file
FORMER = "hf://acme/tiny@main/model.safetensors"


@pytest.fixture
def entry(store, new_registry):
    """Give keys to the entry that was trusted on first use, as a later version does."""
    files = store.parent
    text = (files / "registry.toml").read_text()

    def entry(**keys):
        given = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
        (files / "registry.toml").write_text(text.replace('pin = "first-use"\n', given))
        new_registry()

    return entry


LATER = {
    "commit": {"pin": "first-use", "revision": OTHER},
    "sha256": {"pin": "reported", "sha256": KNOWN},
    "both": {"pin": "reported", "sha256": KNOWN, "revision": OTHER},
    "pull-request": {"pin": "reported", "sha256": KNOWN, "revision": "refs/pr/4"},
}


@pytest.mark.parametrize("keys", LATER.values(), ids=LATER)
def test_the_lock_file_binds_an_entry_that_got_a_commit_or_a_sha256(entry, store, keys):
    entry(**keys)
    compare("stored", vitzoo.create("local/tiny", pretrained=True))
    (stored,) = store.glob("sha256/??/*")
    assert vitzoo.fetch("local/tiny") == stored
    assert [(one.state, one.sha256) for one in vitzoo.verify("local/tiny")] == [("ok", KNOWN)]
    copy = shutil.copy(stored, store.parent / "copy.safetensors")
    assert vitzoo.verify(copy)[0].detail == "local/tiny:main"
    assert FORMER in (store / "vitzoo.lock").read_text()


def test_a_commit_of_the_entry_does_not_replace_the_sha256_of_the_lock_file(entry, store):
    shutil.rmtree(store / "sha256")
    entry(**LATER["commit"])
    with refuses(Offline, "local/tiny", KNOWN):
        vitzoo.create("local/tiny", pretrained=True)


@pytest.mark.parametrize("revision", [{}, {"revision": OTHER}, {"revision": "refs/pr/4"}], ids=str)
def test_another_sha256_of_the_entry_contradicts_the_lock_file(entry, store, revision):
    entry(pin="reported", sha256="ab" * 32, **revision)
    with refuses(PinError, FORMER, str(store / "vitzoo.lock"), KNOWN, "ab" * 32):
        vitzoo.create("local/tiny", pretrained=True)
    assert [one.state for one in vitzoo.verify("local/tiny")] == ["conflict"]


def test_stamps_of_the_store_save_hashing(store):
    (file,), (stamp,) = store.glob("sha256/??/*"), store.glob("stamps/*.json")
    path, before = fit(stamp, file, stamp)
    vitzoo.create("local/tiny", pretrained=True)
    assert path.read_bytes() == before
    os.utime(file, ns=(10**18, 10**18 + 1))
    time.sleep(0.1)
    vitzoo.create("local/tiny", pretrained=True)
    assert json.loads(path.read_bytes()).keys() == json.loads(before).keys()
    assert path.read_bytes() != before


def test_stamps_of_files_of_the_user_save_hashing(store, files):
    file = files / "labelled.safetensors"
    (stamp,) = store.glob("stamps/own/*")
    path = stamp.with_name(f"{file.stat().st_ino % 1024}.json")
    path, before = fit(stamp, file, path)
    vitzoo.create(file)
    assert path.read_bytes() == before
    os.utime(file, ns=(10**18, 10**18 + 1))
    time.sleep(0.1)
    vitzoo.create(file)
    assert path.read_bytes() != before
