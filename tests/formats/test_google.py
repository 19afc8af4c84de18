"""The layouts of Google and big_vision, against a reference in numpy and timm's reading."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import vitzoo
from helpers import SPEC, close, fill, refuses, same, says, write
from internals import big_vision, google, vit_jax
from layouts import FORMATS, vit_config
from tables import cases
from vitzoo.errors import CheckpointError

reference = runpy.run_path(str(Path(__file__).parents[1] / "google_reference.py"))
WEIGHTS = ("own", "scaled")
GOOGLE = {
    "original": ("original", "", False),
    "augreg": ("original", "opt/target/", False),
    "big_vision": ("big_vision", "params/", False),
    "big_vision, bare": ("big_vision", "", False),
    "big_vision, scanned": ("big_vision", "params/", True),
}


@cases("weights", WEIGHTS)
@cases("pre_logits", [0, 24])
@cases(("layout", "prefix", "scan"), GOOGLE.values(), ids=GOOGLE)
@torch.no_grad()
def test_google_there_and_back(tmp_path, images, weights, pre_logits, layout, prefix, scan):
    arrays = reference["draw"](layout, weights, pre_logits=pre_logits, classes=7)
    stored = reference["scanned"](arrays) if scan else arrays
    assert len(stored) < len(arrays) or not scan
    stored = {prefix + key: array for key, array in stored.items()}
    path = write(tmp_path / "google.safetensors", stored)
    head = {"head": {"name": "tanh", "hidden_dim": pre_logits}} if pre_logits else {}
    model = vitzoo.create(SPEC | head | {"num_classes": 7}, weights=path).eval()
    tokens, pooled, logits = reference["forward"](arrays, images, layout)
    close(model.forward_features(images), tokens)
    close(model.forward_head(model.forward_features(images), pre_logits=True), pooled)
    close(model(images), logits)
    layouts = {"original": google, "big_vision": big_vision}
    assert FORMATS[model.load_report.format] is layouts[layout]
    assert model.load_report.assumed == ("norm_eps = 1e-06", "activation = gelu_tanh")
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    back = layouts[layout].with_heads(2).from_model(model.state_dict())
    written = "params/" if layout == "big_vision" else ""
    same(back, {written + key: array for key, array in arrays.items()})


@pytest.mark.parametrize("weights", WEIGHTS)
def test_google_evaluation_is_not_a_ports(tmp_path, images, weights):
    """The exact GELU gives other numbers; the user can ask for them, and the report says so."""
    arrays = reference["draw"]("original", weights)
    path = write(tmp_path / "google.safetensors", arrays)
    port = vitzoo.create(SPEC, weights=path, block={"activation": "gelu"}).eval()
    expected = reference["forward"](arrays, images)[2]
    with torch.no_grad():
        assert (port(images) - expected).abs().max() > 1e-4 * max(1, expected.abs().max())
    _, activation = port.load_report.assumed
    says(activation, "block.activation = gelu", "gelu_tanh")


def test_a_mapping_says_its_own_before_the_layout(tmp_path):
    path = write(tmp_path / "google.safetensors", reference["draw"]("original", "own"))
    model = vitzoo.create(SPEC | {"block": {"activation": "gelu"}}, weights=path)
    assert model.spec.block.activation == "gelu"
    epsilon, activation = model.load_report.assumed
    assert epsilon == "norm_eps = 1e-06"
    says(activation, "block.activation = gelu", "gelu_tanh")


@pytest.mark.parametrize("layout", ["original", "big_vision"])
@torch.no_grad()
def test_google_without_a_class_token(tmp_path, images, layout):
    arrays = reference["draw"](layout, "scaled")
    del arrays["cls"]
    if layout == "original":
        key = "Transformer/posembed_input/pos_embedding"
        arrays[key] = arrays[key][:, 1:]
    path = write(tmp_path / "gap.safetensors", arrays)
    model = vitzoo.create(SPEC | {"class_token": False}, weights=path).eval()
    close(model(images), reference["forward"](arrays, images, layout)[2])
    assert model.spec.pool.name == "mean"
    assert "pool = mean" in model.load_report.assumed


@torch.no_grad()
def test_big_vision_with_fixed_positions(tmp_path, images):
    arrays = reference["draw"]("big_vision", "scaled")
    y, x = np.mgrid[:4, :4].astype(np.float64)
    omega = 1 / 10_000 ** (np.arange(8) / 7)
    y, x = (np.outer(axis.flatten(), omega) for axis in (y, x))
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    arrays["pos_embedding"] = torch.from_numpy(table.astype(np.float32))[None]
    expected = reference["forward"](arrays, images, "big_vision")[2]
    del arrays["pos_embedding"]
    model = vitzoo.create(SPEC, weights=write(tmp_path / "sincos.safetensors", arrays)).eval()
    close(model(images), expected)


def test_what_training_keeps_beside_the_network(tmp_path, images):
    arrays = reference["draw"]("big_vision", "scaled")
    stored = {f"params/{key}": array for key, array in arrays.items()}
    stored |= {"opt/0/mu/head/kernel": torch.ones(32, 5), "chrono/steps": torch.ones(())}
    model = vitzoo.create(SPEC, weights=write(tmp_path / "training.safetensors", stored)).eval()
    with torch.no_grad():
        close(model(images), reference["forward"](arrays, images, "big_vision")[2])
    stored["loss/bias"] = torch.ones(3)
    with refuses(CheckpointError, "1 unexpected: loss/bias"):
        vitzoo.create(SPEC, weights=write(tmp_path / "stray.safetensors", stored))


def test_another_number_of_heads_is_refused(tmp_path, transformers):
    """Every shape fits, the numbers would be nonsense."""
    path = write(tmp_path / "google.safetensors", reference["draw"]("original", "own"))
    with refuses(CheckpointError, path, "2 attention heads", 4):
        vitzoo.create(SPEC | {"num_heads": 4}, weights=path)
    transformers.ViTForImageClassification(vit_config()).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    with refuses(CheckpointError, path, "2 attention heads", 4):
        vitzoo.create(SPEC | {"num_heads": 4}, weights=path)
    (path.parent / "config.json").write_text('{"num_attention_heads": "2"}')
    with refuses(CheckpointError, "num_attention_heads", "'2'"):
        vitzoo.create(SPEC | {"num_heads": 4}, weights=path)


def test_inverse_of_a_big_vision_file_has_no_class_row():
    state = vitzoo.create(SPEC).state_dict()
    with refuses(CheckpointError, "big_vision", "first row", "pos_embed"):
        big_vision.with_heads(2).from_model(state)
    state["pos_embed"] = state["pos_embed"].index_fill(1, torch.tensor([0]), 0)
    back = big_vision.with_heads(2).from_model(state)
    assert back["params/pos_embedding"].shape == (1, 16, 32)
    same(big_vision.to_model(back), state)


@pytest.mark.parametrize("layout", ["original", "big_vision"])
@torch.no_grad()
def test_google_at_another_size(tmp_path, layout):
    import scipy.ndimage

    arrays = reference["draw"](layout, "scaled")
    path = write(tmp_path / "vit.safetensors", arrays)
    key = reference["LAYOUTS"][layout]["positions"]
    first = int(layout == "original")
    grid = arrays[key][0, first:].reshape(4, 4, -1).numpy()
    grid = torch.from_numpy(scipy.ndimage.zoom(grid, (6 / 4, 8 / 4, 1), order=1))
    table = torch.cat([arrays[key][0, :first], grid.reshape(48, -1)])[None]
    images = torch.randn(2, 3, 48, 64)
    model = vitzoo.create(SPEC, weights=path, image_size=(48, 64)).eval()
    close(model(images), reference["forward"](arrays | {key: table}, images, layout)[2])
    assert model.load_report.assumed[-1] == "pos_embed.resample = zoom"


@torch.no_grad()
def test_another_way_to_resample_is_seen_and_can_be_asked_for(tmp_path):
    path = write(tmp_path / "vit.safetensors", reference["draw"]("original", "scaled"))
    images = torch.randn(2, 3, 48, 48)
    googles = vitzoo.create(SPEC, weights=path, image_size=48).eval()(images)
    for method in ("bicubic", "bicubic_antialias", "bicubic_corners", "bilinear"):
        asked = {"name": "learned", "resample": method}
        model = vitzoo.create(SPEC, weights=path, image_size=48, pos_embed=asked).eval()
        assert (model(images) - googles).abs().max() > 1e-4 * googles.abs().max()
        own = {"name": "learned", "resample": "zoom"}
        says(model.load_report.assumed[-1], f"pos_embed = {asked}", own)
        said = vitzoo.create(SPEC | {"pos_embed": asked}, weights=path, image_size=48).eval()
        assert torch.equal(said(images), model(images))


def test_a_part_without_the_option_of_the_layout(tmp_path):
    """The way to resample belongs to a table; where there is none it is left out."""
    arrays = reference["draw"]("original", "scaled")
    del arrays["Transformer/posembed_input/pos_embedding"]
    path = write(tmp_path / "bag.safetensors", arrays)
    for positions in ("none", "sincos_2d"):
        model = vitzoo.create(SPEC | {"pos_embed": positions}, weights=path)
        assert model.spec.pos_embed == vitzoo.PartSpec(positions)
        model = vitzoo.create(SPEC, weights=path, pos_embed=positions)
        assert model.spec.pos_embed == vitzoo.PartSpec(positions)
        spec = vitzoo.create(SPEC | {"pos_embed": positions}).spec  # says all, so nothing is chosen
        model = vitzoo.create(spec, weights=path)
        assert model.spec.pos_embed == vitzoo.PartSpec(positions)
        assert model.spec.block.activation == "gelu_tanh"


# timm reads Google's files: what is written here, it maps to the same tensors.


@pytest.mark.parametrize("layout", ["google", "big_vision"])
def test_timm_reads_the_npz_that_is_written(tmp_path, layout, timm):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    network = timm.models.VisionTransformer(
        **sizes, num_classes=5, mlp_ratio=2, no_embed_class=layout == "big_vision"
    )
    state = fill(vitzoo.create(SPEC)).state_dict()
    if layout == "big_vision":
        state["pos_embed"][:, 0] = 0
    arrays = FORMATS[layout].with_heads(2).from_model(state)
    np.savez(tmp_path / "model.npz", **{key: array.numpy() for key, array in arrays.items()})
    network.load_pretrained(tmp_path / "model.npz")
    if layout == "big_vision":  # timm's table has no class row then
        state["pos_embed"] = state["pos_embed"][:, 1:]
    same(network.state_dict(), state)


@pytest.fixture
def hybrid(timm):
    """timm's hybrid with small stages, as (network, its tensors)."""
    from timm.models.resnetv2 import ResNetV2
    from timm.models.vision_transformer_hybrid import HybridEmbed

    def embed(**options):
        backbone = ResNetV2(
            layers=(2, 1, 1), channels=(128, 128, 256), stem_chs=32, num_classes=0, global_pool="",
            in_chans=3, preact=False, stem_type="same",
            conv_layer=timm.layers.StdConv2dSame,
        )  # fmt: skip
        return HybridEmbed(backbone, **options)

    network = timm.models.VisionTransformer(
        img_size=64, patch_size=1, embed_dim=32, depth=1, num_heads=2, num_classes=5, mlp_ratio=2,
        embed_layer=embed,
    )  # fmt: skip
    return fill(network), network.state_dict()


