"""The inputs that image processors of transformers and configs of timm state, pixel by pixel."""

import importlib
import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import refuses, says
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.foreign.preprocessing import of_timm
from vitzoo.foreign.processors import BESIDE, OF_TYPE, PROCESSORS, Unread, read_processor
from vitzoo.images.transform import Transform
from vitzoo.schema.preprocessing import Preprocessing, UnreadPreprocessing, read_stated
from vitzoo.schema.reader import Reader
from vitzoo.schema.spec import Spec

COUNT = 40  # configs of each processor
SHAPES = ((37, 53), (53, 37), (40, 40), (61, 20))
IMAGES = [
    Image.fromarray(np.random.default_rng(i).integers(0, 256, (*shape, 3), dtype=np.uint8))
    for i, shape in enumerate(SHAPES)
]
MODULES = {  # of transformers, by the name of the processor; the others have no Pillow backend
    "Beit": "beit", "Bit": "bit", "Blip": "blip", "ChineseCLIP": "chinese_clip", "CLIP": "clip",
    "ConvNext": "convnext", "DeiT": "deit", "DPT": "dpt", "Flava": "flava", "Gemma3": "gemma3",
    "GotOcr2": "got_ocr2",
    "Levit": "levit", "Llava": "llava", "MobileViT": "mobilevit", "OwlViT": "owlvit",
    "Segformer": "segformer", "Siglip": "siglip", "ViT": "vit",
}  # fmt: skip
TENSORS = {"DINOv3ViT": "dinov3_vit", "Siglip2": "siglip2", "Tipsv2": "tipsv2"}
FACTORS = (1 / 127.5, 1 / 256, 0.00392156862745098, 0.003921568859368563, 1.0, 0.37)


def pillow(name, table):
    module = f"transformers.models.{MODULES[name]}.image_processing_pil_{MODULES[name]}"
    cls = getattr(importlib.import_module(module), f"{name}ImageProcessorPil")
    return cls(**{key: value for key, value in table.items() if not key.endswith("_type")})


def sizes_of(name, px):
    """Return functions that draw a legal size of a processor."""
    both = [px, lambda: [px(), px()], lambda: {"height": px(), "width": px()}]
    edge = [lambda: {"shortest_edge": px()}]
    limits = [
        lambda: {"shortest_edge": px(), "longest_edge": px()},
        lambda: {"max_height": px(), "max_width": px()},
    ]
    if name == "ConvNext":
        return [px, *edge, lambda: {"shortest_edge": 384}]
    return both if name in ("DPT", "Gemma3", "GotOcr2") else both + edge + limits


def drawn(name, rng):
    """Draw a config with legal values of every key."""

    def px():
        return rng.randint(20, 60)

    def flag():
        return rng.random() < 0.5

    def statistic():
        return rng.choice((rng.uniform(0.1, 1), [rng.uniform(0.1, 1) for _ in range(3)]))

    draws = {
        "do_center_crop": (0.5, lambda: rng.random() < 0.9),
        "crop_size": (0.9, rng.choice(sizes_of("DPT", px))),
        "resample": (0.6, lambda: rng.randint(0, 5)),
        "do_rescale": (0.3, flag),
        "rescale_factor": (0.3, lambda: rng.choice(FACTORS)),
        "do_normalize": (0.3, flag),
        "image_mean": (0.4, statistic),
        "image_std": (0.4, statistic),
        "do_resize": (0.1, flag),
        "default_to_square": (0.2, flag),
        "do_pad": (0.2, flag),
        "do_convert_rgb": (0.2, flag),
        "do_flip_channel_order": (0.3, flag),
        "crop_pct": (0.5 * (name == "ConvNext"), lambda: rng.uniform(0.4, 1.3)),
        "ensure_multiple_of": (0.5 * (name == "DPT"), lambda: rng.choice((1, 3, 7, 13))),
    }
    ends = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
    table = {"image_processor_type": name + rng.choice(ends)}
    table["size"] = rng.choice(sizes_of(name, px))()
    return table | {k: draw() for k, (share, draw) in draws.items() if rng.random() < share}


