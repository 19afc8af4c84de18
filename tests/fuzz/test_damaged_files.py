"""Damaged files: each gives an error of vitzoo or a right result, in 10 s and 1 GiB.

A valid file is damaged in `CASES` ways that `SEED` draws: another value, key or shape, cut, bits
flipped. All files of a reader are read in one child process. A failure names the file, which is
kept, with its seed, its number and its damage.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitzoo
from damage import changed, damaged_json, damaged_tensors
from helpers import fill, randn
from internals import write_manifest
from limited import run_limited
from vitzoo import embed

pytestmark = pytest.mark.fuzz

SEED = int(os.environ.get("VITZOO_FUZZ_SEED", "1"))
CASES = int(os.environ.get("VITZOO_FUZZ_CASES", "120"))
SPEC = {
    "image_size": 16,
    "patch_size": 8,
    "num_classes": 3,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
CREATE = """
import torch, vitzoo

def outputs(model):
    images = torch.ones(1, model.spec.in_chans, *model.image_size)
    if images.numel() > 2**20:
        return f"{model.spec.num_classes} classes"
    with torch.inference_mode():
        return str(tuple(model.eval()(images).shape))
"""


def case(tmp_path, number, kind, files, linked):
    """Write a folder with damaged files and links to whole ones."""
    name = "".join(c if c.isascii() and c.isprintable() and c != "/" else "-" for c in kind)
    folder = tmp_path / f"seed {SEED}, case {number}, {name[:80]}"
    folder.mkdir()
    for path in linked:
        os.link(path, folder / path.name)
    for name, data in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


def check(code, whole, cases, least=0.5):
    """Read the whole file and the damaged ones; most of these must be refused."""
    first, *others = run_limited(code, [str(whole), *cases])
    assert first.kind == "value", first
    counts = Counter(outcome.kind for outcome in others)
    assert len(others) == CASES
    assert least * CASES <= CASES - counts["value"] < CASES, counts
    return first, others


def drawn(name):
    return enumerate(random.Random(f"{SEED} {name} {i}") for i in range(CASES))


@pytest.fixture
def base(tmp_path):
    model = fill(vitzoo.create(SPEC))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    model.labels = ["a", "b", "c"]
    return vitzoo.save(model, tmp_path / "base.safetensors")


def test_adapters(tmp_path, base):
    model, folder = vitzoo.create(base), tmp_path / "whole"
    config = {"peft_type": "LORA", "bias": "none"} | vitzoo.lora(model, r=3, lora_alpha=7)
    prefix, tensors = "base_model.model.", {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name.startswith("blocks"):
            tensors[f"{prefix}{name}.lora_A.weight"] = randn(3, layer.in_features)
            tensors[f"{prefix}{name}.lora_B.weight"] = randn(layer.out_features, 3)
    tensors |= {f"{prefix}head.{n}": t.clone() for n, t in model.head.state_dict().items()}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config))
    files = sorted(folder.iterdir())
    digest, _, inner = config["revision"].partition(" ")

    cases = []
    for i, draw in drawn("adapter"):
        how = draw.random()
        if how < 0.35:
            kind, data = damaged_json(draw, config)
            name = "adapter_config.json"
        elif how < 0.65:
            kind, text = changed(draw, json.loads(inner))
            data = json.dumps(config | {"revision": f"{digest} {text}"}).encode()
            name = "adapter_config.json"
        else:
            name = "adapter_model.safetensors"
            kind, data = damaged_tensors(draw, (folder / name).read_bytes())
        cases.append(case(tmp_path, i, f"{name} {kind}", {name: data}, files))
    code = (
        f"{CREATE}\ndef read(path):\n    return outputs(vitzoo.create({str(base)!r}, adapter=path))"
    )
    check(code, folder, cases)


@pytest.fixture
def photos(tmp_path):
    """Two folders of six images each, which are classes of a probe."""
    pixels = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(6):
            image = Image.fromarray(pixels.integers(0, 256, (16, 16, 3), np.uint8))
            image.save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


def test_classifiers(tmp_path, base, photos):
    probed = vitzoo.probe(base, photos, embeddings=tmp_path / "kept")
    (tmp_path / "whole").mkdir()
    whole = probed.save(tmp_path / "whole" / "classifier.safetensors")
    os.link(base, whole.with_name(base.name))
    cases = []
    for i, draw in drawn("classifier"):
        kind, data = damaged_tensors(draw, whole.read_bytes(), "vitzoo")
        cases.append(case(tmp_path, i, kind, {whole.name: data}, [base]))
    read = "def read(path):\n    return outputs(vitzoo.create(f'{path}/classifier.safetensors'))"
    check(f"{CREATE}\n{read}", whole.parent, cases)


EMBED = """
import numpy as np, pyarrow.parquet as pq
from vitzoo.files.folder_manifest import write_manifest
from vitzoo.apps.embed.embed import embed
from vitzoo.apps.predict.predictor import Predictor

