"""Two identities have one NETWORK exactly if their vectors can be compared."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitzoo
from calls import TIMM, TRANSFORMERS
from helpers import SMALL, refuses
from tables import cases
from vitzoo.apps.identity.canary import numerics_of
from vitzoo.apps.identity.canonical import BLOCK, DEFAULTS, HEAD, TRAINING, exact
from vitzoo.apps.identity.hashes import identities
from vitzoo.apps.identity.identity import (
    ANOTHER,
    SAME_NETWORK,
    SAME_NUMBERS,
    Identity,
    identity,
    require_identity,
)
from vitzoo.apps.predict import fingerprint
from vitzoo.errors import IntegrityError, InvalidOption, UnknownOption

STATED = vitzoo.Preprocessing(crop_pct=0.9)
NAME = "vit_digits"


def small(seed=0, stated=STATED, **changes):
    """Return a network of a seed; options of its spec and its preprocessing may be others."""
    model = vitzoo.create({**SMALL, **changes})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    model.preprocessing = stated
    return model


def block(**values):
    return lambda _: small(block=values)


def stated(**values):
    return lambda _: small(stated=STATED.with_values(**values))


def changed(change):
    def made(_):
        model = small()
        result = change(model)
        return model if result is None else result

    return made


def saved(folder, model=None, name="a.safetensors"):
    vitzoo.save(model or small(), folder / name)
    return folder / name


def saved_again(folder):
    return saved(folder, vitzoo.create(saved(folder)), "b.safetensors")


def moved(folder):
    (folder / "other").mkdir()
    return shutil.move(saved(folder), folder / "other" / "c.safetensors")


@torch.no_grad()
def one_bit(model):
    weight = model.blocks[2].mlp.fc2.weight
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


@torch.no_grad()
def merge_lora(model):
    weight = model.blocks[0].attn.qkv.weight
    weight += 0.01 * torch.ones(len(weight), 2) @ torch.ones(2, weight.shape[1])


def replace_head(model):
    model.reset_classifier(4)


def hooked(hook):
    model = small()
    model.norm.register_forward_hook(hook)
    return model


def unfuse(model):
    for part in model.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False


def with_versions(monkeypatch, **changes):
    before = fingerprint.versions
    monkeypatch.setattr(
        "vitzoo.apps.identity.hashes.versions", lambda device: before(device) | changes
    )


def with_config(folder, model, **configs):
    """Write the tensors of a network and the configs of another library."""
    save_file(model.state_dict(), folder / "model.safetensors")
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder


def of_timm(folder):
    sizes = {name: SMALL[name] for name in ("patch_size", "embed_dim", "depth", "num_heads")}
    stated = TIMM["pretrained_cfg"] | {"input_size": [3, 32, 32], "num_classes": 7}
    config = TIMM | {"model_args": sizes | {"img_size": 32}, "num_classes": 7, "num_features": 48}
    return with_config(folder, small(), config=config | {"pretrained_cfg": stated})


def of_transformers(folder):
    """Return a network whose images are not cropped, and its folder of transformers."""
    model = small(stated=STATED.with_values(crop_pct=1.0, crop_mode="squash"))
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 192}
    sizes |= {"layer_norm_eps": 1e-6, "image_size": 32, "patch_size": 8}
    sizes |= {"id2label": {str(i): f"LABEL_{i}" for i in range(7)}}
    stated = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "resample": 3}
    stated |= {"size": {"height": 32, "width": 32}, "do_rescale": True, "do_normalize": True}
    stated |= {"rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    with_config(folder, model, config=TRANSFORMERS | sizes, preprocessor_config=stated)
    (folder / "model.safetensors").unlink()
    vitzoo.convert(saved(folder, model), "transformers_vit", folder / "model.safetensors")
    (folder / "a.safetensors").unlink()
    return model, folder


def quantised(model):
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear}, torch.qint8)


def of_half(model):
    """Return a network whose numbers are those of a file of float16."""
    return model.half().float()


# Both networks of a pair, or the second one next to `small()`, or which options that gets.
PAIRS = {
    "another checkpoint": (ANOTHER, lambda _: small(seed=1)),
    "one bit of one weight": (ANOTHER, changed(one_bit)),
    "eps": (ANOTHER, block(norm_eps=1e-5)),
    "GELU by tanh": (ANOTHER, block(activation="gelu_tanh")),
    "GELU by a sigmoid": (ANOTHER, block(activation="quick_gelu")),
    "interpolation": (ANOTHER, stated(interpolation="bilinear")),
    "share of the crop": (ANOTHER, stated(crop_pct=0.95)),
    "kind of crop": (ANOTHER, stated(crop_mode="squash")),
    "mean": (ANOTHER, stated(mean=(0.5, 0.5, 0.4))),
    "std": (ANOTHER, stated(std=(0.5, 0.5, 0.4))),
    "order of channels": (ANOTHER, stated(channel_order="bgr")),
    "factor of pixels": (ANOTHER, stated(rescale_factor=1 / 127.5)),
    "pool": (ANOTHER, lambda _: small(pool="mean")),
    "norm after the branches": (ANOTHER, block(post_norm=True)),
    "norm before the blocks": (ANOTHER, lambda _: small(pre_norm=True)),
    "no final norm": (ANOTHER, lambda _: small(final_norm=False)),
    "merged tokens": (ANOTHER, block(merge=2)),
    "windows": (ANOTHER, block(window=2)),
    "parallel branches": (ANOTHER, block(parallel=True)),
    "scale of attention": (ANOTHER, block(qk_scale=0.5)),
    "heads": (ANOTHER, lambda _: small(num_heads=2)),
    "merged LoRA": (ANOTHER, changed(merge_lora)),
    "a float16 file": (ANOTHER, lambda folder: saved(folder, small().half())),
    "a bfloat16 file": (ANOTHER, lambda folder: saved(folder, small().bfloat16())),
    "int8": (ANOTHER, changed(quantised)),
    "a hook": (ANOTHER, lambda _: hooked(print)),
    "another hook": (ANOTHER, lambda _: (hooked(print), hooked(id))),
    "the same hook": (SAME_NUMBERS, lambda _: (hooked(print), hooked(print))),
    "logits": (ANOTHER, {"output": "logits"}),
    "tokens": (ANOTHER, {"output": "blocks.1"}),
    "normalised": (ANOTHER, {"normalised": True}),
    "native sizes": (ANOTHER, {"native_size": 16}),
    "an equal object": (SAME_NUMBERS, lambda _: small()),
    "a copy": (SAME_NUMBERS, changed(copy.deepcopy)),
    "a file": (SAME_NUMBERS, saved),
    "a file saved again": (SAME_NUMBERS, saved_again),
    "a moved file": (SAME_NUMBERS, moved),
    "a file of timm": (SAME_NUMBERS, of_timm),
    "a file of transformers": (SAME_NUMBERS, of_transformers),
    "a name and its object": (
        SAME_NUMBERS,
        lambda _: (NAME, vitzoo.create(NAME, pretrained=True)),
    ),
    "another classifier": (SAME_NUMBERS, changed(replace_head)),
    "drop path": (SAME_NUMBERS, lambda _: small(drop_path=0.1)),
    "dropout": (SAME_NUMBERS, lambda _: small(dropout=0.1)),
    "frozen": (SAME_NUMBERS, changed(lambda model: model.requires_grad_(False))),
    "in a wrapper": (SAME_NUMBERS, changed(torch.optim.swa_utils.AveragedModel)),
    "float64 of the same numbers": (SAME_NETWORK, lambda _: small().double()),
    "bfloat16": (SAME_NETWORK, {"dtype": torch.bfloat16}),
    "float16": (SAME_NETWORK, {"dtype": torch.float16}),
    "chunk": (SAME_NETWORK, {"chunk": 1}),
    "without fused attention": (SAME_NETWORK, changed(unfuse)),
    "half a pixel": (SAME_NETWORK, stated(crop_offset="floor")),
    "a stated factor": (SAME_NETWORK, stated(rescale_factor=1 / 255)),
    "vitzoo": (SAME_NETWORK, {"versions": {"vitzoo": "0.2.0"}}),
    "torch": (SAME_NETWORK, {"versions": {"torch": "2.6.0"}}),
    "instruction set": (SAME_NETWORK, {"versions": {"cpu": "DEFAULT"}}),
    "device": (SAME_NETWORK, {"versions": {"cuda": "H200"}}),
}


@cases("name", PAIRS, ids=str)
def test_each_pair_has_the_right_answer(name, tmp_path, monkeypatch):
    answer, other = PAIRS[name]
    options = dict(other) if isinstance(other, dict) else {}
    made = small() if options else other(tmp_path)
    first, second = made if isinstance(made, tuple) else (small(), made)
    before = Identity.parse(identity(first))
    with_versions(monkeypatch, **options.pop("versions", {}))
    assert Identity.parse(identity(second, **options)).compared(before) == answer


def test_there_are_enough_pairs():
    assert len(PAIRS) >= 40


def test_a_pickled_predictor_keeps_its_identity():
    predictor = vitzoo.Predictor(small(), dtype=torch.bfloat16)
    again = pickle.loads(pickle.dumps(predictor))
    assert identity(again) == identity(predictor) == identity(small(), dtype=torch.bfloat16)


def test_an_object_that_is_changed_after_a_cast_is_another_network():
    predictor = vitzoo.Predictor(small(), dtype=torch.bfloat16)
    before = identity(predictor)
    with torch.no_grad():
        predictor.model.blocks[2].mlp.fc2.weight[0, 0] += 1
    after = identity(predictor)
    assert Identity.parse(after).compared(Identity.parse(before)) == ANOTHER
    assert after == identity(predictor.model)


def test_a_quantised_object_has_the_identity_of_its_copy():
    int8 = quantised(small())
    assert identity(int8) == identity(copy.deepcopy(int8))
    assert numerics_of(vitzoo.Predictor(int8)) == "int8"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_type_of_torch_is_no_part_of_a_network(dtype):
    before, usual = identity(NAME), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = identity(NAME)
        assert found == identity(vitzoo.create(NAME, pretrained=True))
    finally:
        torch.set_default_dtype(usual)
    assert Identity.parse(found).compared(Identity.parse(before)) == SAME_NETWORK


def test_a_name_and_its_object_in_any_type_are_one_network():
    name = identity(NAME)
    model = vitzoo.create(NAME, pretrained=True)
    assert identity(model) == name
    half = {identity(NAME, dtype=torch.float16), identity(model, dtype=torch.float16)}
    half.add(identity(vitzoo.create(NAME, pretrained=True, dtype=torch.float16)))
    assert len(half) == 1
    assert Identity.parse(half.pop()).compared(Identity.parse(name)) == SAME_NETWORK
    changed = vitzoo.create(NAME, pretrained=True, dtype=torch.float16)
    one_bit_of = changed.blocks[0].mlp.fc1.weight
    with torch.no_grad():
        one_bit_of[0, 0] += 1
    assert Identity.parse(identity(changed)).compared(Identity.parse(name)) == ANOTHER


def test_the_type_in_which_numbers_are_stored_has_no_effect(tmp_path):
    half = saved(tmp_path, small().half(), "half.safetensors")
    full = saved(tmp_path, of_half(small()), "full.safetensors")
    assert {t.dtype for t in load_file(half).values()} == {torch.float16}
    assert {t.dtype for t in load_file(full).values()} == {torch.float32}
    places = (half, full, small().half(), of_half(small()))
    assert len({Identity.parse(identity(place)).network for place in places}) == 1


@pytest.mark.slow
def test_texts_are_compared_without_torch():
    code = "import sys, vitzoo; vitzoo.require_identity(sys.argv[1], sys.argv[1])"
    code += "; sys.exit('torch' in sys.modules)"
    text = f"vz1:{NAME}:{'a' * 26}:{'b' * 26}"
    assert subprocess.run([sys.executable, "-c", code, text]).returncode == 0


@pytest.mark.slow
def test_no_network_differs_over_instruction_sets():
    code = f"import vitzoo; print(vitzoo.identity({NAME!r}))"
    sets = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    env = {**os.environ, **sets}
    text = subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip()
    assert Identity.parse(text).compared(Identity.parse(identity(NAME))) == SAME_NETWORK


def test_an_exported_file_in_int8_is_another_network():
    predictor = vitzoo.Predictor(NAME)
    plain, other, int8 = (
        Identity.parse(identities(predictor, ["pooled"], **options)["pooled"])
        for options in ({}, {"runtime": "onnx"}, {"precision": "int8"})
    )
    assert other.compared(plain) == SAME_NETWORK
    assert int8.compared(plain) == ANOTHER


def test_a_label_has_no_path(tmp_path):
    label = Identity.parse(identity(saved(tmp_path, vitzoo.create(NAME, pretrained=True)))).label
    assert label == NAME
    assert Identity.parse(identity(NAME)).label == "vit_digits@digits_v1"
    assert Identity.parse(identity(saved(tmp_path))).label == "custom"


class Scaled(nn.Module):
    """A head with a number that is no tensor."""

    def __init__(self, by):
        super().__init__()
        self.by, self.num_classes = by, 3

    def forward(self, pooled):
        return pooled[:, :3] * self.by


def test_a_part_that_was_passed_as_an_object_counts():
    def logits_of(by):
        model = small()
        model.head = Scaled(by)
        return identity(model, "logits")

    assert logits_of(1) == logits_of(1) != logits_of(2)


def test_what_is_left_out_are_the_defaults_of_vz1():
    """A later default of vitzoo must not replace these: it would change identities."""
    data = exact(vitzoo.Spec(num_classes=1000).to_data())
    stated = {name: value for name, value in data.items() if name not in TRAINING}
    sizes = {name: [stated[name]] * 2 for name in ("image_size", "patch_size")}
    inner = stated.pop("block")
    inner.pop("attention_dropout")
    assert stated | sizes | {"block": {}} == DEFAULTS
    assert inner == BLOCK
    assert set(HEAD) < DEFAULTS.keys()


def test_vectors_of_another_network_are_refused():
    model = small()
    text = identity(model)
    assert require_identity({"vitzoo.identity": text}, model) == SAME_NUMBERS
    assert require_identity({b"vitzoo.identity": text.encode()}, text) == SAME_NUMBERS
    assert require_identity(text, model, chunk=1) == SAME_NETWORK
    with refuses(IntegrityError, "another network", text, "make all vectors again"):
        require_identity({"vitzoo.identity": text}, small(seed=1))
    with refuses(InvalidOption, "no 'vitzoo.identity'", "'a'", "vitzoo.identity(model)"):
        require_identity({"a": 1}, model)
    with refuses(InvalidOption, "no 'vitzoo.identity'", "vitzoo.identity(model)"):
        require_identity(None, model)  # of a collection without metadata
    with refuses(InvalidOption, "vz1:LABEL:NETWORK:NUMBERS", "'vz1:abc'"):
        require_identity(text, "vz1:abc")
    with refuses(InvalidOption, "vz1:LABEL:NETWORK:NUMBERS", "'vz2:a'"):
        require_identity({"vitzoo.identity": "vz2:a"}, model)
    with refuses(InvalidOption, "vz1:LABEL:NETWORK:NUMBERS", r"'vz1:\x1b"):
        require_identity(f"vz1:\x1b[31m:{'a' * 26}:{'b' * 26}", model)
    with refuses(InvalidOption, "chunk", "Predictor"):
        identity(vitzoo.Predictor(model), chunk=1)
    with refuses(UnknownOption, "'normalized'", "'normalised'"):
        require_identity(text, model, normalized=True)
    predictor = vitzoo.Predictor(NAME)
    with refuses(UnknownOption, "blocks.99", "no output"):
        identity(predictor, "blocks.99")
    with refuses(InvalidOption, "output must be text", "['pooled']"):
        identity(predictor, ["pooled"])
    with refuses(InvalidOption, "output must be text", "5"):
        require_identity(identity(predictor), predictor, 5)
    with refuses(InvalidOption, "normalised must be a boolean", "1"):
        identity(predictor, normalised=1)
    with refuses(InvalidOption, "labels", "output='logits'"):
        identities(vitzoo.Predictor(NAME), ["labels"])