def outputs(name, table):
    """Return the inputs that transformers prepares; None for a config that it does not accept."""
    try:
        processor = pillow(name, table)
        return [np.asarray(processor(i)["pixel_values"][0], dtype=np.float32) for i in IMAGES]
    except (ValueError, AttributeError, TypeError):
        return None


def read(table):
    """Return the preprocessing of a config, or None and the key for which it is refused."""
    try:
        return read_processor(table), ""
    except Unread as error:
        return None, error.key


def test_every_processor_is_compared():
    assert PROCESSORS.keys() == MODULES.keys() | TENSORS.keys()


@pytest.mark.slow
@cases("name", MODULES)
def test_random_configs_of_a_processor(name):
    rng = random.Random(name)
    compared = refused = 0
    while compared < COUNT:
        table = drawn(name, rng)
        expected = outputs(name, table)
        if expected is None:
            with pytest.raises(Unread):
                read_processor(table)
            continue
        row, key = read(table)
        if row is None:  # inputs of several sizes, or a step that depends on the image
            refused += 1
            several = len({array.shape for array in expected}) > 1
            assert several or key in ("do_pad", "crop_size", "ensure_multiple_of"), table
            continue
        prepare = Transform(Spec(image_size=row.image_size or (1, 1), patch_size=1), row)
        for image, array in zip(IMAGES, expected, strict=True):
            assert np.array_equal(prepare(image).numpy(), array), table
        compared += 1
    assert refused < 2 * COUNT


@cases("name", MODULES)
def test_the_defaults_of_a_processor(name):
    processor, ours = pillow(name, {}), PROCESSORS[name].defaults
    for key, value in ours.items():
        of_library = getattr(processor, key, None)
        if key in ("size", "crop_size"):
            found = {k: v for k, v in dict(of_library or {}).items() if v is not None}
            square = {"height": value, "width": value}
            assert found == (value if isinstance(value, dict) else square if value else {}), key
        elif key in ("image_mean", "image_std"):
            assert list(of_library) == value
        else:
            assert (
                bool(of_library) == bool(value) if key.startswith("do_") else of_library == value
            ), key


@pytest.mark.parametrize(("name", "module"), [*TENSORS.items()][::2])
def test_the_defaults_of_a_processor_of_tensors(name, module):
    module = importlib.import_module(f"transformers.models.{module}.image_processing_{module}")
    processor = getattr(module, f"{name}ImageProcessor")()
    row = read_processor({"image_processor_type": f"{name}ImageProcessor"})
    sides = processor.size.height, processor.size.width
    mean = tuple(processor.image_mean or (0.0,) * 3)
    assert (row.image_size, row.interpolation, row.crop_mode) == (sides, "bilinear", "squash")
    assert row.mean == (mean if processor.do_normalize else (0.0,) * 3)


@cases("kind", sorted(OF_TYPE))
def test_the_processor_of_a_network_is_that_of_transformers(kind):
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    names = {*IMAGE_PROCESSOR_MAPPING_NAMES.get(kind, {}).values()}
    known = {f"{OF_TYPE[kind]}ImageProcessor{end}" for end in ("", "Pil")}
    assert names <= known
    assert names or kind in BESIDE or kind.endswith("_model")


@pytest.fixture
def folder(tmp_path, transformers):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=32, patch_size=8,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    return tmp_path


def write(folder, table, name="preprocessor_config.json"):
    text = table if isinstance(table, str) else json.dumps(table)
    (folder / name).write_text(text, encoding="utf-8")


def of_transformers(folder, image):
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return torch.from_numpy(np.array(processor(image)["pixel_values"][0])).float()


