"""The layouts of distilled DeiT: their libraries' numbers come out, and the way back is exact."""

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import check_odd_shapes, close, fill, same, write
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format
from vitzoo.testing import checkpoint_formats, stand_in
from vitzoo_deit.formats import timm_distilled, transformers_deit

SPEC = {
    "variant": "deit/deit_ti16_distilled",
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
STATED = {key: value for key, value in SPEC.items() if key != "variant"} | {
    "num_registers": 1,
    "pool": {"name": "prefix", "tokens": 2},
    "head": "deit/distilled",
}  # without a variant, whose classes are others: a classifier that does not fit is refused
TOKEN = "embeddings.distillation_token"
FORMATS = {"deit/timm_distilled": timm_distilled, "deit/transformers": transformers_deit}


def timms(num_classes=5):
    from timm.models.deit import VisionTransformerDistilled

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return fill(VisionTransformerDistilled(**sizes, mlp_ratio=2, num_classes=num_classes))


def config(**changes):
    from transformers import DeiTConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}
    return DeiTConfig(**(sizes | changes))


def saved(folder, network):
    """Write a network of transformers' with its config and return (file, tensors)."""
    network.save_pretrained(folder)
    path = folder / "model.safetensors"
    return path, safetensors.torch.load_file(path)


# timm.


@torch.no_grad()
def test_timm_there_and_back(tmp_path, images):
    network = timms()
    path = write(tmp_path / "deit.safetensors", network.state_dict())
    model = vitzoo.create(SPEC, weights=path).eval()
    report = model.load_report
    assert (report.format, report.assumed[:1]) == ("deit/timm_distilled", ("norm_eps = 1e-06",))
    assert set(report.kept) == set(model.state_dict())
    close(model(images), network(images))
    network.set_distilled_training()
    for ours, theirs in zip(model.train()(images), network.train()(images), strict=True):
        close(ours, theirs)
    same(timm_distilled.from_model(model.state_dict()), network.state_dict())
    network.load_state_dict(timm_distilled.from_model(fill(model).state_dict()), strict=True)


@torch.no_grad()
def test_the_names_of_a_port(tmp_path, images):
    network = timms()
    state = network.state_dict()
    state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    model = vitzoo.create(SPEC, weights=write(tmp_path / "port.safetensors", state)).eval()
    close(model(images), network(images))
    assert model.load_report.format == "deit/timm_distilled"


@torch.no_grad()
def test_timm_without_classifiers(tmp_path, images):
    network = timms(num_classes=0)
    path = write(tmp_path / "deit.safetensors", network.state_dict())
    with pytest.raises(CheckpointError, match=r"4 missing: head\.cls\.weight, head\.cls\.bias, h"):
        vitzoo.create(STATED, weights=path)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    assert model.load_report.dropped == ()
    close(model(images), network(images))
    same(timm_distilled.from_model(model.state_dict()), network.state_dict())


@torch.no_grad()
def test_swapped_classifiers_are_seen(tmp_path, images):
    network = timms()
    other = {"head": "head_dist", "head_dist": "head"}
    parts = ((name.partition("."), t) for name, t in network.state_dict().items())
    swapped = {other.get(first, first) + dot + rest: t for (first, dot, rest), t in parts}
    assert swapped.keys() == network.state_dict().keys()
    path = write(tmp_path / "deit.safetensors", swapped)
    model = vitzoo.create(SPEC, weights=path).eval()
    with pytest.raises(AssertionError):
        close(model(images), network(images))
    network.set_distilled_training()
    with pytest.raises(AssertionError):
        close(model.train()(images)[0], network.train()(images)[0])


def test_timms_layout_has_no_place_for_a_single_classifier():
    state = vitzoo.create(SPEC, pool="class", head="linear").state_dict()
    text = r"deit/timm_distilled.* 2 tensors.*head\.bias, head\.weight"
    with pytest.raises(CheckpointError, match=text):
        timm_distilled.from_model(state)


# transformers.


@torch.no_grad()
@pytest.mark.parametrize("written", ["by save_pretrained", "as a state dict"])
def test_two_classifiers_there_and_back(tmp_path, images, written, transformers):
    network = fill(transformers.DeiTForImageClassificationWithTeacher(config()))
    path, tensors = saved(tmp_path, network)
    assert "deit.encoder.layer.1.attention.attention.query.weight" in tensors
    if written == "as a state dict":
        write(path, network.state_dict())
        assert "deit.layers.1.attention.q_proj.weight" in network.state_dict()
    model = vitzoo.create(SPEC, weights=path)
    report = model.load_report
    assert report.format == "deit/transformers"
    assert [line.partition(" = ")[0] for line in report.assumed] == ["preprocessing"]
    assert set(report.kept) == set(model.state_dict())
    expected = network(images)
    by_label, by_teacher = model(images)
    close(by_label, expected.cls_logits)
    close(by_teacher, expected.distillation_logits)
    close(model.eval()(images), expected.logits)
    same(transformers_deit.from_model(model.state_dict()), tensors)


