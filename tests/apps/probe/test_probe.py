"""`probe`: its scores, the file that it saves, reused embeddings, and data that it refuses."""

import csv
import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import vitzoo
from helpers import message, refuses, says
from limited import run_limited
from vitzoo import Predictor
from vitzoo.apps.predict.fingerprint import hash_data
from vitzoo.errors import InvalidOption, StoreError
from vitzoo.images import file_bytes


def pixels(count):
    """Return the first scans of each digit in the data set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for digit in range(10):
        for i in np.flatnonzero(digits.target == digit)[:count]:
            yield digit, i, np.rint(digits.images[i] * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def scans(once):
    """Folders of 18 training and 6 test scans of each digit."""
    return once("probe-scans", write_scans)


def write_scans(folder):
    for number, (digit, i, scan) in enumerate(pixels(24)):
        path = folder / ("train" if number % 4 else "test") / str(digit) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scan).save(path)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A saved network whose features make mistakes."""
    torch.manual_seed(0)
    model = vitzoo.create("vit_digits")
    model.preprocessing = vitzoo.transform("vit_digits").preprocessing
    return vitzoo.save(model, tmp_path_factory.mktemp("net") / "untrained.safetensors")


@pytest.fixture(scope="module")
def found(untrained, scans, tmp_path_factory):
    return vitzoo.probe(untrained, scans, embeddings=tmp_path_factory.mktemp("embeddings"))


@pytest.fixture
def some(scans, tmp_path):
    """A folder of six classes without a split, to be changed by a test."""
    folder = tmp_path / "some"
    for digit in range(6):
        shutil.copytree(scans / "train" / str(digit), folder / str(digit))
    return folder


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "embeddings"


def outputs(model, scans, part, name):
    """Return the features or logits of all images in one batch, and their classes."""
    paths = sorted(scans.glob(f"{part}/*/*.png"))
    prepare = vitzoo.transform(model)
    with torch.inference_mode():
        inputs = torch.stack([prepare(path) for path in paths])
        values = model.eval().features(inputs, [name])[name]
    return values.double().numpy(), np.array([int(path.parent.name) for path in paths])


