"""Image files of every kind: correct pixels, and clear errors for damaged files."""

import io
import os
import random
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageSequence, PngImagePlugin

import vitzoo
from helpers import message, photographs, refuses, says
from limited import run_limited
from tables import cases
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.files.access import CHUNK, read_limited
from vitzoo.images import decode
from vitzoo.images.decode import (
    MAX_DECODED,
    decode_bytes,
    flatten,
    open_image,
    printable,
    read_image,
)
from vitzoo.images.file_bytes import read_bytes
from vitzoo.images.find import find_images

PHOTO = photographs()[0].resize((64, 43))
RGB = np.asarray(PHOTO).astype(int)
RAMP = np.linspace(0, 65535, 60 * 40).astype(np.uint16).reshape(40, 60)
AS_8_BIT = np.rint(RAMP / 257).astype(int)


def both(image, tmp_path, name, **options):
    """Return an image as a file of a format, and as the Pillow image opened from this file."""
    image.save(tmp_path / name, **options)
    yield tmp_path / name
    with Image.open(tmp_path / name) as opened:
        yield opened


def pixels(image, mode="RGB"):
    flat = read_image(image, mode)
    assert flat.mode == mode
    return np.asarray(flat).astype(int)


def over_white(rgb, alpha):
    return np.rint(rgb * (alpha / 255) + 255 * (1 - alpha / 255))


# Modes


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jp2", "a.ppm", "a.bmp", "a.webp"])
def test_lossless_formats_keep_every_pixel(tmp_path, name):
    options = {"a.webp": {"lossless": True}, "a.jp2": {"irreversible": False}}.get(name, {})
    for image in both(PHOTO, tmp_path, name, **options):
        assert np.array_equal(pixels(image), RGB)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bit_grey_is_scaled(tmp_path, name):
    for image in both(Image.fromarray(RAMP), tmp_path, name):
        assert np.array_equal(pixels(image, "L"), AS_8_BIT)
        assert np.array_equal(pixels(image), np.stack([AS_8_BIT] * 3, -1))


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I"])
def test_16_bit_grey_in_memory_is_scaled(mode):
    kind = {"I;16B": ">u2", "I": "<i4"}.get(mode, "<u2")
    image = Image.frombytes(mode, (60, 40), RAMP.astype(kind).tobytes())
    assert np.array_equal(pixels(image, "L"), AS_8_BIT)


@pytest.mark.parametrize("form", ["png", "tif"])
def test_16_bit_colour_keeps_its_scale(tmp_path, form):
    rgb = np.stack([RAMP, RAMP[::-1], RAMP[:, ::-1]], -1)
    path = tmp_path / f"deep.{form}"
    path.write_bytes({"png": png_48_bit, "tif": tiff_48_bit}[form](rgb))
    assert np.abs(pixels(path) - rgb / 257).max() <= 1  # Pillow takes the upper byte


def test_32_bit_integers_are_16_bit_values(tmp_path):
    for image in both(Image.fromarray(RAMP.astype(np.int32)), tmp_path, "deep.tif"):
        assert np.array_equal(pixels(image, "L"), AS_8_BIT)


@pytest.mark.parametrize("top", [1, 255])
def test_floats_up_to_1_or_255(tmp_path, top):
    values = (RAMP / 65535 * top).astype(np.float32)
    for image in both(Image.fromarray(values), tmp_path, "float.tif"):
        assert np.array_equal(pixels(image, "L"), np.rint(values * np.float32(255 / top)))


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([[0, 70000]], ["0 to 70000", "16 bits", "0 to 65535", "scale it to 8"]),
        ([[-1, 5]], ["-1 to 5", "16 bits", "scale it to 8"]),
        ([[0.0, 300.0]], ["0 to 300", "0 to 1", "0 to 255", "scale it to 8"]),
        ([[-0.5, 0.5]], ["-0.5 to 0.5", "0 to 1", "0 to 255"]),
        ([[float("nan"), 0.5]], ["nan to nan", "0 to 1", "0 to 255"]),
        ([[float("inf"), 0.5]], ["0.5 to inf", "0 to 1", "0 to 255"]),
    ],
)
def test_values_without_an_agreed_meaning_are_refused(tmp_path, values, parts):
    kind = np.int32 if isinstance(values[0][0], int) else np.float32
    for image in both(Image.fromarray(np.array(values, kind)), tmp_path, "odd.tif"):
        name = "the image" if isinstance(image, Image.Image) else f"{tmp_path}/odd.tif"
        with refuses(ImageError, name, *parts):
            read_image(image, "RGB")


