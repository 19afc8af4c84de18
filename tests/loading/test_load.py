"""Loading weights of several checkpoint formats, checked by outputs and reports."""

import pytest
import safetensors.torch
import torch
from torch import nn

import vitzoo
from create_helpers import logits
from helpers import SPEC, close, refuses, says
from load_helpers import CLASSIFIER, PRE_LOGITS, config, fill, pretrained
from vitzoo.errors import CheckpointError


@pytest.mark.parametrize("with_config", [True, False])
def test_transformers_classifier(saved, images, with_config, transformers):
    reference = fill(transformers.ViTForImageClassification(config()))
    model = vitzoo.create(SPEC, weights=saved(reference, with_config=with_config)).eval()
    with torch.no_grad():
        out = reference(images, output_hidden_states=True)
        close(model(images), out.logits)
        close(model.forward_features(images), reference.vit(images).last_hidden_state)
    assert model.spec.block.norm_eps == 1e-12
    assumed = () if with_config else ("norm_eps = 1e-12", "activation = gelu")
    assert model.load_report.assumed == assumed
    assert set(model.load_report.kept) == set(model.state_dict())


@pytest.mark.parametrize("with_config", [True, False])
def test_transformers_backbone(saved, images, with_config, transformers):
    reference = fill(transformers.ViTModel(config(), add_pooling_layer=True))
    path = saved(reference, with_config=with_config)
    model = vitzoo.create(SPEC | {"head": "tanh", "num_classes": 0}, weights=path).eval()
    with torch.no_grad():
        out = reference(images)
        close(model.forward_features(images), out.last_hidden_state)
        close(model(images), out.pooler_output)
    assert bool(model.load_report.assumed) != with_config


def test_transformers_backbone_without_its_pooler(saved, images, transformers):
    reference = fill(transformers.ViTModel(config(), add_pooling_layer=True))
    path = saved(reference)
    with refuses(CheckpointError, "2 missing: head.", "2 unexpected: head.pre_logits."):
        vitzoo.create(SPEC, weights=path)
    model = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    with torch.no_grad():
        close(model(images), reference(images).last_hidden_state[:, 0])
    assert set(model.load_report.dropped) == set(PRE_LOGITS)


def test_transformers_file_of_a_registered_variant_at_another_size(zoo, saved, transformers):
    """Renaming, stacking of q, k and v, and transformers' interpolation of positions together."""
    reference = fill(transformers.ViTForImageClassification(config()))
    name = zoo({})
    model = vitzoo.create(name, weights=saved(reference), image_size=64, num_classes=7)
    embeddings = reference.vit.embeddings
    tokens = torch.zeros(1, 65, 32)
    close(model.pos_embed.detach(), embeddings.interpolate_pos_encoding(tokens, 64, 64).detach())
    assert model.load_report.resampled == ("pos_embed",)
    assert model.load_report.assumed == ("pos_embed.resample = bicubic",)
    assert set(model.load_report.dropped) == set(CLASSIFIER)


def test_the_suite_sees_swapped_queries_and_keys(saved, images, transformers):
    """The comparison above can fail."""
    reference = fill(transformers.ViTForImageClassification(config()))
    path = saved(reference)
    tensors = safetensors.torch.load_file(path)
    prefix = "vit.encoder.layer.0.attention.attention"
    for kind in ("weight", "bias"):
        query, value = f"{prefix}.query.{kind}", f"{prefix}.value.{kind}"
        tensors[query], tensors[value] = tensors[value], tensors[query]
    safetensors.torch.save_file(tensors, path)
    model = vitzoo.create(SPEC, weights=path).eval()
    with torch.no_grad(), pytest.raises(AssertionError):
        close(model(images), reference(images).logits)