def test_hybrid_there_and_back_and_as_timm_reads_it(tmp_path, hybrid):
    network, state = hybrid
    state = {name: tensor.clone() for name, tensor in state.items()}
    arrays = google.with_heads(2).from_model(state)
    assert {"conv_root/kernel", "gn_root/scale", "block1/unit2/conv3/kernel"} <= arrays.keys()
    assert {"block3/unit1/conv_proj/kernel", "block3/unit1/gn_proj/bias"} <= arrays.keys()
    assert arrays["conv_root/kernel"].shape == (7, 7, 3, 32)
    same(google.to_model(arrays), state)
    flat = {key: array.reshape(1, 1, 1, -1) for key, array in arrays.items() if "/gn" in key}
    same(google.to_model(arrays | flat), state)
    np.savez(tmp_path / "model.npz", **{key: array.numpy() for key, array in arrays.items()})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    network.load_pretrained(tmp_path / "model.npz")
    same(network.state_dict(), state)
    facts = google.overrides({}, arrays.keys())
    assert facts["patch_embed"] == {"arithmetic": "google"}
    assert "patch_embed" not in google.overrides({}, reference["shapes"]("original"))


@pytest.mark.parametrize("layout", [google, big_vision])
def test_google_needs_the_number_of_heads(layout):
    with refuses(CheckpointError, "attention", "num_heads", "--variant"):
        layout.from_model(vitzoo.create(SPEC).state_dict())
    with refuses(CheckpointError, "tensors: blocks.0.attn.proj.weight"):
        layout.with_heads(5).from_model(vitzoo.create(SPEC).state_dict())


