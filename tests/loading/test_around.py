"""Files as people and programs write them: a known network with something around it.

Each network is a small one of timm, torchvision or transformers, and gives the expected outputs.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import vitzoo
from helpers import SPEC, close, fill, message, randn, refuses, says, write
from tables import cases
from vitzoo.errors import CheckpointError, InvalidOption

K = SPEC["num_classes"]
WIDTH = SPEC["embed_dim"]
IMAGES = randn(2, 3, 32, 32)
SIZES = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2,
}
HF = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "num_labels": K, "layer_norm_eps": 1e-6,
}  # fmt: skip


def of_timm(num_classes=K, **options):
    import timm

    return timm.models.VisionTransformer(**SIZES, num_classes=num_classes, **options)


def of_torchvision():
    import torchvision

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32}
    return torchvision.models.VisionTransformer(**sizes, mlp_dim=64, num_classes=K)


def of_transformers(**options):
    import transformers

    return transformers.ViTModel(transformers.ViTConfig(**HF), **options)


class Around(nn.Module):
    """Modules by their names; the first has the network."""

    def __init__(self, forward, **modules):
        super().__init__()
        self._forward = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, images):
        return self._forward(self, images)


def linear(width=WIDTH, classes=K):
    return nn.Linear(width, classes)


def in_sequence():
    return nn.Sequential(nn.Dropout(0.1), linear())


def with_heads(heads):
    network = of_torchvision()
    network.heads = heads
    return network


def with_classifier(classifier):
    import transformers

    network = transformers.ViTForImageClassification(transformers.ViTConfig(**HF))
    network.classifier = classifier
    return Around(lambda m, x: m.model(x).logits, model=network)


def with_metrics(model, **modules):
    whole = Around(lambda m, x: m.model(x), model=model, **modules)
    whole.register_buffer("train_acc_total", torch.ones(3))
    whole.criterion = nn.CrossEntropyLoss(weight=torch.ones(K))
    return whole


def counted():
    """As thop does it."""
    network = of_timm()
    for module in [*network.modules()]:
        module.register_buffer("total_ops", torch.zeros(1, dtype=torch.float64))
        module.register_buffer("total_params", torch.zeros(1, dtype=torch.float64))
    return network


def pooled(name, **modules):
    return Around(
        lambda m, x: getattr(m, name)(m.vit(x).pooler_output), vit=of_transformers(), **modules
    )


def class_token(trunk, name, **modules):
    """A classifier on the class token of a network of transformers without pooler."""
    own = {trunk: of_transformers(add_pooling_layer=False), **modules}

    def forward(m, x):
        return getattr(m, name)(getattr(m, trunk)(x).last_hidden_state[:, 0])

    return Around(forward, **own)


def on_features(name, num_classes=0, **modules):
    """A classifier on the features of timm's network."""

    def forward(m, x):
        return getattr(m, name)(m.backbone.forward_head(m.backbone.forward_features(x), True))

    return Around(forward, backbone=of_timm(num_classes), **modules)


def wrapped(name):
    """Modules of torch around modules of a network: as the state dict of FSDP or torch.compile."""
    network = of_timm()
    state = network.state_dict()

    def names(key):
        for inside in ("blocks.0.", "blocks.1.mlp.", "patch_embed."):
            key = key.replace(inside, f"{inside}{name}.")
        return key

    return network, {names(key): tensor for key, tensor in state.items()}


NETWORKS = {
    "Lightning": lambda: with_metrics(of_timm()),
    "the metrics of Lightning": lambda: with_metrics(of_timm(), val_auroc=nn.BatchNorm1d(3)),
    "torch's average": lambda: AveragedModel(of_timm()),
    "thop": counted,
    "fc beside a backbone": lambda: on_features("fc", fc=linear()),
    "linear beside a backbone": lambda: on_features("linear", linear=linear()),
    "classifier with dropout": lambda: on_features("classifier", classifier=in_sequence()),
    "head beside a backbone": lambda: on_features("head", head=linear()),
    "head beside a head": lambda: on_features("fc", num_classes=9, fc=linear()),
    "projector": lambda: on_features("fc", fc=linear(), projector=nn.Linear(WIDTH, 16)),
    "torchvision, heads": lambda: with_heads(linear()),
    "torchvision, heads with dropout": lambda: with_heads(in_sequence()),
    "transformers' Trainer": lambda: with_classifier(linear()),
    "transformers, dropout": lambda: with_classifier(in_sequence()),
    "transformers, fc": lambda: class_token("vit", "fc", fc=linear()),
    "transformers, backbone": lambda: class_token("backbone", "classifier", classifier=linear()),
    "transformers, image_encoder": lambda: class_token("image_encoder", "head", head=linear()),
}