@torch.no_grad()
def test_one_classifier_reads_the_class_token(tmp_path, images, transformers):
    network = fill(transformers.DeiTForImageClassification(config()))
    path, tensors = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path)
    assert (model.spec.pool.name, model.spec.head.name) == ("class", "linear")
    close(model(images), network(images).logits)
    assert set(model.load_report.kept) == set(model.state_dict())
    same(transformers_deit.from_model(model.state_dict()), tensors)
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)
    other = vitzoo.create(SPEC, weights=path, num_classes=3)
    assert other.load_report.reinitialised == ("head.weight", "head.bias")


@torch.no_grad()
@pytest.mark.parametrize("pooler", [True, False])
def test_the_backbone_there_and_back(tmp_path, images, pooler, transformers):
    network = fill(transformers.DeiTModel(config(), add_pooling_layer=pooler))
    path, tensors = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    assert model.load_report.format == "deit/transformers"
    dropped = {"head.pre_logits.weight", "head.pre_logits.bias"} if pooler else set()
    assert set(model.load_report.dropped) == dropped
    expected = network(images)
    close(model.forward_features(images), expected.last_hidden_state)
    close(model(images), expected.last_hidden_state[:, :2].mean(1))
    plain = {name: t for name, t in tensors.items() if not name.startswith("pooler.")}
    same(transformers_deit.from_model(model.state_dict()), plain)
    if pooler:
        model = vitzoo.create(SPEC, weights=path, pool="class", head="tanh", num_classes=0).eval()
        close(model(images), expected.pooler_output)
        same(transformers_deit.from_model(model.state_dict()), tensors)


@torch.no_grad()
def test_transformers_reads_what_is_written(tmp_path, images, transformers):
    """The library itself loads the inverse and computes our numbers."""
    model = fill(vitzoo.create(SPEC, block={"norm_eps": 1e-12}))
    write(tmp_path / "model.safetensors", transformers_deit.from_model(model.state_dict()))
    config().save_pretrained(tmp_path)
    network = transformers.DeiTForImageClassificationWithTeacher.from_pretrained(tmp_path).eval()
    close(model(images), network(images).logits)


def test_facts_come_from_the_config(tmp_path, transformers):
    network = fill(
        transformers.DeiTForImageClassificationWithTeacher(
            config(layer_norm_eps=1e-5, hidden_act="gelu_new")
        )
    )
    path, _ = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path)
    assert (model.spec.block.norm_eps, model.spec.block.activation) == (1e-5, "gelu_tanh")
    assert dict(model.spec.pos_embed.options) == {"resample": "bicubic"}
    with pytest.raises(CheckpointError, match=r"2 .*heads.* 4"):
        vitzoo.create(SPEC | {"num_heads": 4}, weights=path)
    (tmp_path / "config.json").unlink()
    model = vitzoo.create(SPEC, weights=path)
    assert (model.spec.block.norm_eps, model.spec.block.activation) == (1e-12, "gelu")
    assert model.load_report.assumed[:2] == ("norm_eps = 1e-12", "activation = gelu")


def test_transformers_has_no_place_for_layer_scale():
    state = vitzoo.create(SPEC, block={"layer_scale": 1e-4}).state_dict()
    text = r"deit/transformers.* 4 tensors.*blocks\.0\.ls1\.gamma.*timm"
    with pytest.raises(CheckpointError, match=text):
        transformers_deit.from_model(state)


def test_a_tensor_under_two_names_is_refused(tmp_path, transformers):
    _, tensors = saved(tmp_path, transformers.DeiTModel(config(), add_pooling_layer=False))
    twice = tensors | {f"deit.{TOKEN}": tensors[TOKEN].clone()}
    with pytest.raises(CheckpointError, match=f"two tensors.*'{TOKEN}'"):
        vitzoo.create(SPEC, weights=write(tmp_path / "twice.safetensors", twice), num_classes=0)
    state = timms().state_dict()
    state["reg_token"] = state["dist_token"].clone()
    with pytest.raises(CheckpointError, match=r"two tensors.*'reg_token'"):
        vitzoo.create(SPEC, weights=write(tmp_path / "twice.safetensors", state))


# Registered weights.


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("row", ["fb_in1k", "facebook_in1k"])
def test_registered_weights_are_read_in_the_layout_of_their_row(tmp_path, caplog, row):
    name = "deit/deit_ti16_distilled"
    source = fill(vitzoo.create(name))
    layout = timm_distilled if row == "fb_in1k" else transformers_deit
    path = write(tmp_path / "model.safetensors", layout.from_model(source.state_dict()))
    chosen = {"pretrained": True} if row == "fb_in1k" else {"weights": row}
    with stand_in(name, row, path):
        model = vitzoo.create(name, weights=row)
        other = vitzoo.create(name, num_classes=3, **chosen)
    assert FORMATS[model.load_report.format] is layout
    assert model.spec.block.norm_eps == {"fb_in1k": 1e-6, "facebook_in1k": 1e-12}[row]
    same(model.state_dict(), source.state_dict())
    heads = {"head.cls.weight", "head.cls.bias", "head.dist.weight", "head.dist.bias"}
    assert set(other.load_report.reinitialised) == set(other.load_report.dropped) == heads
    assert [output.shape for output in other(torch.zeros(1, 3, 224, 224))] == [(1, 3), (1, 3)]
    assert not [record for record in caplog.records if record.levelname != "INFO"]


