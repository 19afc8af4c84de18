"""The image tower of a larger model: its config, its keys, and nothing else in memory."""

import hashlib
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitzoo
from encoders import Encoder, compare, draw
from helpers import refuses
from internals import Reading, SafetensorsFile, open_own
from limited import run_limited
from vitzoo.errors import CheckpointError

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8, "layer_norm_eps": 1e-3,
}  # fmt: skip
MLP = {"intermediate_size": 64}
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 64, "intermediate_size": 64,
}  # fmt: skip
LLAMA = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}


def llava(kind, config):
    """Return LLaVA with an image tower, given by the names of its config and the values."""
    import transformers

    tower = getattr(transformers, f"{kind}Config")(**config)
    text = transformers.LlamaConfig(**LLAMA)
    whole = transformers.LlavaConfig(vision_config=tower, text_config=text)
    return transformers.LlavaForConditionalGeneration(whole)


def gemma():
    import transformers

    tower, text = (
        transformers.SiglipVisionConfig(**SIZES, **MLP),
        transformers.Gemma3TextConfig(**LLAMA),
    )
    config = transformers.Gemma3Config(vision_config=tower, text_config=text, mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(config)


def two_encoders():
    import transformers

    config = transformers.VisionTextDualEncoderConfig(
        vision_config=transformers.ViTConfig(**SIZES, **MLP).to_dict(),
        text_config=transformers.BertConfig(**TEXT).to_dict(),
    )
    return transformers.VisionTextDualEncoderModel(config)


def captions():
    import transformers

    decoder = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64}
    config = transformers.VisionEncoderDecoderConfig(
        encoder=transformers.ViTConfig(**SIZES, **MLP, num_labels=7).to_dict(),
        decoder=transformers.GPT2Config(**decoder, add_cross_attention=True).to_dict(),
    )
    return transformers.VisionEncoderDecoderModel(config)


def depth():
    import transformers

    config = transformers.Dinov2Config(**SIZES, out_indices=[1, 2], reshape_hidden_states=False)
    sizes = {"neck_hidden_sizes": [8, 8], "fusion_hidden_size": 8, "reassemble_factors": [2, 1]}
    return transformers.DepthAnythingForDepthEstimation(
        transformers.DepthAnythingConfig(
            backbone_config=config, **sizes, reassemble_hidden_size=32, patch_size=8
        )
    )


def tower(network, images):
    return network.base_model.vision_tower(pixel_values=images)


def row(network, run=tower, **more):
    return Encoder(network, run=run, **more)


CLIP = {**SIZES, **MLP, "hidden_act": "gelu"}
TOWERS = {
    "CLIP": row(lambda: llava("CLIPVision", CLIP), tokens=None),
    "SigLIP": row(lambda: llava("SiglipVision", SIZES | MLP)),
    "DINOv2": row(lambda: llava("Dinov2", SIZES)),
    "SigLIP in Gemma": row(gemma),
    "ViT with its pooler": row(two_encoders, lambda n, x: n.vision_model(pixel_values=x)),
    "ViT without head": row(
        captions, lambda n, x: n.encoder(pixel_values=x), pooled=lambda out: out.pooler_output
    ),
    "backbone": row(
        depth, lambda n, x: n.backbone.forward_with_filtered_kwargs(x).feature_maps[-1],
        tokens=lambda out: out, pooled=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOWERS)
def test_the_folder_gives_the_numbers_of_the_tower(name, tmp_path):
    model = compare(TOWERS[name], "drawn", tmp_path)
    report = model.load_report
    (prefix,) = (n.removeprefix("prefix = ") for n in report.assumed if n.startswith("prefix"))
    keys = load_file(tmp_path / "model.safetensors").keys()
    assert {key for key in keys if not key.startswith(prefix)} <= {*report.dropped}
    assert not report.reinitialised


PREFIXES = (
    *("vision_model.", "visual.", "model.vision_model.", "vision_tower.vision_model."),
    *("model.vision_tower.vision_model.", "vlm.model.vision_tower.", "clip.vision_model."),
)


@pytest.fixture
def folder(tmp_path):
    """LLaVA with a CLIP tower, as a function of the prefixes of the tower."""
    place = tmp_path / "folder"
    draw(llava("CLIPVision", CLIP), "drawn").save_pretrained(place)
    tensors = load_file(place / "model.safetensors")

    def call(*prefixes):
        found = {k: t for k, t in tensors.items() if not k.startswith("vision_tower.")}
        for prefix in prefixes:
            of_tower = (k for k in tensors if k.startswith("vision_tower."))
            found |= {k.replace("vision_tower.", prefix): tensors[k].clone() for k in of_tower}
        save_file(found, place / "model.safetensors")
        return place

    return call


@pytest.mark.slow
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_prefix_of_the_tower(folder, prefix):
    expected = vitzoo.create(folder("vision_tower.")).state_dict()
    model = vitzoo.create(folder(prefix))
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())
    assert f"prefix = {prefix}" in model.load_report.assumed
    assert model.spec.block.norm_eps == 1e-3


