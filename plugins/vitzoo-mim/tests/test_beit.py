"""The layouts of BEiT: their libraries' numbers come out, and the way back is exact."""

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import check_odd_shapes, same, write
from tables import cases
from vitzoo import convert
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format
from vitzoo.testing import checkpoint_formats
from vitzoo_mim.beit import timm_beit, transformers_beit
from vitzoo_mim.relative import RelativePositions

SPEC = {
    "variant": "beit/beit_b16",
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
AFTER = {"name": "mean", "norm_first": False}
BLOCK = {"qkv_bias": "qv", "layer_scale": 0.1}
STATED = {key: value for key, value in SPEC.items() if key != "variant"} | {
    "pos_embed": "mim/relative",
    "pool": AFTER,
    "block": BLOCK,
}
RELATIVE = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
FORMATS = {"beit/timm": timm_beit, "beit/transformers": transformers_beit}


def timms(parity, weights, num_classes=5, **options):
    from timm.models.beit import Beit

    torch.manual_seed(1)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    tables = {"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 0.1}
    numbers = {"mlp_ratio": 2, "num_classes": num_classes, "head_init_scale": 1.0}
    network = Beit(**(sizes | tables | numbers | options)).eval()
    parity.fill(network, weights)
    return network


def config(**changes):
    from transformers import BeitConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}
    return BeitConfig(**(sizes | (RELATIVE if not changes.keys() & SHARED else {}) | changes))


def theirs(kind, parity, weights, **changes):
    torch.manual_seed(1)
    network = kind(config(**changes)).eval()
    parity.fill(network, weights)
    return network


def saved(folder, network):
    """Write a network of transformers' with its config and return (file, tensors)."""
    network.save_pretrained(folder)
    path = folder / "model.safetensors"
    return path, safetensors.torch.load_file(path)


# timm.


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("pool", ["avg", "token"])
def test_timm_there_and_back(tmp_path, parity, weights, images, shared, pool):
    tables = {"use_rel_pos_bias": not shared, "use_shared_rel_pos_bias": shared}
    network = timms(parity, weights, global_pool=pool, **tables)
    path = write(tmp_path / "beit.safetensors", network.state_dict())
    chosen = AFTER if pool == "avg" else "class"
    model = vitzoo.create(SPEC, weights=path, pool=chosen).eval()
    report = model.load_report
    assert report.format == "beit/timm"
    assert set(report.kept) == set(model.state_dict())
    assert model.pos_embed.shape[0] == (1 if shared else 2)
    parity.assert_same_network(network, model, images)
    same(timm_beit.from_model(model.state_dict()), network.state_dict())


@torch.no_grad()
def test_timm_with_a_gated_and_normed_mlp(tmp_path, parity, weights, images):
    network = timms(parity, weights, swiglu_mlp=True, scale_mlp=True, init_values=None)
    path = write(tmp_path / "beit.safetensors", network.state_dict())
    block = {"qkv_bias": "qv", "mlp": "swiglu", "mlp_norm": True}
    spec = STATED | {"block": block}
    model = vitzoo.create(spec, weights=path).eval()
    parity.assert_same_network(network, model, images)
    same(timm_beit.from_model(model.state_dict()), network.state_dict())


def test_a_saved_network_is_the_models_own_layout(tmp_path, parity, images):
    network = timms(parity, "scaled")
    path = write(tmp_path / "beit.safetensors", network.state_dict())
    model = vitzoo.create(SPEC, weights=path).eval()
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors")).eval()
    assert again.load_report.format == "timm"
    assert torch.equal(again(images), model(images))


# transformers.


@torch.no_grad()
@cases("tables", [RELATIVE, SHARED], ids=["each", "shared"])
@cases("mean", [True, False])
@cases("written", ["by save_pretrained", "as a state dict"])
def test_the_classifier_there_and_back(
    tmp_path, parity, weights, images, tables, mean, written, transformers
):
    network = theirs(
        transformers.BeitForImageClassification, parity, weights, use_mean_pooling=mean, **tables
    )
    path, tensors = saved(tmp_path, network)
    if written == "as a state dict":
        write(path, network.state_dict())
    model = vitzoo.create(SPEC, weights=path).eval()
    report = model.load_report
    assert report.format == "beit/transformers"
    assert set(report.kept) == set(model.state_dict())
    assert model.spec.pool.name == ("mean" if mean else "class")
    assert dict(model.spec.pos_embed.options)["resample"] == "bilinear"
    assert model.spec.block.norm_eps == 1e-12
    parity.assert_same(model(images), network(images).logits)
    tokens = network.beit(images).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens)
    same(transformers_beit.from_model(model.state_dict()), tensors)