predictor = Predictor(base)

def read(folder):
    embed(predictor, photos, folder, workers=1, extend=len(folder) % 2 == 0)
    table = pq.read_table(folder)
    vectors = np.stack(table["pooled"].combine_chunks().to_numpy(zero_copy_only=False))
    return table["key"].to_pylist() + table["error"].to_pylist() + [vectors.tobytes().hex()]
"""


def test_manifests_of_embed(tmp_path, base, photos):
    """A part is missing, so that each call writes; what it writes is right."""
    whole = tmp_path / "whole"
    embed(base, photos, whole, workers=1)
    parts = list(whole.glob("part-*"))
    table = json.loads((whole / "_manifest.json").read_text())
    cases = []
    for i, draw in drawn("manifest"):
        kind, data = damaged_json(draw, table)
        linked = parts[: draw.randrange(2)]
        cases.append(case(tmp_path, i, kind, {"_manifest.json": data}, linked))
    code = f"base, photos = {str(base)!r}, {str(photos)!r}\n{EMBED}"
    first, others = check(code, whole, cases)
    for path, outcome in zip(cases, others, strict=True):
        assert outcome.kind != "value" or outcome.text == first.text, path


def folder_of_timm(folder):
    import timm
    from timm.models import save_for_hf

    options = {"depth": 1, "embed_dim": 48, "num_heads": 2, "img_size": 32, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **options)
    save_for_hf(model, folder, safe_serialization=True)


def folder_of_transformers(folder):
    import transformers

    sizes = {"num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=32, patch_size=16, intermediate_size=96, **sizes)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)


@pytest.mark.parametrize("write", [folder_of_timm, folder_of_transformers])
def test_configs_beside_weights(tmp_path, write):
    torch.manual_seed(0)
    whole = tmp_path / "whole"
    write(whole)
    files = [path for path in whole.iterdir() if path.suffix in (".json", ".safetensors")]
    configs = sorted(path for path in files if path.suffix == ".json")
    cases = []
    for i, draw in drawn(write.__name__):
        path = draw.choice(configs)
        kind, data = damaged_json(draw, json.loads(path.read_text()))
        cases.append(case(tmp_path, i, f"{path.name} {kind}", {path.name: data}, files))
    code = f"{CREATE}\ndef read(path):\n    return outputs(vitzoo.create(path + '/'))"
    check(code, whole, cases, least=0.2)


def test_manifests_of_written_folders(tmp_path, base):
    """`vitzoo.json`, which `push` and `link` write and `verify` reads."""
    whole = tmp_path / "whole"
    whole.mkdir()
    os.link(base, whole / base.name)
    write_manifest(whole, {"library": "vitzoo"})
    table, cases = json.loads((whole / "vitzoo.json").read_text()), []
    for i, draw in drawn("vitzoo.json"):
        kind, data = damaged_json(draw, table)
        cases.append(case(tmp_path, i, kind, {"vitzoo.json": data}, [base]))
    code = "import vitzoo\ndef read(path):\n    return [one.state for one in vitzoo.verify(path)]"
    check(code, whole, cases, least=0.2)