@cases(
    "table",
    [
        {"image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32},
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 36, "crop_size": 32},
        {"image_processor_type": "BitImageProcessor", "size": 33, "crop_size": 32},
        {"image_processor_type": "ChineseCLIPImageProcessorFast", "size": 32, "crop_size": 32},
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}},
        {"image_processor_type": "BlipImageProcessor", "size": {"height": 32, "width": 32}},
        {"image_processor_type": "DeiTImageProcessor", "size": 36, "crop_size": 32},
        {"size": [32, 32]},
        {"size": 32, "image_mean": 0.5, "image_std": 0.25},
        {"size": 32, "do_rescale": False},
        {"size": 32, "resample": 4, "image_mean": [0.1, 0.2, 0.3]},
        {"image_processor_type": "MobileViTImageProcessor", "size": 32, "crop_size": 32},
    ],
    ids=str,
)
def test_a_folder_of_transformers(folder, table):
    write(folder, table)
    model = vitzoo.create(folder)
    assert model.load_report.assumed == ()
    for found in (folder, model):
        prepare = vitzoo.transform(found)
        for image in IMAGES:
            assert torch.equal(prepare(image), of_transformers(folder, image))


@pytest.mark.parametrize("name", ["bicubic", "BICUBIC", "lanczos", "box"])
def test_a_filter_by_name(folder, name):
    """The Pillow backend of transformers takes names for bilinear."""
    write(folder, {"size": 32, "resample": name})
    assert vitzoo.create(folder).preprocessing.interpolation == name.lower()


def test_a_processor_config_counts_before_the_other(folder):
    write(folder, {"size": 32, "image_mean": 0.1})
    write(folder, {"image_processor": {"size": 32, "image_mean": 0.2}}, "processor_config.json")
    assert vitzoo.create(folder).preprocessing.mean == (0.2,) * 3
    assert torch.equal(vitzoo.transform(folder)(IMAGES[0]), of_transformers(folder, IMAGES[0]))


