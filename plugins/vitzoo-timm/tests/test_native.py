"""`spec_of` and `carry_over`: what they read, share and refuse."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitzoo
from helpers import Library
from tables import cases
from vitzoo import LoadReport
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo_timm.look import NotNative

native = Library("vitzoo_timm.native")
SMALL = {"embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": 32, "num_classes": 5}


def small(name="vit_tiny_patch16_224", **options):
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, **(SMALL | options)).eval()


def test_the_spec_is_plain_data_for_create():
    spec = native.spec_of(small())
    assert (spec["embed_dim"], spec["depth"], spec["num_heads"], spec["mlp_dim"]) == (64, 2, 2, 256)
    assert (spec["image_size"], spec["patch_size"], spec["num_classes"]) == (32, 16, 5)
    assert spec["block"] == {"norm_eps": 1e-6, "activation": "gelu"}
    assert vitzoo.create(spec).spec == vitzoo.create(vitzoo.create(spec).spec).spec


def test_it_reads_biases_and_a_norm_of_patches(timm):
    with torch.device("meta"):
        spec = native.spec_of(timm.create_model("aimv2_large_patch14_224"))
    assert spec["patch_embed"] == {"name": "conv", "norm": "rms", "norm_eps": 1e-5}
    expected = {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu"}
    assert spec["block"] == expected | dict.fromkeys(("qkv_bias", "proj_bias", "mlp_bias"), False)


def test_it_reads_a_model_without_memory(timm):
    with torch.device("meta"):
        model = timm.create_model("vit_large_patch16_siglip_256")
    spec = native.spec_of(model)
    assert spec["pool"] == {
        "name": "attention",
        "num_heads": 16,
        "mlp_dim": 4096,
        "norm_eps": 1e-6,
        "activation": "gelu_tanh" if "tanh" in spec["block"]["activation"] else "gelu",
    }
    assert spec["head"] == "linear"
    assert spec["num_classes"] == model.num_classes


def test_rates_of_training_come_along():
    model = small(drop_path_rate=0.2, proj_drop_rate=0.1, pos_drop_rate=0.1, attn_drop_rate=0.3)
    spec = native.spec_of(model)
    assert spec["drop_path"] == {"name": "linear", "rate": 0.2}
    assert spec["dropout"] == 0.1
    assert spec["block"]["attention_dropout"] == 0.3


@torch.inference_mode()
def test_carried_over_it_computes_the_same_with_the_same_memory(tmp_path):
    theirs = small("eva02_tiny_patch14_224", img_size=28)
    ours = native.carry_over(theirs)
    assert not ours.training
    assert native.carry_over(theirs.train()).training
    theirs.eval()
    images = torch.randn(2, 3, 28, 28)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    assert ours.head.weight.data_ptr() == theirs.head.weight.data_ptr()
    again = vitzoo.create(vitzoo.save(ours, tmp_path / "net.safetensors")).eval()
    torch.testing.assert_close(again(images), ours(images), rtol=0, atol=1e-5)


def test_in_half_precision():
    ours = native.carry_over(small("eva02_tiny_patch14_224", img_size=28).bfloat16())
    kinds = {p.dtype for p in [*ours.parameters(), *ours.buffers()] if p.is_floating_point()}
    assert kinds == {torch.bfloat16}


class Louder(nn.GELU):
    def forward(self, x):
        return 2 * super().forward(x)


def with_attribute(model):
    model.blocks[1].attn.temperature = 2.0


def with_hook(model):
    model.blocks[0].register_forward_hook(lambda *_: None)


def with_other_eps(model):
    model.blocks[1].norm2.eps = 1e-5


def with_subclass(model):
    model.blocks[0].mlp.act = Louder()


def with_scale(model):
    model.blocks[0].attn.scale = 1.0


def with_dropout(model):
    model.head_drop.p = 0.5


def with_forward(model):
    model.blocks[0].mlp.forward = lambda x: x


def with_relu(model):
    for block in model.blocks:
        block.mlp.act = nn.ReLU()


@cases(
    ("change", "text"),
    [
        (with_attribute, r"blocks\.1\.attn .*temperature"),
        (with_hook, r"blocks\.0 has hooks.*remove"),
        (with_other_eps, r"blocks\.1\.norm2.*1e-05.*blocks\.0\.norm1.*1e-06"),
        (with_subclass, r"no part for blocks\.0\.mlp\.act: .*Louder"),
        (with_scale, r"no part for blocks\.0\.attn\.scale = 1\.0"),
        (with_dropout, "dropout.*head.*rate of 0"),
        (with_forward, r"blocks\.0\.mlp has hooks"),
        (with_relu, r"no part for blocks\.0\.mlp\.act: torch\.nn\.modules\.activation\.ReLU"),
    ],
)
def test_what_it_does_not_know_is_refused(change, text):
    model = small()
    assert native.spec_of(model)
    change(model)
    with pytest.raises(NotNative, match=text):
        native.spec_of(model)
    assert issubclass(NotNative, VitzooError)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("vit_relpos_small_patch16_224", {}, r"blocks\.0\.attn\.rel_pos: .*RelPosMlp"),
        ("vit_small_patch16_18x2_224", {}, r"blocks\.0: .*ParallelThingsBlock"),
        ("vit_tiny_patch16_224", {"global_pool": "max"}, r"the model\.global_pool = 'max'"),
        (
            "vit_base_patch16_xp_224",
            {"proj_bias": False},
            r"attn_out_proj without a bias",
        ),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.1}, r"the model\.patch_drop"),
        ("vit_tiny_patch16_224", {"fc_norm": True}, "a norm after pool 'token'"),
        ("resnet18", None, r"no part for the model: timm\.models\.resnet\.ResNet"),
    ],
)
def test_features_without_a_part_are_named(name, options, text, timm):
    model = timm.create_model(name) if options is None else small(name, **options)
    with pytest.raises(NotNative, match=text):
        native.spec_of(model)


@pytest.mark.parametrize("name", ["pit_ti_224", "resnet18", "swin_tiny_patch4_window7_224"])
def test_a_model_without_blocks_is_refused_by_both(name, timm):
    with torch.device("meta"):
        model = timm.create_model(name)
    for function in (native.spec_of, native.carry_over):
        with pytest.raises(NotNative, match=r"no part.*timm\.models\."):
            function(model)


def test_the_report_keeps_every_tensor():
    report = native.carry_over(small("vit_base_patch16_clip_224")).load_report
    ours = native.carry_over(small("vit_base_patch16_clip_224"))
    assert report.source == "timm vit_base_patch16_clip_224, converted"
    assert report == LoadReport(report.source, kept=tuple(ours.state_dict()))
    assert report.summary().endswith(f"converted: {len(report.kept)} kept")


def test_a_model_that_was_not_made_by_name_is_called_by_its_class(timm):
    theirs = timm.models.vision_transformer.VisionTransformer(**SMALL)
    ours = native.carry_over(theirs)
    assert ours.load_report.source == "timm VisionTransformer, converted"
    assert ours.preprocessing is None


CLIP = "vit_base_patch16_clip_224.openai"  # of other statistics than the usual ones


def test_images_are_prepared_as_timm_does(tmp_path, timm):
    theirs = small(CLIP)
    ours = native.carry_over(theirs)
    config = timm.data.resolve_data_config({"input_size": (3, 32, 32)}, model=theirs)
    assert config["mean"] == timm.data.OPENAI_CLIP_MEAN
    noise = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    expected = timm.data.create_transform(**config)(image)
    torch.testing.assert_close(vitzoo.transform(ours)(image), expected, rtol=0, atol=1e-5)
    again = vitzoo.create(vitzoo.save(ours, tmp_path / "net.safetensors"))
    assert again.preprocessing == ours.preprocessing is not None


@pytest.mark.parametrize(
    "change",
    [
        {"mean": None},
        {"mean": (0.5, 0.5)},
        {"std": (0.5, 0.0, 0.5)},
        {"interpolation": "random"},
        {"crop_pct": None},
        {"crop_mode": "border"},
        {"mean": (0.5,), "std": (0.5,)},
    ],
)
def test_preprocessing_that_vitzoo_cannot_do_is_left_out(change):
    theirs = small()
    assert native.carry_over(theirs).preprocessing is not None
    theirs.pretrained_cfg = theirs.pretrained_cfg | change
    assert native.carry_over(theirs).preprocessing is None


def test_a_missing_crop_mode_is_the_center():
    theirs = small(CLIP)
    theirs.pretrained_cfg = {k: v for k, v in theirs.pretrained_cfg.items() if k != "crop_mode"}
    assert native.carry_over(theirs).preprocessing == native.carry_over(small(CLIP)).preprocessing


def test_a_changed_head_is_refused():
    model = small()
    model.head = nn.Sequential(nn.Linear(64, 5))
    with pytest.raises(NotNative, match=r"no part.*head"):
        native.carry_over(model)


def test_another_tensor_is_refused():
    model = small()
    model.norm.register_buffer("extra", torch.zeros(1))
    with pytest.raises((NotNative, CheckpointError), match="extra"):
        native.carry_over(model)