@pytest.mark.parametrize("lost", ["query", "key", "value"])
def test_transformers_file_without_a_projection(saved, lost, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    del tensors[f"vit.encoder.layer.1.attention.attention.{lost}.weight"]
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "1 missing: blocks.1.attn.qkv.weight", "2 unexpected"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("stray", ["query", "key"])
def test_transformers_file_with_a_stray_projection(saved, stray, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    tensors[f"vit.encoder.layer.9.attention.attention.{stray}.weight"] = torch.ones(32, 32)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "1 unexpected: encoder.layer.9.", f".{stray}.weight"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize(
    ("twice", "name"),
    [("layernorm.weight", "layernorm.weight"), ("vit.norm.weight", "norm.weight")],
)
def test_two_tensors_for_one(saved, twice, name, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    tensors[twice] = torch.ones(32)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "two tensors", name):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("shape", [(), (1,), (32, 16)])
def test_projections_of_odd_shapes(saved, shape, transformers):
    path = saved(fill(transformers.ViTForImageClassification(config())))
    tensors = safetensors.torch.load_file(path)
    for part in ("query", "key", "value"):
        tensors[f"vit.encoder.layer.0.attention.attention.{part}.bias"] = torch.ones(shape)
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, "blocks.0.attn.qkv.bias"):
        vitzoo.create(SPEC, weights=path)


# timm.


def test_timm_file(tmp_path, images, timm):
    reference = fill(
        timm.create_model(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=32,
            depth=2,
            num_heads=2,
            num_classes=5,
            mlp_ratio=2,
        )
    )
    path = tmp_path / "timm.safetensors"
    safetensors.torch.save_model(reference, str(path))
    model = vitzoo.create(SPEC, weights=path).eval()
    with torch.no_grad():
        close(model(images), reference(images))
        close(model.forward_features(images), reference.forward_features(images))
    assert model.load_report.assumed == ("norm_eps = 1e-06", "activation = gelu")
    (tmp_path / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    with refuses(CheckpointError, path, "depth = 12", "depth = 2", "move the config away"):
        vitzoo.create(SPEC, weights=path)


# What comes out.


def test_the_report_names_the_format(augreg, saved, tmp_path, transformers):
    report = pretrained(augreg[0]).load_report
    assert report.format == "timm"
    count = len(report.kept)
    sha256 = report.sha256[:12]
    says(report.summary(), "small/net:in1k", f"sha256 {sha256}", "timm", f"{count} kept")
    assert str(report).splitlines()[1:] == ["  format timm", *str(report).splitlines()[2:]]
    path = saved(fill(transformers.ViTForImageClassification(config())))
    assert vitzoo.create(SPEC, weights=path).load_report.format == "transformers_vit"
    vitzoo.save(vitzoo.create(SPEC), tmp_path / "own.safetensors")
    assert vitzoo.create(tmp_path / "own.safetensors").load_report.format == "timm"
    fresh = vitzoo.create(SPEC).load_report
    assert fresh.format == ""
    assert "timm" not in fresh.summary()


def test_nothing_stays_on_meta(augreg):
    for arguments in ({}, {"num_classes": 7}, {"in_chans": 1, "image_size": 64}):
        model = pretrained(augreg[0], **arguments)
        tensors = [*model.parameters(), *model.buffers()]
        assert not any(tensor.is_meta for tensor in tensors)
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())


def test_no_two_tensors_share_memory(augreg):
    pointers = [p.data_ptr() for p in pretrained(augreg[0], num_classes=7).parameters()]
    assert len(set(pointers)) == len(pointers)


def test_bundled_file_that_was_changed(augreg, run, tmp_path):
    path = tmp_path / "site" / "small" / "data" / "in1k.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with refuses(vitzoo.IntegrityError, path, "reinstall"):
        pretrained(augreg[0])
    assert run("verify", "--all")[0] == 3
    path.unlink()
    with refuses(vitzoo.WeightsUnavailable, "in1k.safetensors", "missing", "package"):
        pretrained(augreg[0])
    for names in (["--all"], ["small/net:in1k"]):
        code, out, err = run("verify", *names)
        assert code == 1
        assert "small/net:in1k\tmissing\t0\t" in out
        assert "not in the installed package small; reinstall it" in out
        assert err.endswith("1 missing\n")


def test_arguments_are_checked_before_anything_is_fetched(monkeypatch):
    from vitzoo.store import obtain

    def fetched(*_):
        raise AssertionError("fetched before the arguments were checked")

    monkeypatch.setattr(obtain, "obtain", fetched)
    with refuses(vitzoo.InvalidOption, "225x225", "16x16"):
        vitzoo.create("vit_b16", pretrained=True, image_size=225)
    with refuses(vitzoo.UnknownName, "head", "'liner'"):
        vitzoo.create("vit_b16", pretrained=True, head="liner")


def test_the_report_names_what_no_tensor_shows():
    model = vitzoo.create("vit_digits", pretrained=True, pool="mean", block={"norm_eps": 1e-5})
    pool, epsilon = model.load_report.assumed
    says(pool, "pool = mean", "class")
    says(epsilon, "block.norm_eps = 1e-05", "1e-06")
    assert vitzoo.create("vit_digits", pretrained=True).load_report.assumed == ()


def test_a_file_of_weights_is_loaded_bit_by_bit(weights, randomise):
    model = vitzoo.create("local/net", weights=weights())
    assert torch.equal(logits(model), logits(randomise(vitzoo.create("local/net"))))
    assert set(model.load_report.kept) == set(model.state_dict())


def test_weights_may_be_a_string(weights):
    path = weights()
    assert vitzoo.create("local/net", weights=str(path)).load_report.source == str(path)


def test_converted_tensors_are_reported(weights):
    model = vitzoo.create("local/net", weights=weights(), dtype=torch.bfloat16)
    assert set(model.load_report.converted) == set(model.state_dict())
    assert logits(model).dtype == torch.bfloat16


def test_a_spec_without_variant_takes_a_file_of_weights(small, weights, randomise):
    model = vitzoo.create(small, weights=weights())
    assert torch.equal(logits(model), logits(randomise(vitzoo.create("local/net"))))