def test_black_and_white(tmp_path):
    bits = Image.fromarray(RGB[..., 0] > 99)
    assert bits.mode == "1"
    for image in both(bits, tmp_path, "bits.png"):
        assert np.array_equal(pixels(image, "L"), (RGB[..., 0] > 99) * 255)


@pytest.mark.parametrize("name", ["print.tif", "print.jpg"])
def test_cmyk(tmp_path, name):
    cmyk = np.dstack([255 - RGB, np.full(RGB.shape[:2], 51)]).astype(np.uint8)
    expected = RGB * (1 - 51 / 255)
    options = {"quality": 100, "subsampling": 0} if name.endswith("jpg") else {}
    for image in both(Image.fromarray(cmyk, "CMYK"), tmp_path, name, **options):
        assert np.abs(pixels(image) - expected).max() <= (4 if options else 1)


def test_an_adobe_jpeg_is_inverted(tmp_path):
    """Adobe's programs store CMYK values inverted."""
    path = tmp_path / "adobe.jpg"
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path, quality=100)  # red ink
    data = path.read_bytes()
    assert b"Adobe" in data
    assert np.abs(pixels(path) - (255, 0, 0)).max() <= 4
    marker = data.index(b"\xff\xee")
    length = struct.unpack(">H", data[marker + 2 : marker + 4])[0]
    path.write_bytes(data[:marker] + data[marker + 2 + length :])  # many lack the marker
    assert np.abs(pixels(path) - (255, 0, 0)).max() <= 4


def test_a_palette(tmp_path):
    paletted = PHOTO.quantize(16)
    for image in both(paletted, tmp_path, "a.png"):
        assert np.array_equal(pixels(image), np.asarray(paletted.convert("RGB")))


def test_transparent_colours_of_a_palette_are_white(tmp_path):
    image = Image.fromarray(np.array([[0, 1], [2, 0]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    for opened in both(image, tmp_path, "a.png", transparency=bytes([0, 255, 128])):
        expected = [[[255] * 3, [40, 50, 60]], [[162, 167, 172], [255] * 3]]
        assert np.abs(pixels(opened) - expected).max() <= 1
    for opened in both(image, tmp_path, "a.gif", transparency=1):
        assert pixels(opened).tolist()[0] == [[10, 20, 30], [255] * 3]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La"])
def test_alpha_lies_over_white(tmp_path, mode):
    alpha = np.linspace(0, 255, RGB.shape[0] * RGB.shape[1]).round().reshape(RGB.shape[:2])
    image = PHOTO.convert("RGBA")
    image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    if mode == "PA":
        image = PHOTO.quantize(256).convert("PA")
        image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
        expected = np.asarray(PHOTO.quantize(256).convert("RGB")).astype(int)
    else:
        grey = np.stack([np.asarray(PHOTO.convert("L")).astype(int)] * 3, -1)
        expected = grey if mode in ("LA", "La") else RGB
        image = image.convert({"La": "LA"}.get(mode, mode)).convert(mode)
    assert image.mode == mode
    close = np.abs(pixels(image) - over_white(expected, alpha[..., None]))
    assert close.max() <= 2
    if mode in ("RGBA", "LA"):
        for opened in both(image, tmp_path, "a.png"):
            assert np.array_equal(pixels(opened), pixels(image))


def test_an_opaque_alpha_changes_nothing():
    assert np.array_equal(pixels(PHOTO.convert("RGBA")), RGB)


def test_a_transparent_colour_of_an_rgb_png_is_white(tmp_path):
    colour = tuple(map(int, RGB[3, 4]))
    for image in both(PHOTO, tmp_path, "a.png", transparency=colour):
        where = (colour == RGB).all(-1)
        assert (pixels(image)[where] == 255).all()
        assert np.array_equal(pixels(image)[~where], RGB[~where])


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "LAB", "RGBX"])
def test_other_colour_spaces(mode):
    if mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.profileToProfile(PHOTO, srgb, lab, outputMode="LAB")
    else:
        image = PHOTO.convert(mode)
    assert np.median(np.abs(pixels(image) - RGB)) <= 4


# Frames and orientation


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_of_an_animation_the_first_frame(tmp_path, name):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"save_all": True, "append_images": frames[1:]}
    options |= {"lossless": True} if name == "a.webp" else {}
    frames[0].save(tmp_path / name, **options)
    with Image.open(tmp_path / name) as image:
        assert sum(1 for _ in ImageSequence.Iterator(image)) == 3
        image.seek(0)
        assert (pixels(image) == (255, 0, 0)).all()
    assert (pixels(tmp_path / name) == (255, 0, 0)).all()


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_a_photograph_is_turned_upright_as_its_exif_says(tmp_path, name):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    upright = np.asarray(PHOTO.transpose(Image.Transpose.ROTATE_270)).astype(int)
    for image in both(PHOTO, tmp_path, name, exif=exif, quality=100):
        assert pixels(image).shape == (64, 43, 3)
        assert np.abs(pixels(image) - upright).mean() < 3


