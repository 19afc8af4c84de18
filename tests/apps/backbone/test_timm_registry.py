"""`register_in_timm`: vitzoo's networks under names of timm, with bytes that vitzoo verified."""

from __future__ import annotations

import sys
import warnings

import pytest
import safetensors.torch
import tomlkit
import torch

import stored
import vitzoo
from helpers import close, fill, randn, refuses
from tables import cases
from vitzoo.errors import (
    CheckpointError,
    HashMismatch,
    InvalidOption,
    MissingDependency,
    RegistryError,
    UnknownOption,
    WeightsUnavailable,
)

NET = "vitzoo_local_net"
IMAGES = randn(2, 3, 32, 32)
REVISION = "0123456789" * 4
DOWNLOADS = {
    "_builder": "load_state_dict_from_url load_state_dict_from_hf download_cached_file "
    "load_custom_from_hf",
    "_hub": "hf_hub_download load_state_dict_from_hf",
}


@pytest.fixture(autouse=True)
def _timm_downloads_nothing(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("timm was about to download weights")

    for module, names in DOWNLOADS.items():
        for name in names.split():
            monkeypatch.setattr(f"timm.models.{module}.{name}", fail)


@pytest.fixture
def net(vitzoo_hub, small, tmp_path, monkeypatch, new_registry):
    """Register `local/net` in timm; its weights are on the Hub. Returns the network."""

    def make(**changes):
        model = fill(vitzoo.create(small | changes))
        entry = stored.put(model, tmp_path)
        data = (tmp_path / "weights.safetensors").read_bytes()
        del entry["path"]
        vitzoo_hub.add("acme/net", "model.safetensors", data, revision=REVISION)
        entry |= {"repo": "acme/net", "revision": REVISION, "file": "model.safetensors"}
        (tmp_path / "own.toml").write_text(stored.registry_of(model, entry), encoding="utf-8")
        monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "own.toml"))
        new_registry()
        vitzoo.register_in_timm()
        return model

    return make


def test_every_registered_network_has_a_name_and_its_weights_are_tags(monkeypatch, timm):
    for name in ("create", "open_registered"):  # builds nothing, opens nothing
        monkeypatch.setattr(f"vitzoo.apps.backbone.timm_registry.{name}", None)
    vitzoo.register_in_timm()
    names = {v.name: "vitzoo_" + v.name.replace("/", "_") for v in vitzoo.variants()}
    assert {"vitzoo_vit_b16", "vitzoo_dinov2_vit_b14", "vitzoo_timm_pvt_v2_b0"} < {*names.values()}
    assert all(map(timm.is_model, names.values()))
    tags = {f"{names[v.name]}.{w.name}" for v in vitzoo.variants() for w in v.weights}
    of_tests = "vitzoo_local*"
    listed = timm.list_models("vitzoo_*", pretrained=True, exclude_filters=of_tests)
    assert {*listed} == tags
    assert {*timm.list_models("vitzoo_*", exclude_filters=of_tests)} == {*names.values()}
    for variant in vitzoo.variants():
        config = timm.get_pretrained_cfg(names[variant.name])
        default = variant.default_weights
        assert config.tag == (default.name if default else None), variant.name
        assert not (config.hf_hub_id)
        assert not (config.file)
        assert config.input_size[1:] == variant.spec.image_size
        if default:
            assert config.url.startswith("vitzoo:")
            assert config.mean == default.preprocessing.mean, variant.name
            crop = min(config.crop_pct, 1)  # timm enlarges the image for two networks of its own
            assert crop == default.preprocessing.crop_pct, variant.name
    entrypoint = timm.models.model_entrypoint("vitzoo_vit_b16")
    vitzoo.register_in_timm()
    assert timm.models.model_entrypoint("vitzoo_vit_b16") is entrypoint