@pytest.mark.slow
def test_every_prediction_is_that_of_scikit_learn(found, untrained, scans):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = vitzoo.create(untrained)
    train, classes = outputs(model, scans, "train", "pool")
    test, true = outputs(model, scans, "test", "pool")
    assert found.classes == tuple(map(str, range(10)))
    assert (len(found.train), len(found.test)) == (180, 60)
    assert np.array_equal(found.true, true)
    assert found.test == tuple(sorted(str(p.relative_to(scans)) for p in scans.glob("test/*/*")))
    assert list(found.knn) == [10, 20, 100]  # 200 are more than the training images
    for k, score in found.knn.items():
        nearest = KNeighborsClassifier(
            k, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / 0.07)
        ).fit(train, classes)
        assert np.array_equal(score.predictions, nearest.predict(test)), k
    linear = make_pipeline(
        StandardScaler(), LogisticRegression(C=found.classifier.strength, max_iter=1000)
    ).fit(train, classes)
    expected = linear.decision_function(test)
    np.testing.assert_allclose(found.logits, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
    assert abs(found.logistic.accuracy - linear.score(test, true)) <= 0.001


@pytest.mark.slow
def test_scores_count_what_was_predicted(found):
    for score in found.scores:
        right = score.predictions == found.true
        assert 20 < score.correct == right.sum() < score.total == 60
        assert score.accuracy == right.mean()
        assert score.interval[0] < score.accuracy < score.interval[1]
        for true in range(10):
            of_class = score.predictions[found.true == true]
            assert score.confusion[true].tolist() == [(of_class == p).sum() for p in range(10)]
            assert score.class_accuracy[true] == (of_class == true).mean()
    assert np.array_equal(found.logistic.predictions, found.logits.argmax(axis=1))


@pytest.mark.slow
def test_the_saved_classifier_computes_the_same_logits(found, untrained, scans, tmp_path, run):
    shutil.copy(untrained, tmp_path)
    path = found.save(tmp_path / "classifier.safetensors")
    assert path.stat().st_size < 5000
    model = vitzoo.create(path)
    logits, _ = outputs(model, scans, "test", "logits")
    np.testing.assert_allclose(logits, found.logits, rtol=0, atol=2e-5 * np.abs(logits).max())
    assert model.labels == found.classes
    assert model.preprocessing == vitzoo.create(untrained).preprocessing
    files = [scans / name for name in found.test]
    expected = [found.classes[i] for i in found.logistic.predictions]
    assert [one.classes[0][1] for one in vitzoo.predict(model, files, top=1)] == expected
    code, out, _ = run("predict", path, *files, "--top", 1)
    assert code == 0
    assert [line.split("\t")[2] for line in out.splitlines()[1:]] == expected
    with refuses(InvalidOption, path, "force=True"):
        found.save(path, force=False)
    with refuses(InvalidOption, ".safetensors", "x.pt"):
        found.save(tmp_path / "x.pt")


CACHE = """
from pathlib import Path
from vitzoo.apps.probe.embeddings import EmbeddingCache, Embedded

import numpy as np

def read(folder):
    found = EmbeddingCache(Path(folder), {"weights": "a"}, WIDTH)
    known = sorted(map(str, found.known))
    found.write([Embedded(np.ones(WIDTH, np.float32), "", "f" * 64)])
    again = EmbeddingCache(Path(folder), {"weights": "a"}, WIDTH).known
    assert list(again["f" * 64]) == [1] * WIDTH
    return known
"""


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize("own", [False, True])
def test_what_is_no_file_of_embeddings_is_left_out(tmp_path, own):
    """The file of `--embeddings` itself, or another one in the folder; each call has limits."""
    fingerprint = {"vitzoo.fingerprint": json.dumps({"weights": "a"})}
    name = hash_data({"weights": "a"}) if own else "0" * 64
    vectors = pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.float32(), 3))
    hashes = pa.array(["a" * 64, "b" * 64])

    def table(metadata=fingerprint, **columns):
        columns = {"sha256": hashes, "pooled": vectors} | columns
        return pa.table(columns).replace_schema_metadata(metadata)

    none = pa.array([[1, None, 3]] * 2, vectors.type)
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff"] * 2).buffers())
    tables = {
        "right": table(),
        "bytes": table(sha256=bad),
        "lists": table(sha256=[["a"], ["b"]]),
        "numbers": table(pooled=[1, 2]),
        "nulls": table(pooled=none),
        "twice": pa.Table.from_arrays([hashes, vectors, vectors], ["sha256", "pooled", "pooled"]),
        "deep": table({"vitzoo.fingerprint": "[" * 100_000}),
        "list": table({"vitzoo.fingerprint": "[]"}),
        "no utf8": table({"vitzoo.fingerprint": b"\xff"}),
    }
    places = {"pipe": os.mkfifo, "link": lambda path: path.symlink_to("/dev/zero")}
    places |= {} if own else {"folder": lambda path: path.mkdir()}
    for kind in (*tables, *places):
        path = tmp_path / kind / f"{name}.parquet"
        path.parent.mkdir()
        if kind in tables:
            parquet.write_table(tables[kind], path)
        else:
            places[kind](path)
    right = tables["right"]
    with parquet.ParquetWriter(tmp_path / "right" / f"{name}.parquet", right.schema) as writer:
        for one in (right.schema.empty_table(), right):  # an empty row group
            writer.write_table(one)
    found = run_limited(
        CACHE.replace("WIDTH", "3"), [str(tmp_path / kind) for kind in (*tables, *places)]
    )
    assert found[0].text == str(["a" * 64, "b" * 64])
    for kind, outcome in zip((*tables, *places), found, strict=True):
        assert outcome.kind == "value", (kind, outcome)
        assert outcome.text == "[]" or kind == "right", kind


