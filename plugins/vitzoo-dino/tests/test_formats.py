"""The layouts of DINO, DINOv2 and DINOv3: what is read, left out, refused and written."""

import json
import re

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

import vitzoo
from tables import cases
from vitzoo import convert, formats
from vitzoo.errors import CheckpointError
from vitzoo.testing import checkpoint_formats
from vitzoo_dino import dino, dinov2, dinov3

SIZES = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_dim": 96, "num_classes": 0}
V1 = {"variant": "dino/vit_s16", "image_size": 64, **SIZES}
V2 = {"variant": "dinov2/vit_s14", "image_size": 56, **SIZES}
V2_REG = {"variant": "dinov2/vit_s14_reg4", "image_size": 56, **SIZES}
V2_GATED = V2_REG | {"block": {"layer_scale": 1e-5, "mlp": "swiglu_packed"}}
V3 = {"variant": "dinov3/vit_s16", "image_size": 64, **SIZES}
V3_BIASED = V3 | {"variant": "dinov3/vit_s16plus_qkvb"}
NETWORKS = {
    "dino/meta": [V1],
    "dinov2/meta": [V2, V2_REG, V2_GATED],
    "dinov2/transformers": [V2, V2_REG, V2_GATED],
    "dinov3/timm": [V3, V3_BIASED],
    "dinov3/meta": [V3, V3_BIASED],
    "dinov3/transformers": [V3, V3_BIASED],
}
CASES = [(layout, spec) for layout, specs in NETWORKS.items() for spec in specs]


@pytest.fixture
def images():
    return torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(7))


def write(folder, tensors, config=None):
    path = folder / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return path


def metas_file(model, heads=2):
    """Return the tensors of a DINOv3 as Meta's file has them."""
    return dinov3.meta.with_heads(heads).from_model(model.state_dict())


@pytest.mark.slow
@cases(("layout", "spec"), CASES)
def test_every_layout_loads_what_it_writes(tmp_path, randomise, layout, spec):
    model = randomise(vitzoo.create(spec))
    path = vitzoo.save(model, tmp_path / "own.safetensors")
    target = tmp_path / "theirs.safetensors"
    done = convert(path, layout, target)
    assert done.target_format == layout
    reread = vitzoo.create(spec, weights=target)
    assert reread.load_report.format == layout
    for name, tensor in model.state_dict().items():
        assert torch.equal(reread.state_dict()[name], tensor), name
    back = convert(target, "timm", tmp_path / "back.safetensors", variant=None)
    assert back.source_format == layout
    again = safetensors.torch.load_file(tmp_path / "back.safetensors")
    assert all(torch.equal(again[name], t) for name, t in model.state_dict().items())
    left = [note for note in back.notes if note.startswith("no part of the network")]
    assert bool(left) == (layout not in ("dino/meta", "dinov3/timm"))


def test_a_negative_zero_of_the_class_token_comes_back(tmp_path, randomise):
    model = randomise(vitzoo.create(V2_REG))
    with torch.no_grad():
        model.cls_token[0, 0, :3] = torch.tensor([-0.0, 0.0, 1e-40])
    path = vitzoo.save(model, tmp_path / "own.safetensors")
    convert(path, "dinov2/transformers", tmp_path / "theirs.safetensors")  # compares bits


# DINO


def test_the_teacher_is_taken_and_the_rest_named(tmp_path, randomise):
    teacher, student = (randomise(vitzoo.create(V1), seed) for seed in (1, 2))
    tensors = {f"teacher.backbone.{name}": t for name, t in teacher.state_dict().items()}
    tensors |= {f"student.module.backbone.{n}": t for n, t in student.state_dict().items()}
    tensors |= {
        "teacher.head.mlp.0.weight": torch.ones(3, 3),
        "student.module.head.last_layer.weight_g": torch.ones(3, 1),
    }
    model = vitzoo.create(V1, weights=write(tmp_path, tensors))
    assert model.load_report.format == "dino/meta"
    dropped = set(model.load_report.dropped)
    assert len(dropped) == len(student.state_dict()) + 2
    assert "teacher.head.mlp.0.weight" in dropped
    for name, tensor in teacher.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@cases("head", ["head.mlp.0.weight", "dino_head.last_layer.weight_v"])