def test_weights_come_through_the_store(net, vitzoo_hub, timm):
    model = net()
    for name in (NET, f"{NET}.main"):
        found = timm.create_model(name, pretrained=True).eval()
        assert torch.equal(found(IMAGES), model(IMAGES))
    assert found.load_report.source.startswith("local/net:main")
    assert len(vitzoo_hub.file_requests()) == 1
    assert found.pretrained_cfg["architecture"] == NET
    assert found.pretrained_cfg["tag"] == "main"
    other = timm.create_model(f"{NET}.main").eval()
    assert other(IMAGES).shape == (2, 5)
    assert not torch.equal(other(IMAGES), model(IMAGES))
    with pytest.raises(RuntimeError, match="Invalid pretrained tag"):
        timm.create_model(f"{NET}.other", pretrained=True)


def test_other_bytes_are_refused(net, vitzoo_hub, timm):
    net()
    data = vitzoo_hub.files["acme/net", "model.safetensors"]
    vitzoo_hub.add("acme/net", "model.safetensors", data[:-1] + bytes([data[-1] ^ 1]))
    with refuses(HashMismatch, "sha256"):
        timm.create_model(NET, pretrained=True)


ARGUMENTS = {
    "classes": ({"num_classes": 3}, {"num_classes": 3}),
    "channels": ({"in_chans": 1}, {"in_chans": 1}),
    "image size": ({"img_size": (48, 32)}, {"image_size": (48, 32)}),
    "any size": ({"dynamic_img_size": True}, {"dynamic": True}),
    "pool": ({"global_pool": "avg"}, {"pool": {"name": "mean", "norm_first": False}}),
    "its pool": ({"global_pool": "token"}, {}),
    "drop path": ({"drop_path_rate": 0.5}, {"drop_path": 0.5}),
    "attention dropout": ({"attn_drop_rate": 0.1}, {"block": {"attention_dropout": 0.1}}),
    "no dropout": ({"drop_rate": 0.0, "proj_drop_rate": 0}, {}),
    "of create": ({"dropout": 0.1}, {"dropout": 0.1}),
    "strict": ({"pretrained_strict": True}, {}),
    "config": ({"pretrained_cfg_overlay": {"num_classes": 3}}, {"num_classes": 3}),
    "size of config": ({"pretrained_cfg_overlay": {"input_size": (3, 64, 64)}}, {"image_size": 64}),
}


@pytest.mark.slow
@cases("case", ARGUMENTS)
@cases("pretrained", [True, False])
def test_arguments_have_the_meaning_of_timm(net, case, pretrained, timm):
    net()
    given, meant = ARGUMENTS[case]
    if case == "pool" and pretrained:  # as in timm, the tensors of the other norm are missing
        with refuses(CheckpointError, "fc_norm.weight"):
            timm.create_model(NET, pretrained, **given)
        return
    found = timm.create_model(NET, pretrained, **given)
    expected = vitzoo.create("local/net", pretrained=pretrained, **meant)
    assert found.spec == expected.spec
    assert found.dynamic == expected.dynamic
    assert found.load_report == expected.load_report
    if pretrained:
        assert all(torch.equal(x, found.state_dict()[n]) for n, x in expected.state_dict().items())


def test_a_pool_that_the_network_has_is_not_replaced(net, timm):
    """timm's `avg` has the norm after the pool; this network has it before, as timm writes it."""
    model = net(pool="mean")
    found = timm.create_model(NET, pretrained=True, global_pool=model.global_pool).eval()
    assert torch.equal(found(IMAGES), model(IMAGES))


REFUSED = {
    "not an argument": ({"no_such": 1}, UnknownOption, "no_such"),
    "no pool": ({"global_pool": ""}, UnknownOption, "forward_features"),
    "other pool": ({"global_pool": "max"}, UnknownOption, "pool="),
    "dropout of the head": ({"drop_rate": 0.1}, UnknownOption, "model.fc_norm"),
    "registers": ({"reg_tokens": 4}, UnknownOption, "num_registers"),
    "features": ({"out_indices": [1]}, UnknownOption, "forward_intermediates"),
    "TorchScript": ({"scriptable": True}, InvalidOption, "torch.export"),
    "a cache": ({"cache_dir": "here"}, InvalidOption, "VITZOO_HOME"),
    "some tensors": ({"pretrained_strict": False}, InvalidOption, "leave it out"),
    "two sizes": ({"img_size": 56, "image_size": 28}, InvalidOption, "img_size = 56", "= 28"),
    "two rates": ({"drop_path_rate": 0.1, "drop_path": 0.2}, InvalidOption, "drop_path = 0.2"),
    "dynamic and not": ({"dynamic_img_size": True, "dynamic": False}, InvalidOption, "leave one"),
    "two pools": ({"global_pool": "avg", "pool": "cls"}, InvalidOption, "'avg'", "pool = 'cls'"),
    "a URL": ({"pretrained_cfg_overlay": {"url": "https://a.b/c"}}, InvalidOption, "https://a.b/c"),
    "the Hub": ({"pretrained_cfg_overlay": {"hf_hub_id": "a/b"}}, InvalidOption, "'a/b'", "tag"),
}


