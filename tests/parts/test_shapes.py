"""Results on `meta`: their shapes, and that `create` imports no compiler for them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import vitzoo
from internals import registry
from tables import cases
from vitzoo.parts.init import WithoutData
from vitzoo.parts.resample import RESAMPLING, resample_grid
from vitzoo.parts.shapes import Shapes
from vitzoo.testing import PluginTests, Sizes
from vitzoo.testing.subject import network

ROOT = Path(__file__).parents[2]
X = torch.empty(2, 16, 48, device="meta")
ROWS = torch.arange(4, device="meta")
GRID = torch.empty(1, 8, 4, 4, device="meta")
OPERATIONS = {
    "cat": lambda: torch.cat((X, X)),
    "cat of the last axis": lambda: torch.cat((X, X[..., :5]), dim=-1),
    "cat of two types": lambda: torch.cat((X, X.half()), dim=1),
    "stack": lambda: torch.stack((X, X), dim=2),
    "sum": lambda: X.sum(dim=1, keepdim=True),
    "sum as float64": lambda: X.sum(dtype=torch.float64),
    "a factor": lambda: X.half() * 0.5,
    "two types": lambda: X.half() + X,
    "repeat": lambda: X.repeat(1, 3, 1)[:, :20],
    "flip": lambda: -X.flip(1),
    "rows": lambda: X[:, torch.arange(4)],
    "index_add": lambda: X.new_zeros(2, 5, 48).index_add(1, ROWS, X[:, :4]),
    "einsum": lambda: torch.einsum("bnd,bmd->bnm", X, X),
    "expanded": lambda: X[:1].expand(3, -1, -1).clone(),
    "like": lambda: torch.full_like(X[:, :1], -0.0),
    "in place": lambda: X.clone().add_(X),
    "other layout": lambda: X.transpose(1, 2).contiguous().reshape(-1),
    "linear": lambda: F.interpolate(X, size=9, mode="linear"),
    "size": lambda: F.interpolate(GRID, size=(5, 6), mode="bicubic", antialias=True),
    "factor": lambda: F.interpolate(GRID, scale_factor=(1.3, 0.6), mode="bicubic"),
    "two results": lambda: torch.var_mean(X, dim=1)[1],
    "to another device": lambda: torch.zeros_like(X, device="cpu"),
    "new": lambda: torch.eye(3, device="meta"),
    "drawn": lambda: torch.randn(3, 4, device="meta"),
    "drawn integers": lambda: torch.randint(0, 5, (3,), device="meta"),
} | {
    method: lambda method=method: resample_grid(X[:, :17], (4, 4), (5, 7), method)
    for method in RESAMPLING
}


@cases("name", OPERATIONS)
def test_shapes_are_those_of_torch(name):
    expected = OPERATIONS[name]()
    with Shapes():
        found = OPERATIONS[name]()
    assert (found.shape, found.dtype, found.device) == (
        expected.shape,
        expected.dtype,
        expected.device,
    )


def test_no_value_is_made_up():
    with Shapes():
        for read in (lambda: X.sum().item(), lambda: bool((X > 0).any()), lambda: X.to("cpu")):
            with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
                read()
        with pytest.raises(RuntimeError, match="must match"):
            torch.cat((X, X[:, :3]), dim=2)
        assert torch.equal(torch.ones(3) + 1, torch.tensor([2.0, 2.0, 2.0]))


def test_a_network_without_data_draws_nothing():
    before = torch.get_rng_state()
    with WithoutData():
        assert (torch.randn(3, 4) * 2).shape == (3, 4)
    assert torch.equal(torch.get_rng_state(), before)


# `create` in a new interpreter


READ = """
import json, sys
import vitzoo

def check(what):
    loaded = {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
    assert not loaded, (what, loaded)

for name, arguments in json.loads(sys.stdin.read()):
    vitzoo.create(name, **arguments)
    check((name, arguments))
"""
PLAIN = [
    ("vit_ti16", {}),
    ("vit_ti16", {"dynamic": True, "device": "meta"}),
    ("vit_digits", {"pretrained": True, "image_size": 56, "dynamic": True}),
    ("vit_digits", {"pretrained": True, "in_chans": 3, "num_classes": 3}),
    ("vit_digits", {"pretrained": True, "in_chans": 4}),
]
VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32}
VIT |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VIT |= {"image_size": 32, "patch_size": 8, "id2label": {str(i): f"c{i}" for i in range(10)}}
TIMM = {"architecture": "vit_tiny_patch16_224", "num_classes": 10}


def formats_and_networks():
    """Yield names of checkpoint formats, and changes to small networks that they can hold."""
    known = registry().parts["checkpoint format"].keys()
    files = ["tests/test_conformance.py", *sorted(ROOT.glob("plugins/*/tests/test_conformance.py"))]
    for number, file in enumerate(files):
        spec = importlib.util.spec_from_file_location(f"c{number}", ROOT / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, PluginTests) and one is not PluginTests:
                formats = one.networks.keys() & known
                for name, networks in ((name, one.networks[name]) for name in sorted(formats)):
                    for changes in networks if isinstance(networks, list) else [networks]:
                        yield name, changes
    yield from ((name, {}) for name in CORE)


CORE = ("timm", "transformers_vit", "torchvision", "port", "torch_encoder", "google", "vit_jax")


def written(path, name, model):
    """Write the tensors of a model in a checkpoint format; return the path."""
    layout = registry().part("checkpoint format", name).with_heads(model.spec.num_heads)
    tensors = layout.from_model({k: t.detach() for k, t in model.state_dict().items()})
    path = path.with_suffix(layout.suffix)
    if path.suffix == ".npz":
        import numpy as np

        np.savez(path, **{k: t.numpy() for k, t in tensors.items()})
    else:
        save_file({k: t.contiguous().clone() for k, t in tensors.items()}, path)
    return path


def folder(path, config, name, model):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    written(path / "model", name, model)
    return str(path)


@pytest.mark.slow
def test_create_imports_no_compiler(tmp_path):
    calls = [*PLAIN]
    for number, (name, changes) in enumerate(formats_and_networks()):
        model = vitzoo.create(network(Sizes(grid_size=(2, 2)), changes))
        file = written(tmp_path / str(number), name, model)
        other = {"weights": str(file), "image_size": (24, 32)}
        if "/" not in model.spec.patch_embed.name:  # RADIO's takes the means of three channels
            other["in_chans"] = 5
        if name == "torch_encoder":
            other["block"] = {"norm_first": True}
        calls.append((model.spec.to_data(), other))
    small = vitzoo.create(network(Sizes(grid_size=(4, 4)), {"num_classes": 10, "embed_dim": 32}))
    transformers = folder(tmp_path / "vit", VIT, "transformers_vit", small)
    of_timm = folder(tmp_path / "timm", TIMM, "timm", vitzoo.create("vit_ti16", num_classes=10))
    calls += [(transformers, a) for a in ({}, {"image_size": 48}, {"in_chans": 1})]
    calls += [(of_timm, a) for a in ({}, {"image_size": 256}, {"num_classes": 3})]
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