def test_an_image_changed_in_the_program_is_not_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    PHOTO.save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as image:
        turned = image.transpose(Image.Transpose.ROTATE_270)
    assert turned.getexif()[0x0112] == 6  # Pillow keeps the tag, and it is no longer true
    assert pixels(turned).shape == (64, 43, 3)


# Bad files


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("text.png", b"not an image", ["not an image", "PNG"]),
        ("empty.png", b"", ["empty", "image file"]),
        ("fig.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ["not an image"]),
    ],
)
def test_a_file_that_is_no_image(tmp_path, name, content, parts):
    (tmp_path / name).write_bytes(content)
    with refuses(ImageError, tmp_path / name, *parts):
        open_image(tmp_path / name)


@cases("ending", ["png", "jpg", "tif", "bmp", "gif", "webp", "ppm", "jp2"])
def test_a_truncated_image(tmp_path, ending):
    path = tmp_path / f"photo.{ending}"
    PHOTO.save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with refuses(ImageError, path):
        open_image(path)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_truncated_image_is_called_so(tmp_path, ending):
    PHOTO.save(tmp_path / f"photo.{ending}")
    data = (tmp_path / f"photo.{ending}").read_bytes()
    (tmp_path / f"photo.{ending}").write_bytes(data[: len(data) // 2])
    with refuses(ImageError, tmp_path / f"photo.{ending}", "truncated"):
        open_image(tmp_path / f"photo.{ending}")
    opened = Image.open(io.BytesIO(data[: len(data) // 2]))
    with refuses(ImageError, "truncated"):
        read_image(opened, "RGB")


def test_a_closed_image():
    image = Image.open(io.BytesIO(png_48_bit(np.zeros((2, 2, 3), np.uint16))))
    image.close()
    with refuses(ImageError, "cannot read", "the image"):
        read_image(image, "RGB")


def test_no_pixels():
    with refuses(ImageError, "no pixels", "0x5"):
        read_image(Image.new("RGB", (0, 5)), "RGB")


def test_a_missing_file_and_a_folder(tmp_path):
    with refuses(ImageError, tmp_path / "none.png"):
        open_image(tmp_path / "none.png")
    with refuses(ImageError, tmp_path, "folder"):
        open_image(tmp_path)
    with refuses(ImageError, r"a\x00b", "null byte"):
        open_image("a\0b")


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_a_pipe_or_device_does_not_hang(tmp_path, kind):
    path = tmp_path / "image.png"
    os.mkfifo(path)
    if kind == "link to a pipe":
        (tmp_path / "link.png").symlink_to(path)
        path = tmp_path / "link.png"
    path = "/dev/zero" if kind == "device" else path
    caught = []

    def read():
        with refuses(ImageError, path, kind.rpartition(" ")[2]):
            open_image(path)
        caught.append(True)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    assert caught


def test_an_enormous_text_chunk(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("note", "a" * 2**22, zip=True)
    PHOTO.save(tmp_path / "note.png", pnginfo=info)
    with refuses(ImageError, tmp_path / "note.png", "text chunks", "without metadata"):
        open_image(tmp_path / "note.png")


def test_a_text_chunk_that_is_merely_long_is_no_obstacle(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("note", "a" * 2**19, zip=True)
    PHOTO.save(tmp_path / "note.png", pnginfo=info)
    assert np.array_equal(pixels(tmp_path / "note.png"), RGB)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_48_bit(rgb):
    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rgb)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_48_bit(rgb):
    height, width, _ = rgb.shape
    data = rgb.astype("<u2").tobytes()
    entries = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, 3, 8), (259, 3, 1, 1),
               (262, 3, 1, 2), (273, 4, 1, 14), (277, 3, 1, 3), (278, 3, 1, height),
               (279, 4, 1, len(data))]  # fmt: skip
    directory = struct.pack("<H", len(entries))
    directory += b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    head = b"II*\0" + struct.pack("<I", 14 + len(data)) + struct.pack("<3H", 16, 16, 16)
    return head + data + directory


def bomb(kind, side=12_000):
    """Return a short file whose header states `side` x `side` pixels."""
    small = io.BytesIO()
    if kind == "png":
        header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")
    if kind == "ppm":
        return b"P6 %d %d 255\n\0" % (side, side)
    if kind == "tif":
        Image.new("1", (side, side)).save(small, "TIFF", compression="group4")
        return small.getvalue()
    options = {"lossless": True} if kind == "webp" else {}
    name = {"jpg": "JPEG", "frame.gif": "GIF"}.get(kind, kind.upper())
    Image.new("RGB", (16, 16)).save(small, name, **options)
    data = bytearray(small.getvalue())
    if kind == "jpg":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", side, side)
    elif kind == "gif":
        data[6:10] = struct.pack("<HH", side, side)
    elif kind == "frame.gif":  # a frame larger than the screen
        at = data.index(b"\x2c\0\0\0\0\x10\0\x10\0") + 5
        data[at : at + 4] = struct.pack("<HH", side, side)
    elif kind == "bmp":
        data[18:26] = struct.pack("<ii", side, side)
    else:  # 14 bits each
        at = data.index(b"VP8L") + 9
        flags = struct.unpack("<I", data[at : at + 4])[0] >> 28 << 28
        data[at : at + 4] = struct.pack("<I", flags | side - 1 | side - 1 << 14)
    return bytes(data)


@pytest.mark.filterwarnings("ignore")  # as users have it: Pillow only warns of some
@cases("kind", ["png", "jpg", "gif", "frame.gif", "bmp", "ppm", "tif", "webp"])
def test_a_decompression_bomb_costs_no_memory(tmp_path, kind):
    import resource

    path = tmp_path / f"bomb.{kind}"
    path.write_bytes(bomb(kind))
    assert path.stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refuses(ImageError, path, "large", 89478485):
        open_image(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_user_may_trust_larger_images(tmp_path, monkeypatch):
    PHOTO.save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with refuses(ImageError, "1000 pixels", "PIL.Image.MAX_IMAGE_PIXELS"):
        open_image(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert np.array_equal(pixels(tmp_path / "large.png"), RGB)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of odd metadata
@cases("ending", ["png", "jpg", "gif", "bmp", "tif", "webp", "ppm", "jp2"])
def test_damaged_bytes_give_an_image_or_an_image_error(tmp_path, ending):
    PHOTO.resize((16, 16)).save(tmp_path / f"a.{ending}")
    data = (tmp_path / f"a.{ending}").read_bytes()
    chance, outcomes = random.Random(0), set()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(min(len(data), 200))] = chance.randrange(256)
        (tmp_path / f"a.{ending}").write_bytes(damaged)
        try:
            outcomes.add(read_image(tmp_path / f"a.{ending}", "RGB").mode)
        except ImageError:
            outcomes.add("error")
    assert outcomes == {"RGB", "error"}


# Limits of work, which do not depend on the machine


def plain(kind, comment, gap=b" "):
    """Return a PNM of 2x1 px with a comment in its header, or among the pixels of a plain one."""
    if kind in b"123":
        values = b"1 0" if kind == b"1" else gap.join([b"7"] * (6 if kind == b"3" else 2))
        return b"P%s 2 1 %s\n%s%s\n" % (kind, b"" if kind == b"1" else b"9", comment, values)
    rest = b"" if kind == b"4" else b" 255"
    size = {b"4": 1, b"5": 2, b"6": 6}[kind]
    return b"P%s\n%s2 1%s\n" % (kind, comment, rest) + b"\x80" * size


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6"])
def test_comments_of_a_ppm_have_a_limit(kind):
    expected = np.asarray(Image.open(io.BytesIO(plain(kind, b""))).convert("RGB"))
    for comment in (b"#" + b"c" * 2000 + b"\n", b"#\n" * 30_000, b"# P6 9 9 255\r#\r\n"):
        found = flatten(decode_bytes(plain(kind, comment)), "RGB", "a")
        assert np.array_equal(np.asarray(found), expected)
    for comment in (b"#" + b"c" * (2**16 + 64) + b"\n", b"#\n" * (2**15 + 32)):
        with refuses(ImageError, "the data", 2**16, "save it without comments"):
            decode_bytes(plain(kind, comment))


@cases("gap", [b" ", b"\n", b"#\n", b" #c\r"], ids=ascii)
@cases("before", [b"P6", b"P6 2", b"P6 2 1", b"P2 2 1", b"P4 2"], ids=ascii)
def test_spaces_and_comments_anywhere_in_the_header_of_a_ppm_count(before, gap):
    rest = b" 2 1 255 ".split()[len(before.split()) - 1 :]
    data = before + b" " + gap * (2**16 // len(gap) + 70) + b" ".join(rest) + b" " + bytes(9)
    with refuses(ImageError, 2**16, "comments"):
        decode_bytes(data)


def test_hash_signs_among_the_pixels_are_no_comments():
    pixels = np.full((200, 200, 3), ord("#"), np.uint8)
    data = b"P6#c\n 200 #c\n200 255\n".replace(b"P6#c", b"P6") + pixels.tobytes()
    assert np.array_equal(np.asarray(decode_bytes(data)), pixels)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "ppm"])
def test_a_side_has_a_limit(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    for size in ((2**16, 1), (1, 2**16)):
        Image.new("1", size).save(path)
        with refuses(ImageError, path, f"{size[0]}x{size[1]}", 65535, "shrink it"):
            read_image(path, "L")
        with Image.open(path) as image, refuses(ImageError, 65535):
            read_image(image, "L")
    Image.new("1", (2**16 - 1, 1)).save(path)
    assert read_image(path, "L").size == (2**16 - 1, 1)
    assert read_image(Image.new("L", (2**16, 1)), "L").size == (2**16, 1)  # it is decoded


@pytest.mark.parametrize(
    ("mode", "size"), [("1", 1), ("L", 1), ("P", 1), ("I;16", 2), ("LA", 4), ("RGB", 4), ("I", 4)]
)
def test_decoded_bytes_have_a_limit(tmp_path, monkeypatch, mode, size):
    Image.new(mode, (30, 20)).save(tmp_path / "a.tif", "TIFF")
    for most in (600 * size, 600 * size - 1):
        monkeypatch.setattr(decode, "MAX_DECODED", most)
        if most == 600 * size:
            assert open_image(tmp_path / "a.tif").size == (30, 20)
        else:
            with refuses(ImageError, "a.tif", f"{600 * size} bytes", f"the most is {most}"):
                open_image(tmp_path / "a.tif")
    assert MAX_DECODED == 2**30


def tiff(entries, data=b""):
    """Return a TIFF of 8x8 grey pixels with further entries."""
    entries = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (262, 3, 1, 1), *entries]
    directory = struct.pack("<H", len(entries))
    directory += b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries)) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


def test_a_tile_that_is_larger_than_its_image_counts():
    data = zlib.compress(bytes(10_000))
    sides = [(322, 4, 1, 46_336), (323, 4, 1, 46_336)]
    tile = [(259, 3, 1, 8), *sides, (324, 4, 1, 8), (325, 4, 1, len(data))]
    with refuses(ImageError, 46_336**2 + 64, 2**30, "smaller tiles"):
        decode_bytes(tiff(tile, data))


@pytest.mark.slow
def test_tiles_and_strips_have_a_limit():
    count = decode.MAX_PIECES + 1
    data = struct.pack("<I", 8) * count + struct.pack("<I", 1) * count
    strips = [(259, 3, 1, 1), (273, 4, count, 8), (278, 3, 1, 1), (279, 4, count, 8 + 4 * count)]
    sides = [struct.pack("<HHII", 257, 4, 1, height) for height in (8, 65_000)]
    with refuses(ImageError, "tiles or strips", decode.MAX_PIECES, "larger ones"):
        decode_bytes(tiff(strips, data).replace(*sides))


def test_exif_segments_have_a_limit():
    file = io.BytesIO()
    PHOTO.save(file, "JPEG")
    data, segment = file.getvalue(), b"\xff\xe1\0\x0aExif\0\0zz"
    assert decode_bytes(data[:2] + segment * 256 + data[2:]).size == PHOTO.size
    with refuses(ImageError, "256 Exif segments", "without metadata"):
        decode_bytes(data[:2] + segment * 257 + data[2:])


# Scans of a JPEG


def with_scans(count):
    """Return a progressive JPEG whose last scan is repeated until it has `count` scans."""
    file = io.BytesIO()
    PHOTO.save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (count - data.count(b"\xff\xda")) + data[-2:]


def test_a_jpeg_of_many_scans_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    path.write_bytes(with_scans(100))
    assert pixels(path).shape == RGB.shape
    path.write_bytes(with_scans(101))
    with refuses(ImageError, path, "more than 100 scans", "VITZOO_MAX_SCANS"):
        open_image(path)
    monkeypatch.setenv("VITZOO_MAX_SCANS", "101")
    assert pixels(path).shape == RGB.shape
    for value in ("0", "-1", "many", "9" * 5000):
        monkeypatch.setenv("VITZOO_MAX_SCANS", value)
        with refuses(InvalidOption, "VITZOO_MAX_SCANS", "a whole number from 1"):
            open_image(path)


def test_scans_of_an_open_image_and_of_another_frame_count(tmp_path):
    (tmp_path / "a.jpg").write_bytes(with_scans(101))
    with Image.open(tmp_path / "a.jpg") as image, refuses(ImageError, "100 scans"):
        read_image(image, "RGB")
    other = Image.open(io.BytesIO(with_scans(10)))
    PHOTO.save(tmp_path / "b.jpg", "MPO", save_all=True, append_images=[other])
    data = (tmp_path / "b.jpg").read_bytes()
    last = data.rindex(b"\xff\xda")
    (tmp_path / "b.jpg").write_bytes(data[:-2] + data[last:-2] * 101 + data[-2:])
    with Image.open(tmp_path / "b.jpg") as image:
        assert pixels(image).shape == RGB.shape
        image.seek(1)
        with refuses(ImageError, "more than 100 scans"):
            read_image(image, "RGB")


@pytest.mark.parametrize("marker", [0x01, 0x02, 0xBF])
def test_a_marker_that_ends_no_scan_hides_no_scans(tmp_path, marker):
    """libjpeg skips it at the next restart; two bytes that look like a length follow."""
    data = with_scans(10)
    first = data.index(b"\xff\xda")
    start = first + 2 + int.from_bytes(data[first + 2 : first + 4], "big")
    restart = b"\xff\xdd\0\4\0\7"  # after seven units
    hidden = bytes([0xFF, marker]) + b"\x7f\xfe\xff\xd0"
    scans = data[data.rindex(b"\xff\xda") : -2] * 120
    trick = data[:first] + restart + data[first:start] + hidden + data[start:-2] + scans + data[-2:]
    (tmp_path / "a.jpg").write_bytes(trick)
    with refuses(ImageError, "more than 100 scans"):
        open_image(tmp_path / "a.jpg")


def test_scans_of_a_thumbnail_and_of_a_second_image_do_not_count(tmp_path):
    plain = with_scans(10)
    inside = b"\xff\xda" * 500
    thumbnail = plain[:2] + b"\xff\xe5" + struct.pack(">H", 2 + len(inside)) + inside + plain[2:]
    for data in (thumbnail, plain + with_scans(300)):
        (tmp_path / "a.jpg").write_bytes(data)
        assert pixels(tmp_path / "a.jpg").shape == RGB.shape
    padded = with_scans(101).replace(b"\xff\xda", b"\xff\xff\xff\xda")
    (tmp_path / "a.jpg").write_bytes(padded)
    with refuses(ImageError, "more than 100 scans"):
        open_image(tmp_path / "a.jpg")


# Large images


def converted_whole(image, mode):
    """Convert an image as a whole, with Pillow and NumPy alone."""
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)
        scale = 1 / 257 if image.mode[0] == "I" else 255.0 if values.max() <= 1 else 1.0
        scaled = values.astype(np.float32) * np.float32(scale)
        image = Image.fromarray(np.rint(scaled).astype(np.uint8))
    elif image.has_transparency_data:
        straight = image.convert({"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode))
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, straight.convert("RGBA")).convert("RGB")
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return np.asarray(image.convert(mode))


def every_mode():
    """Yield an image of noise of each mode; paletted and opaque ones also with transparency."""
    noise = np.random.default_rng(0).integers(0, 256, (43, 64, 4), np.uint8)
    image = Image.fromarray(noise, "RGBA")
    for mode in ("1", "L", "RGB", "P", "CMYK", "YCbCr", "HSV", "RGBX"):
        yield mode, image.convert("RGB").convert(mode)
    for mode in ("RGBA", "LA", "PA", "RGBa"):
        yield mode, image.convert(mode)
    yield "La", image.convert("LA").convert("La")
    colours = {"L": 7, "RGB": tuple(map(int, noise[3, 4, :3])), "P": 5}
    for mode, colour in colours.items():
        opaque = image.convert("RGB").convert(mode)
        opaque.info["transparency"] = colour
        yield f"{mode} with a transparent colour", opaque
    several = image.convert("RGB").quantize(200)
    several.info["transparency"] = bytes(range(200))
    yield "P with transparent colours", several
    deep = noise[..., :2].copy().view("<u2")[..., 0]
    yield "I;16", Image.fromarray(deep)
    yield "I;16B", Image.frombytes("I;16B", (64, 43), deep.astype(">u2").tobytes())
    yield "I", Image.fromarray(deep.astype(np.int32))
    yield "F", Image.fromarray(deep.astype(np.float32) / 65535)
    yield "F up to 255", Image.fromarray(noise[..., 0].astype(np.float32))


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_image_in_tiles_has_the_pixels_of_the_whole_image(monkeypatch, mode):
    monkeypatch.setattr(decode, "TILE", 10)
    for name, image in every_mode():
        expected = converted_whole(image.copy(), mode)
        assert np.array_equal(np.asarray(read_image(image, mode)), expected), name


def test_values_of_all_tiles_decide_the_scale(monkeypatch):
    monkeypatch.setattr(decode, "TILE", 10)
    values = np.zeros((43, 64), np.float32)
    values[40, 60] = 255
    assert pixels(Image.fromarray(values), "L").max() == 255
    for wrong, shown in ((300, "0 to 300"), (np.nan, "nan to nan")):
        values[40, 60] = wrong
        with refuses(ImageError, shown):
            read_image(Image.fromarray(values), "L")


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    """Also after an error; small images are decoded side by side."""
    file = io.BytesIO()
    PHOTO.save(file, "PNG")
    good, cut = file.getvalue(), file.getvalue()[:-500]
    predictor = vitzoo.Predictor(vitzoo.create("vit_digits", pretrained=True), outputs="pooled")
    prepare, active, most = predictor.transform.prepare, [], []
    together = threading.Barrier(2)

    def slow(image):
        active.append(1)
        if decode.LARGE > 1:
            together.wait(60)
        time.sleep(0.02)
        most.append(len(active))
        active.pop()
        return prepare(image)

    monkeypatch.setattr(predictor.transform, "prepare", slow)
    with ThreadPoolExecutor(4) as pool:
        assert [one.error for one in pool.map(predictor.decode, [good] * 2)] == [""] * 2
        assert max(most) == 2
        most.clear()
        monkeypatch.setattr(decode, "LARGE", 1)
        errors = [one.error for one in pool.map(predictor.decode, [good, cut, PHOTO] * 5)]
    assert [bool(error) for error in errors] == [False, True, False] * 5
    assert max(most) == 1


DECODES = """
import vitzoo
from pathlib import Path
predictor = vitzoo.Predictor(vitzoo.create("vit_digits", pretrained=True), outputs="pooled")
transform = vitzoo.transform("vit_b16", image_size=32)

def read(path):
    assert not predictor.decode(Path(path).read_bytes()).error
    return transform(path).shape
"""


@pytest.mark.faults
@pytest.mark.long
def test_the_largest_images_take_at_most_1_gib(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, mode, options in (
        ("a.png", "RGBA", {"exif": exif}),
        ("b.png", "RGB", {"transparency": (0, 0, 0)}),
        ("c.tif", "F", {"compression": "tiff_deflate"}),
        ("d.jpg", "RGB", {"progressive": True}),
    ):
        Image.new(mode, (9450, 9450)).save(tmp_path / name, **options)
    found = run_limited(DECODES, [str(path) for path in sorted(tmp_path.iterdir())], seconds=60)
    assert [one.text for one in found] == ["torch.Size([3, 32, 32])"] * 4


# Names and folders


@pytest.mark.needs("names")
def test_a_name_that_cannot_be_printed(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\x1b[31m\n.png"
    with open(name, "wb") as file:  # noqa: PTH123  # bytes are no path
        file.write(b"no image")
    said = message(ImageError, open_image, os.fsdecode(name))
    says(said, r"/\xff\x1b[31m\n.png")
    assert said.isprintable()
    said.encode()


def test_printable_leaves_what_people_write():
    assert printable("Grüße 日本 50 %.png") == "Grüße 日本 50 %.png"


def test_a_folder_gives_its_images_sorted(tmp_path):
    for name in ("b.png", "a.JPG", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.png" / "d.png").touch()
    (tmp_path / "c.png").symlink_to("nowhere.png")
    (tmp_path / "B.png").touch()
    names = ["B.png", "a.JPG", "b.png", "c.png", "folder.png/d.png"]
    found = [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert found == names


def test_a_folder_without_images_and_a_missing_one(tmp_path):
    (tmp_path / "cat").mkdir()
    with refuses(ImageError, f"folder {tmp_path}", "no images", ".png, .jpg"):
        find_images([tmp_path])
    with refuses(ImageError, tmp_path / "none.png"):
        find_images([tmp_path / "none.png"])


@pytest.mark.slow
def test_a_transform_works_in_spawned_workers(tmp_path):
    """A DataLoader pickles the transform; its errors arrive unchanged."""
    PHOTO.save(tmp_path / "a.png")
    (tmp_path / "b.png").touch()
    code = f"""
import torch, vitzoo
from torch.utils.data import DataLoader, Dataset
class Photos(Dataset):
    prepare = vitzoo.transform("vit_b16", image_size=32)
    def __len__(self): return 2
    def __getitem__(self, i): return self.prepare({str(tmp_path)!r} + "/" + "ab"[i] + ".png")
if __name__ == "__main__":
    found = iter(DataLoader(Photos(), num_workers=1, multiprocessing_context='spawn'))
    print(next(found).shape)
    try: next(found)
    except vitzoo.ImageError as error: print("b.png is empty" in str(error))
"""
    (tmp_path / "work.py").write_text(code)
    run = [sys.executable, str(tmp_path / "work.py")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["torch.Size([1, 3, 32, 32])", "True"], done.stderr


def test_a_file_and_its_image_give_the_same_input(tmp_path):
    prepare = vitzoo.transform("vit_b16")
    for image in both(PHOTO.convert("LA"), tmp_path, "a.png"):
        assert torch.equal(prepare(image), prepare(tmp_path / "a.png"))


# Bytes of files


def test_reading_takes_no_more_memory_than_the_file_has_bytes(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        assert read_bytes(path) == b"x" * 1000
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, CHUNK, 2 * CHUNK + 5, 2 * CHUNK + 6])
def test_a_file_that_states_no_size_is_read_in_chunks_up_to_a_limit(tmp_path, size):
    """As files in /proc, and files that grow."""
    data, asked = io.BytesIO(b"x" * size), []

    class Growing:
        def fileno(self):
            return file.fileno()

        def read(self, size):
            asked.append(size)
            return data.read(size)

    with (tmp_path / "empty").open("x+b") as file:
        found = read_limited(Growing(), 2 * CHUNK + 5)
    assert found == (b"x" * size if size <= 2 * CHUNK + 5 else None)
    assert max(asked) <= CHUNK