def file_of(network, path, prefix=""):
    state = {prefix + key: tensor.clone() for key, tensor in network.state_dict().items()}
    return write(path / "net.safetensors", state)


@pytest.mark.slow
@cases("prefix", ["", "module.", "lit.model.", "0.", "model.1.net.", "my net/"])
@cases("name", NETWORKS)
@torch.inference_mode()
def test_the_outputs_are_those_of_the_network(name, prefix, tmp_path):
    network = fill(NETWORKS[name]())
    model = vitzoo.create(SPEC, weights=file_of(network, tmp_path, prefix)).eval()
    close(model(IMAGES), network(IMAGES))
    assert not model.load_report.reinitialised
    listed = {*model.load_report.kept, *model.load_report.dropped}
    assert len(network.state_dict()) <= len(listed) + 8  # q, k and v are one tensor of the model


@pytest.mark.parametrize(
    "wrapper", ["_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"]
)
@torch.inference_mode()
def test_wrappers_within_a_network_are_no_names(wrapper, tmp_path):
    network = of_timm()
    fill(network)
    _, names = wrapped(wrapper)
    state = dict(zip(names, network.state_dict().values(), strict=True))
    path = write(tmp_path / "net.safetensors", {f"{wrapper}.{k}": t for k, t in state.items()})
    close(vitzoo.create(SPEC, weights=path).eval()(IMAGES), network(IMAGES))


# A pooler below a classifier.


@pytest.mark.parametrize("name", ["classifier", "fc", "head"])
@torch.inference_mode()
def test_a_pooler_and_a_classifier_are_both_kept(name, tmp_path):
    network = fill(pooled(name, **{name: linear()}))
    path = file_of(network, tmp_path)
    model = vitzoo.create(SPEC, weights=path).eval()
    close(model(IMAGES), network(IMAGES))
    report = model.load_report
    assert {"head.pre_logits.weight", "head.fc.weight"} <= {*report.kept}
    assert not report.reinitialised
    assert "head = tanh: the file has a classifier and a pooler" in str(report)
    assert model.spec == vitzoo.create(SPEC, weights=path, head="tanh").spec

    features = network.vit(IMAGES).last_hidden_state[:, 0]
    alone = vitzoo.create(SPEC, weights=path, head="linear").eval()
    close(alone(IMAGES), getattr(network, name)(features))
    assert {*alone.load_report.dropped} == {"head.pre_logits.weight", "head.pre_logits.bias"}
    assert not alone.load_report.reinitialised


@torch.inference_mode()
def test_a_pooler_and_a_classifier_of_other_classes(tmp_path):
    network = fill(pooled("fc", fc=linear(classes=9)))
    path = file_of(network, tmp_path)
    with refuses(CheckpointError, "9 classes", "num_classes=9"):
        vitzoo.create(SPEC, weights=path)
    model = vitzoo.create(SPEC, weights=path, num_classes=9).eval()
    close(model(IMAGES), network(IMAGES))
    new = vitzoo.create(SPEC, weights=path, num_classes=3)
    assert {*new.load_report.reinitialised} == {"head.fc.weight", "head.fc.bias"}


# Several networks.


def two(first, second):
    return Around(None, **{first: of_timm(), second: of_timm()})


@pytest.mark.parametrize("names", [("model", "model_ema"), ("student", "teacher"), ("a", "b")])
@torch.inference_mode()
def test_a_prefix_chooses_one_of_several_networks(names, tmp_path):
    networks = two(*names)
    path = file_of(networks, tmp_path, "lit.")
    shown = [f"'lit.{name}.' (timm)" for name in names]
    with refuses(CheckpointError, path, *shown, f"prefix='lit.{names[1]}.'", "--prefix"):
        vitzoo.create(SPEC, weights=path)
    for name in names:
        network = fill(getattr(networks, name))
        path = file_of(networks, tmp_path, "lit.")
        for prefix in (f"lit.{name}.", f"lit.{name}"):
            model = vitzoo.create(SPEC, weights=path, prefix=prefix).eval()
            close(model(IMAGES), network(IMAGES))
            assert f"prefix = lit.{name}." in model.load_report.assumed
            assert len(model.load_report.dropped) == len(network.state_dict())