@pytest.mark.faults
@pytest.mark.usefixtures("own_home")
def test_equal_rows_of_a_file_of_embeddings_are_kept_once(tmp_path):
    """The file has less than 1 MB, its rows take more than the call may."""
    metadata = {"vitzoo.fingerprint": json.dumps({"weights": "a"})}
    rows, width = 10_000, 2_000  # 80 MB, four times
    flat = pa.array(np.zeros(rows * width, np.float32))
    columns = {
        "sha256": pa.array(["0" * 64]).take(pa.array(np.zeros(rows, np.int64))),
        "pooled": pa.FixedSizeListArray.from_arrays(flat, width),
    }
    table = pa.table(columns).replace_schema_metadata(metadata)
    path = tmp_path / f"{'0' * 64}.parquet"
    with parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(table)
    assert path.stat().st_size < 1_000_000
    (found,) = run_limited(CACHE.replace("WIDTH", str(width)), [str(tmp_path)], memory=2**28)
    assert found.text == str(["0" * 64])


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a" * 300])
def test_impossible_names_of_the_folder_of_embeddings(some, untrained, tmp_path, name):
    with refuses(StoreError, tmp_path):
        vitzoo.probe(untrained, some, embeddings=tmp_path / name)


@pytest.mark.workflows
def test_the_classifier_names_its_trunk(untrained, some, tmp_path):
    registered = vitzoo.probe("vit_digits", some).save(tmp_path / "a.safetensors")
    names = {registered: "vit_digits:digits_v1"}
    again = vitzoo.probe(registered, some)  # its trunk is that of the first classifier
    names[again.save(tmp_path / "b.safetensors")] = "vit_digits:digits_v1"
    sha256 = vitzoo.describe("vit_digits").default_weights.sha256
    for path, name in names.items():
        assert trunk_in(path) == {"sha256": sha256, "weights": name}
        assert vitzoo.create(path).labels == tuple("012345")
    own = vitzoo.probe("vit_digits", some, weights=untrained).save(tmp_path / "c.safetensors")
    digest = hashlib.sha256(untrained.read_bytes()).hexdigest()
    assert trunk_in(own) == {"sha256": digest, "file": untrained.name}


@pytest.mark.slow
def test_the_classifier_names_a_file_with_any_printable_name(untrained, some, tmp_path):
    for name in ("a b.safetensors", "größe (1).safetensors", "con.safetensors"):
        shutil.copy(untrained, tmp_path / name)
        saved = vitzoo.probe(tmp_path / name, some).save(tmp_path / "saved.safetensors")
        assert trunk_in(saved)["file"] == name
        assert vitzoo.create(saved).labels == tuple("012345")
    for name in ("a\nb.safetensors", os.fsdecode(b"\xff.safetensors"), ".a.safetensors"):
        shutil.copy(untrained, tmp_path / name)
        probed = vitzoo.probe(tmp_path / name, some)
        with refuses(InvalidOption, ascii(name), "rename that file"):
            probed.save(tmp_path / "other.safetensors")
        assert not (tmp_path / "other.safetensors").exists()


def trunk_in(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["vitzoo"])["trunk"]


@pytest.mark.workflows
def test_a_model_object_is_probed_but_not_saved(found, untrained, scans, kept, tmp_path):
    other = vitzoo.probe(vitzoo.create(untrained), scans, embeddings=kept)
    assert np.array_equal(other.logits, found.logits)
    with refuses(InvalidOption, "object", "vitzoo.save"):
        other.save(tmp_path / "x.safetensors")


@pytest.mark.workflows
def test_results_depend_on_the_seed_alone(some, untrained, kept):
    first, again, other = (
        vitzoo.probe(untrained, some, seed=seed, embeddings=kept) for seed in (1, 1, 2)
    )
    assert first.random_split
    assert first.to_data() == again.to_data()
    assert np.array_equal(first.logits, again.logits)
    assert first.test == again.test != other.test
    assert len(first.test) == 6 * 4  # a fifth of 18 is 3.6
    assert set(first.train) | set(first.test) == {
        str(path.relative_to(some)) for path in some.glob("*/*.png")
    }


# Embeddings


