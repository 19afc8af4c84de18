"""On a GPU: what waits for it, which GPU processes take, and the memory that calls need."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

import vitzoo
from helpers import SMALL, fill
from other_sizes import POSITIONS
from part_sets import FAMILIES, NETWORKS
from vitzoo.apps.predict.chunk import fitting, total_memory

# Machines with a GPU often have another version of torch, which warns about its own code.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

PARTS = FAMILIES | NETWORKS | {f"positions: {n}": {"pos_embed": p} for n, p in POSITIONS.items()}
TWO = """
import pickle, sys, torch, vitzoo
torch.cuda.set_device(1)
predictor = vitzoo.Predictor("vit_digits")
assert predictor.device == torch.device("cuda:1")
sys.stdout.buffer.write(pickle.dumps(predictor))
"""


@pytest.fixture(autouse=True, scope="module")
def gpu():
    assert torch.cuda.is_available(), "these tests need a GPU of NVIDIA: run them on such a machine"


@contextmanager
def without_waiting():
    """Let torch raise an error where it would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def images(model):
    """Return images of the model's size, and of a larger one."""
    height, width = model.image_size
    rows, columns = (side // n for side, n in zip(model.image_size, model.grid_size, strict=True))
    multiple = getattr(model.patch_embed, "grid_multiple", (1, 1))
    larger = height + rows * multiple[0], width + 2 * columns * multiple[1]
    draws = torch.Generator().manual_seed(0)
    sizes = model.image_size, larger
    return [torch.randn(2, 3, *size, generator=draws).cuda() for size in sizes]


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_a_forward_pass_never_waits(parts):
    """As tests/network/test_no_synchronisation.py, with torch's own check."""
    rates = {"name": "constant", "rate": 0.3}
    model = fill(vitzoo.create({**SMALL, **parts, "drop_path": rates})).cuda().eval()
    own, other = images(model)
    mixed, model.dynamic = [*own, *other, own[0]], True
    with torch.inference_mode():
        expected = model(other)
        with without_waiting():
            model(own)
            model.features(own, model.feature_names())
            model.attention_maps(own)
            found = model(other)
            model.forward_features_packed(mixed)
        model.train()(other)
        with without_waiting():
            model(own)
            model.forward_packed(mixed)
    pairs = zip(expected, found, strict=True) if isinstance(found, tuple) else [(expected, found)]
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("mode", ["mask", "subset"])
def test_drop_path_never_waits(mode):
    rates = {"name": "constant", "rate": 0.3, "mode": mode}
    model = vitzoo.create({**SMALL, "drop_path": rates}).cuda().train()
    own, _ = images(model)
    with without_waiting(), torch.device("cuda"):  # also as the default device
        model(own).sum().backward()


def test_kept_positions_are_captured_in_a_graph():
    model = fill(vitzoo.create(SMALL, dynamic=True)).cuda().eval()
    _, other = images(model)
    with torch.inference_mode():
        expected = model(other)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(other)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(other)
        graph.replay()
    torch.testing.assert_close(found, expected)


def test_a_pickle_takes_the_gpu_of_set_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    done = subprocess.run([sys.executable, "-c", TWO], capture_output=True, check=True)
    assert pickle.loads(done.stdout).device == torch.device("cuda:1")


def test_lora_needs_no_second_copy_on_the_gpu():
    model = vitzoo.create("vit_digits", pretrained=True).cuda()
    model.set_input_size(56)  # interpolated on the GPU
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert vitzoo.lora(model)["revision"]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert torch.cuda.max_memory_allocated() - before < weights / 2


def test_bench_measures_the_largest_batch_that_fits():
    done = vitzoo.bench(ways=["eager", "bf16"], rounds=6, seconds=2, progress=False)
    rows = {(row.way, row.batch): row for row in done.rows}
    assert not any(row.error for row in done.rows)
    large = max(row.batch for row in done.rows)
    assert large == fitting(0, 2**20, total_memory(torch.device("cuda")))[0]
    assert rows["eager", 1].memory < rows["eager", large].memory
