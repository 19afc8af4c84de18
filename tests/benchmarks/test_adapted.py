"""CPU time of `create` with changes to a file

Each call is the first one of a new process, with one thread. The floor is the plain call, with the
interpolation or the sum that the change needs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest
from safetensors.torch import save_file

import vitzoo
from vitzoo.formats import transformers_vit

pytestmark = pytest.mark.benchmark

TURNS = 5 if os.environ.get("VITZOO_BENCH") == "full" else 2
CODE = """
import json, sys, time
import torch, vitzoo
import vitzoo.factory
import vitzoo.parts.resample as resampling

work, name, arguments = json.loads(sys.argv[1])
table, kernel = torch.zeros(1, 197, 192), torch.zeros(192, 3, 16, 16)
start = time.process_time()
vitzoo.create(name, **arguments)
if work == "table":
    resampling.resample_grid(table, (14, 14), (16, 16))
elif work == "kernel":
    kernel.repeat(1, 2, 1, 1)[:, :5] * 0.6
print(time.process_time() - start)
"""
CHANGES = {
    "image_size=256": ("table", {"image_size": 256}),
    "in_chans=5": ("kernel", {"in_chans": 5}),
    "num_classes=10": ("", {"num_classes": 10}),
}
CONFIG = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 192}
CONFIG |= {"num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
CONFIG |= {"image_size": 224, "patch_size": 16, "layer_norm_eps": 1e-6}
CONFIG |= {"id2label": {str(i): f"class {i}" for i in range(1000)}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file of timm's format, and folders of transformers and timm with the same tensors."""
    place = tmp_path_factory.mktemp("adapted")
    state = {k: t.detach() for k, t in vitzoo.create("vit_ti16").state_dict().items()}
    save_file(state, place / "net.safetensors")
    for library in ("transformers", "timm"):
        (place / library).mkdir()
    save_file(
        {k: t.contiguous().clone() for k, t in transformers_vit.from_model(state).items()},
        place / "transformers" / "model.safetensors",
    )
    save_file(state, place / "timm" / "model.safetensors")
    (place / "transformers" / "config.json").write_text(json.dumps(CONFIG))
    of_timm = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000}
    (place / "timm" / "config.json").write_text(json.dumps(of_timm))
    return place


def ratio(place, floor, call):
    """Return the CPU time of a call by that of its floor, the median of turns."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VITZOO_HOME": str(place / "home")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the modules of a user are compiled

    def seconds(of):
        command = [sys.executable, "-c", CODE, json.dumps(of)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout)

    turns = [(seconds(call), seconds(floor)) for _ in range(TURNS)]
    ratios = [ours / least for ours, least in turns]
    return statistics.median(ratios) if TURNS > 2 else min(ratios)


@pytest.mark.parametrize("change", CHANGES)
def test_another_size_costs_what_it_needs(compare, place, change):
    work, more = CHANGES[change]
    weights = {"weights": str(place / "net.safetensors")}
    value = ratio(place, (work, "vit_ti16", weights), ("", "vit_ti16", weights | more))
    title = f"create(NAME, weights=FILE, {change}), vit_ti16, CPU time of the first call"
    compare.record(title, "the plain call", value, at_most=1.5)


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_folder_costs_as_much_as_its_file(compare, place, library):
    weights = {"weights": str(place / "net.safetensors")}
    value = ratio(place, ("", "vit_ti16", weights), ("", str(place / library), {}))
    title = f"create(FOLDER of {library}), CPU time of the first call"
    compare.record(title, "the plain call", value, at_most=1.5)