def test_a_tower_in_shards(folder):
    """The shards without tensors of the tower are not read, and not in the SHA-256."""
    place = folder("vision_tower.")
    expected = vitzoo.create(place).state_dict()
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    shards = {f"model-{i:05}-of-00004.safetensors": {} for i in range(1, 5)}
    for i, (key, tensor) in enumerate(sorted(tensors.items())):
        name = [*shards][2 + i % 2 if key.startswith("vision") else i % 2]
        shards[name][key] = tensor
    for name, held in shards.items():
        save_file(held, place / name)
    index = {"weight_map": {key: name for name, held in shards.items() for key in held}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    model = vitzoo.create(place)
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())
    assert {*model.load_report.dropped} == {k for k in tensors if not k.startswith("vision")}
    read = [(hashlib.sha256((place / n).read_bytes()).hexdigest(), n) for n in [*shards][2:]]
    lines = "".join(f"{sha256}  {name}\n" for sha256, name in read)
    assert model.load_report.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_a_named_network_takes_the_tower(folder):
    place = folder("model.vision_tower.")
    spec = vitzoo.create(place).spec
    assert vitzoo.create(spec, weights=place).spec == spec
    with refuses(CheckpointError, "2 attention heads", "num_heads = 2"):
        vitzoo.create("vit_ti16", weights=place)


def test_a_tower_of_an_unknown_type_is_named(folder):
    path = folder("vision_tower.") / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"]["model_type"] = "odd_tower"
    path.write_text(json.dumps(config))
    with refuses(CheckpointError, "llava is not known, nor odd_tower of its vision_config"):
        vitzoo.create(path.parent)


def test_a_type_that_is_no_text_is_that_of_no_format(folder):
    path = folder("vision_tower.") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": ["clip"]}))
    assert "prefix = vision_tower." in vitzoo.create(path.parent).load_report.assumed


def test_two_towers_of_one_file_are_refused(folder):
    place = folder("image_tower.", "video_tower.")
    named = "'image_tower.' (clip/transformers)", "'video_tower.' (clip/transformers)"
    with refuses(CheckpointError, place / "model.safetensors", *named):
        vitzoo.create(place)


def test_two_towers_of_one_config_are_refused(folder):
    config = json.loads((folder("vision_tower.") / "config.json").read_text())
    other = {"video_config": {"tower": {"model_type": "vit"}}}
    (folder("vision_tower.") / "config.json").write_text(json.dumps(config | other))
    named = "vision_config (clip_vision_model)", "video_config.tower (vit)"
    with refuses(CheckpointError, "several image towers", *named):
        vitzoo.create(folder("vision_tower."))


def test_a_config_of_a_tower_beside_other_keys(folder):
    place = folder("vision_tower.")
    tensors = load_file(place / "model.safetensors")
    left = {k: t for k, t in tensors.items() if not k.startswith("vision_tower.encoder.layers.0.")}
    save_file(left, place / "model.safetensors")
    with refuses(CheckpointError, place / "model.safetensors"):
        vitzoo.create(place)


READS = """
import os, vitzoo
def read(argument):
    folder, os.environ["VITZOO_VERIFY"] = argument.split(" ")
    return vitzoo.create(folder).load_report.stamped
"""
OTHERS = 200 * 2**20  # bytes of the tensors of the language model


@pytest.mark.slow
def test_only_the_tower_is_read_into_memory(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    place = folder("model.vision_tower.")
    small, large = shutil.copytree(place, tmp_path / "small"), tmp_path / "large"
    shutil.copytree(small, large)
    others = {"a": torch.zeros(OTHERS // 8), "z": torch.zeros(OTHERS // 8)}
    save_file(load_file(place / "model.safetensors") | others, large / "model.safetensors")
    calls = [f"{small} always", f"{large} stamp", f"{large} always", f"{large} stamp"]
    first, *found = run_limited(READS, calls, seconds=60)  # the first one imports the formats
    assert [one.text for one in found] == ["False", "False", "True"]
    assert max(one.memory for one in found) - first.memory < OTHERS // 5


@pytest.mark.slow
def test_the_text_tower_of_a_clip_is_not_read_into_memory(monkeypatch, tmp_path, transformers):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    small, large = tmp_path / "small", tmp_path / "large"
    config = transformers.CLIPConfig(vision_config={**SIZES, **MLP}, text_config=TEXT)
    transformers.CLIPModel(config).save_pretrained(small)
    shutil.copytree(small, large)
    text = {"text_model.a": torch.zeros(OTHERS // 8), "text_model.z": torch.zeros(OTHERS // 8)}
    save_file(load_file(small / "model.safetensors") | text, large / "model.safetensors")
    first, found = run_limited(READS, [f"{small} always", f"{large} always"], seconds=60)
    assert found.text == "False"
    assert found.memory - first.memory < OTHERS // 5


def test_a_stamp_of_a_tower_says_nothing_about_other_tensors(tmp_path, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    path = tmp_path / "file.safetensors"
    save_file({"a.x": torch.ones(3), "b.x": torch.full((3,), torch.nan)}, path)
    os.utime(path, (time.time() - 9, time.time() - 9))
    time.sleep(0.06)  # a change within the grain of the clock gets no stamp
    tower = frozenset({"a.x"})
    for keys, finite in ((tower, True), (None, False), (tower, False)):
        found = SafetensorsFile(open_own(path), str(path)).read(Reading(stamps=True, keys=keys))
        assert (found.finite, "b.x" in found.tensors) == (finite, keys is None)
    assert found.stamped