@torch.inference_mode()
def test_networks_of_a_list(tmp_path):
    """As in an ensemble; the number of a network is no number of a block."""
    networks = fill(nn.ModuleList([of_timm() for _ in range(10)]))
    path = file_of(networks, tmp_path, "models.")
    with refuses(CheckpointError, "'models.0.' (timm)", "'models.1.' (timm)"):
        vitzoo.create(SPEC, weights=path)
    for prefix in ("models.9.", "models.9"):
        close(vitzoo.create(SPEC, weights=path, prefix=prefix).eval()(IMAGES), networks[9](IMAGES))


@torch.inference_mode()
def test_a_file_of_jax_with_several_networks(tmp_path):
    network = fill(of_timm())
    source = file_of(network, tmp_path)
    vitzoo.convert(source, "google", tmp_path / "google.npz", num_heads=2)
    with np.load(tmp_path / "google.npz") as file:
        arrays = dict(file)
    path, right = tmp_path / "net.npz", network(IMAGES)
    for prefix in ("model/", "state/ema/"):
        np.savez(path, **prefixed(prefix, arrays))
        model = vitzoo.create(SPEC, weights=path, block={"activation": "gelu"}).eval()
        close(model(IMAGES), right)
        assert f"prefix = {prefix}" in model.load_report.assumed
    other = {k: a + 1 for k, a in arrays.items()}
    np.savez(path, **prefixed("ema/", arrays), **prefixed("model/", other))
    with refuses(CheckpointError, "'ema/'", "'model/'"):
        vitzoo.create(SPEC, weights=path)
    for prefix in ("ema/", "ema"):
        call = {"weights": path, "prefix": prefix, "block": {"activation": "gelu"}}
        close(vitzoo.create(SPEC, **call).eval()(IMAGES), right)


def test_a_classifier_that_is_replaced_is_named(tmp_path):
    path = file_of(fill(on_features("fc", num_classes=9, fc=linear())), tmp_path)
    report = vitzoo.create(SPEC, weights=path).load_report
    assert "classifier = fc, not backbone.head.bias and 1 more" in report.assumed
    assert {*report.dropped} == {"backbone.head.weight", "backbone.head.bias"}


@torch.inference_mode()
def test_each_network_has_its_own_classifier(tmp_path):
    whole = Around(
        lambda m, x: m.ema(x),
        model=on_features("fc", fc=linear()),
        ema=on_features("fc", fc=linear()),
    )
    fill(whole)
    path = file_of(whole, tmp_path)
    with refuses(CheckpointError, "'ema.backbone.' (timm)", "'model.backbone.' (timm)"):
        vitzoo.create(SPEC, weights=path)
    for prefix in ("ema.", "ema.backbone."):
        model = vitzoo.create(SPEC, weights=path, prefix=prefix).eval()
        close(model(IMAGES), whole(IMAGES))
        assert "classifier = ema.fc" in model.load_report.assumed


@torch.inference_mode()
def test_a_network_without_prefix_beside_its_average(tmp_path):
    network, average = fill(of_timm()), of_timm()
    average.load_state_dict({k: t + 0.01 for k, t in network.state_dict().items()})
    state = network.state_dict() | {f"ema.{k}": t for k, t in average.state_dict().items()}
    path = write(tmp_path / "net.safetensors", state)
    with refuses(CheckpointError, "'' (timm)", "'ema.' (timm)"):
        vitzoo.create(SPEC, weights=path)
    for prefix, right in (("", network), ("ema.", average.eval())):
        model = vitzoo.create(SPEC, weights=path, prefix=prefix).eval()
        close(model(IMAGES), right(IMAGES))


def test_a_prefix_without_a_network(tmp_path):
    path = file_of(two("student", "teacher"), tmp_path)
    for prefix in ("teach", "x.", "student.blocks."):
        with refuses(
            CheckpointError, path, f"prefix {prefix!r}", "'student.' (timm)", "'teacher.'"
        ):
            vitzoo.create(SPEC, weights=path, prefix=prefix)
    with refuses(InvalidOption, "prefix", "text", "7"):
        vitzoo.create(SPEC, weights=path, prefix=7)
    with refuses(InvalidOption, "prefix is 'a.'", "weights=FILE"):
        vitzoo.create(SPEC, prefix="a.")


def test_a_saved_file_has_no_prefix(tmp_path):
    saved = vitzoo.save(vitzoo.create(SPEC), tmp_path / "saved.safetensors")
    for call in (
        lambda: vitzoo.create(saved, prefix="a."),
        lambda: vitzoo.create(SPEC, weights=saved, prefix="a."),
        lambda: vitzoo.convert(saved, "timm", tmp_path / "other.safetensors", prefix="a."),
    ):
        with refuses(InvalidOption, saved, "vitzoo.save", "prefix='a.'", "leave prefix out"):
            call()


