"""Classes from text vectors: the numbers of transformers and open_clip, and what uses them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
from PIL import Image

import vitzoo
from encoders import close, draw
from helpers import refuses
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.testing import Hub

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "zero_shot.py"
LABELS = ["cat", "dog", "a fish"]
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = TOWER | {"image_size": 32, "patch_size": 8}
TEXT = TOWER | {"vocab_size": 9, "max_position_embeddings": 8, "projection_size": 32}
TEXT |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SMALL = {"variant": "clip/vit_b32", "image_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
SMALL |= {"num_heads": 2, "mlp_dim": 64}
TOKENS = torch.tensor([[0, 3, 4, 1], [0, 5, 6, 1], [0, 7, 8, 1]])
NUMBERS = {"logit_scale": 40.0, "logit_bias": 0}


def library(family, weights):
    """Return a whole model of transformers, whose last numbers are not their initial values."""
    import transformers

    config = {"vision_config": VISION, "text_config": TEXT}
    config |= {"projection_dim": 24} if family == "CLIP" else {}
    torch.manual_seed(2)
    model = getattr(transformers, f"{family}Model")(
        getattr(transformers, f"{family}Config")(**config)
    )
    draw(model, weights)
    with torch.no_grad():
        model.logit_scale.fill_(3.1)
        if family == "Siglip":
            model.logit_bias.fill_(-2.3)
    return model


@torch.no_grad()
def file_of(model, path):
    """Write the file that docs/families/clip.md describes."""
    tensors = {
        "class_embeddings": model.get_text_features(input_ids=TOKENS).pooler_output,
        "logit_scale": model.logit_scale.exp(),
        "logit_bias": getattr(model, "logit_bias", torch.zeros(())),
    }
    safetensors.torch.save_file(tensors, path, metadata={"labels": json.dumps(LABELS)})
    return path


@pytest.mark.parametrize("weights", ["own", "drawn"])
@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
@torch.no_grad()
def test_the_logits_are_those_of_transformers(family, weights, tmp_path):
    network = library(family, weights)
    network.save_pretrained(tmp_path / "model")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = network(input_ids=TOKENS, pixel_values=images)
    file = file_of(network, tmp_path / "texts.safetensors")
    model = vitzoo.create(tmp_path / "model", class_embeddings=file).eval()
    close(model(images), expected.logits_per_image)
    embedding = network.get_image_features(pixel_values=images).pooler_output
    close(model.features(images, ["pre_logits"])["pre_logits"], embedding)
    close(vitzoo.create(tmp_path / "model").eval()(images), embedding)
    assert (model.labels, model.spec.head.name) == (tuple(LABELS), "cosine")

    again = vitzoo.create(vitzoo.save(model, tmp_path / "saved.safetensors")).eval()
    assert torch.equal(again(images), model(images))
    assert (again.labels, again.spec) == (model.labels, model.spec)

    probabilities = torch.softmax if family == "CLIP" else lambda x, dim: torch.sigmoid(x)  # noqa: ARG005
    picture = Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3))
    pixels = vitzoo.transform(model)(picture)[None]
    logits = network(input_ids=TOKENS, pixel_values=pixels).logits_per_image
    wanted = probabilities(logits, dim=-1)[0]
    (found,) = vitzoo.predict(model, picture)
    (other,) = vitzoo.Predictor(model, outputs="labels")([picture])
    for classes in (found.classes, other.outputs["labels"]):
        assert {name for _, name, _ in classes} == set(LABELS)
        for index, _, probability in classes:
            assert probability == pytest.approx(wanted[index].item(), abs=1e-6)


@pytest.mark.parametrize("weights", ["own", "drawn"])
@torch.no_grad()
def test_the_logits_are_those_of_open_clip(weights, tmp_path):
    import open_clip

    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 16}
    text = {"context_length": 4, "vocab_size": 9, "width": 32, "heads": 2, "layers": 1}
    network = open_clip.CLIP(24, vision, text, init_logit_scale=3.1)
    torch.manual_seed(4)
    draw(network, weights)
    network.logit_scale.fill_(3.1)
    config = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(network.state_dict(), tmp_path / "open_clip_model.safetensors")
    model = vitzoo.create(
        tmp_path,
        class_embeddings=network.encode_text(TOKENS),
        logit_scale=network.logit_scale.exp(),
        logit_bias=0,
    )
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    close(model.eval()(images), network.get_logits(images, TOKENS)[0])


def vectors(count=3, width=512, seed=6):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.filterwarnings("ignore::vitzoo.FirstUseWarning")
def test_the_vectors_are_checked_before_a_download(tmp_path, monkeypatch):
    network = library("CLIP", "drawn")
    network.save_pretrained(tmp_path / "model")
    with Hub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        for path in (tmp_path / "model").iterdir():
            hub.add("acme/clip", path.name, path.read_bytes())
        for source, width in (("clip/vit_b32:openai", 512), ("hf://acme/clip", 24)):
            with refuses(InvalidOption, "the width 8", f"the width {width}"):
                vitzoo.create(source, class_embeddings=vectors(width=8), **NUMBERS)
        assert not any(path.endswith(".safetensors") for _, path, _ in hub.file_requests())
        model = vitzoo.create("hf://acme/clip", class_embeddings=vectors(width=24), **NUMBERS)
    assert model.head.proj.weight.equal(network.visual_projection.weight)
    assert "head.proj.weight" in model.load_report.kept
    assert model.load_report.merged == ("head.logit_scale", "head.fc.weight")
    fates = model.load_report
    assert {*fates.kept, *fates.converted, *fates.merged} == model.state_dict().keys()


def test_a_saved_classifier_gets_other_texts_and_keeps_its_embedding(tmp_path):
    first = vitzoo.create(SMALL, class_embeddings=vectors(), labels=LABELS, **NUMBERS)
    path = vitzoo.save(first, tmp_path / "texts.safetensors")
    second = vitzoo.create(path, class_embeddings=vectors(2, seed=7), logit_scale=9, logit_bias=-3)
    assert (second.num_classes, second.labels) == (2, ())
    assert second.head.proj.weight.equal(first.head.proj.weight)
    assert second.head.fc.weight.norm(dim=1).allclose(torch.ones(2))
    assert [second.head.logit_scale.item(), second.head.logit_bias.item()] == [9, -3]
    assert vitzoo.create(path, num_classes=0).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 512)
    assert vitzoo.create(path, num_classes=5).head.logit_scale.item() == 40


def test_its_device_its_type_and_its_random_numbers(tmp_path):
    file = tmp_path / "texts.npz"
    np.savez(file, class_embeddings=vectors().double().numpy(), logit_scale=40.0, logit_bias=0.0)
    torch.manual_seed(8)
    plain = vitzoo.create(SMALL)
    state = torch.get_rng_state()
    torch.manual_seed(8)
    with torch.device("meta"):
        model = vitzoo.create(SMALL, class_embeddings=file, device="cpu", dtype=torch.bfloat16)
    assert torch.get_rng_state().equal(state)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("cpu", torch.bfloat16)}
    assert model.cls_token.equal(plain.cls_token.bfloat16())
    assert model.head.logit_scale.item() == 40
    empty = vitzoo.create(SMALL, class_embeddings=file, device="meta")
    assert all(parameter.is_meta for parameter in empty.parameters())


@pytest.mark.long
@pytest.mark.compile
def test_the_exported_network_has_the_logits_and_the_labels(tmp_path):
    import onnxruntime

    torch.manual_seed(9)
    model = vitzoo.create(SMALL, class_embeddings=vectors(), labels=LABELS, **NUMBERS).eval()
    vitzoo.export(model, "onnx", tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx" / "labels.json").read_text()) == LABELS
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    (found,) = session.run(["logits"], {"images": images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(images), rtol=0, atol=1e-4)


def test_commands_take_the_saved_file(tmp_path, run):
    model = vitzoo.create(SMALL, class_embeddings=vectors(), labels=LABELS, **NUMBERS)
    path = vitzoo.save(model, tmp_path / "texts.safetensors")
    Image.new("RGB", (40, 32), "teal").save(tmp_path / "photo.png")
    code, out, err = run("predict", path, tmp_path / "photo.png", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert {one["label"] for one in row["classes"]} == set(LABELS)
    assert sum(one["probability"] for one in row["classes"]) == pytest.approx(1, abs=1e-5)
    code, out, err = run("summary", path)
    assert code == 0, err
    assert "head.fc" in out


def test_lora_trains_the_classifier_of_texts(tmp_path):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(10)
    base = vitzoo.save(vitzoo.create(SMALL), tmp_path / "base.safetensors")
    texts = {"class_embeddings": vectors(), "labels": LABELS, **NUMBERS}
    model = vitzoo.create(base, **texts)
    adapted = get_peft_model(model, LoraConfig(**vitzoo.lora(model, r=2)))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "logit_scale" in name:
                parameter.add_(0.25)
    adapted.save_pretrained(tmp_path / "adapter")
    again = vitzoo.create(base, adapter=tmp_path / "adapter").eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(10))
    with torch.no_grad():
        torch.testing.assert_close(again(images), adapted.eval()(images), rtol=0, atol=1e-4)
    assert (again.labels, again.head.logit_scale.item()) == (tuple(LABELS), 40.25)


@pytest.mark.slow
def test_other_libraries_do_not_get_the_network(tmp_path):
    model = vitzoo.create(SMALL, class_embeddings=vectors(), **NUMBERS)
    path = vitzoo.save(model, tmp_path / "texts.safetensors")
    for name in ("timm", "transformers"):
        with refuses(CheckpointError, f"{name} has no network for clip/vit_b32"):
            options = {"folder": tmp_path / name, "license": "mit", "dry_run": True}
            vitzoo.push(path, "acme/texts", library=name, **options)
    with refuses(CheckpointError, "head.logit_scale"):
        vitzoo.convert(path, "clip/transformers", tmp_path / "other.safetensors")


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_the_example_gives_the_probabilities_of_transformers(
    family, tmp_path, monkeypatch, capsys, transformers
):
    network = library(family, "drawn")
    network.save_pretrained(tmp_path / "clip")
    words = ("<s>", "</s>", "<pad>", "a", "photo", "of", "cat", "dog", ".")
    words = {word: number for number, word in enumerate(words)}
    tokens = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="."))
    tokens.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(tmp_path / "clip")
    Image.new("RGB", (40, 32), "teal").save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    options = ["--labels", "cat", "dog", "--template", "a photo of {}"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "clip", "photo.png", *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    image, *found = capsys.readouterr().out.split()

    pixels = vitzoo.transform(tmp_path / "zero_shot.safetensors")("photo.png")[None]
    ids = torch.tensor([[0, 3, 4, 5, 6, 1, 2, 2], [0, 3, 4, 5, 7, 1, 2, 2]])
    with torch.no_grad():
        logits = network(input_ids=ids, pixel_values=pixels).logits_per_image[0]
    expected = logits.softmax(-1) if family == "CLIP" else logits.sigmoid()
    expected = dict(zip(("cat", "dog"), expected.tolist(), strict=True))
    assert image == "photo.png"
    assert dict(zip(found[::2], map(float, found[1::2]), strict=True)) == pytest.approx(
        expected, abs=6e-4
    )


def test_the_example_names_the_command_that_installs_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses(SystemExit, f"{sys.executable} -m pip install transformers"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
