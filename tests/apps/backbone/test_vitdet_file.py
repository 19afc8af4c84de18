"""docs/examples/vitdet_to_safetensors.py reads what detectron2 writes, and nothing else."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

import vitzoo
from helpers import SMALL, fill, randn, same
from vitzoo.apps.backbone.pyramid import SimpleFeaturePyramid

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "vitdet_to_safetensors.py"


def converted(folder, table, protocol=pickle.DEFAULT_PROTOCOL):
    folder.joinpath("model_final.pkl").write_bytes(pickle.dumps(table, protocol))
    command = [sys.executable, SCRIPT, "model_final.pkl", "vitdet"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def vit():
    """Return tensors under detectron2's names, for windows of 2x2 and a grid of 4x4 patches."""
    shapes = {"pos_embed": (1, 10, 32), "patch_embed.proj.weight": (32, 3, 16, 16)}
    shapes["patch_embed.proj.bias"] = (32,)
    for i, rows in enumerate((3, 7)):
        block = {"attn.qkv": (96, 32), "attn.proj": (32, 32), "mlp.fc1": (128, 32)}
        block |= {"mlp.fc2": (32, 128), "norm1": (32,), "norm2": (32,)}
        for name, shape in block.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
        shapes |= {f"blocks.{i}.attn.rel_pos_{axis}": (rows, 16) for axis in "hw"}
    return {name: randn(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_file_loads_as_the_page_shows(protocol, tmp_path, monkeypatch):
    pyramid = fill(SimpleFeaturePyramid(embed_dim=32, stride=16))
    tensors = {f"backbone.{name}": tensor for name, tensor in pyramid.state_dict().items()}
    tensors |= {f"backbone.net.{name}": tensor for name, tensor in vit().items()}
    tensors["roi_heads.mask_head.predictor.weight"] = torch.randn(3, 4, 1, 1)
    model = {name: tensor.numpy() for name, tensor in tensors.items()}
    done = converted(tmp_path, {"model": model, "__author__": "detectron2"}, protocol)
    assert done.returncode == 0, done.stderr
    same(load_file(tmp_path / "vitdet" / "vit.safetensors"), vit())
    positions = {"name": "decomposed", "reference_grid": 4, "absolute": True, "absolute_grid": 3}
    scope = {"vitzoo": vitzoo, "safetensors": safetensors}
    scope["vitdet_b"] = SMALL | {
        "image_size": 64,
        "patch_size": 16,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "class_token": False,
        "final_norm": False,
        "pool": "mean",
        "pos_embed": positions,
        "block": {"window": 2, "global_blocks": [1]},
    }
    text = SCRIPT.parents[1].joinpath("backbones.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, scope)
    assert scope["backbone"].network.load_report.format == "vitdet/detectron2"
    assert not scope["backbone"].network.load_report.reinitialised
    same(scope["backbone"].pyramid.state_dict(), pyramid.state_dict())


class Code:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_code_in_a_file_does_not_run(tmp_path):
    done = converted(tmp_path, {"model": {"backbone.net.pos_embed": Code()}})
    assert "more than arrays: posix.mkdir" in done.stderr.replace("nt.mkdir", "posix.mkdir")
    assert done.returncode != 0
    assert not tmp_path.joinpath("ran").exists()
    assert not tmp_path.joinpath("vitdet").exists()