def test_a_scanned_file_of_absurd_depth(tmp_path):
    arrays = reference["scanned"](reference["draw"]("big_vision", "own"))
    key = "Transformer/encoderblock/LayerNorm_0/scale"
    stored = arrays | {key: torch.ones(2**20, 0)}
    assert key in big_vision.to_model(stored)
    with refuses(CheckpointError, "1 unexpected: Transformer/encoderblock/LayerNorm_0/"):
        vitzoo.create(SPEC, weights=write(tmp_path / "deep.safetensors", stored))


def test_query_key_and_value_of_other_types(tmp_path):
    arrays = reference["draw"]("original", "own")
    key = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/kernel"
    path = write(tmp_path / "mixed.safetensors", arrays | {key: arrays[key].half()})
    with refuses(CheckpointError, "1 missing: blocks.0.attn.qkv.weight", "3 unexpected"):
        vitzoo.create(SPEC, weights=path)


# vit_jax's names since flax.linen, big_vision's SigLIP.


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/"])
@torch.no_grad()
def test_linen_there_and_back(tmp_path, images, weights, prefix):
    arrays = reference["draw"]("original", weights)
    one, other = reference["ORIGINAL"], reference["BIG_VISION"]
    linen = {}
    for key, array in arrays.items():
        for part in ("attention", "mlp", "norm2"):
            key = key.replace(f"/{one[part]}/", f"/{other[part]}/")  # noqa: PLW2901
        linen[prefix + key] = array
    assert linen.keys() != arrays.keys()
    model = vitzoo.create(SPEC, weights=write(tmp_path / "linen.safetensors", linen)).eval()
    assert model.load_report.format == "vit_jax"
    close(model(images), reference["forward"](arrays, images)[2])
    written = vit_jax.with_heads(2).from_model(model.state_dict())
    same({prefix + key: array for key, array in written.items()}, linen)