EDGE = {"size": {"shortest_edge": 32}, "image_mean": 0.4, "image_std": 0.3}
REFUSED = {
    "edge": (EDGE, ["size", "shortest_edge", "native_size"]),
    "type": (EDGE | {"image_processor_type": "Owlv2ImageProcessor"}, ["Owlv2ImageProcessor"]),
    "huge": (EDGE | {"image_std": 10**400}, ["image_std", "1.8e308"]),
    "factor": (EDGE | {"rescale_factor": -(10**400)}, ["rescale_factor", "1.8e308"]),
    "broken": ("{", ["char 1"]),
    "long": (" " * (2**23 + 1), ["8388608"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_raised_by_all_that_prepares_images(folder, tmp_path_factory, case):
    table, parts = REFUSED[case]
    tmp_path = tmp_path_factory.mktemp("other")
    write(folder, table)
    fix = (
        "preprocessor_config.json",
        "model.preprocessing",
        "vitzoo.Preprocessing",
        "mean",
        *parts,
    )
    model = vitzoo.create(folder)
    (line,) = model.load_report.assumed
    says(line, "preprocessor_config.json", *parts)
    saved = vitzoo.save(model, tmp_path / "saved.safetensors")
    assert vitzoo.create(saved).preprocessing == model.preprocessing
    IMAGES[0].save(tmp_path / "a.png")
    for found in (folder, model, saved):
        with refuses(InvalidOption, *fix):
            vitzoo.transform(found)
        with refuses(InvalidOption, *fix):
            vitzoo.Predictor(found)
        with refuses(InvalidOption, *fix):
            vitzoo.predict(found, IMAGES[0])
        with refuses(InvalidOption, *fix):
            vitzoo.embed(found, tmp_path / "a.png", tmp_path / "out", workers=1)


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_replaced(folder, case):
    write(folder, REFUSED[case][0])
    model = vitzoo.create(folder)
    stated = {"mean": (0.1,) * 3, "std": (0.2,) * 3, "interpolation": "nearest"}
    prepare = vitzoo.transform(folder, **stated, crop_pct=1.0, crop_mode="squash")
    expected = Preprocessing(**stated, crop_pct=1.0, crop_mode="squash")
    assert prepare.preprocessing == expected
    with refuses(InvalidOption, "preprocessor_config.json"):
        vitzoo.transform(folder, **stated)
    model.preprocessing = expected
    assert vitzoo.Predictor(model)([IMAGES[0]])[0].error == ""


def of_class(name, **table):
    return read_processor({"image_processor_type": f"{name}ImageProcessor", **table})


SQUARE = {"height": 48, "width": 48}


@cases(
    ("name", "table", "expected"),
    [
        ("ViT", {"size": {"height": 32}}, ["size", "shortest_edge, in px"]),
        ("ConvNext", {"size": SQUARE}, ["size", "expected shortest_edge in px"]),
        ("ConvNext", EDGE | {"crop_pct": 0}, ["crop_pct", "is 0", "0.875"]),
        ("ConvNext", EDGE | {"crop_pct": 1e-4}, ["crop_pct", "px then"]),
        ("DPT", {"size": {"shortest_edge": 32}}, ["size", "height and width"]),
        ("DPT", {"ensure_multiple_of": 0}, ["ensure_multiple_of", "is 0", "a number of px"]),
        ("DPT", {"size": SQUARE, "ensure_multiple_of": 32}, ["is 32", "half a step"]),
        ("DPT", {"size": SQUARE, "ensure_multiple_of": 100}, ["is 100", "0 px then"]),
        ("DPT", {"do_pad": True, "size_divisor": 32}, ["do_pad", "a step that vitzoo lacks"]),
        ("MobileViT", {"do_flip_channel_order": 2}, ["do_flip_channel_order", "true or false"]),
    ],
)
def test_a_value_that_cannot_be_followed_is_named(name, table, expected):
    with pytest.raises(Unread) as caught:
        of_class(name, **table)
    says(str(caught.value), *expected)


def test_keys_of_early_versions_and_a_type_in_the_other_config():
    square = of_class("CLIP", size=224, crop_size=SQUARE, default_to_square=True)
    assert of_class("CLIP", size=SQUARE, crop_size=SQUARE, use_square_size=True) == square
    unscaled = of_class("OwlViT", do_rescale=False)
    assert of_class("OwlViT", rescale=False) == unscaled != of_class("OwlViT")
    assert read_processor({}, {"image_processor_type": "ViTImageProcessor"}) == of_class("ViT")


def test_the_rest_of_a_refused_processor_counts(folder):
    write(folder, EDGE)
    prepare = vitzoo.transform(folder, native_size=True)
    assert (prepare.preprocessing.mean, prepare.preprocessing.std) == ((0.4,) * 3, (0.3,) * 3)
    squashed = vitzoo.transform(folder, crop_pct=1.0, crop_mode="squash")
    assert squashed.preprocessing.mean == (0.4,) * 3


def test_images_of_the_processors_size(folder):
    write(folder, {"size": {"height": 36, "width": 36}, "do_center_crop": True, "crop_size": 24})
    model, dynamic = vitzoo.create(folder), vitzoo.create(folder, dynamic=True)
    (line,) = model.load_report.assumed
    says(line, "24", "32", "dynamic=True", "image_size=")
    for found in (folder, model):
        assert vitzoo.transform(found).image_size == (32, 32)
    assert torch.equal(vitzoo.transform(model)(IMAGES[0]), vitzoo.transform(folder)(IMAGES[0]))
    assert torch.equal(vitzoo.transform(dynamic)(IMAGES[0]), of_transformers(folder, IMAGES[0]))
    (row,) = vitzoo.Predictor(dynamic, outputs="logits")([IMAGES[0]])
    logits = dynamic(vitzoo.transform(dynamic)(IMAGES[0])[None])
    torch.testing.assert_close(torch.from_numpy(row.outputs["logits"]), logits[0].detach())
    smaller = vitzoo.create(folder, image_size=24)
    assert not any("images:" in line for line in smaller.load_report.assumed)
    assert torch.equal(vitzoo.transform(smaller)(IMAGES[0]), of_transformers(folder, IMAGES[0]))


def test_lengths_in_px_grow_with_the_size_of_the_inputs():
    table = {"image_processor_type": "CLIPImageProcessor", "size": 20, "crop_size": [24, 12]}
    row = read_processor(table)
    assert (row.image_size, row.resize) == ((24, 12), 20)
    assert row.fitted((48, 24)).resize == 40
    assert row.fitted((24, 12)) == row
    squashed = read_processor(table | {"size": {"height": 10, "width": 30}})
    assert squashed.fitted((48, 6)).resize == (20, 15)


# timm


def timm_config(rng, *, old):
    """Draw a `config.json` of timm, in which any key may be missing."""
    inner = {
        "mean": rng.choice(([0.5] * 3, [0.1, 0.2, 0.3], (0.485, 0.456, 0.406), [0.5])),
        "std": rng.choice(([0.5] * 3, [0.4, 0.2, 0.3], [0.2])),
        "interpolation": rng.choice(
            ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
        ),
        "crop_pct": rng.choice((1.0, 0.9, 0.875, 0.95, rng.uniform(0.5, 1))),
        "crop_mode": rng.choice(("center", "squash")),
        "input_size": [3, rng.randint(16, 48), rng.randint(16, 48)],
    }
    inner = {key: value for key, value in inner.items() if rng.random() < 0.8} | {"first_conv": "a"}
    inner.setdefault("input_size", [3, 32, 32])
    if all(key not in inner for key in ("mean", "std", "interpolation", "crop_pct", "crop_mode")):
        inner["crop_pct"] = None
        inner["mean"] = [0.5] * 3
    top = {"architecture": "vit_tiny_patch16_224", "num_classes": 3}
    return top | (inner if old else {"pretrained_cfg": inner}), inner


@pytest.mark.parametrize("old", [True, False])
def test_random_configs_of_timm(old):
    import timm.data

    from vitzoo.foreign.timm_config import nested

    rng = random.Random(old)
    for _ in range(COUNT):
        config, inner = timm_config(rng, old=old)
        row = of_timm(nested(config))
        size = tuple(inner["input_size"][1:])
        data = timm.data.resolve_data_config(pretrained_cfg=inner)
        of_library = timm.data.create_transform(**data)
        ours = Transform(Spec(image_size=size, patch_size=1), row)
        for image in IMAGES:
            assert torch.equal(ours(image), of_library(image)), config


FLAT = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 3,
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
    "crop_pct": 0.8,
    "interpolation": "bilinear",
    "input_size": [3, 32, 32],
    "pool_size": None,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
    "labels": ["ant", "bee", "cat"],
}


def test_a_flat_config_of_timm(tmp_path):
    import timm.data
    from safetensors.torch import save_file

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    write(tmp_path, FLAT, "config.json")
    ours = vitzoo.create(tmp_path).eval()
    assert ours.load_report.assumed == ()
    assert ours.labels == ("ant", "bee", "cat")
    assert (ours.spec.image_size, ours.spec.num_classes) == ((32, 32), 3)
    of_library = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=FLAT))
    for image in IMAGES:
        assert torch.equal(vitzoo.transform(tmp_path)(image), of_library(image))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"crop_mode": "border"}, ["crop_mode", "border", "center or squash"]),
        ({"interpolation": "random"}, ["interpolation", "random", "bicubic"]),
        ({"crop_pct": 1.2}, ["crop_pct", "1.2", "(0, 1]"]),
        ({"std": 0}, ["std", "positive"]),
    ],
    ids=str,
)
def test_what_timm_does_differently_is_refused(tmp_path, changes, parts):
    import timm.data
    from safetensors.torch import save_file

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    write(tmp_path, FLAT | changes, "config.json")
    found = vitzoo.create(tmp_path)
    assert isinstance(found.preprocessing, UnreadPreprocessing)
    (line,) = found.load_report.assumed
    says(line, "config.json", *parts)
    with refuses(InvalidOption, *parts):
        vitzoo.transform(found)