# Files of pre-training without labels.


DINO_HEAD = {
    "head.mlp.0.weight": torch.ones(4, WIDTH),
    "head.last_layer.weight_g": torch.ones(4, 1),
}


def prefixed(prefix, tensors):
    return {prefix + key: tensor + 0 for key, tensor in tensors.items()}


@torch.inference_mode()
def test_student_and_teacher_of_dino(tmp_path):
    """The plugin reads the teacher; a prefix chooses the student."""
    student, teacher = fill(of_timm(0)), of_timm(0)
    teacher.load_state_dict({k: t + 0.01 for k, t in student.state_dict().items()})
    tensors = {"dino_loss.center": torch.ones(1, 4)}
    for prefix, network in (("student.module.", student), ("teacher.", teacher.eval())):
        tensors |= prefixed(f"{prefix}backbone.", network.state_dict())
        tensors |= prefixed(prefix, DINO_HEAD)
    path = write(tmp_path / "net.safetensors", tensors)
    features = SPEC | {"num_classes": 0}
    model = vitzoo.create(features, weights=path).eval()
    close(model(IMAGES), teacher(IMAGES))
    assert "ignored (of a loss): dino_loss.center" in model.load_report.assumed
    assert "dino_loss.center" in model.load_report.dropped
    for prefix in ("student.", "student.module.backbone."):
        close(vitzoo.create(features, weights=path, prefix=prefix).eval()(IMAGES), student(IMAGES))


@pytest.mark.slow
@cases("chunks", [1, 2, 4])
@cases("prefix", ["", "teacher.backbone.", "backbone."])
@torch.inference_mode()
def test_chunks_of_blocks_of_dinov2(chunks, prefix, tmp_path, timm):
    """The numbers are those of the whole network, as in Meta's code, or begin anew."""
    spec = SPEC | {"depth": 4, "block": {"layer_scale": 1e-5}, "num_classes": 0}
    network = timm.models.VisionTransformer(**SIZES | {"depth": 4}, num_classes=0, init_values=1e-5)
    fill(network)
    state = network.state_dict()
    own = {"mask_token": torch.zeros(1, WIDTH)}
    for absolute in (True, False):
        chunked = dict(own)
        for key, tensor in state.items():
            _, number, *rest = key.split(".", 2) if key.startswith("blocks.") else ("", "", key)
            size = len(network.blocks) // chunks
            block = int(number or 0)
            place = f"blocks.{block // size}.{block if absolute else block % size}."
            chunked[(place if number else "") + rest[0]] = tensor
        tensors = prefixed(prefix, chunked)
        if prefix:
            tensors["teacher.dino_head.mlp.0.weight"] = torch.ones(2, 2)
            tensors["dino_loss.center"] = tensors["ibot_patch_loss.center"] = torch.ones(1, 4)
            tensors = {k: t.clone() for k, t in tensors.items()}
        path = write(tmp_path / "net.safetensors", tensors)
        model = vitzoo.create(spec, weights=path).eval()
        close(model(IMAGES), network(IMAGES))
        assert model.load_report.format == "dinov2/meta"


@torch.inference_mode()
def test_two_encoders_of_moco(tmp_path):
    """Each has a projection in the place of its head."""
    head = {"head.0.weight": torch.ones(64, WIDTH), "head.1.running_mean": torch.ones(64)}
    network = fill(of_timm(0))
    tensors = {"module.predictor.0.weight": torch.ones(3, 3)}
    for name in ("base_encoder", "momentum_encoder"):
        tensors |= prefixed(f"module.{name}.", network.state_dict() | head)
    path = write(tmp_path / "net.safetensors", tensors)
    with refuses(CheckpointError, "'module.base_encoder.' (timm)", "'module.momentum_encoder.'"):
        vitzoo.create(SPEC, weights=path)
    chosen = {"weights": path, "prefix": "module.base_encoder."}
    with refuses(CheckpointError, "classifier", "head.0.weight", "num_classes=0"):
        vitzoo.create(SPEC, **chosen)
    model = vitzoo.create(SPEC, **chosen, num_classes=0).eval()
    close(model(IMAGES), network(IMAGES))
    left = "ignored (a head of pre-training): module.predictor.0.weight"
    assert left in model.load_report.assumed


# Classifiers that cannot be loaded.


