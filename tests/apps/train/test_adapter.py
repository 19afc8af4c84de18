"""`create(adapter=)`: the adapter is read without trust, compared with its base, and merged."""

import hashlib
import json
import sys

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import nn

import vitzoo
from helpers import SPEC, fill, randn, refuses, says
from limited import run_limited
from tables import cases
from vitzoo.apps.train.adapter import PREFIX
from vitzoo.errors import CheckpointError, InvalidOption

WITHOUT_EFFECT = {  # what PEFT 0.21 also writes
    "auto_mapping": {
        "base_model_class": "VisionTransformer",
        "parent_library": "vitzoo.network.model",
    },
    "base_model_name_or_path": None,
    "bias": "none",
    "eva_config": None,
    "init_lora_weights": True,
    "lora_dropout": 0.1,
    "loftq_config": {},
    "megatron_core": "megatron.core",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "use_dora": False,
}


@pytest.fixture
def adapter(tmp_path):
    """Write an adapter of a model with random numbers, and return its folder."""

    def make(model, *, change=None, **config):
        keys = {"peft_type": "LORA"} | WITHOUT_EFFECT | vitzoo.lora(model, r=3, lora_alpha=7)
        tensors, seed = {}, 0
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and name.startswith(("blocks", "attn_pool")):
                seed += 2
                a, b = (
                    randn(3, layer.in_features, seed=seed),
                    randn(layer.out_features, 3, seed=seed + 1),
                )
                tensors[f"{PREFIX}{name}.lora_A.weight"] = a
                tensors[f"{PREFIX}{name}.lora_B.weight"] = b
        state = model.head.state_dict()
        tensors |= {f"{PREFIX}head.{n}": randn(*t.shape, seed=99) for n, t in state.items()}
        if change:
            change(tensors)
        folder = tmp_path / "adapter"
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(keys | config))
        return folder

    return make


@pytest.fixture
def base(tmp_path):
    """The path of a saved model with five classes."""
    return vitzoo.save(fill(vitzoo.create(SPEC)), tmp_path / "base.safetensors")


def tensors_in(folder):
    return safetensors.torch.load_file(folder / "adapter_model.safetensors")


def test_every_weight_is_the_base_plus_the_scaled_product(adapter, augreg):
    name, models = augreg
    trained = vitzoo.create(name, pretrained=True)
    trained.reset_classifier(3)
    trained.labels, trained.output_activation = ("a", "b", "c"), "sigmoid"
    folder = adapter(trained)
    model = vitzoo.create(name, adapter=folder)
    tensors, before, changed = tensors_in(folder), models["in1k"].state_dict(), []
    for key, weight in model.state_dict().items():
        layer = f"{PREFIX}{key.removesuffix('.weight')}"
        if f"{PREFIX}{key}" in tensors:
            assert torch.equal(weight, tensors[f"{PREFIX}{key}"])
        elif f"{layer}.lora_A.weight" in tensors:
            a, b = (tensors[f"{layer}.lora_{x}.weight"].double() for x in "AB")
            expected = before[key].double() + 7 / 3 * (b @ a)
            torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-5)
        else:
            assert torch.equal(weight, before[key]), key
            continue
        changed.append(key)
    report = model.load_report
    assert len(changed) == 4 * SPEC["depth"] + 2
    assert sorted(report.merged) == sorted(changed)
    assert {*report.kept} == before.keys() - {*changed}
    assert report.reinitialised == ()
    data = (folder / "adapter_model.safetensors").read_bytes()
    assert report.adapter == hashlib.sha256(data).hexdigest()
    says(str(report), f"adapter (sha256 {report.adapter[:12]})", "merged")
    assert (model.labels, model.output_activation) == (("a", "b", "c"), "sigmoid")
    assert (model.num_classes, model.spec.num_classes) == (3, 3)


def test_the_weights_of_the_adapter_are_chosen_by_their_sha256(adapter, augreg):
    name, models = augreg
    folder = adapter(vitzoo.create(name, weights="in21k"))
    model = vitzoo.create(name, adapter=folder)
    assert model.load_report.source == "small/net:in21k"
    assert torch.equal(model.pos_embed, models["in21k"].pos_embed)
    assert model.labels == tuple(f"in21k-{i}" for i in range(11))
    assert vitzoo.create(name, pretrained=True, adapter=folder).load_report == model.load_report
    with refuses(CheckpointError, folder, "'small/net'", "weights="):
        vitzoo.create(name, weights="in1k", adapter=folder)


