"""`Predictor`: the same bytes anywhere, error rows, and pickles of the same weights."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitzoo
from helpers import randn, refuses, says
from tables import cases
from vitzoo.apps.predict.one_thread import one_thread
from vitzoo.errors import ImageError, IntegrityError, InvalidInput, InvalidOption, UnknownOption
from vitzoo.images import decode

pytestmark = pytest.mark.usefixtures("_one_thread")
DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"
FILES = sorted(DIGITS.glob("*.png"))[:3]
ALL = ("labels", "logits", "pooled", "blocks.1")


@pytest.fixture(scope="module")
def digits():
    return vitzoo.Predictor("vit_digits", outputs=ALL)


@pytest.fixture
def model(small, randomise):
    return randomise(vitzoo.create(small))


def same(one, other):
    """Tell whether the outputs of two images have the same bytes."""
    return one.keys() == other.keys() and all(
        one[n].tobytes() == other[n].tobytes() if n != "labels" else one[n] == other[n] for n in one
    )


# Values


def test_values_are_those_of_the_model(model):
    predictor = vitzoo.Predictor(model, outputs=ALL)
    inputs = [*randn(11, 3, 32, 32)]
    found = predictor.compute(inputs)
    with torch.no_grad():
        expected = model.features(torch.stack(inputs), ["pool", "blocks.1", "logits"])
    shares = expected["logits"].softmax(-1)
    for i, outputs in enumerate(found):
        for name, of in (("pooled", "pool"), ("blocks.1", "blocks.1"), ("logits", "logits")):
            assert outputs[name].shape == predictor.shapes[name]
            torch.testing.assert_close(torch.from_numpy(outputs[name]), expected[of][i])
        ranks = [index for index, _, _ in outputs["labels"]]
        assert ranks == shares[i].argsort(descending=True).tolist()
        assert outputs["labels"][0][1] == f"class {ranks[0]}"
        assert outputs["labels"][0][2] == pytest.approx(shares[i].max().item(), abs=1e-6)


def test_every_forward_has_the_shape_of_the_fingerprint(model):
    predictor = vitzoo.Predictor(model)
    seen = []
    hook = model.patch_embed.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
    predictor.compute([*randn(9, 3, 32, 32)])
    predictor.compute([])
    hook.remove()
    assert seen == [predictor.fingerprint().chunk] * 2 == [(8, 3, 32, 32)] * 2


def test_the_setting_of_the_caller_changes_nothing(model):
    predictor = vitzoo.Predictor(model)
    inputs = [*randn(3, 3, 32, 32)]
    expected = predictor.compute(inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            found = predictor.compute(inputs)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert all(map(same, found, expected))


def test_every_thread_computes_with_one_and_the_number_is_restored():
    seen, inside, before = [], threading.Barrier(3), torch.get_num_threads()

    def note():
        inside.wait(10)  # all three compute at the same time
        seen.append(torch.get_num_threads())

    def work():
        with one_thread() as run:
            run(note)

    torch.set_num_threads(2)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert seen == [1, 1, 1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread() as run:
        run(lambda: 1 // 0)
    with one_thread() as run:
        assert run(torch.get_num_threads) == 1
    assert torch.get_num_threads() == before


def test_threads_share_a_predictor(digits):
    images = [Image.open(file).tobytes() for file in FILES]
    inputs = [digits.decode(np.frombuffer(i, np.uint8).reshape(8, 8)).tensor for i in images]
    expected, found = digits.compute(inputs), [None] * 4

    def work(place):
        found[place] = digits.compute(inputs[:2] * 5 + inputs)[-3:]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(a, b) for rows in found for a, b in zip(rows, expected, strict=True))


# Predictions


def test_predictions_are_the_labels_of_the_rows(digits):
    images = [*FILES, b"no image", np.zeros((8, 8), np.uint8)]
    rows, found = digits(images), digits.predict(images)
    assert isinstance(found, list)
    assert [one.classes for one in found] == [row.outputs.get("labels", ()) for row in rows]
    assert [one.error for one in found] == [row.error for row in rows]
    assert [one.image for one in found] == [*FILES, Path("image 3"), Path("image 4")]


def test_a_predictor_of_embeddings_predicts_and_stays_what_it_was(digits):
    predictor = vitzoo.Predictor("vit_digits")
    assert predictor.predict(FILES) == digits.predict(FILES)
    assert predictor.outputs == ("pooled",)
    assert [one.image for one in predictor.predict(DIGITS)] == sorted(DIGITS.glob("*.png"))
    assert pickle.loads(pickle.dumps(predictor)).predict(FILES[0]) == digits.predict(FILES[:1])
    assert predictor.with_chunk(2)._with_labels.chunk == 2
    with refuses(InvalidOption, "no classifier"):
        vitzoo.Predictor(vitzoo.create("vit_digits", num_classes=0)).predict(FILES)
    for wrong in (5, [5]):
        with refuses(InvalidOption, "Predictor.predict()", "5 (int)"):
            predictor.predict(wrong)


def test_the_repr_of_predictions_has_an_aligned_line_for_each_image():
    classes = ((7, "cat", 0.875), (2, "d\x1b[2Jog\u202e", 0.0625))
    found = vitzoo.Predictions(
        [
            vitzoo.Prediction(Path("a.png"), classes),
            vitzoo.Prediction(Path("\u6570\n.png"), classes[1:]),
            vitzoo.Prediction(Path("image 2"), (), "the image has no pixels"),
        ]
    )
    dog = r"d\x1b[2Jog\u202e"
    assert repr(found).splitlines() == [
        f"image     label{' ' * 13}probability  next",
        f"a.png     cat{' ' * 15}      87.5%  {dog} 6.2%",
        f"\u6570\\n.png  {dog}         6.2%",
        f"image 2   {' ' * 31}the image has no pixels",
    ]
    assert repr(vitzoo.Predictions()) == "[]"


# Images


def test_every_kind_of_image_gives_the_same_row(digits):
    data = FILES[0].read_bytes()
    pixels = np.array(Image.open(FILES[0]))
    kinds = [FILES[0], str(FILES[0]), data, bytearray(data), memoryview(data)]
    without_bytes = [
        pixels, pixels[..., None], pixels[::-1][::-1], np.stack([pixels] * 3, -1),
        Image.open(FILES[0]), Image.fromarray(pixels),
    ]  # fmt: skip
    rows = digits([*kinds, *without_bytes])
    assert {row.error for row in rows} == {""}
    assert {(row.width, row.height) for row in rows} == {(8, 8)}
    digest = hashlib.sha256(data).hexdigest()
    assert [row.sha256 for row in rows] == [digest] * len(kinds) + [""] * len(without_bytes)
    assert all(same(row.outputs, rows[0].outputs) for row in rows)
    assert rows[0].outputs["labels"][0][1] == FILES[0].name.split("_")[1]


def test_sizes_follow_the_exif_orientation(digits):
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("L", (12, 8)).save(file, "jpeg", exif=exif)
    (row,) = digits([file.getvalue()])
    assert (row.width, row.height) == (8, 12)


def jpeg(size=(64, 64)):
    file = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)).save(
        file, "jpeg"
    )
    return file.getvalue()


class Odd(os.PathLike):
    def __fspath__(self):
        raise RuntimeError("odd")


def closed():
    image = Image.open(FILES[0])
    image.close()
    return image


BAD = {
    "truncated": (lambda: jpeg()[:700], ("the data", "truncated")),
    "no image": (lambda: b"%PDF-1.4", ("the data is not an image", "PNG")),
    "empty": (lambda: b"", ("the data is empty", "an image file")),
    "nothing": (lambda: None, ("NoneType", "path", "bytes", "uint8 array", "Pillow")),
    "number": (lambda: 7, ("int", "expected a path")),
    "tensor": (lambda: torch.zeros(3, 3), ("Tensor", "expected a path")),
    "float": (lambda: np.full((4, 4), 300.0), ("300", "0 to 255", "scale=")),
    "whole": (lambda: np.zeros((4, 4), int), ("int64", "(4, 4)", "uint8", "uint16", "float")),
    "nan": (lambda: np.full((4, 4), np.nan), ("nan", "0 to 1")),
    "objects": (lambda: np.array([[None]]), ("object", "(1, 1)", "uint8")),
    "flat": (lambda: np.zeros(4, np.uint8), ("(4,)", "(h, w)")),
    "no pixels": (lambda: np.zeros((0, 3), np.uint8), ("no pixels", "3x0")),
    "no channels": (lambda: np.zeros((3, 3, 0), np.uint8), ("(3, 3, 0)", "1 to 4")),
    "many channels": (lambda: np.zeros((3, 3, 5), np.uint8), ("(3, 3, 5)", "1 to 4")),
    "empty Pillow": (lambda: Image.new("RGB", (0, 5)), ("no pixels", "0x5")),
    "closed": (closed, ("cannot read the image",)),
    "missing": (lambda: "nope.png", ("nope.png", "no file")),
    "null": (lambda: "a\0b", ("a\\x00b", "null")),
    "folder": (lambda: DIGITS, ("digits", "a folder")),
    "device": (lambda: "/dev/zero", ("/dev/zero", "device")),
    "odd": (Odd, ("odd",)),
    "terminal": (lambda: "\x1b[2J.png", (r"\x1b[2J.png", "no file")),
}


@cases(("make", "words"), BAD.values(), ids=BAD)
def test_a_bad_image_is_an_error_row(digits, make, words):
    before, bad, after = digits([FILES[0], make(), FILES[1]])
    says(bad.error, *words)
    assert (bad.width, bad.height, bad.outputs) == (0, 0, {})
    assert bad.error.isprintable()
    assert not before.error
    assert not after.error
    (alone,) = digits([FILES[1]])
    assert same(after.outputs, alone.outputs)


def test_the_hash_of_a_damaged_file_is_known(digits):
    data = jpeg()[:700]
    (row,) = digits([data])
    assert row.sha256 == hashlib.sha256(data).hexdigest()


def test_a_file_that_is_too_large_is_an_error_row(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("vitzoo.images.file_bytes.MAX_BYTES", 100)
    file = tmp_path / "large.png"
    file.write_bytes(b"x" * 101)
    (row,) = digits([file])
    says(row.error, "large.png", "more than 100 bytes")


@pytest.mark.usefixtures("_quick_switching")
def test_threads_decode_large_images_as_errors(digits, monkeypatch):
    """Pillow warns of them, and filters of warnings belong to the process."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    data, seen, filters = jpeg(), [], list(warnings.filters)

    def work():
        seen.extend(digits.decode(data).error for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    for error in set(seen):
        says(error, "the data is too large", str(64 * 64 - 1))
    assert warnings.filters == filters


def test_rows_come_as_they_are_needed(digits):
    taken = []

    def images():
        for number in range(100):
            taken.append(number)
            yield FILES[number % 3]

    rows = digits.rows(images())
    assert next(rows).error == ""
    assert len(taken) == 8
    assert digits([]) == []


ALONE = {
    "str": str(FILES[0]),
    "path": FILES[0],
    "bytes": FILES[0].read_bytes(),
    "grey": np.zeros((8, 8), np.uint8),
    "colour": np.zeros((8, 8, 3), np.uint8),
    "pillow": Image.new("L", (8, 8)),
}


@pytest.mark.parametrize("image", ALONE.values(), ids=ALONE)
def test_one_image_needs_no_list(digits, image):
    ((row,), (same,), (listed,)) = digits(image), digits.rows(image), digits([image])
    assert not row.error
    for one in (same, listed):
        np.testing.assert_array_equal(one.outputs["pooled"], row.outputs["pooled"])


def test_an_array_of_several_images(digits):
    one, two = digits(np.stack([np.zeros((8, 8), np.uint8)] * 2))
    assert not one.error + two.error


def test_inputs_of_another_shape_are_refused(digits):
    with refuses(InvalidInput, "(3, 28, 28)", "(1, 28, 28)", "Predictor.decode"):
        digits.compute([torch.zeros(3, 28, 28)])


# Outputs


@pytest.mark.parametrize("outputs", [(), ("pooled", "pooled"), (1,)], ids=str)
def test_outputs_are_different_names(outputs):
    with refuses(InvalidOption, "outputs", "different names", outputs):
        vitzoo.Predictor("vit_digits", outputs=outputs)


def test_an_unknown_output_is_refused(model):
    assert vitzoo.Predictor(model, outputs="norm").outputs == ("norm",)
    with refuses(UnknownOption, "no output 'blocks.7'", "blocks.1"):
        vitzoo.Predictor(model, outputs=["blocks.7"])


class Foreign(nn.Module):
    """A network with the methods of timm, or without them."""

    def __init__(self, timm=True):
        super().__init__()
        self.head = nn.Linear(12, 4)
        self.spec, self.preprocessing = vitzoo.describe("vit_digits").spec, None
        self.labels, self.num_classes = (), 4
        self.preprocessing = vitzoo.Preprocessing(mean=(0.5,), std=(0.5,))
        if timm:
            self.forward_features = lambda x: x.flatten(2)[..., :12]  # (b, 1, 12)
            self.forward_head = lambda x, pre_logits=False: (
                x.mean(1) if pre_logits else self.head(x.mean(1))
            )

    def forward(self, images):
        return self.head(images.flatten(1)[:, :12])


def test_a_network_with_another_builder():
    model, image = Foreign(), randn(1, 28, 28)
    predictor = vitzoo.Predictor(model, outputs=("labels", "pooled", "logits"))
    (found,) = predictor.compute([image])
    logits = model(image[None])[0]
    torch.testing.assert_close(torch.from_numpy(found["logits"]), logits.detach())
    torch.testing.assert_close(torch.from_numpy(found["pooled"]), image.flatten()[:12])
    assert found["labels"][0][0] == logits.argmax()
    assert predictor.shapes == {"pooled": (12,), "logits": (4,)}
    with refuses(UnknownOption, "Foreign", "'blocks.1'", "labels, logits, pooled"):
        vitzoo.Predictor(model, outputs="blocks.1")


def test_a_network_without_the_methods_of_timm_has_logits():
    model = Foreign(timm=False)
    assert vitzoo.Predictor(model, outputs=("logits", "labels")).shapes == {"logits": (4,)}
    with refuses(
        InvalidOption, "(Foreign)", "'pooled'", "forward_features()", "forward_head()",
        "outputs labels, logits", "vitzoo.parts.Network",
    ):  # fmt: skip
        vitzoo.Predictor(model)


@pytest.mark.parametrize("output", ["labels", "logits"])
def test_features_have_no_classes(output):
    model = vitzoo.create("vit_digits", pretrained=True, num_classes=0)
    with refuses(InvalidOption, "no classifier", "only features"):
        vitzoo.Predictor(model, outputs=output)
    assert vitzoo.Predictor(model).shapes == {"pooled": (64,)}


def test_an_embedding_has_logits_but_no_labels(model):
    model.head.embedding = True
    assert vitzoo.Predictor(model, outputs="logits").shapes == {"logits": (5,)}
    with refuses(InvalidOption, "embedding of 5 numbers", "not classes"):
        vitzoo.Predictor(model, outputs="labels")


def test_top_limits_the_labels(digits):
    assert len(digits([FILES[0]])[0].outputs["labels"]) == 5
    (row,) = vitzoo.Predictor("vit_digits", outputs="labels", top=2)([FILES[0]])
    assert len(row.outputs["labels"]) == 2
    with refuses(InvalidOption, "top", "from 1", 0):
        vitzoo.Predictor("vit_digits", top=0)
    with refuses(InvalidOption, "top=3", "('pooled',)", "outputs=('labels', 'pooled')"):
        vitzoo.Predictor("vit_digits", top=3)


def test_an_unknown_argument_is_named():
    with refuses(UnknownOption, "Predictor() has no argument 'output'", "'outputs'"):
        vitzoo.Predictor("vit_digits", output="labels")
    with refuses(UnknownOption, "'batch_size'", "did you mean 'chunk'?"):
        vitzoo.Predictor("vit_digits", batch_size=2)
    with refuses(UnknownOption, "'column'", "it has: model, weights, outputs"):
        vitzoo.Predictor("vit_digits", column="image")
    with refuses(UnknownOption, "'adapter'", "Predictor(vitzoo.create(..., adapter=...))"):
        vitzoo.Predictor("vit_digits", adapter="turned")


@pytest.mark.parametrize(
    "changes", [{}, {"pos_embed": "rope"}, {"pool": "attention"}, {"in_chans": 1}], ids=str
)
def test_shapes_are_those_of_the_arrays(small, randomise, changes):
    model = randomise(vitzoo.create(small | changes))
    predictor = vitzoo.Predictor(model, outputs=model.feature_names())
    (found,) = predictor.compute([randn(small.get("in_chans", 3), 32, 32)[: model.spec.in_chans]])
    assert {name: array.shape for name, array in found.items()} == predictor.shapes


# Models


def test_a_model_object_is_not_changed_by_another_type(model):
    predictor = vitzoo.Predictor(model, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert predictor.model is not model
    assert predictor.fingerprint().dtype == "bfloat16"
    assert vitzoo.Predictor(model).model is model


def test_a_model_object_has_its_weights(model):
    with refuses(InvalidOption, "weights='x'", "leave weights= out"):
        vitzoo.Predictor(model, weights="x")
    with refuses(InvalidOption, "Linear", "vitzoo.create"):
        vitzoo.Predictor(nn.Linear(2, 2), outputs="pooled")
    with refuses(InvalidOption, "'meta'", "'cpu'"):
        vitzoo.Predictor(vitzoo.create("vit_digits", device="meta"))


# Pickles


def test_a_pickle_of_a_name_has_no_tensors(digits):
    data = pickle.dumps(digits)
    assert len(data) < 1000
    copy = pickle.loads(data)
    assert copy.fingerprint() == digits.fingerprint()
    assert same(copy([FILES[0]])[0].outputs, digits([FILES[0]])[0].outputs)


def test_a_pickle_of_a_name_keeps_the_type_under_another_default(other_defaults):
    with other_defaults:
        predictor = vitzoo.Predictor("vit_digits", device="cpu")
        shapes, wide = predictor.shapes, predictor.fingerprint()
        data = pickle.dumps(predictor)
    assert shapes == {"pooled": (64,)}
    assert pickle.loads(data).fingerprint() == wide


def test_a_pickle_of_a_model_has_its_tensors(model):
    predictor = vitzoo.Predictor(model, outputs=ALL)
    copy = pickle.loads(pickle.dumps(predictor))
    assert copy.fingerprint() == predictor.fingerprint()
    inputs = [*randn(2, 3, 32, 32)]
    assert all(map(same, copy.compute(inputs), predictor.compute(inputs)))


def test_a_pickle_finds_its_file_from_another_folder(model, tmp_path, monkeypatch):
    vitzoo.save(model, tmp_path / "net.safetensors")
    monkeypatch.chdir(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    spec = model.spec.to_data()
    given = [("net.safetensors", None), (Path("net.safetensors"), None), (spec, "net.safetensors")]
    pickles = [pickle.dumps(vitzoo.Predictor(of, weights=weights)) for of, weights in given]
    monkeypatch.chdir("/")
    for data in pickles:
        found = pickle.loads(data).model.state_dict()
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_other_weights_are_refused_when_a_pickle_is_loaded(model, tmp_path):
    file = vitzoo.save(model, tmp_path / "net.safetensors")
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    data = pickle.dumps(vitzoo.Predictor(file))
    with torch.no_grad():
        model.cls_token += 1
    vitzoo.save(model, file)
    after = hashlib.sha256(file.read_bytes()).hexdigest()
    with refuses(IntegrityError, "net.safetensors", before, after, "same file"):
        pickle.loads(data)


def test_another_network_is_refused_when_a_pickle_is_loaded(small, model, tmp_path):
    weights = vitzoo.save(model, tmp_path / "net.safetensors")
    spec = tmp_path / "net.json"
    spec.write_text(json.dumps(small))
    data = pickle.dumps(vitzoo.Predictor(spec, weights=weights))
    assert pickle.loads(data).chunk == 8
    spec.write_text(json.dumps(small | {"block": {"norm_eps": 0.5}}))
    with refuses(IntegrityError, "net.json", "another network", "same file"):
        pickle.loads(data)


WORKER = """
import hashlib, multiprocessing, sys
import vitzoo

def work(predictor, files):
    rows = predictor(files)
    data = [row.error.encode() or row.outputs["pooled"].tobytes() for row in rows]
    return [hashlib.sha256(one).hexdigest() for one in data], predictor.fingerprint().sha256

if __name__ == "__main__":
    predictor = vitzoo.Predictor(sys.argv[1], outputs=("pooled", "labels"))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(work, (predictor, sys.argv[2:]))
    here = work(predictor, sys.argv[2:])
    print(found == here, *found[0], sep="\\n")
"""


@pytest.mark.workflows
def test_a_spawned_worker_finds_the_plugin_of_the_network(randomise, tmp_path):
    spec = {"variant": "deit/deit_ti16_distilled", "depth": 1, "image_size": 32}
    model = randomise(vitzoo.create(spec))
    vitzoo.save(model, tmp_path / "net.safetensors")
    (tmp_path / "worker.py").write_text(WORKER)
    arguments = ["worker.py", "net.safetensors", FILES[0], "missing.png"]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    row, missing = vitzoo.Predictor(tmp_path / "net.safetensors")([FILES[0], "missing.png"])
    data = [row.outputs["pooled"].tobytes(), missing.error.encode()]
    expected = [hashlib.sha256(one).hexdigest() for one in data]
    assert done.stdout.splitlines() == ["True", *expected]


# Fingerprints


def test_a_fingerprint_is_plain_data(digits):
    found = digits.fingerprint()
    data = found.to_data()
    assert json.loads(json.dumps(data)) == data
    text = json.dumps(data, sort_keys=True)
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert data["weights"] == vitzoo.describe("vit_digits").default_weights.sha256
    assert data["outputs"] == list(ALL)
    assert data["chunk"] == [8, 1, 28, 28]
    assert data["versions"].keys() >= {"vitzoo", "torch", "numpy", "pillow", "cpu"}


def test_a_model_object_is_named_by_its_tensors(model):
    digest = hashlib.sha256()
    for name in sorted(tensors := model.state_dict()):
        tensor = tensors[name]
        digest.update(json.dumps([name, "float32", list(tensor.shape)]).encode())
        digest.update(tensor.numpy().tobytes())
    assert vitzoo.Predictor(model).fingerprint().weights == digest.hexdigest()


def test_whatever_changes_the_numbers_changes_the_fingerprint(small, randomise, monkeypatch):
    def made(outputs="pooled", spec=(), set_to=(), **options):
        model = randomise(vitzoo.create(small | dict(spec)))
        for name, value in dict(set_to).items():
            setattr(model, name, value)
        return vitzoo.Predictor(model, outputs=outputs, **options).fingerprint()

    other = vitzoo.Preprocessing(mean=(0.5,) * 3, std=(0.2,) * 3)
    assert made() == made()
    found = [
        made(),
        made(["pooled", "norm"]),
        made(spec={"block": {"norm_eps": 1e-5}}),
        made(spec={"image_size": 64}),
        made(dtype=torch.bfloat16),
        made(set_to={"preprocessing": other}),
        made(set_to={"cls_token": nn.Parameter(torch.ones(1, 1, 32))}),
        made("labels"),
        made("labels", top=2),
        made("labels", set_to={"labels": ("a", "b", "c", "d", "e")}),
    ]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    found.append(made())
    assert len({one.sha256 for one in found}) == len(found)


def test_errors_about_images_are_no_exceptions_of_decode(digits):
    assert digits.decode(b"x").tensor is None
    with pytest.raises(ImageError):
        decode.decode_bytes(b"x")