@torch.no_grad()
def test_the_backbone_there_and_back(tmp_path, parity, weights, images, transformers):
    network = theirs(transformers.BeitModel, parity, weights)
    path, tensors = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    expected = network(images)
    parity.assert_same(model(images), expected.pooler_output)
    parity.assert_same(model.forward_features(images), expected.last_hidden_state)
    same(transformers_beit.from_model(model.state_dict()), tensors)


@torch.no_grad()
def test_masked_image_modelling_leaves_its_head(tmp_path, parity, weights, images, transformers):
    network = theirs(
        transformers.BeitForMaskedImageModeling, parity, weights, use_mask_token=True, **SHARED
    )
    path, _ = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    assert model.load_report.dropped == (
        "beit.embeddings.mask_token",
        "lm_head.bias",
        "lm_head.weight",
    )
    assert model.pos_embed.shape[0] == 1
    tokens = network.layernorm(network.beit(images).last_hidden_state)
    parity.assert_same(model.forward_features(images), tokens)
    parity.assert_same(model(images), tokens[:, 1:].mean(1))
    logits = network.lm_head(model.forward_features(images)[:, 1:])
    parity.assert_same(logits, network(images).logits)


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 48), (48, 24), (24, 40)])
@pytest.mark.parametrize("tables", [RELATIVE, SHARED], ids=["each", "shared"])
def test_other_image_sizes_as_transformers_resamples(
    tmp_path, parity, weights, size, tables, transformers
):
    network = theirs(transformers.BeitForImageClassification, parity, weights, **tables)
    path, _ = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path).eval()
    model.set_input_size(size)
    images = torch.randn(2, 3, *size)
    parity.assert_same(model(images), network(images).logits)


@torch.no_grad()
def test_transformers_reads_what_is_written(tmp_path, parity, images, transformers):
    """The library itself loads the inverse and computes our numbers."""
    model = vitzoo.create(SPEC, block={"norm_eps": 1e-12})
    parity.fill(model, "scaled")
    write(tmp_path / "model.safetensors", transformers_beit.from_model(model.state_dict()))
    config().save_pretrained(tmp_path)
    network = transformers.BeitForImageClassification.from_pretrained(tmp_path).eval()
    parity.assert_same(model.eval()(images), network(images).logits)


def test_facts_come_from_the_config(tmp_path, parity, transformers):
    network = theirs(
        transformers.BeitForImageClassification,
        parity,
        "own",
        layer_norm_eps=1e-5,
        hidden_act="gelu_new",
    )
    path, _ = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path)
    assert (model.spec.block.norm_eps, model.spec.block.activation) == (1e-5, "gelu_tanh")
    (tmp_path / "config.json").unlink()
    model = vitzoo.create(SPEC, weights=path)
    assert (model.spec.block.norm_eps, model.spec.block.activation) == (1e-12, "gelu")
    assert model.load_report.assumed[:2] == ("norm_eps = 1e-12", "activation = gelu")


# What cannot be is refused.


def test_heads_are_counted_by_the_tables(tmp_path, parity):
    path = write(tmp_path / "beit.safetensors", timms(parity, "own").state_dict())
    with pytest.raises(CheckpointError, match=r"2 .*heads.* 4"):
        vitzoo.create(SPEC | {"num_heads": 4}, weights=path)
    tables = {"blocks.0.attn.relative_position_bias_table": torch.zeros(52, 2)}
    text = "heads must be 2.*tables, got 4"
    with pytest.raises(CheckpointError, match=text):
        transformers_beit.num_heads({"num_attention_heads": 4}, tables)


