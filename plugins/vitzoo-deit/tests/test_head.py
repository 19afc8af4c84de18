"""The head of two classifiers: what comes out when, resetting, training, compilation, saving."""

import numpy as np
import pytest
import torch

import vitzoo
from tables import cases
from vitzoo.errors import InvalidInput, InvalidOption, UnknownOption
from vitzoo.parts import Head
from vitzoo_deit.head import DistilledHead

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
HEADS = ("head.cls.weight", "head.cls.bias", "head.dist.weight", "head.dist.bias")


@pytest.fixture
def model(randomise):
    """A small distilled network."""
    return randomise(vitzoo.create(SPEC))


def outputs(model, images):
    """Return the two outputs and the mean of the tokens by the formulas, in numpy."""
    tokens = model.forward_features(images).detach().double().numpy()[:, :2]
    state = {name: model.state_dict()[name].double().numpy() for name in HEADS}
    by_label = tokens[:, 0] @ state["head.cls.weight"].T + state["head.cls.bias"]
    by_teacher = tokens[:, 1] @ state["head.dist.weight"].T + state["head.dist.bias"]
    return by_label, by_teacher, tokens.mean(1)


def close(actual, expected):
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=5e-5)


# What comes out


def test_the_pair_in_training_and_the_mean_in_evaluation(model, images):
    by_label, by_teacher, mean = outputs(model, images)
    assert np.abs(by_label - by_teacher).max() > 0.1
    pair = model.train()(images)
    assert isinstance(pair, tuple)
    close(pair[0], by_label)
    close(pair[1], by_teacher)
    close(model.eval()(images), (by_label + by_teacher) / 2)
    for training in (True, False):
        tokens = model.train(training).forward_features(images)
        close(model.forward_head(tokens, pre_logits=True), mean)
    assert isinstance(model.head, Head)
    assert model.head_hidden_size == 32


def test_without_the_pair_the_mean_comes_out_in_training_too(randomise, images):
    head = {"name": "deit/distilled", "pair": False}
    model = randomise(vitzoo.create(SPEC, head=head)).train()
    by_label, by_teacher, _ = outputs(model, images)
    close(model(images), (by_label + by_teacher) / 2)
    model.reset_classifier(3)
    assert model.train()(images).shape == (2, 3)


def test_named_features(model, images):
    by_label, by_teacher, mean = outputs(model, images)
    found = model.features(images, ["pool", "pre_logits", "logits"])
    assert found["pool"].shape == (2, 2, 32)
    close(found["pre_logits"], mean)
    close(found["logits"], (by_label + by_teacher) / 2)


def test_the_distillation_token_is_the_second(model, images):
    tokens = model.embed(images)
    assert tokens.shape == (2, 2 + 16, 32)
    expected = torch.cat((model.cls_token, model.reg_token), 1) + model.pos_embed[:, :2]
    torch.testing.assert_close(tokens[:, :2], expected.expand(2, -1, -1))
    assert model.no_weight_decay() == {"pos_embed", "cls_token", "reg_token"}


# Other classes


def test_resetting_replaces_both_classifiers(model, images):
    model.reset_classifier(7)
    assert model.num_classes == model.spec.num_classes == 7
    assert [model.state_dict()[name].shape for name in HEADS] == [(7, 32), (7,)] * 2
    assert not any(model.state_dict()[name].any() for name in HEADS)
    assert [output.shape for output in model.train()(images)] == [(2, 7), (2, 7)]
    assert model.spec.head.name == "deit/distilled"


@pytest.mark.parametrize("training", [True, False])
def test_no_classes_give_the_mean_of_the_tokens(model, images, training):
    mean = outputs(model, images)[2]
    model.reset_classifier(0)
    assert list(model.head.state_dict()) == []
    close(model.train(training)(images), mean)
    model.reset_classifier(4)
    assert model.eval()(images).shape == (2, 4)


def test_loading_for_other_classes_replaces_both_and_says_so(tmp_path, model, images, caplog):
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    other = vitzoo.create(SPEC, weights=path, num_classes=3)
    report = other.load_report
    assert set(report.reinitialised) == set(report.dropped) == set(HEADS)
    assert set(report.kept) == set(other.state_dict()) - set(HEADS)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    assert [output.shape for output in other(images)] == [(2, 3), (2, 3)]
    assert not any(output.any() for output in other(images))
    features = vitzoo.create(SPEC, weights=path, num_classes=0).eval()
    assert set(features.load_report.dropped) == set(HEADS)
    assert features.load_report.reinitialised == ()
    close(features(images), outputs(model, images)[2])


# Options and inputs


def test_options_are_checked():
    with pytest.raises(InvalidOption, match=r"pair.*true.*false.*1"):
        vitzoo.create(SPEC, head={"name": "deit/distilled", "pair": 1})
    with pytest.raises(UnknownOption, match=r"'piar'.*'pair'"):
        vitzoo.create(SPEC, head={"name": "deit/distilled", "piar": True})


@pytest.mark.parametrize("shape", [(2, 32), (2, 3, 32), (2, 1, 32), (2, 2, 2, 32)])
def test_a_head_that_is_not_given_two_tokens_says_what_the_network_needs(shape):
    head = DistilledHead(in_dim=32, num_classes=3)
    text = rf"\({', '.join(map(str, shape))}\).*num_registers = 1"
    with pytest.raises(InvalidInput, match=text):
        head(torch.zeros(shape))