def map_head(width=32, mlp=64, heads=2):
    """Return the shapes of big_vision's attention pool."""
    pool = "MAPHead_0"
    attention, each = f"{pool}/MultiHeadDotProductAttention_0", (heads, width // heads)
    found = {f"{pool}/probe": (1, 1, width), f"{attention}/out/kernel": (*each, width)}
    for part in ("query", "key", "value"):
        found |= {f"{attention}/{part}/kernel": (width, *each), f"{attention}/{part}/bias": each}
    found |= {f"{attention}/out/bias": (width,)}
    found |= {f"{pool}/LayerNorm_0/{kind}": (width,) for kind in ("scale", "bias")}
    for layer, sides in (("Dense_0", (width, mlp)), ("Dense_1", (mlp, width))):
        dense = f"{pool}/MlpBlock_0/{layer}"
        found |= {f"{dense}/kernel": sides, f"{dense}/bias": sides[1:]}
    return found


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS)
@torch.no_grad()
def test_siglip_of_big_vision_as_timm_reads_it(tmp_path, images, weights, scan, timm):
    shapes = reference["shapes"]("big_vision") | map_head()
    left = ("cls", "head/kernel", "head/bias")
    shapes = {key: shape for key, shape in shapes.items() if key not in left}
    arrays = reference["draw_all"](shapes, weights)
    stored = reference["scanned"](arrays) if scan else arrays
    text = {"params/txt/Embed_0/embedding": torch.ones(3, 3), "params/t": torch.ones(1)}
    stored = {f"params/img/{key}": array for key, array in stored.items()} | text
    path = tmp_path / "siglip.npz"
    np.savez(path, **{key: array.numpy() for key, array in stored.items()})
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    sizes |= {"mlp_ratio": 2, "class_token": False, "num_classes": 0}
    network = timm.models.VisionTransformer(**sizes, global_pool="map", act_layer="gelu_tanh")
    network.eval()
    network.load_pretrained(str(path))
    model = vitzoo.create(SPEC | {"class_token": False, "num_classes": 0}, weights=path).eval()
    same(model.state_dict(), network.state_dict())
    report = model.load_report
    assert (report.format, set(report.dropped)) == ("big_vision", set(text))
    assert model.spec.pool.name == "attention"
    close(model(images), network(images))
    written = big_vision.with_heads(2).from_model(model.state_dict())
    same(written, {f"params/{key}": array for key, array in arrays.items()})
