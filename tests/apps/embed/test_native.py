"""`embed` with native sizes: the vector of an image depends on the image alone, in order."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitzoo
from helpers import SPEC, fill, refuses, says
from vitzoo import Predictor, embed
from vitzoo.errors import InvalidOption

COUNT, PATCHES = 135, 20
pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def photos(once):
    """A folder of images: most have one of four sizes, the others any; two cannot be used."""
    return once("embed-native", write_photos)


def write_photos(folder):
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        sizes = [(24, 36), (36, 24), (30, 30), (20, 60), tuple(draw.integers(4, 70, 2))]
        pixels = draw.integers(0, 256, (*sizes[draw.integers(5)], 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.png", compress_level=1)
    (folder / "007.png").write_bytes(b"no image")
    Image.new("RGB", (PATCHES + 1, 1)).save(folder / "100.png")


@pytest.fixture(scope="module", params=["learned", "rope"])
def net(request, tmp_path_factory):
    """A network with learned positions, or the file of one with rotations."""
    if request.param == "learned":
        return "vit_digits"
    model = fill(vitzoo.create(SPEC | {"pos_embed": "rope", "pool": "mean"}))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    return vitzoo.save(model, tmp_path_factory.mktemp("net") / "net.safetensors")


@pytest.fixture(scope="module")
def single(photos, net, tmp_path_factory):
    """The folder that one process writes."""
    folder = tmp_path_factory.mktemp("single") / "out"
    embed(net, photos, folder, native_size=PATCHES, workers=1)
    return folder


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def vectors_of(folder):
    """Return the bytes of the vector of each key; keys are in the order of the rows."""
    table = pq.read_table(folder).to_pylist()
    return {row["key"]: np.float32(row["pooled"]).tobytes() for row in table}


@pytest.mark.slow
def test_each_row_has_the_vector_of_its_image_alone(photos, net, single):
    predictor = Predictor(net, native_size=PATCHES)
    files = sorted(photos.iterdir())
    found = vectors_of(single)
    assert list(found) == list(map(str, files))
    errors = {}
    for file in files:
        (row,) = predictor([file])
        if row.error:
            errors[file.name] = row.error
        else:
            assert found[str(file)] == row.outputs["pooled"].tobytes(), file
    assert list(errors) == ["007.png", "100.png"]
    says(errors["100.png"], f"{PATCHES} times")
    manifest = json.loads((single / "_manifest.json").read_text())
    assert (manifest["complete"], manifest["errors"], manifest["parts"]) == (True, 2, 3)
    assert manifest["fingerprint"]["native_size"] == PATCHES
    assert manifest["fingerprint"]["chunk"] == [8, 1 if net == "vit_digits" else 3]


@pytest.mark.one_in(2)
@pytest.mark.slow
def test_shards_workers_and_read_ahead_change_no_byte(photos, net, single, tmp_path):
    for index in (1, 0):
        options = {"shard": (index, 2), "batch_size": 3 + 50 * index, "workers": 2 - index}
        embed(net, photos, tmp_path / "out", native_size=PATCHES, **options)
    assert bytes_of(tmp_path / "out") == bytes_of(single)


@pytest.mark.slow
def test_an_interrupted_call_is_completed_with_the_same_bytes(photos, net, single, tmp_path):
    def interrupt(done, *_):
        if done > 70:  # in the second part
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        embed(net, photos, out, native_size=PATCHES, workers=1, on_progress=interrupt)
    assert len(list(out.glob("*.parquet"))) == 1
    done = embed(net, photos, out, native_size=PATCHES, workers=1)
    assert 0 < done.computed < COUNT
    assert bytes_of(out) == bytes_of(single)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3])
def test_another_order_has_the_same_vectors_with_every_chunk(photos, net, tmp_path, chunk):
    files, found = sorted(map(str, photos.iterdir())), []
    for i in range(2):
        listed = tmp_path / f"{i}.txt"
        listed.write_text("\n".join(files))
        predictor = Predictor(net, native_size=PATCHES, chunk=chunk)
        embed(predictor, listed, tmp_path / str(i), workers=1)
        assert list(vectors_of(tmp_path / str(i))) == files
        found.append(vectors_of(tmp_path / str(i)))
        random.Random(chunk).shuffle(files)
        del files[100:]
    first, second = found
    assert len(second) == 100
    assert second.items() <= first.items()


@pytest.mark.slow
def test_few_images_wait_for_others_of_their_grid(photos, net, single, tmp_path, monkeypatch):
    """Then chunks are padded more often, and the bytes are the same."""
    for name, value in {"MOST_HELD": 2, "CHUNKS_HELD": 0}.items():
        monkeypatch.setattr(f"vitzoo.apps.predict.grids.{name}", value)
    embed(net, photos, tmp_path / "out", native_size=PATCHES, workers=1)
    assert bytes_of(tmp_path / "out") == bytes_of(single)


@pytest.mark.slow
def test_a_folder_with_another_native_size_is_refused(photos, net, single, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(single, out)
    for given, shown in ((None, None), (PATCHES + 1, PATCHES + 1), (True, 16)):
        with refuses(
            InvalidOption, f"fingerprint.native_size is {PATCHES} in it and {shown} now", "--out"
        ):
            embed(net, photos, out, native_size=given, workers=1)
    embed(net, photos, tmp_path / "plain", workers=1)
    with refuses(InvalidOption, "native_size is None in it and 16 now"):
        embed(net, photos, tmp_path / "plain", native_size=True, workers=1)
    with refuses(InvalidOption, "Predictor", "its own native_size"):
        embed(Predictor(net), photos, tmp_path / "plain", native_size=True, workers=1)


def test_outputs_with_a_shape_for_each_grid_are_refused(photos, net, tmp_path):
    with refuses(InvalidOption, "'blocks.0'", "'pooled'", "--native-size"):
        embed(net, photos, tmp_path / "out", outputs="blocks.0", native_size=True, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "patches"), [("--native-size", 16), (f"--native-size={PATCHES}", PATCHES)]
)
def test_the_command(photos, net, single, tmp_path, run, option, patches):
    code, _, stderr = run("embed", net, photos, "--out", tmp_path / "out", "--workers", 1, option)
    assert code == 0, stderr
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["fingerprint"]["native_size"] == patches
    assert (bytes_of(tmp_path / "out") == bytes_of(single)) == (patches == PATCHES)


WRONG = [("--native-size", value) for value in ("vit_digits", "0", "-3")]
WRONG += [(f"--native-size={value}", "x") for value in ("1.5", "0", "-30", "abc")]


@pytest.mark.parametrize("options", WRONG)
def test_a_value_of_the_option_that_is_no_number(options, run, tmp_path):
    code, _, stderr = run("embed", *options, tmp_path, "--out", tmp_path / "out")
    assert code == 2
    value = options[0].partition("=")[2] or options[1]
    says(stderr, "--native-size", "put it after SRC", repr(value))


@pytest.mark.fuzz
def test_random_sizes_have_the_vectors_of_single_images(net, tmp_path):
    """Native sizes of many grids, parts and chunks."""
    draw = np.random.default_rng()
    files = [tmp_path / f"{i:03}.png" for i in range(400)]
    for file in files:
        shape = draw.integers(1, 200, 2)
        Image.fromarray(draw.integers(0, 256, (*shape, 3), np.uint8)).save(file, compress_level=0)
    for patches in draw.integers(1, 60, 3).tolist():
        out = tmp_path / str(patches)
        embed(net, files, out, native_size=patches, batch_size=int(draw.integers(1, 99)), workers=1)
        predictor, found = Predictor(net, native_size=patches), vectors_of(out)
        for file in files:
            (row,) = predictor([file])
            assert row.error or found[str(file)] == row.outputs["pooled"].tobytes(), (patches, file)
