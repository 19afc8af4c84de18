"""MAE's files: Meta's encoder, and transformers' with and without the decoder."""

import pytest
import safetensors.torch
import torch

import vitzoo
from vitzoo import convert
from vitzoo.errors import CheckpointError, UnknownName
from vitzoo.formats import transformers_vit

SPEC = {
    "variant": "mae/vit_b16",
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
EVERY_PATCH = torch.arange(64.0)  # the noise that keeps the patches in their order


def config(**changes):
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "mask_ratio": 0.0}
    decoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {f"decoder_{name}": number for name, number in decoder.items()}
    return transformers.ViTMAEConfig(**(sizes | {"decoder_intermediate_size": 32} | changes))


def saved(folder, network):
    """Write a network of transformers' with its config and return its file."""
    network.save_pretrained(folder)
    return folder / "model.safetensors"


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ViTMAEForPreTraining", "ViTMAEModel"])
def test_the_encoder_of_transformers(tmp_path, parity, weights, images, kind, transformers):
    torch.manual_seed(1)
    network = getattr(transformers, kind)(config()).eval()
    parity.fill(network, weights)
    path = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path).eval()
    report = model.load_report
    assert report.format == "transformers_vit"
    assert set(report.kept) == set(model.state_dict())
    beside = [name for name in safetensors.torch.load_file(path) if name.startswith("decoder.")]
    assert set(report.dropped) == set(beside)
    assert bool(beside) == (kind == "ViTMAEForPreTraining")
    encoder = network.vit if beside else network
    tokens = encoder(images, noise=EVERY_PATCH[None, :16].expand(2, -1)).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens)
    parity.assert_same(model(images), tokens[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 48), (40, 24)])
def test_other_image_sizes_as_transformers_resamples(tmp_path, parity, weights, size, transformers):
    torch.manual_seed(1)
    network = transformers.ViTMAEModel(config()).eval()
    parity.fill(network, weights)
    path = saved(tmp_path, network)
    model = vitzoo.create(SPEC, weights=path).eval()
    model.set_input_size(size)
    images, count = torch.randn(2, 3, *size), size[0] * size[1] // 64
    noise = EVERY_PATCH[None, :count].expand(2, -1)
    expected = network(images, noise=noise, interpolate_pos_encoding=True).last_hidden_state
    parity.assert_same(model.forward_features(images), expected)


def test_the_fixed_table_is_in_the_file(tmp_path, transformers):
    """Rows of sines and cosines; another activation or epsilon is the config's."""
    network = transformers.ViTMAEModel(config(hidden_act="gelu_new", layer_norm_eps=1e-5))
    model = vitzoo.create(SPEC, weights=saved(tmp_path, network))
    assert torch.equal(model.pos_embed, network.embeddings.position_embeddings)
    assert (model.spec.block.activation, model.spec.block.norm_eps) == ("gelu_tanh", 1e-5)
    assert model.spec.pos_embed.name == "learned"
    assert model.pos_embed[0, 0].abs().max() == 0


@torch.no_grad()
def test_metas_encoder_is_timms_layout(tmp_path, parity, weights, images):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(1)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    network = VisionTransformer(**sizes, mlp_ratio=2, num_classes=0).eval()
    parity.fill(network, weights)
    path = tmp_path / "mae.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    model = vitzoo.create(SPEC, weights=path).eval()
    assert model.load_report.format == "timm"
    parity.assert_same_network(network, model, images)


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_a_fine_tuned_file_says_where_its_norm_stands(tmp_path, parity, weights, images, pool):
    """The authors fine-tune on the mean of the patches, normed afterwards."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(1)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    network = VisionTransformer(**sizes, mlp_ratio=2, num_classes=5, global_pool=pool).eval()
    parity.fill(network, weights)
    path = tmp_path / "tuned.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    after = {"name": "mean", "norm_first": False}
    right, wrong = (after, "class") if pool == "avg" else ("class", after)
    model = vitzoo.create(SPEC, weights=path, num_classes=5, pool=right).eval()
    parity.assert_same_network(network, model, images)
    with pytest.raises(CheckpointError, match=r"2 missing: (fc_)?norm\.weight, (fc_)?norm\.bias"):
        vitzoo.create(SPEC, weights=path, num_classes=5, pool=wrong)


def test_a_fresh_classifier_on_pre_trained_weights(tmp_path, transformers):
    path = saved(tmp_path, transformers.ViTMAEForPreTraining(config()))
    model = vitzoo.create(SPEC, weights=path, num_classes=7, pool="mean")
    assert model.load_report.reinitialised == ("head.weight", "head.bias")
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_metas_decoder_is_refused_by_name(tmp_path):
    state = vitzoo.create(SPEC).state_dict() | {"decoder_pos_embed": torch.zeros(1, 17, 16)}
    path = tmp_path / "mae.safetensors"
    safetensors.torch.save_file(state, path)
    with pytest.raises(CheckpointError, match="1 unexpected: decoder_pos_embed"):
        vitzoo.create(SPEC, weights=path)


def test_converting_names_the_decoder(tmp_path, transformers):
    path = saved(tmp_path, transformers.ViTMAEForPreTraining(config()))
    done = convert(path, "timm", tmp_path / "encoder.safetensors", variant=None)
    (note,) = [row for row in done.notes if row.startswith("no part of the network")]
    assert "decoder.mask_token" in note
    model = vitzoo.create(SPEC, weights=tmp_path / "encoder.safetensors")
    assert model.load_report.dropped == ()
    file = safetensors.torch.load_file(path)
    encoder = {name: t for name, t in file.items() if not name.startswith("decoder.")}
    again = transformers_vit.from_model(model.state_dict())
    assert {f"vit.{name}" for name in again} == encoder.keys()
    assert all(torch.equal(t, encoder[f"vit.{name}"]) for name, t in again.items())


def test_another_networks_decoder_is_not_left_out():
    assert transformers_vit.ignored_keys(["decoder.weight", "decoder.layers.0.bias"]) == []


def test_timms_name_of_the_file_is_translated():
    text = r"here it is vitzoo\.create\('mae/vit_b16', weights='mae'\)"
    with pytest.raises(UnknownName, match=text):
        vitzoo.create("vit_base_patch16_224.mae")