# Recognition.


def every_layout():
    from transformers import (
        DeiTForImageClassification,
        DeiTForImageClassificationWithTeacher,
        DeiTModel,
    )

    state = vitzoo.create(SPEC).state_dict()
    for name, layout in FORMATS.items():
        yield name, layout.from_model(state).keys()
    yield "deit/timm_distilled", timms(num_classes=0).state_dict().keys()
    for kind in (DeiTForImageClassificationWithTeacher, DeiTForImageClassification, DeiTModel):
        yield "deit/transformers", kind(config()).state_dict().keys()
    yield "deit/transformers", DeiTModel(config(), add_pooling_layer=False).state_dict().keys()
    plain = vitzoo.create(SPEC | {"num_registers": 0}, pool="class", head="linear").state_dict()
    theirs = checkpoint_formats()["transformers_vit"].from_model(plain)
    yield "timm", plain.keys()
    yield "timm", vitzoo.create(SPEC | {"variant": "deit/deit3_s16"}).state_dict().keys()
    yield "transformers_vit", theirs.keys()


def test_each_layout_is_claimed_by_its_format_alone():
    formats = checkpoint_formats()
    found = list(every_layout())
    assert len(found) == 10
    for name, keys in found:
        assert [n for n, layout in formats.items() if layout.matches(keys)] == [name]
    for name, layout in FORMATS.items():
        assert formats[name] is layout
        assert isinstance(layout, Format)
        assert layout.name == name
        stated = layout.num_heads({"num_attention_heads": 3}, {})
        assert stated == (3 if name == "deit/transformers" else None)


def test_a_plain_network_refuses_a_distilled_file(tmp_path):
    path = write(tmp_path / "deit.safetensors", timms().state_dict())
    plain = SPEC | {"variant": "deit/deit_ti16"}
    text = r"1 unexpected: reg_token.*pos_embed.*\(1, 18, 32\)"
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(plain, weights=path)


# Hostile shapes: what a layout cannot use stays under the file's own name.


@pytest.mark.slow
@cases("name", FORMATS)
@cases("shape", [(), (0,), (3,), (0, 3), (2, 0, 3), (1, 1, 1, 0), (2,) * 6])
def test_odd_shapes(tmp_path, name, shape):
    layout, state = FORMATS[name], vitzoo.create(SPEC).state_dict()
    file = check_odd_shapes(layout, state, shape)
    for victim in ("reg_token", "head.dist.weight", "blocks.0.attn.qkv.weight"):
        for key in layout.from_model(
            {victim: state[victim], "head.cls.bias": state["head.cls.bias"]}
        ):
            path = write(tmp_path / "odd.safetensors", file | {key: torch.ones(shape)})
            with pytest.raises(CheckpointError, match="does not fit the model"):
                vitzoo.create(STATED, weights=path)


def test_a_config_that_lies_is_refused(tmp_path, transformers):
    path, _ = saved(tmp_path, fill(transformers.DeiTForImageClassificationWithTeacher(config())))
    lies = {
        '{"layer_norm_eps": -1}': "layer_norm_eps.*0.*1.*-1",
        '{"hidden_act": "relu6"}': "hidden_act .*gelu.*'relu6'",
    }
    for stated, text in lies.items():
        (tmp_path / "config.json").write_text(stated)
        with pytest.raises(CheckpointError, match=text):
            vitzoo.create(SPEC, weights=path)


# DeiT III of Meta.


@torch.no_grad()
@pytest.mark.parametrize("weights", ["own", "scaled"])
def test_metas_deit3(tmp_path, weights):
    """timm's own function renames the LayerScale."""
    from timm.models import vision_transformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    options = {"no_embed_class": True, "init_values": 1e-4, "mlp_ratio": 2, "num_classes": 5}
    network = fill(vision_transformer.VisionTransformer(**sizes, **options), weights)
    state = network.state_dict()
    tensors = {
        k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t
        for k, t in state.items()
    }
    same(
        vision_transformer.checkpoint_filter_fn(dict(tensors), network, adapt_layer_scale=True),
        state,
    )
    spec = SPEC | {"variant": "deit/deit3_s16"}
    model = vitzoo.create(spec, weights=write(tmp_path / "deit3.safetensors", tensors)).eval()
    same(model.state_dict(), state)
    assert (model.load_report.format, model.load_report.dropped) == ("deit/meta", ())
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    close(model(images), network(images))
    same(checkpoint_formats()["deit/meta"].from_model(model.state_dict()), tensors)
    path = vitzoo.save(model, tmp_path / "saved.safetensors")
    done = vitzoo.convert(path, "deit/meta", tmp_path / "there.safetensors")
    assert done.target_format == "deit/meta"
    assert checkpoint_formats()["deit/meta"].unsupported(vitzoo.describe("vit_b16").spec) == [
        "block.layer_scale = none",
        "pos_embed = learned (prefix = true)",
    ]