@pytest.fixture
def computed(monkeypatch):
    """Count the images whose features are computed."""
    count = []
    start = Predictor._compute

    def counted(self, images):
        count.extend(image for image in images if image.tensor is not None)
        return start(self, images)

    monkeypatch.setattr(Predictor, "_compute", counted)
    return count


@pytest.mark.slow
def test_a_second_run_computes_no_features(some, untrained, kept, computed):
    first = vitzoo.probe(untrained, some, embeddings=kept)
    assert len(computed) == 108
    (file,) = kept.iterdir()
    before = file.read_bytes()
    second = vitzoo.probe(untrained, some, embeddings=kept, seed=3)
    assert len(computed) == 108
    assert file.read_bytes() == before
    assert np.array_equal(vitzoo.probe(untrained, some, embeddings=kept).logits, first.logits)
    assert second.test != first.test


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_networks_of_every_type_are_probed_and_their_features_kept(some, kept, computed, dtype):
    model = vitzoo.create("vit_digits", pretrained=True, dtype=dtype)
    first = vitzoo.probe(model, some, embeddings=kept)
    (file,) = kept.iterdir()
    assert parquet.read_schema(file).field("pooled").type.value_type == pa.float32()
    assert len(computed) == 108
    second = vitzoo.probe(model, some, embeddings=kept)
    assert len(computed) == 108
    assert np.array_equal(first.logits, second.logits)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["float32", "float16"])