def test_commands_and_probe_refuse_alike(run, folder, tmp_path_factory):
    write(folder, EDGE)
    place = tmp_path_factory.mktemp("images")
    for label in ("a", "b"):
        (place / label).mkdir()
        for number in range(4):
            IMAGES[number].save(place / label / f"{number}.png")
    parts = ("preprocessor_config.json", "shortest_edge", "native_size", "model.preprocessing")
    with refuses(InvalidOption, *parts):
        vitzoo.probe(folder, place)
    for command in (
        ["predict", folder, place / "a"],
        ["embed", folder, place, "--out", place / "o"],
    ):
        code, _, err = run(*command)
        assert code == 2
        says(err, *parts)


def test_a_processor_without_type_beside_a_config_of_another_library():
    table = {"size": 32, "resample": 0, "image_mean": 0.1, "image_std": 0.2}
    assert read_processor(table) == read_processor(table | {"image_processor_type": "ViT"})
    for key in table:
        with pytest.raises(Unread):
            read_processor({name: value for name, value in table.items() if name != key})
    with pytest.raises(Unread):
        read_processor(table, {"model_type": "unknown"})


def test_a_saved_file_notes_the_refusal(folder, tmp_path_factory):
    write(folder, EDGE)
    model = vitzoo.create(folder)
    saved = vitzoo.save(model, tmp_path_factory.mktemp("other") / "saved.safetensors")
    again = vitzoo.create(saved)
    assert again.load_report.assumed == model.load_report.assumed
    says(again.load_report.assumed[0], "preprocessor_config.json", "shortest_edge")


