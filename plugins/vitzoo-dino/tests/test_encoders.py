"""The image encoders of transformers that this plugin reads, by their folders."""

import pytest

import vitzoo
from create_helpers import refused
from encoders import Encoder, numbers, numbers_at_another_size
from helpers import Library, says
from vitzoo.errors import CheckpointError

tf = Library("transformers")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
SWIGLU = {"use_gated_mlp": True, "hidden_act": "silu"}
LARGE = (48, 64)


def v2(**options):
    return tf.Dinov2Config(**{**SIZES, **options})


def registers(**options):
    return tf.Dinov2WithRegistersConfig(**{**SIZES, **options})


def v3(**options):
    return tf.DINOv3ViTConfig(**{**SIZES, "intermediate_size": 64, **options})


def logits(out):
    return out.logits


def at_any_size(network, images):
    return network(images)


ENCODERS = {
    "dinov2": Encoder(lambda: tf.Dinov2Model(v2()), other_size=LARGE, run_other=at_any_size),
    "dinov2, gated": Encoder(lambda: tf.Dinov2Model(v2(use_swiglu_ffn=True, mlp_ratio=3))),
    "dinov2, classes": Encoder(
        lambda: tf.Dinov2ForImageClassification(v2(num_labels=5)), tokens=None, pooled=logits
    ),
    "dinov2_with_registers": Encoder(
        lambda: tf.Dinov2WithRegistersModel(registers(num_register_tokens=3)),
        other_size=LARGE,
        run_other=at_any_size,
    ),
    "dinov2_with_registers, classes": Encoder(
        lambda: tf.Dinov2WithRegistersForImageClassification(registers()),
        tokens=None,
        pooled=logits,
    ),
    "dinov3_vit": Encoder(
        lambda: tf.DINOv3ViTModel(v3(num_register_tokens=4)),
        other_size=LARGE,
        run_other=at_any_size,
    ),
    "dinov3_vit, no registers": Encoder(
        lambda: tf.DINOv3ViTModel(v3()), other_size=LARGE, run_other=at_any_size
    ),
    "dinov3_vit, gated, no biases": Encoder(
        lambda: tf.DINOv3ViTModel(
            v3(**SWIGLU, query_bias=False, value_bias=False, proj_bias=False, mlp_bias=False)
        )
    ),
    "dinov3_vit, other values": Encoder(
        lambda: tf.DINOv3ViTModel(
            v3(
                num_register_tokens=1,
                rope_theta=50.0,
                layerscale_value=0.5,
                key_bias=True,
                mlp_bias=False,
                hidden_act="gelu_pytorch_tanh",
                image_size=[32, 48],
                patch_size=[8, 16],
            )
        ),
        size=(32, 48),
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS, stated=True)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


REFUSED = {
    "one bias": ({"value_bias": False}, ("query_bias", "biases of all, of none", "False")),
    "gate": ({"use_gated_mlp": True}, ("hidden_act", "silu", "gelu")),
    "temperature": ({"rope_theta": 0.5}, ("rope_theta", "a number above 1", "0.5")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_dinov3_with_other_arithmetic(name, tmp_path):
    options, words = REFUSED[name]
    tf.DINOv3ViTModel(v3(**options)).save_pretrained(tmp_path)
    says(refused(CheckpointError, tmp_path), *words)


@pytest.mark.parametrize(
    ("kind", "config"), [("Dinov2Model", v2), ("Dinov2WithRegistersModel", registers)]
)
def test_a_dinov2_whose_square_table_the_library_interpolates(kind, config, tmp_path):
    network = getattr(tf, kind)(config(image_size=[16, 32], patch_size=[8, 4]))
    network.save_pretrained(tmp_path)
    says(refused(CheckpointError, tmp_path), "image_size", "one number of px", "[16, 32]")


def test_the_config_of_timm_states_the_pool(tmp_path, timm):
    from timm.models import save_for_hf

    sizes = {"depth": 1, "embed_dim": 48, "num_heads": 2, "img_size": 32}
    network = timm.create_model("vit_small_patch16_dinov3", **sizes)
    save_for_hf(network, tmp_path, model_args=sizes, safe_serialization=True)
    assert vitzoo.create(tmp_path).load_report.assumed == ()
