"""The number of images in a forward pass, such that their positions do not change the results.

Libraries of linear algebra sum in another order where rows of a matrix begin at other offsets from
64 bytes, as they do for matrices of odd widths, and for products with a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitzoo.errors import InvalidOption
from vitzoo.network.device import is_full
from vitzoo.network.model import VisionTransformer
from vitzoo.parts.patch_embed import UnfoldPatchEmbed

CHUNK = 8  # images in a forward pass
SIZES = (256, 128, 64, 32, 16)  # of chunks on a GPU
SHARE = 0.5  # of a GPU's memory, for the weights and one forward pass
Compute = Callable[[Tensor], Mapping[str, Tensor]]
ALIGNED = 16  # numbers of float32 in 64 bytes


@torch.no_grad()
def is_aligned(model: nn.Module) -> bool:
    """Tell whether a network of vitzoo's parts has only widths that are multiples of 16.

    Then each image of a chunk has the same results at every position on the CPU, which
    `tests/apps/predict/test_positions.py` measures; layers with few outputs are tried on this
    machine. In other networks some do and some do not.
    """
    if not isinstance(model, VisionTransformer) or model.checked_parts or model.spec is None:
        return False
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    widths = [layer.in_features for layer in layers]
    widths.append(model.spec.embed_dim // model.spec.num_heads)
    if isinstance(model.patch_embed, UnfoldPatchEmbed):
        widths.append(model.patch_embed.proj.weight[0].numel())
    narrow = (layer for layer in layers if layer.out_features < ALIGNED)
    return not any(width % ALIGNED for width in widths) and all(map(_has_equal_rows, narrow))


def _has_equal_rows(layer: nn.Linear) -> bool:
    """Tell by trial whether equal rows have equal results in a layer on this machine.

    On some CPUs they differ where a layer has two or three outputs, as a small classifier.
    """
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(16, 1, layer.in_features, generator=draws).to(layer.weight)
    copies = (row.expand(CHUNK, -1).contiguous() for row in rows)
    return all(are_alike({"": F.linear(x, layer.weight, layer.bias)}, 1) for x in copies)


def are_alike(results: Mapping[str, Tensor], start: int) -> bool:
    """Tell whether the results of the images from `start` on have the same bytes as the first.

    Args:
        results: (b, ...) each; the images from `start` on are copies of the first.
        start: index of the first copy.
    """
    for tensor in results.values():
        found = tensor.reshape(len(tensor), -1).contiguous().view(torch.uint8)
        if not torch.equal(found[start:], found[:1].expand_as(found[start:])):
            return False
    return True


def largest_chunk(compute: Compute, image: Tensor, model: nn.Module) -> int:
    """Find by trial how many images a forward pass on another device than the CPU has.

    On CUDA it is the largest of `SIZES` with which weights and forward pass take at most half of
    the memory of the GPU, and copies of an image have equal results at all positions. It depends on
    the network, the GPU and its memory, not on the memory that is free. On other devices it is at
    most 8. It is 1 where results depend on the position, and on MPS, where no larger chunk has been
    measured.

    Args:
        compute: maps images (b, c, h, w) to results.
        image: (1, c, h, w), of which copies are computed.
        model: whose results they are.

    Raises:
        InvalidOption: a chunk does not fit in the free memory.
    """

    def run(size: int) -> Mapping[str, Tensor]:
        return compute(image.expand(size, -1, -1, -1))

    tensors = [*model.parameters(), *model.buffers()]
    device, weights = tensors[0].device, sum(tensor.nbytes for tensor in tensors)
    if device.type == "mps":
        return 1
    memory = total_memory(device)
    each = peak_memory(lambda: run(CHUNK), device) / CHUNK if memory else 0
    sizes = fitting(weights, each, memory)
    return next((size for size in sizes if are_alike(run(size), 1)), 1)


def fitting(weights: float, each: float, memory: int) -> list[int]:
    """Return numbers of images whose forward pass fits in a share of a GPU, the largest first.

    Args:
        weights, each: bytes of the network, and of each image in a forward pass.
        memory: of the GPU, in bytes; 0 for other devices.
    """
    return [size for size in SIZES if memory and weights + size * each <= SHARE * memory] + [CHUNK]


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU of CUDA; 0 for other devices."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def peak_memory(run: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that CUDA allocates at most during a call of `run`, beyond those before."""
    run()  # libraries allocate their workspaces, and choose their kernels
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def explained(size: int, device: torch.device) -> Iterator[None]:
    """Turn the error of a device without memory for a chunk into one with a fix."""
    try:
        yield
    except RuntimeError as error:
        if device.type == "cpu" or not is_full(error):
            raise
        raise InvalidOption(
            f"a chunk of {size} images does not fit in the free memory of {device}; end other "
            "programs on it, or pass a smaller --chunk (chunk=) for a new folder or Predictor"
        ) from error