@cases("prefix", dino.PREFIXES)
def test_every_prefix_of_a_backbone(tmp_path, randomise, prefix, head):
    source = randomise(vitzoo.create(V1))
    tensors = {prefix + name: t for name, t in source.state_dict().items()}
    tensors |= {prefix.removesuffix("backbone.") + head: torch.ones(3, 3)}
    model = vitzoo.create(V1, weights=write(tmp_path, tensors))
    assert model.load_report.format == "dino/meta"
    assert len(model.load_report.dropped) == 1
    assert torch.equal(model.pos_embed, source.pos_embed)


def test_student_and_teacher_without_a_head_of_dino_are_refused(tmp_path, randomise):
    teacher, student = (randomise(vitzoo.create(V1), seed) for seed in (1, 2))
    tensors = {f"teacher.backbone.{name}": t for name, t in teacher.state_dict().items()}
    tensors |= {f"student.module.backbone.{n}": t for n, t in student.state_dict().items()}
    groups = r"'teacher\.backbone\.' \(timm\), 'student\.module\.backbone\.' \(timm\)"
    with pytest.raises(CheckpointError, match=groups):
        vitzoo.create(V1, weights=write(tmp_path, tensors))


@cases("prefix", ["module.", "backbone.", "module.backbone."])
@cases("spec", [V1, V2, V2_REG], ids=["dino", "dinov2", "registers"])
def test_a_file_of_timm_behind_a_prefix_stays_one_of_timm(tmp_path, randomise, spec, prefix):
    """It has the interpolation and epsilon of timm's file, not those of Meta's code."""
    source = randomise(vitzoo.create(spec))
    tensors = {prefix + name: t for name, t in source.state_dict().items()}
    model = vitzoo.create(spec, weights=write(tmp_path, tensors))
    assert model.load_report.format == "timm"
    bare = vitzoo.create(spec, weights=write(tmp_path, source.state_dict()))
    assert model.spec == bare.spec  # with the epsilon and the interpolation
    assert all(torch.equal(t, bare.state_dict()[n]) for n, t in model.state_dict().items())


def test_a_published_dino_has_the_names_of_timm(tmp_path, randomise):
    path = write(tmp_path, randomise(vitzoo.create(V1)).state_dict())
    assert vitzoo.create(V1, weights=path).load_report.format == "timm"


def test_a_strange_tensor_behind_the_prefix_is_no_part_of_training(tmp_path, randomise):
    tensors = dino.meta.from_model(randomise(vitzoo.create(V1)).state_dict())
    path = write(tmp_path, tensors | {"teacher.backbone.extra": torch.ones(2)})
    with pytest.raises(CheckpointError, match="1 unexpected: extra"):
        vitzoo.create(V1, weights=path)


# DINOv2


def meta_positions(table, grid, side):
    """Interpolate (1, n, d) positions as Meta's code does without registers."""
    square = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = [(n + 0.1) / side for n in grid]
    moved = F.interpolate(square, scale_factor=scale, mode="bicubic")
    assert tuple(moved.shape[2:]) == tuple(grid)
    return moved.permute(0, 2, 3, 1).flatten(1, 2)