def test_a_folder_of_embed_is_read_and_not_copied(some, untrained, tmp_path, own_home, vectors):
    folder = tmp_path / "vectors"
    vitzoo.embed(untrained, some / "[0-4]/*.png", folder, vectors=vectors, workers=1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    first = vitzoo.probe(untrained, some, embeddings=folder)
    (file,) = (own_home / "cache" / "embeddings").iterdir()
    new = [hashlib.sha256(path.read_bytes()).hexdigest() for path in some.glob("5/*.png")]
    assert sorted(parquet.read_table(file)["sha256"].to_pylist()) == sorted(set(new))
    kept = file.read_bytes()
    Image.new("L", (8, 8), 77).save(some / "5" / "new.png")
    vitzoo.probe(untrained, some, embeddings=folder)
    assert parquet.read_metadata(file).num_rows == len(set(new)) + 1
    (some / "5" / "new.png").unlink()
    file.write_bytes(kept)
    second = vitzoo.probe(untrained, some, embeddings=folder)
    assert file.read_bytes() == kept
    assert np.array_equal(first.logits, second.logits)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_nothing_is_written_if_a_folder_of_embed_has_every_image(
    some, untrained, tmp_path, own_home, computed
):
    vitzoo.embed(untrained, some / "*/*.png", tmp_path / "vectors", workers=1)
    computed.clear()
    vitzoo.probe(untrained, some, embeddings=tmp_path / "vectors")
    assert computed == []
    assert not [*own_home.rglob("*.parquet")]


@pytest.mark.slow
def test_each_image_is_read_once(some, untrained, kept, monkeypatch):
    opened = []
    read_regular = file_bytes.read_regular

    def counted(path, *rest):
        opened.append(path)
        return read_regular(path, *rest)

    monkeypatch.setattr(file_bytes, "read_regular", counted)
    (some / "4" / "a.png").write_bytes(b"no image")
    for _ in range(2):
        found = vitzoo.probe(untrained, some, embeddings=kept)
        assert sorted(opened) == sorted(some.glob("*/*.png"))
        opened.clear()
    ((name, error),) = found.unreadable
    assert name == "4/a.png"
    says(error, some / "4" / "a.png")


def test_a_negative_label_among_class_names_is_a_class(some, untrained, kept, tmp_path):
    info = {"info": {"features": {"label": {"names": ["zero", "one"], "_type": "ClassLabel"}}}}
    files = sorted(some.glob("[0-2]/*.png"))
    columns = {
        "image": [path.read_bytes() for path in files],
        "label": [int(path.parent.name) - 1 for path in files],
    }
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(table, tmp_path / "data.parquet")
    found = vitzoo.probe(untrained, tmp_path / "data.parquet", embeddings=kept)
    assert found.classes == ("-1", "zero", "one")


@pytest.mark.workflows
def test_only_new_images_are_computed(some, untrained, kept, computed):
    vitzoo.probe(untrained, some, embeddings=kept)
    computed.clear()
    path = next(some.glob("3/*.png"))
    path.write_bytes(next(some.glob("4/*.png")).read_bytes())
    vitzoo.probe(untrained, some, embeddings=kept)
    assert computed == []  # its bytes are known under another name
    Image.new("L", (8, 8), 77).save(path)
    vitzoo.probe(untrained, some, embeddings=kept)
    assert len(computed) == 1
    vitzoo.probe("vit_digits", some, embeddings=kept)
    assert len(computed) == 1 + 108  # another network
    assert len([*kept.iterdir()]) == 2
    next(kept.iterdir()).write_bytes(b"damaged")
    vitzoo.probe(untrained, some, embeddings=kept)
    vitzoo.probe("vit_digits", some, embeddings=kept)
    assert len(computed) == 1 + 2 * 108


@pytest.mark.workflows
def test_the_usual_folder_of_embeddings(some, untrained, own_home, computed, monkeypatch):
    vitzoo.probe(untrained, some)
    (file,) = (own_home / "cache" / "embeddings").iterdir()
    vitzoo.probe(untrained, some)
    assert len(computed) == 108
    file.unlink()
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    vitzoo.probe(untrained, some)
    assert len(computed) == 216


@pytest.mark.workflows
def test_embeddings_of_other_files_are_read(some, untrained, kept, own_home, computed):
    """As `vitzoo embed` writes them: with more columns and outputs; nothing is written beside."""
    (some / "4" / "a.png").write_bytes(b"no image")
    predictor = Predictor(untrained, outputs=("pooled", "logits"))
    paths = sorted(some.glob("[0-4]/*.png"))
    rows = predictor([*paths, some / "none.png"])
    computed.clear()
    kept.mkdir()
    columns = {
        "key": [*map(str, paths), "none.png"],
        "sha256": [row.sha256 or None for row in rows],
        "pooled": pa.array(
            [row.outputs.get("pooled", np.full(64, np.nan, np.float32)) for row in rows],
            pa.list_(pa.float32(), 64),
        ),
    }
    metadata = {"vitzoo.fingerprint": json.dumps(predictor.fingerprint().to_data())}
    parquet.write_table(pa.table(columns, metadata=metadata), kept / "part-000000.parquet")
    expected = vitzoo.probe(untrained, some, embeddings=own_home / "other")
    computed.clear()
    found = vitzoo.probe(untrained, some, embeddings=kept)
    assert len(computed) == 18
    assert np.array_equal(found.logits, expected.logits)
    assert [name for name, _ in found.unreadable] == ["4/a.png"]
    assert [path.name for path in kept.iterdir()] == ["part-000000.parquet"]


# Data


@pytest.mark.workflows
def test_images_that_cannot_be_read_are_in_no_score(some, untrained, kept, run):
    (some / "1" / "a.png").write_bytes(b"no image")
    (some / "2" / "b.png").write_bytes(b"")
    found = vitzoo.probe(untrained, some, embeddings=kept)
    assert [name for name, _ in found.unreadable] == ["1/a.png", "2/b.png"]
    assert len(found.train) + len(found.test) == 108
    assert not {"1/a.png", "2/b.png"} & {*found.train, *found.test}
    code, out, err = run("probe", untrained, some, "--embeddings", kept, "--json")
    assert code == 1
    says(err, "1/a.png", "2/b.png", "2 images cannot be read", "no score")
    (some / "2" / "b.png").unlink()
    code, _, err = run("probe", untrained, some, "--embeddings", kept)
    assert code == 1
    says(err, "network on cpu", "1 image cannot be read; it is in no score")
    data = json.loads(out)
    assert data == json.loads(json.dumps(found.to_data()))
    assert data["C"] == found.C == found.classifier.strength
    assert data["device"] == "cpu"
    assert data["identity"] == vitzoo.identity(found.model)
    assert [row["image"] for row in data["unreadable"]] == ["1/a.png", "2/b.png"]


@pytest.mark.workflows
def test_equal_bytes_in_training_and_test_are_counted(scans, untrained, kept, tmp_path, run):
    folder = tmp_path / "scans"
    shutil.copytree(scans, folder)
    known = sorted(folder.glob("train/3/*.png"))
    for i, path in enumerate(known[:2]):
        shutil.copy(path, folder / "test" / "3" / f"new{i}.png")
    shutil.copy(known[0], folder / "test" / "4" / "wrong.png")
    found = vitzoo.probe(untrained, folder, embeddings=kept)
    assert (found.duplicates, len(found.test)) == (3, 63)
    code, _, err = run("probe", untrained, folder, "--embeddings", kept)
    assert code == 0
    says(err, "3 of 63 test images", "same bytes", "training image")
    names = [str(p.relative_to(folder)) for p in (known[0], folder / "test/3/new0.png")]
    assert [{*group} for group in found.conflicts] == [{*names, "test/4/wrong.png"}]
    says(err, "different classes 1 times", "test/4/wrong.png")


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.workflows
def test_a_csv_and_a_parquet_file_give_what_the_folder_gives(
    scans, found, untrained, kept, tmp_path
):
    scans = shutil.copytree(scans, tmp_path / "scans")
    rows = [["image", "digit", "split"]]
    paths = sorted(path.relative_to(scans) for path in scans.glob("*/*/*.png"))
    rows += [[path, path.parts[1], path.parts[0]] for path in paths]
    table = write_csv(scans / "scans.csv", rows)
    columns = {
        "image": [{"bytes": (scans / row[0]).read_bytes(), "path": None} for row in rows[1:]],
        "label": [int(row[1]) for row in rows[1:]],
        "split": [row[2] for row in rows[1:]],
    }
    parquet.write_table(pa.table(columns), scans / "scans.parquet")
    for data, options in ((table, {"label_column": "digit"}), (scans / "scans.parquet", {})):
        other = vitzoo.probe(untrained, data, embeddings=kept, **options)
        assert other.classes == found.classes
        assert sorted(map(tuple, other.logits)) == sorted(map(tuple, found.logits))
        assert [s.correct for s in other.scores] == [s.correct for s in found.scores]


@pytest.mark.workflows
def test_validation_images_are_the_test_only_without_a_test(scans, untrained, kept, tmp_path):
    paths = [(p, p.parent.name, p.parts[-3]) for p in sorted(scans.glob("*/*/*.png"))]
    rows = [("path", "label", "split"), *((p, d, s.replace("test", "val")) for p, d, s in paths)]
    found = vitzoo.probe(untrained, write_csv(tmp_path / "a.csv", rows), embeddings=kept)
    assert (len(found.train), len(found.test), found.unused) == (180, 60, 0)
    rows += [(p, d, "test") for p, d, s in paths[:10]]
    found = vitzoo.probe(untrained, write_csv(tmp_path / "b.csv", rows), embeddings=kept)
    assert (len(found.train), len(found.test), found.unused) == (180, 10, 60)
    assert found.duplicates == sum(s == "train" for _, _, s in paths[:10])


def test_classes_with_too_few_images(some, untrained, kept, tmp_path, computed):
    one = tmp_path / "one"
    shutil.copytree(some / "0", one / "0")
    with refuses(InvalidOption, one, "0"):
        vitzoo.probe(untrained, one)
    empty = write_csv(tmp_path / "empty.csv", [("path", "label")])
    with refuses(InvalidOption, empty, "no classes"):
        vitzoo.probe(untrained, empty)
    for path in sorted((some / "4").iterdir())[1:]:
        path.unlink()
    with refuses(InvalidOption, some, "at least 3 images", "'4' has 1", "remove"):
        vitzoo.probe(untrained, some)
    rows = [("path", "label", "split")]
    rows += [(p, p.parent.name, "train") for p in some.glob("*/*.png")]
    rows.append((rows[1][0], "0", "test"))
    with refuses(InvalidOption, "at least 2 training images", "'4' has 1", "add"):
        vitzoo.probe(untrained, write_csv(tmp_path / "a.csv", rows))
    rows = [row for row in rows if row[1] != "4"]
    rows.append((rows[1][0], "new", "test"))
    with refuses(InvalidOption, "'new' has 0"):
        vitzoo.probe(untrained, write_csv(tmp_path / "c.csv", rows))
    assert computed == []
    (some / "4" / "b.png").write_bytes(b"broken")
    (some / "4" / "c.png").write_bytes(b"broken")
    with refuses(InvalidOption, "'4' has 1"):
        vitzoo.probe(untrained, some, embeddings=kept)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("test_share", 0.0, "between 0 and 1"),
        ("test_share", 1.0, "between 0 and 1"),
        ("test_share", "0.2", "between 0 and 1"),
        ("test_share", float("nan"), "between 0 and 1"),
        ("seed", -1, "from 0"),
        ("seed", 1.5, "from 0"),
        ("seed", True, "from 0"),
    ],
)
def test_impossible_numbers(tmp_path, name, value, says):
    with refuses(InvalidOption, name, says, repr(value)):
        vitzoo.probe("vit_digits", tmp_path, **{name: value})