def test_an_odd_key_is_shown_without_control_characters(folder):
    write(folder, {"size": 32, "do_\x1b[31m" + "k" * 10**5: True})
    (line,) = vitzoo.create(folder).load_report.assumed
    assert line.isprintable()
    assert len(line) < 1500
    says(line, "preprocessor_config.json", "a step that vitzoo lacks")


def test_a_refusal_in_metadata_is_shown_without_control_characters():
    table = {"file": "a\x1b[31m", "key": "k\n", "value": "v" * 10**6, "reason": "r\u202e"}
    stated = read_stated(Reader({"unread": table}, "file"))
    assert isinstance(stated, UnreadPreprocessing)
    assert stated.message.isprintable()
    assert len(stated.message) < 1500


def test_four_arguments_replace_a_statement(folder):
    write(folder, "{")
    stated = {"mean": (0.1,) * 3, "std": (0.2,) * 3, "interpolation": "nearest", "crop_pct": 0.5}
    row = vitzoo.transform(folder, **stated).preprocessing
    assert row == Preprocessing(**stated, crop_mode="center")


def test_an_image_processor_that_is_no_table_is_refused(folder):
    write(folder, {"image_processor": "CLIPImageProcessor"}, "processor_config.json")
    (line,) = vitzoo.create(folder).load_report.assumed
    says(line, "processor_config.json", "image_processor", "CLIPImageProcessor")
    with refuses(
        InvalidOption, "processor_config.json", "CLIPImageProcessor", "model.preprocessing"
    ):
        vitzoo.transform(folder)
    write(folder, {"image_processor": None, "processor_class": "a"}, "processor_config.json")
    write(folder, {"size": 32})
    assert torch.equal(vitzoo.transform(folder)(IMAGES[0]), of_transformers(folder, IMAGES[0]))