def test_weights_with_another_sha256_are_refused_before_a_download(adapter, base, monkeypatch):
    folder = adapter(vitzoo.create(base), targets=1)
    state = json.loads((folder / "adapter_config.json").read_text())
    record = state["revision"].replace('"embed_dim": 32', '"embed_dim": 192')
    spec = vitzoo.describe("vit_ti16").spec.to_data()
    record = f"{record[:71]} {json.dumps({**json.loads(record[72:]), 'spec': spec, 'labels': []})}"
    del state["targets"]
    (folder / "adapter_config.json").write_text(json.dumps(state | {"revision": record}))
    row = vitzoo.describe("vit_ti16").default_weights
    monkeypatch.setattr("vitzoo.store.obtain.obtain", lambda *_: pytest.fail("it was fetched"))
    with refuses(CheckpointError, folder, record[7:71], row.sha256, f"vit_ti16:{row.name}"):
        vitzoo.create("vit_ti16", adapter=folder)


def test_a_saved_base_with_one_other_number_is_refused(adapter, base, tmp_path):
    folder = adapter(model := vitzoo.create(base))
    assert vitzoo.create(base, adapter=folder).load_report.merged
    with torch.no_grad():
        model.cls_token[0, 0, 0] += 1
    other = vitzoo.save(model, tmp_path / "other.safetensors")
    with refuses(CheckpointError, folder, model.load_report.sha256, other):
        vitzoo.create(other, adapter=folder)


def test_a_network_of_other_sizes_is_refused(adapter, base, tmp_path):
    folder = adapter(vitzoo.create(base))
    deep = vitzoo.save(fill(vitzoo.create(SPEC | {"depth": 3})), tmp_path / "deep.safetensors")
    with refuses(CheckpointError, folder, "depth = 2, not 3"):
        vitzoo.create(deep, adapter=folder)