UNREAD = {
    "several layers beside": lambda: on_features("head", head=nn.Sequential(linear(), linear(K))),
    "several layers inside": lambda: with_head(of_timm(0), nn.Sequential(linear(), linear(K))),
    "an unknown name": lambda: on_features("final", final=linear()),
    "two of them": lambda: on_features("fc", fc=linear(), linear=linear()),
    "a norm before it": lambda: on_features("fc", fc=nn.Sequential(nn.LayerNorm(WIDTH), linear())),
    "torchvision": lambda: with_heads(nn.Sequential(linear(), nn.ReLU(), linear(K))),
    "transformers": lambda: with_classifier(nn.Sequential(linear(), nn.ReLU(), linear(K))),
}


def with_head(network, head):
    network.head = head
    return network


@pytest.mark.parametrize("name", UNREAD)
@torch.inference_mode()
def test_a_classifier_that_is_not_read_is_never_called_none(name, tmp_path):
    path = file_of(fill(UNREAD[name]()), tmp_path)
    text = message(CheckpointError, vitzoo.create, SPEC, weights=path)
    says(text, "its classifier", "head.weight and head.bias", "pass num_classes=0", "num_classes=5")
    assert "no classifier" not in text
    for classes in (0, K):
        model = vitzoo.create(SPEC, weights=path, num_classes=classes)
        assert bool(model.load_report.reinitialised) is bool(classes)
        assert model.load_report.dropped


def test_a_classifier_on_logits_is_explained(tmp_path):
    network = Around(lambda m, x: m.fc(m.backbone(x)), backbone=of_timm(9), fc=linear(9))
    path = file_of(network, tmp_path)
    with refuses(CheckpointError, "reads 9 numbers", "32 features", "num_classes=5"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize("name", ["heads.out.weight", "heads.1.weight", "fc.weight"])
def test_another_layer_in_a_network_with_a_classifier_is_unexpected(name, tmp_path):
    """The outputs would be those of another network."""
    state = {**fill(of_torchvision()).state_dict(), name: torch.ones(K, K)}
    with refuses(CheckpointError, "1 unexpected", name):
        vitzoo.create(SPEC, weights=write(tmp_path / "net.safetensors", state))


def test_a_trunk_alone_has_no_classifier(tmp_path):
    path = file_of(of_timm(0), tmp_path, "backbone.")
    with refuses(CheckpointError, "num_classes=0"):
        vitzoo.create(SPEC, weights=path)


# Networks that a plugin builds.


@pytest.mark.parametrize("prefix", ["", "module.", "model.net.", "timm_model."])
def test_a_network_of_another_builder_is_behind_any_prefix(prefix, tmp_path, timm):
    network = timm.create_model("levit_128s").eval()
    state = network.state_dict() | {"total_ops": torch.ones(1)}
    path = write(tmp_path / "net.safetensors", prefixed(prefix, state))
    model = vitzoo.create("timm/levit_128s", weights=path).eval()
    loaded = model.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in network.state_dict().items())
    assert (f"prefix = {prefix}" in model.load_report.assumed) is bool(prefix)
    two = prefixed("a.", state) | prefixed("b.", state) if not prefix else {}
    if two:
        write(path, two)
        vitzoo.create("timm/levit_128s", weights=path, prefix="b.")
        with refuses(CheckpointError, path, "'c.'", "a., b.", "prefix="):
            vitzoo.create("timm/levit_128s", weights=path, prefix="c.")


# What is created again.


def test_lora_loads_the_same_network_again(tmp_path):
    path = file_of(fill(two("student", "teacher")), tmp_path)
    model = vitzoo.create(SPEC, weights=path, prefix="teacher.")
    assert vitzoo.lora(model)["revision"]


@torch.inference_mode()
def test_a_folder_with_several_networks(tmp_path, transformers):
    average = transformers.ViTForImageClassification(transformers.ViTConfig(**HF))
    fill(average).save_pretrained(tmp_path)
    state = average.state_dict()
    tensors = prefixed("ema.", state) | prefixed("model.", {k: t + 1 for k, t in state.items()})
    write(tmp_path / "model.safetensors", tensors)
    with refuses(CheckpointError, tmp_path, "'ema.' (transformers_vit)", "'model.'"):
        vitzoo.create(tmp_path)
    for call in ((tmp_path,), (tmp_path / "model.safetensors",)):
        model = vitzoo.create(*call, prefix="ema.").eval()
        close(model(IMAGES), average(IMAGES).logits)


def test_a_registered_file_has_a_stated_format():
    """Its keys are those of the format, so a prefix has to be there."""
    with refuses(CheckpointError, "vit_digits", "prefix 'ema.'", "blocks."):
        vitzoo.create("vit_digits", pretrained=True, prefix="ema.")