@pytest.mark.workflows
def test_features_that_are_not_finite(some, kept):
    model = vitzoo.create("vit_digits", pretrained=True)
    with torch.no_grad():
        model.norm.bias[0] = float("inf")
    with refuses(InvalidOption, "108 of 108", "infinite", "weights"):
        vitzoo.probe(model, some, embeddings=kept)


# The command


@pytest.mark.workflows
def test_the_command_prints_scores_and_writes_files(found, scans, untrained, kept, tmp_path, run):
    arguments = ("probe", untrained, scans, "--embeddings", kept)
    picture, saved = tmp_path / "confusion.png", tmp_path / "classifier.safetensors"
    code, out, err = run(*arguments, "--confusion", picture, "--save", saved)
    assert code == 0
    says(err, "180 training", "60 test images", "10 classes")
    assert f"logistic regression has C = {found.C:g}, chosen on training images" in err
    assert err.splitlines()[-2:] == [f"wrote {picture}", f"wrote {saved}"]
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["classifier", "accuracy", "low", "high", "correct", "total"]
    assert [row[0] for row in rows] == [score.classifier for score in found.scores]
    assert [int(row[4]) for row in rows] == [score.correct for score in found.scores]
    assert [float(row[1]) for row in rows] == [score.accuracy for score in found.scores]
    with Image.open(picture) as image:
        assert min(image.size) > 300
    assert trunk_in(saved)["file"] == untrained.name
    for option, path in (("--confusion", picture), ("--save", saved)):
        code, out, err = run(*arguments, option, path)
        assert (code, out) == (2, "")
        says(err, path, "--force")
    assert run(*arguments, "--save", saved, "--force")[0] == 0
    code, _, err = run(*arguments, "--confusion", tmp_path / "x.txt")
    assert code == 2
    says(err, "--confusion", ".png", "x.txt")


@pytest.mark.workflows
def test_the_figure_shows_every_number(found):
    axes = found.figure().axes[0]
    shown = np.zeros((10, 10), dtype=int)
    for text in axes.texts:
        column, row = text.get_position()
        shown[row, column] = int(text.get_text())
    assert np.array_equal(shown, found.logistic.confusion)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.classes)
    says(axes.get_title(), "untrained.safetensors", f"{found.logistic.accuracy:.1%} of 60")


def test_without_scikit_learn_the_message_names_the_command(some, monkeypatch):
    from vitzoo.plugin import requirements

    present = requirements._present
    monkeypatch.setattr(
        requirements, "_present", lambda name: None if name == "scikit-learn" else present(name)
    )
    text = message(vitzoo.MissingDependency, vitzoo.probe, "vit_digits", some)
    says(text, "vitzoo.probe", "scikit-learn")