def test_the_network_of_the_adapter_is_used_and_the_call_changes_it(adapter, augreg):
    name, _ = augreg
    arguments = {"image_size": 48, "pool": "mean", "block": {"activation": "quick_gelu"}}
    folder = adapter(trained := vitzoo.create(name, pretrained=True, **arguments))
    model = vitzoo.create(name, adapter=folder)
    assert model.spec == trained.spec
    assert model.load_report.assumed == trained.load_report.assumed
    small = vitzoo.create(name, adapter=folder, image_size=32)
    assert small.spec.block.activation == "quick_gelu"
    assert small(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_bfloat16_weights_are_merged_in_float32(adapter, base):
    folder = adapter(vitzoo.create(base))
    low, high = (
        vitzoo.create(base, adapter=folder, dtype=t) for t in (torch.bfloat16, torch.float32)
    )
    start = vitzoo.create(base, dtype=torch.bfloat16)
    change = high.blocks[0].attn.qkv.weight - vitzoo.create(base).blocks[0].attn.qkv.weight
    expected = (start.blocks[0].attn.qkv.weight.float() + change).bfloat16()
    torch.testing.assert_close(low.blocks[0].attn.qkv.weight, expected, rtol=0.01, atol=0)
    assert {t.dtype for t in low.state_dict().values()} == {torch.bfloat16}


LAYER = f"{PREFIX}blocks.0.attn.qkv.lora_"


def without(name):
    return lambda tensors: tensors.pop(name)


def with_(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


@cases(
    ("change", "parts"),
    [
        (without(f"{LAYER}B.weight"), ("1 missing", f"{LAYER}B.weight")),
        (
            lambda tensors: [tensors.pop(f"{LAYER}{x}.weight") for x in "AB"],
            ("2 missing", f"{LAYER}A.weight", f"{LAYER}B.weight"),
        ),
        (without(f"{PREFIX}head.bias"), ("1 missing", f"{PREFIX}head.bias")),
        (with_(f"{PREFIX}patch_embed.proj.lora_A.weight", randn(3, 3)), ("1 unexpected",)),
        (with_(f"{PREFIX}cls_token", randn(1, 1, 32)), ("1 unexpected", f"{PREFIX}cls_token")),
        (with_("head.bias", randn(5)), ("1 unexpected", "head.bias")),
        (with_(f"{LAYER}A.weight", randn(4, 32)), (f"{LAYER}A.weight", "(4, 32)", "(3, 32)")),
        (with_(f"{PREFIX}head.weight", randn(6, 32)), ("(6, 32)", "(5, 32)", "num_classes=")),
        (with_(f"{LAYER}A.weight", torch.ones(3, 32, dtype=torch.int32)), ("I32",)),
        (with_(f"{LAYER}A.weight", torch.full((3, 32), torch.nan)), ("NaN", f"{LAYER}A.weight")),
    ],
)
def test_tensors_that_do_not_fit_are_named(adapter, base, change, parts):
    folder = adapter(vitzoo.create(base), change=change)
    with refuses(CheckpointError, folder, *parts):
        vitzoo.create(base, adapter=folder)


def test_check_finite_is_the_users_choice(adapter, base):
    change = with_(f"{LAYER}A.weight", torch.full((3, 32), torch.nan))
    folder = adapter(vitzoo.create(base), change=change)
    model = vitzoo.create(base, adapter=folder, check_finite=False)
    assert model.blocks[0].attn.qkv.weight.isnan().all()


def test_an_adapter_of_some_layers_is_merged(adapter, base):
    only = lambda tensors: [tensors.pop(n) for n in [*tensors] if "head" in n or "qkv" not in n]  # noqa: E731
    config = {"target_modules": ["qkv"], "modules_to_save": None}
    folder = adapter(vitzoo.create(base), change=only, **config)
    model = vitzoo.create(base, adapter=folder)
    assert model.load_report.merged == ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight")
    with refuses(CheckpointError, folder, "missing", "head.weight"):  # it would be all zero
        vitzoo.create(base, adapter=folder, num_classes=9)


@cases(
    ("config", "parts"),
    [
        ({"peft_type": "LOHA"}, ("peft_type must be one of LORA", "'LOHA'")),
        ({"r": 10**12}, ("another shape", f"expected ({10**12}, 32)")),
        ({"r": 0}, ("r must be a whole number from 1", "0")),
        ({"r": True}, ("r must be a whole number", "True")),
        ({"lora_alpha": float("inf")}, ("lora_alpha must be a finite number",)),
        ({"use_dora": True}, ("use_dora", "True", "PEFT", "merge_and_unload()")),
        ({"bias": "all"}, ("bias", "'all'")),
        ({"init_lora_weights": "pissa"}, ("init_lora_weights", "'pissa'")),
        ({"rank_pattern": {"qkv": 9}}, ("rank_pattern",)),
        ({"alpha_pattern": {"qkv": 9}}, ("alpha_pattern",)),
        ({"a_key_of_tomorrow": 1}, ("a_key_of_tomorrow",)),
        ({"modules_to_save": ["head"] * 17}, ("modules_to_save", "16", "17")),
        ({"revision": None}, ("revision", "vitzoo.lora(model)", "from_pretrained")),
        ({"revision": "main"}, ("revision", "'main'")),
        ({"revision": f"sha256:{'0' * 64} {{}}"}, ("revision", "missing key 'api'")),
        ({"revision": f"sha256:{'0' * 64} {{{'[' * 9000}}}"}, ("revision", "not JSON")),
    ],
)
def test_configs_that_are_not_merged_are_refused(adapter, base, config, parts):
    folder = adapter(vitzoo.create(base), **config)
    with refuses(CheckpointError, folder, *parts):
        vitzoo.create(base, adapter=folder)


def test_rank_stabilised_scale(adapter, base):
    plain = vitzoo.create(base).blocks[0].attn.proj.weight
    usual, stable = (
        vitzoo.create(base, adapter=adapter(vitzoo.create(base), use_rslora=stable))
        for stable in (False, True)
    )
    of = [(model.blocks[0].attn.proj.weight - plain).double() for model in (usual, stable)]
    torch.testing.assert_close(of[1], of[0] * 3**0.5, rtol=1e-4, atol=1e-5)


def test_nothing_that_the_config_names_is_imported(adapter, base, tmp_path, monkeypatch):
    (tmp_path / "evil_peft.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"base_model_class": "Evil", "parent_library": "evil_peft"}
    config = {"auto_mapping": names, "megatron_core": "evil_peft", "base_model_name_or_path": "a/b"}
    vitzoo.create(base, adapter=adapter(vitzoo.create(base), **config))
    assert "evil_peft" not in sys.modules


def test_an_unregistered_network_of_a_plugin_is_named(adapter, base):
    folder = adapter(vitzoo.create(base))
    path = folder / "adapter_config.json"
    table = json.loads(path.read_text())
    table["revision"] = table["revision"].replace('"head": "linear"', '"head": "acme/cosine"')
    path.write_text(json.dumps(table))
    with refuses(vitzoo.VitzooError, "acme"):
        vitzoo.create(base, adapter=folder)


def test_damaged_folders(adapter, base, tmp_path):
    folder = adapter(vitzoo.create(base))
    config, tensors = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    whole, data = config.read_text(), tensors.read_bytes()
    config.write_text(whole[:-1])
    with refuses(CheckpointError, config):
        vitzoo.create(base, adapter=folder)
    config.write_text('{"r": 1, "r": 2}')
    with refuses(CheckpointError, config, "'r' occurs twice"):
        vitzoo.create(base, adapter=folder)
    config.write_text("[]")
    with refuses(CheckpointError, config) as caught:
        vitzoo.create(base, adapter=folder)
    assert "not JSON" not in str(caught.value)
    config.write_text(" " * 5_000_000)
    with refuses(CheckpointError, config, "4194304 bytes"):
        vitzoo.create(base, adapter=folder)
    config.unlink()
    with refuses(CheckpointError, config, "save_pretrained") as caught:
        vitzoo.create(base, adapter=folder)
    assert "JSON" not in str(caught.value)
    config.write_text(whole)
    tensors.write_bytes(data[:-1])
    with refuses(CheckpointError, tensors, "truncated"):
        vitzoo.create(base, adapter=folder)
    tensors.unlink()
    with refuses(CheckpointError, tensors):
        vitzoo.create(base, adapter=folder)
    (folder / "adapter_model.bin").write_bytes(b"\x80")
    with refuses(CheckpointError, "adapter_model.bin", "pickle", "safe_serialization=True"):
        vitzoo.create(base, adapter=folder)
    for wrong in (tmp_path / "missing", base, "", 3, "hf://acme/adapter"):
        with refuses(InvalidOption, "adapter", "save_pretrained") as caught:
            vitzoo.create(base, adapter=wrong)
        assert ("does not exist" in str(caught.value)) == (wrong not in (base, 3))


@pytest.mark.slow
def test_many_keys_like_a_missing_one(adapter, base):
    folder = adapter(
        vitzoo.create(base), peft_type=None, **{f"peft_typ{i}": 0 for i in range(10**5)}
    )
    path = folder / "adapter_config.json"
    path.write_text(path.read_text().replace('"peft_type": null, ', ""))
    code = f"import vitzoo\ndef read(path):\n    vitzoo.create({str(base)!r}, adapter=path)"
    (found,) = run_limited(code, [str(folder)])
    assert found.kind == "CheckpointError"
    says(found.text, "missing key 'peft_type'", "did you misspell it")


@pytest.mark.parametrize(
    "change", [{"lora_alpha": 1e300}, {"lora_alpha": 1e39}, {"lora_alpha": -1e308}], ids=str
)
def test_a_merge_that_is_not_finite_is_refused(base, adapter, change):
    folder = adapter(vitzoo.create(base), **change)
    with refuses(CheckpointError, folder, "blocks", "attn.qkv.weight", "factor"):
        vitzoo.create(base, adapter=folder)
    model = vitzoo.create(base, adapter=folder, check_finite=False)
    assert not model.blocks[0].attn.qkv.weight.isfinite().all()


def test_a_merge_that_float16_does_not_hold_is_refused(base, adapter):
    folder = adapter(vitzoo.create(base), lora_alpha=1e6)
    assert vitzoo.create(base, adapter=folder)
    with refuses(CheckpointError, "attn.qkv.weight"):
        vitzoo.create(base, adapter=folder, dtype=torch.float16)