@pytest.mark.slow
@cases("case", REFUSED)
def test_what_vitzoo_cannot_do_is_refused(net, vitzoo_hub, case, timm):
    net()
    given, error, *parts = REFUSED[case]
    with refuses(error, *parts):
        timm.create_model(NET, pretrained=True, **given)
    assert not vitzoo_hub.requests


def test_a_network_without_weights(local_registry, timm):
    local_registry()
    vitzoo.register_in_timm()
    assert NET not in timm.list_models("vitzoo_*", pretrained=True)
    assert timm.create_model(NET).num_classes == 5
    with refuses(WeightsUnavailable, "local/net has no published weights"):
        timm.create_model(NET, pretrained=True)


def test_no_weights_are_the_default(net, tmp_path, new_registry, timm):
    """timm would take the first ones."""
    net()
    own = tomlkit.parse((tmp_path / "own.toml").read_text(encoding="utf-8"))
    weights = own["variants"]["net"]["weights"]
    weights["main"]["default"] = False
    weights["more"] = weights["main"]
    (tmp_path / "own.toml").write_text(tomlkit.dumps(own), encoding="utf-8")
    new_registry()
    vitzoo.register_in_timm()
    with refuses(WeightsUnavailable, "no default weights", "main", "more"):
        timm.create_model(NET, pretrained=True)
    assert timm.create_model(f"{NET}.more", pretrained=True).load_report.source.endswith(":more")