def test_images_that_are_not_square_are_refused(tmp_path, parity, transformers):
    network = theirs(transformers.BeitForImageClassification, parity, "own", image_size=(32, 24))
    path, _ = saved(tmp_path, network)
    with pytest.raises(CheckpointError, match=r"image_size must be square.* got \[32, 24\]"):
        vitzoo.create(SPEC | {"image_size": (32, 24)}, weights=path)


@pytest.mark.parametrize("changes", [RELATIVE | SHARED, {"use_absolute_position_embeddings": True}])
def test_other_positions_are_refused_by_name(tmp_path, parity, changes, transformers):
    network = theirs(transformers.BeitForImageClassification, parity, "own", **changes)
    if "use_absolute_position_embeddings" in changes:
        network = theirs(
            transformers.BeitForImageClassification, parity, "own", **(RELATIVE | changes)
        )
    path, _ = saved(tmp_path, network)
    with pytest.raises(CheckpointError, match=r"relative_position|absolute_position"):
        vitzoo.create(SPEC, weights=path)


def test_a_segmentation_head_is_refused_by_name(tmp_path, parity, transformers):
    path, tensors = saved(tmp_path, theirs(transformers.BeitModel, parity, "own"))
    write(path, tensors | {"decode_head.classifier.weight": torch.ones(5, 32, 1, 1)})
    with pytest.raises(CheckpointError, match=r"unexpected: .*decode_head"):
        vitzoo.create(SPEC, weights=path, num_classes=0)


def test_a_bias_of_the_key_is_refused_by_name(tmp_path, parity, transformers):
    path, tensors = saved(tmp_path, theirs(transformers.BeitForImageClassification, parity, "own"))
    key = "beit.encoder.layer.0.attention.attention.key.bias"
    write(path, tensors | {key: torch.ones(32)})
    with pytest.raises(CheckpointError, match=r"1 unexpected: encoder\.layer\.0.*key\.bias"):
        vitzoo.create(SPEC, weights=path)


def test_a_tensor_under_two_names_is_refused(tmp_path, parity, transformers):
    network = theirs(transformers.BeitForImageClassification, parity, "own", use_mean_pooling=False)
    path, tensors = saved(tmp_path, network)
    write(path, tensors | {"layernorm.weight": torch.ones(32)})
    with pytest.raises(CheckpointError, match=r"two tensors.*'(layern|n)"):
        vitzoo.create(SPEC, weights=path)


# The index buffers of older files.

