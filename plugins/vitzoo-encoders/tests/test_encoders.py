"""The image encoders of transformers that this plugin reads, by their folders."""

from __future__ import annotations

import json

import pytest

import vitzoo
from encoders import Encoder, numbers, numbers_at_another_size, write
from helpers import Library, refuses, says
from tables import cases
from vitzoo.errors import CheckpointError

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
WITH_MLP = SIZES | {"intermediate_size": 48}


def _first(out):
    """Return the class token as BLIP's decoders read it; `pooler_output` has a second norm."""
    return out.last_hidden_state[:, 0]


def _blip(family, **options):
    network, config = f"{family}VisionModel", f"{family}VisionConfig"
    return Encoder(
        lambda: getattr(tf, network)(getattr(tf, config)(**WITH_MLP, **options)),
        pooled=_first,
        other_size=(48, 64),
    )


def _whole_blip():
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 20}
    text |= {"num_attention_heads": 2, "bos_token_id": 1, "sep_token_id": 2}
    return tf.BlipForImageTextRetrieval(
        tf.BlipConfig(text_config=text, vision_config=dict(WITH_MLP))
    )


def _internvl(pooled=None, **options):
    return Encoder(
        lambda: tf.InternVLVisionModel(tf.InternVLVisionConfig(**WITH_MLP, **options)),
        pooled=pooled or (lambda out: out.last_hidden_state[:, 1:].mean(1)),
        other_size=(48, 64),
        run_other=lambda network, images: network(images),
    )


def _pixio(**options):
    return Encoder(
        lambda: tf.PixioModel(tf.PixioConfig(**SIZES, **options)),
        other_size=(48, 64),
        run_other=lambda network, images: network(images),
    )


def _radio(**options):
    options = {"max_img_size": 64, "num_cls_tokens": 3, "num_registers": 2} | options
    return Encoder(
        lambda: tf.RadioModel(tf.RadioConfig(**SIZES, **options)),
        pooled=lambda out: out.summary,
        other_size=(48, 64),
        run_other=lambda network, images: network(images),
    )


def _vitpose(**options):
    return tf.VitPoseBackboneConfig(**SIZES | {"image_size": (32, 48)} | options)


def _vitpose_row(network, run):
    return Encoder(
        network,
        tokens=lambda out: out.feature_maps[-1],
        pooled=lambda out: out.feature_maps[-1].mean(1),
        run=run,
        size=(32, 48),
    )


def _flat(out):
    """Return the last map as tokens."""
    found = out.last_hidden_state if "last_hidden_state" in out else out.feature_maps[-1]
    return found.flatten(2).transpose(1, 2)


def _window(network, run=None, **options):
    return Encoder(
        network,
        tokens=_flat,
        pooled=lambda out: _flat(out).mean(1),
        run=run or (lambda network, images: network(images)),
        **options,
    )


def _sam(**options):
    windows = {"window_size": 3, "global_attn_indexes": [1], "output_channels": 24}
    return tf.SamVisionConfig(**SIZES | windows | options)


def _vitdet(**options):
    windows = {"window_size": 3, "window_block_indices": [0], "pretrain_image_size": 24}
    return tf.VitDetConfig(**SIZES | windows | {"use_relative_position_embeddings": True} | options)


