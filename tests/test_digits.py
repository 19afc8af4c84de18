"""The bundled model: it reads digits as its row says, and one other bit makes it no model."""

import hashlib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import message, refuses, says
from tables import cases
from vitzoo import predict
from vitzoo.errors import IntegrityError
from vitzoo.network.summary import cost
from vitzoo.plugin.package_files import data_file
from vitzoo.store import obtain

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
PAGE = EXAMPLES.parent / "exporting.md"
SCANS = sorted(EXAMPLES.glob("digits/*.png"))
ROW = vitzoo.describe("vit_digits").default_weights
FILE = data_file("vitzoo", ROW.file)
ROOM = (0.6, 0.002, 0.3, 2)
PLACES = {"length": 0, "name": 40, "number": -1}  # bytes of the file


@pytest.fixture(scope="module")
def script():
    """What the training script defines; running it so trains nothing."""
    return runpy.run_path(str(EXAMPLES / "train_digits.py"))


@pytest.fixture(scope="module")
def test_part(script):
    """Indices of the scans that training never saw."""
    from sklearn.datasets import load_digits

    _, test = script["split"](torch.from_numpy(load_digits().target))
    return test


@pytest.fixture(scope="module")
def model():
    return vitzoo.create("vit_digits", pretrained=True).eval()


@pytest.fixture
def damaged(tmp_path):
    """Copy the bundled file with the last bit of one byte flipped."""

    def copy(place):
        data = bytearray(FILE.read_bytes())
        data[place] ^= 1
        path = tmp_path / ROW.file
        path.write_bytes(data)
        return path

    return copy


def scans_of(indices):
    """Return scans of the data set as inputs of the model."""
    from sklearn.datasets import load_digits

    prepare = vitzoo.transform("vit_digits")
    pixels = np.rint(load_digits().images[indices] * (255 / 16)).astype(np.uint8)
    return torch.stack([prepare(Image.fromarray(scan)) for scan in pixels])


def test_the_test_part_is_read_as_well_as_the_row_says(model, test_part):
    from sklearn.datasets import load_digits

    with torch.inference_mode():
        found = model(scans_of(test_part)).argmax(dim=1).numpy()
    right = found == load_digits().target[test_part]
    top1 = 100 * right.mean()
    assert top1 >= 98.5
    assert round(top1, 2) == ROW.top1


@pytest.mark.docs
@torch.inference_mode()
def test_the_page_on_token_merging_states_the_agreement(model, test_part):
    """Other processors may merge other tokens of a few images, as `ROOM` allows."""
    from sklearn.datasets import load_digits

    rows = re.findall(r"^\| (\d+) \| ([\d,]+) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    scans = scans_of(test_part)
    expected = model.features(scans, ["pool", "logits"])
    for merge, macs, others in rows:
        block = {"merge": int(merge)}
        empty = vitzoo.create("vit_digits", block=block, device="meta")
        assert f"{cost(empty, torch.empty(1, 1, 28, 28, device='meta')).macs:,}" == macs
        merging = vitzoo.create("vit_digits", pretrained=True, block=block).eval()
        results = merging.features(scans, ["pool", "logits"])
        classes = results["logits"].argmax(dim=1)
        accuracy = 100 * np.mean(classes.numpy() == load_digits().target[test_part])
        cosines = torch.cosine_similarity(results["pool"], expected["pool"])
        same = (classes == expected["logits"].argmax(dim=1)).sum()
        found = (accuracy, cosines.mean(), cosines.min(), same)
        for stated, value, room in zip(others.split(" | "), found, ROOM, strict=True):
            assert float(stated) == pytest.approx(float(value), abs=room), (merge, others)
    assert [int(merge) for merge, _, _ in rows] == [0, 1, 2, 4, 8]


def test_the_evaluation_says_on_what(script, test_part):
    assert f"{len(test_part)} scans" in ROW.evaluation
    assert f"seed {script['SPLIT_SEED']}" in ROW.evaluation
    assert "writer overlap" in ROW.evaluation


def test_the_parts_are_apart_and_together_all_scans(script, test_part):
    from sklearn.datasets import load_digits

    targets = torch.from_numpy(load_digits().target)
    train, _ = script["split"](targets)
    assert sorted(train + test_part) == list(range(1797))
    assert len(test_part) == 360


def test_every_tensor_is_kept_from_the_file_of_the_row(model):
    assert set(model.load_report.kept) == set(model.state_dict())
    assert model.load_report == vitzoo.LoadReport(
        f"vit_digits:{ROW.name}", ROW.sha256, "timm", "Apache-2.0", kept=model.load_report.kept
    )


def test_the_registered_network_is_the_one_that_was_trained(script, model):
    trained = vitzoo.create(script["SPEC"]).spec.to_data()
    assert model.spec.to_data() == {"variant": "vit_digits"} | trained
    assert ROW.preprocessing == script["PREPROCESSING"]
    assert ROW.labels == script["LABELS"]


def test_the_file_describes_itself(model):
    alone = vitzoo.create(FILE).eval()
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(alone(x), model(x))
    assert (alone.labels, alone.preprocessing) == (model.labels, model.preprocessing)


def test_the_file_is_small():
    assert FILE.stat().st_size < 2**20


def test_there_is_an_example_of_every_digit():
    assert sorted(_digit_and_index(scan)[0] for scan in SCANS) == list(range(10))


@cases("scan", SCANS, ids=lambda scan: scan.stem)
def test_an_example_was_never_seen_in_training(scan, test_part):
    assert _digit_and_index(scan)[1] in test_part


@cases("scan", SCANS, ids=lambda scan: scan.stem)
def test_an_example_is_the_scan_of_the_data_set(scan):
    from sklearn.datasets import load_digits

    digit, index = _digit_and_index(scan)
    digits = load_digits()
    with Image.open(scan) as image:
        assert image.mode == "L"
        assert np.array_equal(np.array(image), np.rint(digits.images[index] * (255 / 16)))
    assert digits.target[index] == digit


def test_the_examples_are_the_first_of_their_digit(script, test_part, tmp_path):
    script["write_examples"](tmp_path, *script["load_scans"](), test_part)
    assert sorted(path.name for path in tmp_path.iterdir()) == [scan.name for scan in SCANS]


def test_the_examples_are_predicted_right(model):
    found = {answer.image: answer.classes[0][1] for answer in predict(model, [EXAMPLES / "digits"])}
    assert found == {scan: str(_digit_and_index(scan)[0]) for scan in SCANS}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_file_with_one_other_bit_is_refused(damaged, place, monkeypatch):
    path = damaged(place)
    monkeypatch.setattr(obtain, "data_file", lambda *_: path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    text = message(IntegrityError, vitzoo.create, "vit_digits", pretrained=True)
    says(text, f"vit_digits:{ROW.name}", path, f"{ROW.size} bytes", "reinstall")
    assert text.index(sha256) < text.index(ROW.sha256)


def test_a_cut_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / ROW.file
    monkeypatch.setattr(obtain, "data_file", lambda *_: path)
    path.write_bytes(FILE.read_bytes()[:-1])
    with refuses(IntegrityError, path, f"{ROW.size - 1} bytes", f"{ROW.size} bytes"):
        vitzoo.create("vit_digits", pretrained=True)


def _digit_and_index(scan):
    digit, index = re.fullmatch(r"digit_(\d)_scan_(\d{4})", scan.stem).groups()
    return int(digit), int(index)
