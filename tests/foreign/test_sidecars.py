"""What transformers writes beside its weights: class names, and how images are prepared."""

import json

import numpy as np
import pytest
import torch

import vitzoo
from helpers import photographs, says
from internals import open_described
from tables import cases
from vitzoo.schema.preprocessing import UnreadPreprocessing

NAMES = ("ant", "bee", "cat", "dog", "élan")


@pytest.fixture
def folder(tmp_path, transformers):
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, id2label=dict(enumerate(NAMES)),
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    return tmp_path


@cases("resample", [0, 1, 2, 3])
@cases(
    ("kind", "options"),
    [
        ("ViT", {"size": {"height": 32, "width": 32}}),
        (
            "DeiT",
            {"size": {"height": 37, "width": 37}, "crop_size": {"height": 32, "width": 32}},
        ),
        (
            "DeiT",
            {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
        ),
        ("ViT", {"size": {"height": 32, "width": 32}, "do_normalize": False}),
    ],
    ids=["vit", "deit", "shortest edge", "plain"],
)
def test_the_processor_of_transformers(folder, small, kind, options, resample, transformers):
    statistics = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    kind = getattr(transformers, f"{kind}ImageProcessorPil")
    processor = kind(resample=resample, **statistics, **options)
    processor.save_pretrained(folder)
    model = vitzoo.create(small, weights=folder / "model.safetensors")
    assert model.load_report.assumed == ()
    prepare = vitzoo.transform(model)
    for photo in photographs():
        expected = torch.from_numpy(np.asarray(processor(photo)["pixel_values"][0])).float()
        assert torch.equal(prepare(photo), expected)


def test_class_names(folder, small):
    assert vitzoo.create(small, weights=folder).labels == NAMES
    assert vitzoo.create(small, weights=folder, num_classes=3).labels == ()


@cases(
    "table",
    [
        {str(i): f"LABEL_{i}" for i in range(5)},
        {str(i + 1): name for i, name in enumerate(NAMES)},
        {str(i): name for i, name in enumerate(NAMES[:4])},
        {str(i): name for i, name in enumerate((*NAMES[:4], "a\x1b[31m"))},
        {str(i): name for i, name in enumerate((*NAMES[:4], 5))},
        {str(i): name for i, name in enumerate((*NAMES[:4], " "))},
        list(NAMES),
        None,
    ],
    ids=ascii,
)
def test_odd_class_names_are_none(folder, small, table):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": table}))
    assert vitzoo.create(small, weights=folder).labels == ()


GOOD = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"height": 32, "width": 32},
    "resample": 3,
}
EDGE = {"size": {"shortest_edge": 32}}


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({}, ("bicubic", "squash", 1.0)),
        ({"size": 32}, ("bicubic", "squash", 1.0)),
        (
            {"image_processor_type": "ConvNextFeatureExtractor", "crop_pct": 0.8, **EDGE},
            ("bicubic", "center", 0.8),
        ),
        ({"size": 256, "do_center_crop": True, "crop_size": 224}, ("bicubic", "squash", 0.875)),
    ],
    ids=str,
)
def test_ways_to_write_it(folder, small, changes, row):
    (folder / "preprocessor_config.json").write_text(json.dumps(GOOD | changes))
    found = vitzoo.create(small, weights=folder).preprocessing
    assert (found.interpolation, found.crop_mode, found.crop_pct) == row


