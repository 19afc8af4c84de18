"""Values of more than 8 bits, and images of any number of bands."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images.transform import Transform
from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.spec import Spec

SIDE = 16
TINY = {
    "image_size": SIDE, "patch_size": 8, "num_classes": 3, "embed_dim": 8, "depth": 1,
    "num_heads": 2, "mlp_dim": 16,
}  # fmt: skip
PLAIN = {
    "mean": 0.0,
    "std": 1.0,
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "crop_mode": "squash",
}


def transform(channels, **options):
    row = {
        key: (value,) * channels if key in ("mean", "std") else value
        for key, value in PLAIN.items()
    }
    return Transform(
        Spec(image_size=(SIDE, SIDE), patch_size=(8, 8), in_chans=channels),
        Preprocessing(**row | options),
    )


def scene(bands, most, dtype, shape=(SIDE, SIDE)):
    values = np.random.default_rng(0).uniform(0, most, (*shape, bands))
    values.flat[0] = most
    return values.astype(dtype)


def expected(values, scale):
    return torch.from_numpy(values.astype(np.float32) / np.float32(scale)).permute(2, 0, 1)


@cases("dtype", [np.uint8, np.uint16, np.float16, np.float32, np.float64])
@cases("bands", [1, 2, 4, 13])
def test_the_values_of_an_array(dtype, bands):
    most = 200 if dtype == np.uint8 else 10_000
    values = scene(bands, most, dtype)
    prepare = transform(bands, scale=most, bands=tuple(range(bands)))
    assert torch.equal(prepare(values), expected(values, most))
    assert prepare(values).amax() == 1
    chosen = (bands - 1, 0, bands // 2)
    assert torch.equal(
        transform(3, scale=most, bands=chosen)(values), expected(values[..., chosen], most)
    )
    assert torch.equal(transform(bands, scale=most)(values), prepare(values))


@pytest.mark.parametrize("channels", [1, 3])
def test_12_bits_in_a_16_bit_png(tmp_path, channels):
    values = scene(1, 4095, np.uint16)
    Image.fromarray(values[..., 0]).save(tmp_path / "a.png")
    prepare = transform(channels, scale=4095)
    grey = expected(values, 4095).expand(channels, -1, -1)
    for image in (tmp_path / "a.png", Image.open(tmp_path / "a.png"), values, values[..., 0]):
        assert torch.equal(prepare(image), grey)
    assert transform(channels)(tmp_path / "a.png").amax() < 0.07  # as 16 bits


def test_floats_are_resized_as_such():
    values = scene(2, 10_000, np.float32, (23, 41))
    found = transform(2, scale=10_000, bands=(0, 1))(values)
    for band in range(2):
        image = Image.fromarray(values[..., band]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        assert torch.equal(found[band], torch.from_numpy(np.array(image) / np.float32(10_000)))


def test_8_bits_are_resized_as_colours_are():
    photo = Image.fromarray(scene(3, 255, np.uint8, (23, 41)))
    assert torch.equal(transform(3, bands=(2, 1, 0))(photo), transform(3)(photo).flip(0))
    assert torch.equal(transform(3, channel_order="bgr")(photo), transform(3)(photo).flip(0))


def test_a_fourth_band_is_alpha_only_without_bands(tmp_path):
    values = scene(4, 255, np.uint8)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values, "RGBA").save(tmp_path / name)
        four = transform(4, bands=(0, 1, 2, 3))(tmp_path / name)
        assert torch.equal(four, expected(values, 255))
        white = Image.new("RGBA", (SIDE, SIDE), "white")
        flat = Image.alpha_composite(white, Image.fromarray(values, "RGBA")).convert("RGB")
        assert torch.equal(transform(3)(tmp_path / name), expected(np.asarray(flat), 255))
        assert torch.equal(transform(3, scale=255)(tmp_path / name), transform(3)(tmp_path / name))


def test_arrays_without_bands_and_scale():
    for dtype, most in ((np.uint16, 65535), (np.float32, 1), (np.float64, 255)):
        grey = scene(1, most, dtype)
        eight = np.rint(grey * np.float32(255 / most)).astype(np.uint8)
        assert torch.equal(transform(1)(grey), transform(1)(eight))
        assert torch.equal(transform(1)(grey[..., 0]), transform(1)(eight))
        colours = scene(3, most, dtype)
        eight = np.rint(colours * np.float32(255 / most)).astype(np.uint8)
        assert torch.equal(transform(3)(colours), transform(3)(eight))


@cases(
    ("options", "image", "parts"),
    [
        ({"bands": (3, 2, 1)}, np.zeros((4, 4, 3), np.uint8), ["3 bands", "4", "bands="]),
        ({"bands": (3, 2, 1)}, Image.new("RGB", (4, 4)), ["3 bands", "4", "bands="]),
        ({"scale": 10}, np.zeros((4, 4, 4), np.float32), ["4 bands", "3", "bands="]),
        ({"scale": 10}, np.full((4, 4, 3), np.nan, np.float32), ["nan or infinite"]),
        ({"scale": 10}, np.zeros((4, 4, 3), int), ["int64", "uint8, uint16 or float"]),
        ({"scale": 10}, np.zeros((4, 0, 3), np.uint8), ["no pixels"]),
        ({}, np.zeros((4, 4, 4), np.uint16), ["uint16", "(4, 4, 4)", "bands="]),
        ({}, np.full((4, 4, 3), 9000.0), ["9000", "0 to 255", "scale="]),
    ],
)
def test_an_image_without_these_values_is_refused(options, image, parts):
    with refuses(ImageError, *parts):
        transform(3, **options)(image)


def test_colours_of_16_bits_that_pillow_reduces_are_refused(tmp_path):
    tiny = b"P6 2 2 65535\n" + bytes(range(24))
    (tmp_path / "a.ppm").write_bytes(tiny)
    raw = np.frombuffer(bytes(range(24)), ">u2").reshape(2, 2, 3)
    with Image.open(io.BytesIO(png_of_16_bits(raw))) as image:
        assert image.mode == "RGB"
        with refuses(ImageError, "16 bits", "Pillow keeps 8", "array"):
            transform(3, scale=4095)(image)


def png_of_16_bits(values):
    import struct
    import zlib

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@cases(
    ("options", "parts"),
    [
        ({"bands": (0, 1)}, ["bands", "3 channels", "(0, 1)"]),
        ({"bands": (0, 1, -1)}, ["bands", "from 0", "-1"]),
        ({"bands": 3}, ["bands", "index", "3"]),
        ({"scale": 0}, ["scale", "positive"]),
        ({"scale": float("inf")}, ["scale", "inf"]),
        ({"scale": 255, "rescale_factor": 1.0}, ["scale", "rescale_factor"]),
        ({"channel_order": "bgr", "bands": (0, 1, 2)}, ["channel_order", "bands"]),
        ({"resize": 3}, ["resize", "image_size"]),
        ({"crop_mode": "fit"}, ["fit", "resize"]),
        ({"image_size": (0, 3)}, ["image_size", "(height, width)"]),
    ],
    ids=str,
)
def test_impossible_values(options, parts):
    with refuses(InvalidOption, *parts):
        Preprocessing(**options)


def test_a_network_of_13_bands_from_end_to_end(tmp_path):
    torch.manual_seed(0)
    model = vitzoo.create(TINY | {"in_chans": 13}).eval()
    torch.nn.init.normal_(model.head.weight)
    values = scene(13, 10_000, np.uint16)
    with refuses(InvalidOption, "1 or 3 channels", 13, "bands="):
        vitzoo.transform(model)
    prepare = vitzoo.transform(model, scale=10_000, bands=range(13))
    assert prepare(values).shape == (13, SIDE, SIDE)
    model.preprocessing = prepare.preprocessing
    again = vitzoo.create(vitzoo.save(model, tmp_path / "a.safetensors")).eval()
    assert again.preprocessing == model.preprocessing
    expected = model(prepare(values)[None])[0].detach()
    (row,) = vitzoo.Predictor(again, outputs="logits")([values])
    torch.testing.assert_close(torch.from_numpy(row.outputs["logits"]), expected)
    ((best, *_),) = [one.classes for one in vitzoo.predict(again, values, top=1)]
    assert best[0] == expected.argmax()
    with refuses(ImageError, "3 bands", 13):
        vitzoo.predict(again, [Image.new("RGB", (SIDE, SIDE))])


def test_files_of_four_bands_are_embedded(tmp_path):
    model = vitzoo.create(TINY | {"in_chans": 4})
    model.preprocessing = vitzoo.Preprocessing((0.5,) * 4, (0.5,) * 4, bands=(3, 2, 1, 0))
    Image.fromarray(scene(4, 255, np.uint8), "RGBA").save(tmp_path / "a.png")
    vitzoo.save(model, tmp_path / "a.safetensors")
    done = vitzoo.embed(tmp_path / "a.safetensors", tmp_path / "a.png", tmp_path / "out", workers=1)
    assert (done.inputs, done.errors) == (1, 0)
    other = vitzoo.create(tmp_path / "a.safetensors")
    other.preprocessing = vitzoo.Preprocessing((0.5,) * 4, (0.5,) * 4, bands=(0, 1, 2, 3))
    with refuses(InvalidOption, "bands"):
        vitzoo.embed(other, tmp_path / "a.png", tmp_path / "out", workers=1)


@pytest.mark.parametrize("bands", [(0,), (12,)])
def test_an_array_of_many_bands_is_one_image_for_one_chosen_band(bands):
    model = vitzoo.create(TINY | {"in_chans": 1, "num_classes": 2})
    model.preprocessing = vitzoo.Preprocessing((0.5,), (0.5,), bands=bands)
    torch.nn.init.normal_(model.head.weight)
    values = scene(13, 255, np.uint8)
    assert len(vitzoo.predict(model, values)) == 1
    assert len(vitzoo.predict(model, np.stack([values, values]))) == 2
    assert len(vitzoo.Predictor(model, outputs="logits")(values)) == 1


def test_numbers_of_numpy_are_numbers():
    values = scene(4, 4095, np.uint16)
    prepare = transform(1, scale=values.max(), bands=list(np.argsort([3, 1, 2])[:1]))
    assert prepare.preprocessing == transform(1, scale=4095, bands=(1,)).preprocessing
    assert json.loads(json.dumps(prepare.preprocessing.to_data()))["scale"] == 4095
    assert transform(1, scale=np.float32(0.5)).preprocessing.scale == 0.5
    impossible = {"bands": [np.int8(-1)]}, {"scale": np.bool_(1)}, {"scale": np.float32("nan")}
    for options in (*impossible, {"scale": 10**400}):
        with refuses(InvalidOption, next(iter(options))):
            transform(1, **options)