@pytest.mark.parametrize("grid", [(16, 16), (9, 21), (40, 5)])
@pytest.mark.parametrize("registers", [False, True])
def test_dense_features_at_other_sizes_as_metas_code(tmp_path, randomise, grid, registers):
    name = "dinov2/vit_s14_reg4" if registers else "dinov2/vit_s14"
    spec = {"variant": name, **SIZES}
    source = randomise(vitzoo.create(spec))
    tensors = dinov2.meta.from_model(source.state_dict())
    position = torch.randn(64, generator=torch.Generator().manual_seed(3))
    tensors["pos_embed"][0, 0] = position
    size = (14 * grid[0], 14 * grid[1])
    model = vitzoo.create(spec, weights=write(tmp_path, tensors), image_size=size).eval()
    patches = tensors["pos_embed"][:, 1:]
    if registers:
        square = patches.reshape(1, 37, 37, -1).permute(0, 3, 1, 2)
        moved = F.interpolate(square, size=grid, mode="bicubic", antialias=True)
        expected = moved.permute(0, 2, 3, 1).flatten(1, 2)
        torch.testing.assert_close(
            model.cls_token[0, 0], tensors["cls_token"][0, 0] + position, rtol=0, atol=1e-6
        )
        assert torch.equal(model.reg_token, tensors["register_tokens"])
    else:
        expected = meta_positions(patches, grid, 37)
        assert torch.equal(model.pos_embed[0, 0], position)
    actual = model.pos_embed[:, -grid[0] * grid[1] :]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    other = F.interpolate(
        patches.reshape(1, 37, 37, -1).permute(0, 3, 1, 2), size=grid, mode="bicubic"
    )
    assert (other.permute(0, 2, 3, 1).flatten(1, 2) - actual).abs().max() > 1e-3


def test_the_mask_token_of_dinov2_is_named(tmp_path, randomise):
    tensors = dinov2.meta.from_model(randomise(vitzoo.create(V2)).state_dict())
    assert tensors["mask_token"].shape == (1, 64)
    model = vitzoo.create(V2, weights=write(tmp_path, tensors))
    assert model.load_report.dropped == ("mask_token",)
    assert "dropped 1: mask_token" in str(model.load_report)


def test_the_gate_of_meta_has_the_names_of_xformers(randomise):
    model = randomise(vitzoo.create(V2_GATED))
    tensors = dinov2.meta.from_model(model.state_dict())
    assert tensors["blocks.0.mlp.w12.weight"].shape == (192, 64)
    assert tensors["blocks.0.mlp.w3.weight"].shape == (64, 96)
    gate, value = tensors["blocks.0.mlp.w12.weight"].chunk(2)
    bias = tensors["blocks.0.mlp.w12.bias"].chunk(2)
    x = torch.randn(1, 5, 64)
    hidden = F.silu(x @ gate.T + bias[0]) * (x @ value.T + bias[1])
    expected = hidden @ tensors["blocks.0.mlp.w3.weight"].T + tensors["blocks.0.mlp.w3.bias"]
    torch.testing.assert_close(model.blocks[0].mlp(x), expected, rtol=0, atol=1e-5)


def test_a_teacher_of_dinov2(tmp_path, randomise):
    source = randomise(vitzoo.create(V2))
    own = dinov2.meta.from_model(source.state_dict())
    tensors = {f"teacher.backbone.{name}": t for name, t in own.items()}
    tensors["teacher.dino_head.mlp.0.weight"] = torch.ones(2, 2)
    model = vitzoo.create(V2, weights=write(tmp_path, tensors))
    assert model.load_report.format == "dinov2/meta"
    assert set(model.load_report.dropped) == {
        "teacher.backbone.mask_token",
        "teacher.dino_head.mlp.0.weight",
    }
    assert torch.equal(model.pos_embed, source.pos_embed)


def test_the_tokens_of_release_4_and_5_are_the_same(randomise):
    written = dinov2.transformers.from_model(randomise(vitzoo.create(V2_GATED)).state_dict())
    renamed = {}
    for name, tensor in written.items():
        found = [(m, four) for m, four in formats.RELEASE_5.items() if four in name]
        module, four = found[0] if found else ("", "")
        if ".mlp.weights_in." in name:
            gate, up = tensor.chunk(2)
            renamed[name.replace("weights_in", "gate_proj")] = gate
            renamed[name.replace("weights_in", "up_proj")] = up
        else:
            renamed[name.replace(four, module) if found else name] = tensor
    assert renamed.keys() != written.keys()
    read, expected = (dinov2.transformers.to_model(t) for t in (renamed, written))
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())


