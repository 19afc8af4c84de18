"""Mixed sizes of SigLIP 2 NaFlex, against transformers: the folder, its processor, the outputs."""

import pytest
import torch
from PIL import Image

import vitzoo
from encoders import close, draw
from helpers import photographs, refuses

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "patch_size": 8}
SIZES |= {"num_attention_heads": 4, "num_patches": 36}
CHINA, FLOWER = photographs()
IMAGES = [
    CHINA,
    FLOWER.transpose(Image.Transpose.ROTATE_90),
    CHINA.crop((0, 0, 400, 400)),
    FLOWER.crop((0, 300, 640, 340)),
    FLOWER,
    CHINA.crop((5, 0, 30, 300)),
]


@pytest.fixture(params=["own", "drawn"])
def folder(request, tmp_path, transformers):
    """Return a folder as on the Hub, and the network in it."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    torch.manual_seed(5)
    network = draw(
        transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SIZES)), request.param
    )
    network.save_pretrained(tmp_path)
    Siglip2ImageProcessorPil(patch_size=8, max_num_patches=40).save_pretrained(tmp_path)
    return tmp_path, network


@torch.no_grad()
def test_the_outputs_of_transformers(folder):
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    path, network = folder
    processor = Siglip2ImageProcessorPil.from_pretrained(path)
    inputs = processor(IMAGES, return_tensors="pt")
    shapes = inputs["spatial_shapes"].tolist()
    assert len({*map(tuple, shapes)}) == 5
    expected = network(**inputs)
    model = vitzoo.create(path).eval()
    prepare = vitzoo.transform(model, native_size=40)
    own = [prepare(image) for image in IMAGES]
    for images in (inputs, own):  # patches of transformers, and images of vitzoo
        tokens, pooled = model.forward_features_packed(images), model.forward_packed(images)
        close(pooled, expected.pooler_output)
        for found, expected_tokens, (rows, columns) in zip(
            tokens, expected.last_hidden_state, shapes, strict=True
        ):
            close(found, expected_tokens[: rows * columns])
    rows = vitzoo.Predictor(path, native_size=40)(IMAGES)
    pooled = [torch.from_numpy(row.outputs["pooled"]) for row in rows]
    close(torch.stack(pooled), expected.pooler_output)


@pytest.mark.parametrize("folder", ["own"], indirect=True)
def test_the_load_report_names_the_native_size(folder):
    model = vitzoo.create(folder[0])
    assert any("native_size=40" in line for line in model.load_report.assumed)
    assert vitzoo.transform(model)(CHINA).shape == (3, 48, 48)
    assert vitzoo.transform(model, native_size=40)(CHINA).shape == (3, 40, 64)
    assert vitzoo.transform(model, native_size=True).max_patches == 36


@pytest.mark.parametrize("folder", ["own"], indirect=True)
def test_a_mask_that_does_not_fit(folder):
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    model = vitzoo.create(folder[0])
    inputs = Siglip2ImageProcessorPil.from_pretrained(folder[0])(CHINA, return_tensors="pt")
    inputs["pixel_attention_mask"][0, -1] ^= 1
    with refuses(vitzoo.InvalidInput, "pixel_values", (1, 40, 192), "mask", [[5, 8]]):
        model.forward_packed(inputs)
