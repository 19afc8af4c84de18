"""Image files to inputs: the same pixels as timm's evaluation, and clear words for bad files."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import vitzoo
from vitzoo.catalogue import Preprocessing
from vitzoo.cli.main import main
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images import Transform, find_images, open_image
from vitzoo.predict import predict
from vitzoo.spec import Spec

PHOTOS = [Image.fromarray(array) for array in load_sample_images().images]  # 640x427 px


def prepare(image, size=(224, 224), in_chans=3, **row):
    row = {"mean": (0.5,) * in_chans, "std": (0.5,) * in_chans} | row
    return Transform(Spec(image_size=size, in_chans=in_chans), Preprocessing(**row))(image)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize(("size", "crop_pct"), [(224, 0.9), (224, 0.875), (384, 1.0), (100, 0.95)])
@pytest.mark.parametrize("upright", [False, True])
def test_pixels_are_those_of_timms_evaluation(interpolation, size, crop_pct, upright):
    from timm.data import create_transform

    statistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    theirs = create_transform(
        size, is_training=False, interpolation=interpolation, crop_pct=crop_pct, **statistics
    )
    for photo in PHOTOS:
        image = photo.transpose(Image.Transpose.ROTATE_90) if upright else photo
        ours = prepare(
            image, (size, size), interpolation=interpolation, crop_pct=crop_pct, **statistics
        )
        torch.testing.assert_close(ours, theirs(image), rtol=0, atol=1e-6)


def test_squash_resizes_to_the_exact_input():
    expected = np.asarray(PHOTOS[0].resize((96, 160), Image.Resampling.BILINEAR)) / 127.5 - 1
    ours = prepare(PHOTOS[0], (160, 96), crop_mode="squash", interpolation="bilinear", crop_pct=1.0)
    np.testing.assert_allclose(ours.permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_an_input_that_is_not_square_is_covered():
    assert prepare(PHOTOS[0], (160, 320)).shape == (3, 160, 320)
    assert prepare(PHOTOS[0].resize((50, 400)), (160, 320)).shape == (3, 160, 320)


def test_one_channel_is_luminance():
    ours = prepare(PHOTOS[0], (64, 64), 1, crop_mode="squash", interpolation="bicubic")
    grey = PHOTOS[0].convert("L").resize((64, 64), Image.Resampling.BICUBIC)
    np.testing.assert_allclose(ours[0].numpy(), np.asarray(grey) / 127.5 - 1, atol=1e-6)


def test_statistics_of_another_number_of_channels_are_refused():
    with pytest.raises(InvalidOption, match="statistics of 3 channels, the model takes 1"):
        Transform(Spec(in_chans=1), Preprocessing())


def test_channels_that_no_image_has_are_refused():
    with pytest.raises(InvalidOption, match="images have 1 or 3 channels, the model takes 4"):
        Transform(Spec(in_chans=4), None)


def test_a_photograph_is_turned_upright_as_its_exif_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    PHOTOS[0].save(tmp_path / "turned.jpg", exif=exif, quality=95)
    assert open_image(tmp_path / "turned.jpg").size == (427, 640)


def test_transform_of_a_name_and_of_its_model_agree():
    model = vitzoo.create("vit_digits", pretrained=True)
    for prepared in (vitzoo.transform("vit_digits"), vitzoo.transform(model)):
        assert prepared.image_size == (28, 28)
        assert prepared.preprocessing.mean == (0.3,)


BAD = {
    "text.png": (b"not an image", "text.png is not an image that Pillow can read"),
    "empty.png": (b"", "empty.png is not an image that Pillow can read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_image(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=message):
        open_image(tmp_path / name)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_truncated_image(tmp_path, ending):
    path = tmp_path / f"photo.{ending}"
    PHOTOS[0].save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ImageError, match=rf"photo\.{ending}.*truncated"):
        open_image(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ImageError, match=r"cannot read the image .*none\.png: No such file"):
        open_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is a folder, expected an image file"):
        open_image(tmp_path)


def test_a_decompression_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    Image.new("L", (100, 100)).save(tmp_path / "bomb.png")
    with pytest.raises(ImageError, match=r"bomb\.png is unreasonably large"):
        open_image(tmp_path / "bomb.png")


def test_a_folder_gives_its_images_sorted(tmp_path):
    for name in ("b.png", "a.JPG", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_images([tmp_path])] == ["a.JPG", "b.png"]


def test_an_empty_folder_is_an_error(tmp_path, capsys):
    assert main(["predict", "vit_digits", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"the folder {tmp_path} holds no images (.png, .jpg" in captured.err


def test_predict_gives_what_the_model_gives(tmp_path):
    model = vitzoo.create("vit_digits", pretrained=True).eval()
    for i, photo in enumerate(PHOTOS):
        photo.save(tmp_path / f"{i}.png")
    found = list(predict(model, [tmp_path], top=3, batch_size=1))
    assert [p.image.name for p in found] == ["0.png", "1.png"]
    with torch.no_grad():
        shares = model(torch.stack([vitzoo.transform(model)(photo) for photo in PHOTOS])).softmax(
            -1
        )
    for prediction, share in zip(found, shares, strict=True):
        assert len(prediction.classes) == 3
        for index, label, probability in prediction.classes:
            assert label == str(index)
            assert probability == pytest.approx(share[index].item(), abs=1e-6)


def test_predict_without_a_classifier():
    model = vitzoo.create("vit_digits", pretrained=True, num_classes=0)
    with pytest.raises(InvalidOption, match="the model has no classifier"):
        list(predict(model, []))


def test_a_tensor_is_no_picture():
    with pytest.raises(
        InvalidOption, match="expected a Pillow image or the path of one, got Tensor"
    ):
        prepare(torch.zeros(3, 8, 8))