def test_facts_of_a_config_of_dinov2(tmp_path, randomise):
    tensors = dinov2.transformers.from_model(randomise(vitzoo.create(V2)).state_dict())
    config = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-4, "num_attention_heads": 2}
    model = vitzoo.create(V2, weights=write(tmp_path, tensors, config))
    assert (model.spec.block.activation, model.spec.block.norm_eps) == ("quick_gelu", 1e-4)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    with pytest.raises(CheckpointError, match=r"4 .*heads.* 2"):
        vitzoo.create(V2, weights=tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu6"}))
    with pytest.raises(CheckpointError, match=r"hidden_act .*gelu.*'relu6'"):
        vitzoo.create(V2, weights=tmp_path / "model.safetensors")


def test_the_authors_file_names_its_own_interpolation(tmp_path, randomise):
    spec = {"variant": "dino/vit_s16", **SIZES}
    tensors = dino.meta.from_model(randomise(vitzoo.create(spec)).state_dict())
    model = vitzoo.create(spec, weights=write(tmp_path, tensors), image_size=96)
    assert model.load_report.assumed[-1] == "pos_embed.resample = bicubic_offset"


# DINOv3


def test_what_metas_dinov3_holds_beside_the_network_is_named(tmp_path, randomise):
    source = randomise(vitzoo.create(V3_BIASED))
    tensors = metas_file(source) | {
        "local_cls_norm.weight": torch.ones(64),
        "local_cls_norm.bias": torch.ones(64),
    }
    model = vitzoo.create(V3_BIASED, weights=write(tmp_path, tensors))
    assert set(model.load_report.dropped) == {
        "mask_token",
        "rope_embed.periods",
        "blocks.0.attn.qkv.bias_mask",
        "blocks.1.attn.qkv.bias_mask",
        "local_cls_norm.weight",
        "local_cls_norm.bias",
    }
    assert (model.spec.block.qkv_bias, model.spec.block.norm_eps) == ("qv", 1e-5)


def test_masked_biases_of_keys_do_not_count(tmp_path, randomise):
    source = randomise(vitzoo.create(V3_BIASED))
    tensors = metas_file(source)
    tensors["blocks.1.attn.qkv.bias"][64:128] = 5
    model = vitzoo.create(V3_BIASED, weights=write(tmp_path, tensors))
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model.eval()(images), source(images))


def test_another_mask_is_refused(tmp_path, randomise):
    tensors = metas_file(randomise(vitzoo.create(V3_BIASED)))
    for value in (1.0, float("nan")):
        tensors["blocks.1.attn.qkv.bias_mask"][64:128] = value
        with pytest.raises(CheckpointError, match=r"bias_mask.*1.*queries|NaN"):
            vitzoo.create(V3_BIASED, weights=write(tmp_path, tensors))