@cases(
    ("text", "parts"),
    [
        ("", ["char 0"]),
        ("[" * 60_000, ["recursion"]),
        ('{"size": 1, "size": 2}', ["twice"]),
        (" " * 8_400_000, ["8388608 bytes"]),
        ("[]", ["table"]),
        ({"resample": 6}, ["resample", "0 to 5", "bicubic", 6]),
        ({"resample": "cubic"}, ["resample", "bicubic", "'cubic'"]),
        ({"image_mean": None}, ["image_mean", "list", "None"]),
        ({"image_std": [0.5, 0.5, 0]}, ["std", "positive"]),
        ({"image_mean": [0.5]}, ["image_mean", "3 channels"]),
        ({"size": {}}, ["size", "height", "width", "px"]),
        ({"size": {"height": 10**9, "width": 1}}, ["size", "height", "width", "px"]),
        ({"do_center_crop": True, "crop_size": "64"}, ["crop_size", "'64'", "px"]),
        ({"do_center_crop": True, "crop_size": EDGE["size"]}, ["crop_size", "height and width"]),
        (EDGE, ["size", "shortest_edge", "shapes", "native_size"]),
        ({"do_resize": False}, ["do_resize", "False"]),
        ({"do_rescale": "no"}, ["do_rescale", "'no'"]),
        ({"rescale_factor": "1"}, ["rescale_factor", "'1'"]),
        ({"rescale_factor": 0}, ["rescale_factor", "positive"]),
        ({"do_pad": True, "pad_size": 64}, ["pad_size", "64"]),
        (
            {"image_processor_type": "Owlv2ImageProcessor"},
            ["image_processor_type", "Owlv2ImageProcessor", "CLIP"],
        ),
        ({"image_processor_type": 3}, ["image_processor_type", "3"]),
        ({"do_image_splitting": True}, ["do_image_splitting", "True"]),  # Idefics3
        ({"keep_aspect_ratio": True}, ["keep_aspect_ratio", "True"]),  # DPT
        ({"crop_to_patches": True}, ["crop_to_patches", "True"]),  # InternVL
        ({"do_affine_transform": True}, ["do_affine_transform", "True"]),  # ViTPose
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_odd_file_is_named_and_not_used(folder, small, text, parts):
    text = text if isinstance(text, str) else json.dumps(GOOD | text)
    (folder / "preprocessor_config.json").write_text(text)
    model = vitzoo.create(small, weights=folder)
    assert isinstance(model.preprocessing, UnreadPreprocessing)
    (line,) = model.load_report.assumed
    says(line, "preprocessor_config.json", *parts)


def test_the_processor_of_naflex(folder, small, transformers):
    transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(folder)
    model = vitzoo.create(small, weights=folder)
    expected = vitzoo.Preprocessing((0.5,) * 3, (0.5,) * 3, "bilinear", 1.0, "squash")
    assert model.preprocessing == expected
    (line,) = model.load_report.assumed
    says(line, "square", "native_size=16", "forward_packed", "dynamic=True")


def test_the_processor_of_a_whole_model(folder, small):
    whole = {"processor_class": "LlavaProcessor", "image_processor": GOOD | {"resample": 2}}
    (folder / "processor_config.json").write_text(json.dumps(whole))
    assert vitzoo.create(small, weights=folder).preprocessing.interpolation == "bilinear"
    (folder / "processor_config.json").write_text('{"processor_class": "LlavaProcessor"}')
    model = vitzoo.create(small, weights=folder)
    assert (model.preprocessing, model.load_report.assumed) == (None, ())
    (folder / "processor_config.json").write_text('{"image_processor": {"size": []}}')
    (line,) = vitzoo.create(small, weights=folder).load_report.assumed
    assert line.startswith("processor_config.json is not used: size is []")


def test_no_file_is_no_line(folder, small):
    assert vitzoo.create(small, weights=folder).load_report.assumed == ()


def test_open_clips_config_is_read_beside_the_other(folder):
    folder.joinpath("open_clip_config.json").write_text('{"model_cfg": {"a": 1}, "id2label": 3}')
    config = open_described(folder / "model.safetensors").stated.config
    assert config["model_cfg"] == {"a": 1}
    assert config["model_type"] == "vit"
    assert config["id2label"]["0"] == "ant"  # of two that say one thing, config.json's counts


@pytest.mark.parametrize("text", ["", "[", "[1]", '"x"', "\x00"])
def test_an_odd_config_of_open_clip_is_not_read(folder, text):
    folder.joinpath("open_clip_config.json").write_text(text)
    assert open_described(folder / "model.safetensors").stated.config["model_type"] == "vit"