INDICES = {
    "beit/timm": "blocks.{}.attn.relative_position_index",
    "beit/transformers": (
        "beit.encoder.layer.{}.attention.attention.relative_position_bias.relative_position_index"
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_index_buffers_are_checked_and_left_out(tmp_path, parity, name):
    numbers = {"num_prefix_tokens": 1, "num_heads": 2, "depth": 2}
    index = RelativePositions(grid_size=(4, 4), **numbers).index
    plain = vitzoo.create(SPEC)
    parity.fill(plain, "scaled")
    file = FORMATS[name].from_model(plain.state_dict())
    keys = [INDICES[name].format(layer) for layer in (0, 1)]
    path = write(tmp_path / "old.safetensors", file | {key: index.clone() for key in keys})
    model = vitzoo.create(SPEC, weights=path)
    assert set(model.load_report.dropped) == set(keys)
    for wrong in (index.T, index[:-1], torch.zeros(3), index.roll(1)):
        write(path, file | {keys[0]: wrong})
        with pytest.raises(CheckpointError, match=r"index.*square"):
            vitzoo.create(SPEC, weights=path)


# Layouts and networks.


@pytest.mark.parametrize("name", FORMATS)
def test_the_network_is_converted(tmp_path, parity, name):
    model = vitzoo.create(SPEC)
    parity.fill(model, "scaled")
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    convert(path, name, tmp_path / "out.safetensors")
    again = vitzoo.create(SPEC, weights=tmp_path / "out.safetensors")
    same(dict(again.state_dict()), dict(model.state_dict()))


@cases(
    ("changes", "problem"),
    [
        ({"num_registers": 1}, "num_registers = 1"),
        ({"class_token": False}, "class_token = false"),
        ({"pos_embed": "rope"}, "pos_embed = rope"),
        ({"block": BLOCK | {"qk_norm": True}}, "block.qk_norm = true"),
        ({"block": BLOCK | {"qkv_bias": True}}, "block.qkv_bias = true"),
        ({"block": BLOCK | {"parallel": True}}, "block.parallel = true"),
        ({"block": BLOCK | {"post_norm": True}}, "block.post_norm = true"),
        ({"pool": "attention"}, "pool = attention"),
        ({"head": "mlp"}, "head = mlp"),
    ],
    ids=str,
)
@cases("name", FORMATS)
def test_other_networks_are_refused(tmp_path, name, changes, problem):
    path = vitzoo.save(vitzoo.create(STATED | changes), tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        convert(path, name, tmp_path / "out.safetensors")


@pytest.mark.parametrize("layout", ["timm", "google", "torchvision", "transformers_vit"])
def test_a_vit_has_no_relative_positions(tmp_path, layout):
    path = vitzoo.save(vitzoo.create(STATED), tmp_path / "net.safetensors")
    ending = ".npz" if layout == "google" else ".safetensors"
    with pytest.raises(CheckpointError, match="pos_embed = mim/relative"):
        convert(path, layout, tmp_path / f"out{ending}")


def every_layout(parity):
    """Yield (format, keys) of every network and of what it is written as."""
    from transformers import BeitForImageClassification, BeitForMaskedImageModeling, BeitModel

    state = vitzoo.create(SPEC).state_dict()
    for name, layout in FORMATS.items():
        yield name, layout.from_model(state).keys()
    for tables in ({"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False}, {}):
        yield "beit/timm", timms(parity, "own", **tables).state_dict().keys()
    for kind in (BeitForImageClassification, BeitModel, BeitForMaskedImageModeling):
        for tables in (RELATIVE, SHARED):
            yield "beit/transformers", kind(config(**tables)).state_dict().keys()
    yield "timm", state.keys()


def test_each_layout_is_claimed_by_its_format_alone(parity):
    formats = checkpoint_formats()
    for name, keys in every_layout(parity):
        assert [n for n, layout in formats.items() if layout.matches(keys)] == [name]
    for name, layout in FORMATS.items():
        assert isinstance(layout, Format)
        assert layout.name == name


# Hostile shapes: what a layout cannot use stays under the file's own name.


@pytest.mark.slow
@cases("name", FORMATS)
@cases("shape", [(), (0,), (3,), (0, 3), (2, 0, 3), (1, 1, 1, 0), (2,) * 6])
def test_odd_shapes(tmp_path, name, shape):
    layout, state = FORMATS[name], vitzoo.create(SPEC).state_dict()
    file = check_odd_shapes(layout, state, shape)
    for key in file:
        odd = {k: torch.empty_like(t, device="meta") for k, t in file.items()}
        odd[key] = torch.empty(shape, device="meta")
        assert layout.num_heads({}, odd) in (2, None, *shape)
    tables = [key for key in file if key.endswith("_table")]
    for key in [*tables, *(k for k in file if "q_bias" in k or "query" in k)]:
        path = write(tmp_path / "odd.safetensors", file | {key: torch.ones(shape)})
        with pytest.raises(CheckpointError, match=r"does not fit the model|attention heads"):
            vitzoo.create(STATED, weights=path)


def test_tables_of_blocks_that_do_not_follow_are_not_stacked():
    file = timm_beit.from_model(vitzoo.create(SPEC).state_dict())
    key = "blocks.1.attn.relative_position_bias_table"
    moved = {name.replace(key, key.replace("1", "99999999999")): t for name, t in file.items()}
    assert "pos_embed" not in timm_beit.to_model(moved)
    assert "pos_embed" not in timm_beit.to_model(file | {key: torch.zeros(7, 2)})