def test_biases_without_a_mask_are_all_biases(tmp_path, randomise):
    spec = V3 | {"block": {"norm_eps": 1e-5, "layer_scale": 1e-5, "qkv_bias": True}}
    source = randomise(vitzoo.create(spec))
    tensors = metas_file(source)
    assert "blocks.0.attn.qkv.bias_mask" not in tensors
    model = vitzoo.create(V3, weights=write(tmp_path, tensors))
    assert model.spec.block.qkv_bias is True
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model.eval()(images), source(images))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_metas_periods_are_honoured(tmp_path, parity, weights, stored, prefix, timm):
    """Meta published bfloat16 periods; timm's network with these periods is the reference."""
    sizes = {"img_size": 64, "depth": 2, "embed_dim": 64, "num_heads": 2, "mlp_ratio": 1.5}
    sizes |= {"num_classes": 0, "global_pool": "token", "init_values": 1.0}
    network = timm.create_model("vit_small_patch16_dinov3", **sizes).eval()
    parity.fill(network, weights)
    periods = network.rope.periods.bfloat16()
    source = vitzoo.create(V3)
    source.load_state_dict(dinov3.timm_eva.to_model(network.state_dict()))
    tensors = metas_file(source) | {"rope_embed.periods": periods.to(stored)}
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(7))
    exact = network.forward_features(images)
    network.rope.periods.copy_(periods.float())
    expected = network.forward_features(images)
    path = write(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()})
    model = vitzoo.create(V3, weights=path).eval()
    parity.assert_same(model.forward_features(images), expected)
    if weights == "scaled":  # the attention of an untrained network hardly sees positions
        assert (exact - expected).abs().max() > 2e-4 * expected.abs().max()
    sine = network.rope.get_embed([4, 4]).chunk(2, dim=-1)[0]
    torch.testing.assert_close(model.positions.sine, sine, rtol=0, atol=2e-6)
    assert (source.positions.sine - sine).abs().max() > 2e-3
    assert dict(model.spec.pos_embed.options)["periods"] == "bfloat16"
    saved = vitzoo.save(model, tmp_path / "saved.safetensors")
    for again in (vitzoo.create(saved), vitzoo.create(model.spec.to_data(), weights=path)):
        assert torch.equal(again.eval()(images), model(images))
    model.set_input_size(96)
    larger = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(8))
    parity.assert_same(model.forward_features(larger), network.forward_features(larger))
    with pytest.raises(CheckpointError, match="periods = bfloat16"):
        convert(saved, "dinov3/meta", tmp_path / "meta.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_metas_file_of_a_model_in_half_precision_has_exact_periods(tmp_path, randomise, dtype):
    tensors = metas_file(randomise(vitzoo.create(V3)).to(dtype))
    assert tensors["rope_embed.periods"].dtype == torch.float32
    model = vitzoo.create(V3, weights=write(tmp_path, tensors))
    assert "periods" not in dict(model.spec.pos_embed.options)


def test_other_periods_are_refused(tmp_path, randomise):
    tensors = metas_file(randomise(vitzoo.create(V3)))
    for periods in (90.0 ** (torch.arange(8) / 8), tensors["rope_embed.periods"] * (1 + 2**-9)):
        tensors["rope_embed.periods"] = periods
        with pytest.raises(CheckpointError, match=r"periods.*temperature 100"):
            vitzoo.create(V3, weights=write(tmp_path, tensors))
    tensors["rope_embed.periods"] = torch.ones(2, 4, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r"periods|heads"):
        vitzoo.create(V3, weights=write(tmp_path, tensors))


def test_periods_show_the_number_of_heads(tmp_path, randomise):
    tensors = metas_file(randomise(vitzoo.create(V3)), heads=4)
    with pytest.raises(CheckpointError, match=r"4 .*heads.* 2"):
        vitzoo.create(V3, weights=write(tmp_path, tensors))


def test_writing_metas_dinov3_needs_the_number_of_heads():
    model = vitzoo.create(V3)
    with pytest.raises(CheckpointError, match=r"dinov3/meta.*number of attention heads"):
        dinov3.meta.from_model(model.state_dict())


def test_files_of_timm_that_are_no_dinov3_are_refused(tmp_path, randomise):
    tensors = dinov3.timm_eva.from_model(randomise(vitzoo.create(V3)).state_dict())
    assert "blocks.0.gamma_1" in tensors
    path = write(tmp_path, tensors, {"architecture": "vit_small_patch16_rope_224"})
    with pytest.raises(CheckpointError, match=r"LingBot-Vision, got 'vit_small_patch16_rope_224'"):
        vitzoo.create(V3, weights=path)
    sizes = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5, "img_size": 64}
    config = {"architecture": "vit_small_patch16_dinov3", "model_args": sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vitzoo.create(V3, weights=path).spec.pool.name == "mean"


@pytest.mark.parametrize("theta", ["100", 0.5, float("inf"), True, None])
def test_a_base_that_is_none_is_refused(tmp_path, randomise, theta):
    tensors = dinov3.transformers.from_model(randomise(vitzoo.create(V3)).state_dict())
    path = write(tmp_path, tensors, {"rope_theta": theta})
    with pytest.raises(CheckpointError, match=r"rope_theta.*above 1"):
        vitzoo.create(V3, weights=path)


def test_a_gate_of_gelu_is_refused(tmp_path, randomise):
    tensors = dinov3.transformers.from_model(randomise(vitzoo.create(V3_BIASED)).state_dict())
    for config in ({"use_gated_mlp": True}, {"use_gated_mlp": True, "hidden_act": "gelu"}):
        path = write(tmp_path, tensors, config)
        with pytest.raises(CheckpointError, match=r"hidden_act .*silu.*MLP.*'gelu'"):
            vitzoo.create(V3_BIASED, weights=path)


# What the libraries cannot compute


REFUSED = {
    "dino/meta": ({"num_registers": 1}, "num_registers = 1"),
    "dinov2/meta": ({"block": {"layer_scale": None}}, "block.layer_scale = none"),
    "dinov2/transformers": ({"pos_embed": {"name": "learned", "prefix": False}}, "prefix = false"),
    "dinov3/timm": ({"pos_embed": {"name": "rope", "temperature": 50.0}}, "temperature = 50.0"),
    "dinov3/meta": ({"pos_embed": "learned"}, "pos_embed = learned"),
    "dinov3/transformers": ({"pos_embed": "none"}, "pos_embed = none"),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_networks_that_the_library_lacks_are_not_written(tmp_path, layout):
    changes, text = REFUSED[layout]
    base = NETWORKS[layout][0]
    if "block" in changes:
        base = {**SIZES, "image_size": 56, "patch_size": 14}
        changes = {}
    model = vitzoo.create(base | changes)
    path = vitzoo.save(model, tmp_path / "own.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(text)):
        convert(path, layout, tmp_path / "theirs.safetensors")
    assert not (tmp_path / "theirs.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name", "text"),
    [
        (
            "dinov2/meta",
            "dinov2/vit_s14",
            r"layer_scale = none.*\(--variant\)",
        ),
        (
            "dinov3/meta",
            "dinov3/vit_s16",
            r"heads.*\(--variant\).*\(--heads\)",
        ),
    ],
)
def test_bare_files_are_written_once_their_variant_is_named(tmp_path, layout, name, text):
    path = write(tmp_path, vitzoo.create(name).state_dict())
    target = tmp_path / "theirs.safetensors"
    with pytest.raises(CheckpointError, match=text):
        convert(path, layout, target)
    assert convert(path, layout, target, variant=name).target_format == layout
    target.unlink()


HOSTILE = {
    "empty": {"mask_token": torch.zeros(0), "pos_embed": torch.zeros(0, 0, 0)},
    "scalars": {
        "cls_token": torch.tensor(1.0),
        "register_tokens": torch.tensor(1.0),
        "pos_embed": torch.tensor(1.0),
        "storage_tokens": torch.tensor(1.0),
        "rope_embed.periods": torch.tensor(1.0),
        "blocks.0.attn.qkv.bias_mask": torch.tensor(1.0),
        "blocks.0.attn.qkv.bias": torch.tensor(1.0),
    },
}


@pytest.mark.slow
@cases("case", HOSTILE)
@cases(("layout", "spec"), CASES)
def test_odd_tensors_give_a_clear_error(tmp_path, layout, spec, case):
    written = checkpoint_formats()[layout]
    written = written.with_heads(2) if layout == "dinov3/meta" else written
    tensors = written.from_model(vitzoo.create(spec).state_dict())
    bare = {name.rpartition("backbone.")[2]: name for name in tensors}
    odd = {bare.get(name, name): tensor for name, tensor in HOSTILE[case].items()}
    odd |= {f"embeddings.{name}": tensor.clone() for name, tensor in HOSTILE[case].items()}
    with pytest.raises(CheckpointError):
        vitzoo.create(spec, weights=write(tmp_path, tensors | odd))