def test_it_does_not_pass_for_the_head_of_a_plain_network(images):
    spec = {k: v for k, v in SPEC.items() if k != "variant"}
    with pytest.raises(InvalidOption, match=r"2 tokens.*pool 'class'"):
        vitzoo.create(spec, head="deit/distilled", pool="class")
    with pytest.raises(InvalidInput, match=r"pool = \{'name': 'prefix', 'tokens': 2\}$"):
        DistilledHead(in_dim=32, num_classes=5)(images.flatten(1))


def test_any_vit_can_be_distilled():
    spec = {k: v for k, v in SPEC.items() if k != "variant"} | {"num_registers": 1}
    part = {"name": "prefix", "tokens": 2}
    model = vitzoo.create(spec, pool=part, head="deit/distilled")
    distilled = vitzoo.create(SPEC)
    shapes = {name: tensor.shape for name, tensor in distilled.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes


# Training, compilation, saving


@pytest.mark.parametrize("drop_path", [None, {"name": "linear", "rate": 0.4, "mode": "subset"}])
def test_a_training_step_reaches_every_parameter(randomise, drop_path):
    torch.manual_seed(1)
    model = randomise(vitzoo.create(SPEC, drop_path=drop_path)).train()
    by_label, by_teacher = model(torch.randn(8, 3, 32, 32))
    labels = torch.arange(8) % 5
    loss = torch.nn.functional.cross_entropy
    (loss(by_label, labels) + loss(by_teacher, labels.flip(0))).backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_each_loss_reaches_its_own_classifier(model, images):
    model.train()(images)[0].sum().backward()
    assert model.head.cls.weight.grad.any()
    assert model.head.dist.weight.grad is None
    assert model.reg_token.grad.any()  # through the attention of the class token


def test_dropped_paths_do_not_act_in_evaluation(model, images):
    part = {"name": "linear", "rate": 0.4, "mode": "subset"}
    other = vitzoo.create(SPEC, drop_path=part)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.eval()(images), model(images), rtol=0, atol=0)
    images = torch.randn(16, 3, 32, 32)
    complete = model.train()(images)
    dropped = other.train()(images)
    for output, whole in zip(dropped, complete, strict=True):
        kept = torch.isclose(output, whole, atol=1e-5).all(1)
        assert not kept.all()


@pytest.mark.compile
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_network_is_compiled_as_one_graph(model, images, training):
    model.train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.compile
def test_the_network_is_exported(model, images):
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}})
    more = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(program.module()(more), model(more), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pair", [True, False])
def test_a_saved_model_is_restored(tmp_path, randomise, images, pair):
    head = {"name": "deit/distilled", "pair": pair}
    model = randomise(vitzoo.create(SPEC, head=head))
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.spec == model.spec
    assert again.head.pair is pair
    for training in (True, False):
        torch.testing.assert_close(
            again.train(training)(images), model.train(training)(images), rtol=0, atol=0
        )


# The variants


def test_deit3_starts_as_its_authors_train_it_and_has_positions_for_patches_only():
    spec = SPEC | {"variant": "deit/deit3_s16"}
    model = vitzoo.create(spec)
    assert model.pos_embed.shape == (1, 16, 32)
    scales = [p for n, p in model.named_parameters() if n.endswith(("ls1.gamma", "ls2.gamma"))]
    assert len(scales) == 4
    assert all(torch.equal(scale, torch.full((32,), 1e-4)) for scale in scales)


@cases("variant", vitzoo.variants("deit/*"), ids=lambda variant: variant.name)
def test_every_row_fits_its_variant(variant):
    distilled = "_distilled" in variant.name
    plain, own = ("timm", "transformers_vit"), ("deit/timm_distilled", "deit/transformers")
    formats = own if distilled else plain
    for row in variant.weights:
        assert row.format == formats[row.repo.startswith("facebook/")]
        assert row.repo.startswith(("timm/", "facebook/"))
        assert (row.num_classes, row.label_set) == (1000, "imagenet-1k")
        assert row.preprocessing.mean == (0.485, 0.456, 0.406)
        assert row.preprocessing.std == (0.229, 0.224, 0.225)
        assert row.default <= row.repo.startswith("timm/")
        expected = 4 * variant.params
        assert 0 < (row.size or row.predicted_size) - expected < 64 * 1024
    assert sum(row.default for row in variant.weights) == 1
    assert variant.default_weights.preprocessing.crop_pct == (
        1.0 if variant.spec.image_size == (384, 384) or "deit3" in variant.name else 0.9
    )


def test_one_trained_classifier_is_enough_for_predict(model, caplog):
    image = np.zeros((32, 32, 3), np.uint8)
    model.preprocessing = vitzoo.Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)
    torch.nn.init.zeros_(model.head.dist.weight)
    assert vitzoo.predict(model, [image], top=1)
    assert caplog.text == ""
    torch.nn.init.zeros_(model.head.cls.weight)
    assert vitzoo.predict(model, [image], top=1)
    assert "all zero" in caplog.text
