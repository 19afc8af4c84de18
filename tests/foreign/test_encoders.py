"""The image encoders of transformers that the core reads, by their folders."""

import pytest
import torch

import vitzoo
from create_helpers import refused
from encoders import Encoder, close, numbers, numbers_at_another_size, write
from helpers import Library, says
from vitzoo.errors import CheckpointError

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-9,  # 1e-12, the default of most types, is no part of `small`
}
FLAVA = {
    "image_config": SIZES,
    "text_config": SIZES | {"vocab_size": 9, "max_position_embeddings": 5},
    "multimodal_config": SIZES,
    "image_codebook_config": {"hidden_size": 8, "num_blocks_per_group": 1},
    "hidden_size": 32,
    "projection_dim": 8,
}
NECK = {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "backbone_out_indices": [0, 0, 1, 1]}
TIMM = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 2}
NOISE = torch.arange(16.0).expand(2, 16)  # keeps the order of MAE's patches
LARGE = (48, 64)


def first(out):
    return out.last_hidden_state[:, 0]


def mean(out):
    return out.last_hidden_state.mean(1)


def logits(out):
    return out.logits


def dpt(**options):
    return tf.DPTConfig(**SIZES | NECK | options)


def timm(name="vit_tiny_patch16_224", arguments=None, **options):
    arguments = TIMM | (arguments or {})
    return tf.TimmWrapperConfig(architecture=name, model_args=arguments, **options)


ENCODERS = {
    "vit": Encoder(lambda: tf.ViTModel(tf.ViTConfig(**SIZES)), other_size=LARGE),
    "vit without pooler": Encoder(
        lambda: tf.ViTModel(tf.ViTConfig(**SIZES), add_pooling_layer=False), pooled=first
    ),
    "vit without pooler or classes": Encoder(
        lambda: tf.ViTModel(tf.ViTConfig(**SIZES), add_pooling_layer=False),
        pooled=first,
        arguments=(("num_classes", 0),),
    ),
    "vit, masked": Encoder(
        lambda: tf.ViTForMaskedImageModeling(tf.ViTConfig(**SIZES, encoder_stride=8)),
        pooled=first,
        run=lambda network, images: network.vit(images),
    ),
    "vit_mae": Encoder(
        lambda: tf.ViTMAEModel(tf.ViTMAEConfig(**SIZES, mask_ratio=0.0)),
        pooled=first,
        run=lambda network, images: network(images, noise=NOISE),
    ),
    "vit_msn": Encoder(
        lambda: tf.ViTMSNModel(tf.ViTMSNConfig(**SIZES)), pooled=first, other_size=LARGE
    ),
    "vit_msn, classes": Encoder(
        lambda: tf.ViTMSNForImageClassification(tf.ViTMSNConfig(**SIZES, num_labels=5)),
        tokens=None,
        pooled=logits,
    ),
    "ijepa": Encoder(lambda: tf.IJepaModel(tf.IJepaConfig(**SIZES)), pooled=mean, other_size=LARGE),
    "ijepa, classes": Encoder(
        lambda: tf.IJepaForImageClassification(tf.IJepaConfig(**SIZES, qkv_bias=False)),
        tokens=None,
        pooled=logits,
    ),
    "flava_image_model": Encoder(
        lambda: tf.FlavaImageModel(tf.FlavaImageConfig(**SIZES)), other_size=LARGE
    ),
    "flava": Encoder(
        lambda: tf.FlavaModel(tf.FlavaConfig(**FLAVA)),
        run=lambda network, images: network.image_model(images),
    ),
    "flava, masked": Encoder(
        lambda: tf.FlavaForPreTraining(tf.FlavaConfig(**FLAVA)),
        run=lambda network, images: network.flava.image_model(images),
    ),
    "dpt": Encoder(
        lambda: tf.DPTModel(dpt()), other_size=LARGE, run_other=lambda network, x: network(x)
    ),
    "dpt, depth": Encoder(
        lambda: tf.DPTForDepthEstimation(dpt(add_projection=True, readout_type="add")),
        pooled=first,
        run=lambda network, images: network.dpt(images),
    ),
    "dpt, segmentation": Encoder(
        lambda: tf.DPTForSemanticSegmentation(dpt()),
        pooled=first,
        run=lambda network, images: network.dpt(images),
    ),
    "timm_wrapper": Encoder(
        lambda: tf.TimmWrapperModel(timm(arguments={"global_pool": "avg"})), size=(64, 64)
    ),
    "timm_wrapper, no pool": Encoder(
        lambda: tf.TimmWrapperModel(timm("vit_small_patch32_224", do_pooling=False)),
        pooled=None,
        size=(64, 64),
    ),
    "timm_wrapper, classes": Encoder(  # of the keys of timm, transformers uses the two of `timm`
        lambda: tf.TimmWrapperForImageClassification(
            timm(global_pool="avg", pretrained_cfg={"input_size": [3, 32, 32]}, num_labels=5)
        ),
        tokens=None,
        pooled=logits,
        size=(64, 64),
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


NAMED = {  # settings that no tensor shows
    "vit_msn": Encoder(lambda: tf.ViTMSNModel(tf.ViTMSNConfig(**SIZES | {"layer_norm_eps": 1e-4}))),
    "vit_msn, activation": Encoder(
        lambda: tf.ViTMSNModel(tf.ViTMSNConfig(**SIZES, hidden_act="quick_gelu"))
    ),
    "dpt, size": Encoder(lambda: tf.DPTModel(dpt(), add_pooling_layer=False), size=LARGE),
}


@pytest.mark.parametrize("name", NAMED)
@torch.no_grad()
def test_a_spec_with_the_weights_of_a_folder_has_its_settings(name, tmp_path):
    encoder = NAMED[name]
    network = write(encoder, "small" if "size" not in name else "drawn", tmp_path)
    spec = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64, "patch_size": 8}
    spec |= {"image_size": 32, "num_classes": 0}
    model = vitzoo.create(spec, weights=tmp_path, image_size=encoder.size).eval()
    images = encoder.images()
    close(model.forward_features(images), network(images).last_hidden_state)


REFUSED = {
    "hybrid": (lambda: dpt(is_hybrid=True), ("is_hybrid", "its own ViT", "transformers", "True")),
    "backbone": (
        lambda: dpt(backbone_config=tf.Dinov2Config()),
        ("backbone_config", "null", "its own ViT", "transformers", "_name_or_path"),
    ),
    "not square": (lambda: dpt(image_size=[16, 64]), ("image_size", "square", "[16, 64]")),
    "activation": (
        lambda: tf.IJepaConfig(**SIZES, hidden_act="prelu"),
        ("hidden_act", "gelu", "prelu"),
    ),
    "pooler": (
        lambda: dpt(pooler_act="relu", architectures=["DPTModel"]),
        ("pooler_act", "tanh", "relu"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_with_other_arithmetic(name, tmp_path):
    config, words = REFUSED[name]
    tf.ViTModel(tf.ViTConfig(**SIZES)).save_pretrained(tmp_path)
    config().save_pretrained(tmp_path)
    says(refused(CheckpointError, tmp_path), *words)


def test_the_pooler_of_an_ijepa_is_not_left_out(tmp_path):
    tf.IJepaModel(tf.IJepaConfig(**SIZES), add_pooling_layer=True).save_pretrained(tmp_path)
    says(refused(CheckpointError, tmp_path), "2 unexpected", "head.pre_logits.weight")
