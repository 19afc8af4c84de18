"""SigLIP of transformers, and image encoders with its names, by their folders."""

import json

import safetensors.torch
import torch

import vitzoo
from encoders import Encoder, close, numbers, numbers_at_another_size, write
from helpers import Library, refuses
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo_clip.siglip import transformers_siglip

tf = Library("transformers")
idefics2 = Library("transformers.models.idefics2.modeling_idefics2")
BLOCKS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
}
SIZES = BLOCKS | {"image_size": 32}
JANUS = {key: value for key, value in SIZES.items() if key != "intermediate_size"}
NAFLEX = BLOCKS | {"num_patches": 16}
OTHERS = {"hidden_act": "gelu", "layer_norm_eps": 1e-4}
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 9}
TEXT |= {"num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "projection_size": 32}


def whole(model, config, sizes, **keys):
    return lambda: getattr(tf, model)(
        getattr(tf, config)(vision_config=sizes, text_config=TEXT, **keys)
    )


def patches(network, images):
    """Return the outputs for images as rows of patches, as NaFlex takes them."""
    b, c, h, w = images.shape
    cut = images.reshape(b, c, h // 8, 8, w // 8, 8).permute(0, 2, 4, 3, 5, 1)  # channels last
    rows, shape = cut.reshape(b, h * w // 64, 64 * c), torch.tensor([[h // 8, w // 8]] * b)
    tower = getattr(network, "vision_model", network)
    run = network if hasattr(network, "classifier") else tower
    mask = torch.ones(rows.shape[:2], dtype=torch.long)
    return run(pixel_values=rows, pixel_attention_mask=mask, spatial_shapes=shape)


def tower(network, images):
    return network.vision_model(pixel_values=images)


def at_any_size(network, images):
    return network(pixel_values=images)


def naflex(network, **options):
    options = {"other_size": (48, 64), "run": patches, "run_other": patches, **options}
    return Encoder(network, **options)


CLASSES = {"tokens": None, "pooled": lambda out: out.logits}
ALONE = {"pooled": None, "other_size": (24, 64), "run_other": at_any_size}
ENCODERS = {
    "siglip": Encoder(whole("SiglipModel", "SiglipConfig", SIZES), run=tower),
    "siglip 3 x 3 patches of 8 px in 29 px": Encoder(
        lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**SIZES | {"image_size": 29})),
        size=(29, 29),
        other_size=(45, 31),
    ),
    "siglip without head": Encoder(
        lambda: tf.SiglipVisionModel(
            tf.SiglipVisionConfig(**SIZES | OTHERS, vision_use_head=False)
        ),
        pooled=None,
        other_size=(48, 64),
    ),
    "siglip with classifier": Encoder(
        whole("SiglipForImageClassification", "SiglipConfig", SIZES, num_labels=5),
        other_size=(48, 64),
        **CLASSES,
    ),
    "siglip2": naflex(whole("Siglip2Model", "Siglip2Config", NAFLEX)),
    "siglip2_vision_model": naflex(
        lambda: tf.Siglip2VisionModel(tf.Siglip2VisionConfig(**NAFLEX | OTHERS))
    ),
    "siglip2 without head": naflex(
        lambda: tf.Siglip2VisionModel(tf.Siglip2VisionConfig(**NAFLEX, vision_use_head=False)),
        pooled=None,
    ),
    "siglip2 with classifier": naflex(
        whole("Siglip2ForImageClassification", "Siglip2Config", NAFLEX), **CLASSES
    ),
    "idefics2_vision": Encoder(
        lambda: idefics2.Idefics2VisionTransformer(tf.Idefics2VisionConfig(**SIZES)), **ALONE
    ),
    "idefics3_vision": Encoder(
        lambda: tf.Idefics3VisionTransformer(tf.Idefics3VisionConfig(**SIZES | OTHERS)), **ALONE
    ),
    "smolvlm_vision of 29 px": Encoder(
        lambda: tf.SmolVLMVisionTransformer(tf.SmolVLMVisionConfig(**SIZES | {"image_size": 29})),
        size=(29, 29),
        **ALONE,
    ),
    "janus_vision_model": Encoder(
        lambda: tf.JanusVisionModel(tf.JanusVisionConfig(**JANUS, mlp_ratio=1.3)),
        pooled=None,
        other_size=(48, 64),
    ),
    "janus_vision_model without bias": Encoder(
        lambda: tf.JanusVisionModel(tf.JanusVisionConfig(**JANUS, attention_bias=False)),
        pooled=None,
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


def test_a_classifier_is_written_as_it_was_read(tmp_path):
    write(ENCODERS["siglip with classifier"], "drawn", tmp_path)
    file = safetensors.torch.load_file(tmp_path / "model.safetensors")
    model = vitzoo.create(tmp_path)
    unused = {key for key in file if key.startswith("vision_model.head.")}
    assert set(model.load_report.dropped) == unused
    written = transformers_siglip.from_model(model.state_dict())
    assert written.keys() == file.keys() - unused
    assert all(torch.equal(written[key], file[key]) for key in written)
    model = vitzoo.create(model.spec, weights=tmp_path / "model.safetensors")  # without config
    assert (model.num_classes, model.spec.pool.name) == (5, "mean")


@torch.no_grad()
def test_naflex_is_written_as_siglip(tmp_path):
    row = ENCODERS["siglip2_vision_model"]
    network = write(row, "drawn", tmp_path)
    written = transformers_siglip.from_model(vitzoo.create(tmp_path).state_dict())
    again = tf.SiglipVisionModel(tf.SiglipVisionConfig(**SIZES | OTHERS)).eval()
    again.load_state_dict({key.removeprefix("vision_model."): t for key, t in written.items()})
    images = row.images()
    close(again(images).pooler_output, row.run(network, images).pooler_output)


@cases(
    ("name", "keys", "parts"),
    [
        ("siglip2_vision_model", {"num_patches": 15}, ("square", 15)),
        ("siglip2", {"num_channels": 4}, ("num_channels", "3, 1, 2, 5, 6, 7", 4)),
        ("siglip without head", {"image_size": [32, 64]}, ("image_size", "one number", "[32, 64]")),
        ("siglip", {"patch_size": [8, 4]}, ("patch_size", "one number", "[8, 4]")),
        ("siglip", {"vision_use_head": None}, ("vision_use_head", "True, False", "None")),
        ("idefics3_vision", {"image_size": 200}, ("image_size", "25x25 patches", 200)),
        ("janus_vision_model", {"use_qk_norm": True}, ("use_qk_norm", "False", "True")),
        ("janus_vision_model", {"mlp_ratio": 0}, ("mlp_ratio", "positive", 0)),
    ],
)
def test_configs_that_are_refused(tmp_path, name, keys, parts):
    write(ENCODERS[name], "own", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.get("vision_config", config).update(keys)
    path.write_text(json.dumps(config))
    with refuses(CheckpointError, *parts):
        vitzoo.create(tmp_path)