@pytest.mark.slow
@pytest.mark.parametrize("indices", [None, 1, [0], (0, 1)])
def test_features(net, indices, timm):
    from timm.models._features import FeatureGetterNet

    model = net(depth=4)
    given = {} if indices is None else {"out_indices": indices}
    found = timm.create_model(NET, pretrained=True, features_only=True, **given)
    assert type(found) is FeatureGetterNet
    wanted = model.forward_intermediates(IMAGES, 3 if indices is None else indices)[1]
    maps = found(IMAGES)
    for one, expected in zip(maps, wanted, strict=True):
        assert torch.equal(one, expected)
    assert found.feature_info.channels() == [one.shape[1] for one in maps]
    assert found.feature_info.reduction() == [32 // one.shape[2] for one in maps]
    sum(one.sum() for one in maps).backward()
    assert all(x.grad is not None for x in found.parameters())  # as training in parallel needs
    assert found.pretrained_cfg["architecture"] == NET


def test_features_of_another_class(net, timm):
    from timm.models import FeatureHookNet

    model = net()
    found = timm.create_model(
        NET, pretrained=True, features_only=True, feature_cls="hook", out_indices=1
    )
    assert type(found) is FeatureHookNet
    close(found(IMAGES)[0], model.features(IMAGES, ["blocks.1"])["blocks.1"])


def test_preprocessing_follows_the_network(net, timm):
    net()
    model = timm.create_model(NET, pretrained_cfg_overlay={"mean": (0.1, 0.2, 0.3)}, img_size=48)
    config = timm.data.resolve_model_data_config(model)
    assert (config["input_size"], config["mean"]) == ((3, 48, 48), (0.1, 0.2, 0.3))
    assert (config["std"], config["crop_pct"]) == ((0.2, 0.25, 0.3), 0.875)
    model.set_input_size(64)
    assert timm.models.get_model_input_config(model)["input_size"] == (3, 64, 64)
    assert timm.data.resolve_model_data_config(model)["input_size"] == (3, 64, 64)


@pytest.mark.parametrize("kind", ["folder", "file", "checkpoint"])
def test_files_of_the_user_are_loaded_by_timm(net, vitzoo_hub, tmp_path, kind, timm):
    net()
    model = fill(timm.create_model(NET, num_classes=3))
    timm.models.save_for_hf(model, tmp_path / "out", safe_serialization=True)
    file = str(tmp_path / "out" / "model.safetensors")
    if kind == "folder":
        found = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    elif kind == "file":
        overlay = {"file": file, "num_classes": 3}
        found = timm.create_model(NET, pretrained=True, pretrained_cfg_overlay=overlay)
    else:
        found = timm.create_model(NET, num_classes=3, checkpoint_path=file)
    assert torch.equal(found.eval()(IMAGES), model(IMAGES))
    assert not vitzoo_hub.requests


@pytest.mark.slow
def test_networks_of_timm_keep_the_arguments_of_timm(vitzoo_hub, new_registry, timm):
    first_use = (v for v in vitzoo.variants("timm/xcit_*") if v.default_weights.pin == "first-use")
    smallest = min(first_use, key=lambda variant: variant.params)
    name, row = smallest.name.removeprefix("timm/"), smallest.default_weights
    new_registry()
    vitzoo.register_in_timm()
    of_timm = fill(timm.create_model(name))
    vitzoo_hub.add(row.repo, row.file, safetensors.torch.save(of_timm.state_dict()))
    found = timm.create_model(f"vitzoo_timm_{name}", pretrained=True).eval()
    assert type(found) is type(of_timm)
    images = randn(1, 3, 64, 64)
    assert torch.equal(found(images), of_timm(images))
    assert "state_dict" not in found.pretrained_cfg
    assert found.pretrained_cfg["architecture"] == f"vitzoo_timm_{name}"
    given = {"features_only": True, "out_indices": (0, 2), "drop_rate": 0.1}
    maps = timm.create_model(f"vitzoo_timm_{name}.{row.name}", True, **given).eval()
    expected = of_timm.forward_intermediates(images, [0, 2], intermediates_only=True)
    for one, other in zip(maps(images), expected, strict=True):
        close(one, other)
    assert "state_dict" not in maps.pretrained_cfg
    with refuses(InvalidOption, "hf_hub_id = 'a/b'"):
        timm.create_model(f"vitzoo_timm_{name}", True, pretrained_cfg_overlay={"hf_hub_id": "a/b"})
    assert len(vitzoo_hub.file_requests()) == 1


def test_changed_entries_replace_the_old_ones(net, timm):
    net()
    vitzoo.register_in_timm()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(image_size=64)
    assert timm.get_pretrained_cfg(NET).input_size == (3, 64, 64)
    assert timm.list_models(f"{NET}*", pretrained=True) == [f"{NET}.main"]


@pytest.mark.slow
def test_maps_of_swin_have_their_channels_last_in_timm_alone(timm):
    """As docs/other-libraries.md states."""
    vitzoo.register_in_timm()
    name = "swin_tiny_patch4_window7_224"
    found = timm.create_model(f"vitzoo_timm_{name}", features_only=True).eval()
    backbone = vitzoo.backbone(f"timm/{name}", out=4, pretrained=False)
    images = torch.zeros(1, 3, 224, 224)
    last, first = found(images)[-1], backbone.eval()(images)[-1]
    assert (last.shape, first.shape) == ((1, 7, 7, 768), (1, 768, 7, 7))


def test_two_names_that_give_one_name_of_timm(install, small, timm):
    for package, namespace, name in (("acme", "acme-x", "y"), ("globex", "acme", "x_y")):
        entry = small | {"summary": "a network", "source": "made up", "params": 1}
        text = tomlkit.dumps({"api": 1, "variants": {name: entry}})
        files = {f"{package}/__init__.py": "", f"{package}/registry.toml": text}
        install(package, f"{namespace} = {package}:registry.toml", files)
    with refuses(
        RegistryError, "acme-x/y", "acme/x_y", "'vitzoo_acme_x_y'", "VITZOO_DISABLE_PLUGINS"
    ):
        vitzoo.register_in_timm()
    assert not timm.is_model("vitzoo_acme_x_y")


def test_timm_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with refuses(MissingDependency, "register_in_timm", "pip install timm"):
        vitzoo.register_in_timm()
