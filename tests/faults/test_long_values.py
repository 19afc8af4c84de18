"""A value of a config, as long as the file, does not make a message as long."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import fill
from vitzoo.checkpoint.saved import METADATA
from vitzoo.errors import VitzooError

MOST = 1500  # characters of a message
LONG, MANY = 20_000, 3_000
ODD = {
    "text": "x" * LONG,
    "path": "x" * LONG + "/" + "y" * LONG,
    "list": list(range(MANY)),
    "table": {f"k{i}": i for i in range(MANY)},
    "key": {"k" * LONG: 1},
    "name": {"name": "x" * LONG},
    "option": {"name": "linear", "k" * LONG: 1},
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
CONFIGS = {
    "transformers": {"model_type": "vit", "architectures": ["ViTModel"], "image_size": 32, **SIZES},
    "tower": {"model_type": "acme", "vision_config": {"model_type": "vit", **SIZES}},
    "timm": {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "pretrained_cfg": {}},
}


def check(*arguments, **options):
    """Create a network; no message and no line of its report is long."""
    try:
        model = vitzoo.create(*arguments, **options)
    except VitzooError as error:
        text = str(error)
    else:
        text = max(str(model.load_report).splitlines(), key=len)
    assert len(text) <= MOST, text[:300]


@pytest.fixture
def folder(small, tmp_path):
    vitzoo.save(fill(vitzoo.create(small)), tmp_path / "own.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "own.safetensors")
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "own.safetensors").unlink()
    return tmp_path


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_beside_the_weights(folder, kind, odd):
    for key in [*CONFIGS[kind], "unknown", "k" * LONG]:
        (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | {key: ODD[odd]}))
        check(f"{folder}/")


@pytest.mark.parametrize("odd", ODD)
def test_a_spec_and_the_metadata_of_a_saved_file(small, tmp_path, odd):
    spec = vitzoo.create(small).spec.to_data()
    tensors = {"a": torch.ones(1)}
    for key in [*spec, "k" * LONG]:
        changed = spec | {key: ODD[odd]}
        check(changed)
        metadata = {METADATA: json.dumps({"api": 1, "spec": changed})}
        safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", metadata=metadata)
        check(tmp_path / "a.safetensors")


def test_an_index_of_shards(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    for value in ODD.values():
        for table in (value, {"a": value}, {"k" * LONG: "a.safetensors"}):
            path.write_text(json.dumps({"weight_map": table}))
            check("vit_ti16", weights=path)
