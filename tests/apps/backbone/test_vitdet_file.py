"""docs/examples/vitdet_to_safetensors.py reads what detectron2 writes, and nothing else."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import fill, same
from vitzoo.apps.backbone.pyramid import SimpleFeaturePyramid

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "vitdet_to_safetensors.py"


def converted(folder, table, protocol=pickle.DEFAULT_PROTOCOL):
    folder.joinpath("model_final.pkl").write_bytes(pickle.dumps(table, protocol))
    command = [sys.executable, SCRIPT, "model_final.pkl", "vitdet"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("protocol", [2, 5])
def test_the_tensors_of_a_file_load_by_name(protocol, tmp_path):
    pyramid = fill(SimpleFeaturePyramid(embed_dim=8, stride=16, channels=4))
    vit = {"pos_embed": torch.randn(1, 5, 8), "blocks.0.attn.rel_pos_h": torch.randn(7, 4)}
    tensors = {f"backbone.{name}": tensor for name, tensor in pyramid.state_dict().items()}
    tensors |= {f"backbone.net.{name}": tensor for name, tensor in vit.items()}
    tensors["roi_heads.mask_head.predictor.weight"] = torch.randn(3, 4, 1, 1)
    model = {name: tensor.numpy() for name, tensor in tensors.items()}
    done = converted(tmp_path, {"model": model, "__author__": "detectron2"}, protocol)
    assert done.returncode == 0, done.stderr
    same(load_file(tmp_path / "vitdet" / "vit.safetensors"), vit)
    levels = load_file(tmp_path / "vitdet" / "pyramid.safetensors")
    same(levels, pyramid.state_dict())
    SimpleFeaturePyramid(embed_dim=8, stride=16, channels=4).load_state_dict(levels)


class Code:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_code_in_a_file_does_not_run(tmp_path):
    done = converted(tmp_path, {"model": {"backbone.net.pos_embed": Code()}})
    assert "more than arrays: posix.mkdir" in done.stderr.replace("nt.mkdir", "posix.mkdir")
    assert done.returncode != 0
    assert not tmp_path.joinpath("ran").exists()
    assert not tmp_path.joinpath("vitdet").exists()