OF_VITDET = {"run_other": lambda network, images: network(images), "other_size": (40, 56)}
RADIO_GATED = {
    "use_swiglu_ffn": True,
    "mlp_ratio": 3.0,
    "qkv_bias": False,
    "layer_norm_eps": 1e-5,
    "layerscale_value": 0.1,
    "max_img_size": 20,
    "num_registers": 0,
    "summary_idxs": [2],
    "norm_mean": [0.1, 0.2, 0.3],
    "norm_std": [8.0, 9.0, 10.0],
    "video_temporal_patch_size": 2,
}
ENCODERS = {
    "blip": _blip("Blip", hidden_act="quick_gelu"),
    "blip whole": Encoder(
        _whole_blip, pooled=_first, run=lambda network, images: network.vision_model(images)
    ),
    "blip_2": _blip("Blip2"),
    "blip_2 without biases": _blip("Blip2", qkv_bias=False),
    "instructblip": _blip("InstructBlip", layer_norm_eps=1e-4),
    "internvl": _internvl(),
    "internvl 6B": _internvl(
        use_qk_norm=True, norm_type="rms_norm", hidden_act="quick_gelu", use_mask_token=True
    ),
    "internvl class": _internvl(
        _first, use_mean_pooling=False, attention_bias=True, use_qk_norm=True
    ),
    "internvl without positions": _internvl(use_absolute_position_embeddings=False),
    "radio": _radio(),
    "radio gated": _radio(**RADIO_GATED),
    "vitpose": _vitpose_row(
        lambda: tf.VitPoseBackbone(_vitpose(qkv_bias=False, mlp_ratio=3, layer_norm_eps=1e-6)),
        lambda network, images: network(images),
    ),
    "vitpose whole": _vitpose_row(
        lambda: tf.VitPoseForPoseEstimation(
            tf.VitPoseConfig(backbone_config=_vitpose(layer_norm_eps=1e-5))
        ),
        lambda network, images: network.backbone(images),
    ),
    "sam": _window(lambda: tf.SamVisionModel(_sam(qkv_bias=False, hidden_act="relu"))),
    "sam without windows": _window(
        lambda: tf.SamVisionModel(_sam(window_size=0, use_abs_pos=False, mlp_dim=40))
    ),
    "sam whole": _window(
        lambda: tf.SamModel(tf.SamConfig(vision_config=_sam().to_dict())),
        lambda network, images: network.vision_encoder(images),
    ),
    "vitdet": _window(lambda: tf.VitDetModel(_vitdet()), **OF_VITDET),
    "vitdet whole": _window(
        lambda: tf.VitMatteForImageMatting(
            tf.VitMatteConfig(
                backbone_config=_vitdet(layer_norm_eps=1e-5),
                hidden_size=32,
                convstream_hidden_sizes=[4, 4, 4],
                fusion_hidden_sizes=[4, 4, 4, 4],
            )
        ),
        lambda network, images: network.backbone(images),
    ),
    "vitdet without relative positions": _window(
        lambda: tf.VitDetBackbone(
            _vitdet(use_relative_position_embeddings=False, window_block_indices=[0, 1])
        ),
        **OF_VITDET,
    ),
    "pixio": _pixio(),
    "pixio one": _pixio(n_cls_tokens=1, qkv_bias=False, mlp_ratio=3, hidden_act="quick_gelu"),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


@cases(
    ("name", "stated", "words"),
    [
        ("blip", {"num_channels": 1}, ("num_channels must be 3", "got 1")),
        (
            "internvl 6B",
            {"use_mean_pooling": False},
            ("use_mean_pooling must be true with norm_type rms_norm", "got False"),
        ),
        ("pixio", {"n_cls_tokens": 0}, ("n_cls_tokens must be a whole number from 1", "got 0")),
        (
            "radio",
            {"summary_idxs": [3]},
            ("summary_idxs", "indices of class tokens, 0 to 2", "[3]"),
        ),
        ("vitpose", {"num_experts": 2}, ("num_experts must be 1", "got 2")),
        ("radio", {"summary_idxs": []}, ("summary_idxs", "indices of class tokens", "got []")),
        ("sam", {"global_attn_indexes": 1}, ("global_attn_indexes", "list of indices", "got 1")),
        ("sam", {"window_size": 513}, ("window_size", "0 to 512", "got 513")),
        ("vitdet", {"residual_block_indices": [1]}, ("residual_block_indices", "empty", "[1]")),
        ("vitdet", {"pretrain_image_size": [16, 32]}, ("pretrain_image_size", "square number")),
        (
            "vitdet",
            {"use_absolute_position_embeddings": 1},
            ("use_absolute_position_embeddings", "true or false", "got 1"),
        ),
        ("blip_2", {"image_size": [32, 64]}, ("image_size must be one number", "[32, 64]")),
    ],
)
def test_what_a_config_may_not_state(name, stated, words, tmp_path):
    write(ENCODERS[name], "own", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    with refuses(CheckpointError, *words):
        vitzoo.create(tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("blip", "mlp_ratio", 3), ("pixio", "use_swiglu_ffn", True)]
)
def test_a_key_of_another_type_has_no_effect(name, key, value, tmp_path):
    write(ENCODERS[name], "own", tmp_path)
    path = tmp_path / "config.json"
    spec = vitzoo.create(tmp_path).spec
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    model = vitzoo.create(tmp_path)
    assert model.spec == spec
    (line,) = model.load_report.assumed
    says(line, key, "no effect")
