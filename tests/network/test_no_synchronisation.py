"""A forward pass on a GPU neither waits for it nor copies between devices.

The tensors are fake ones of CUDA, without a GPU and without numbers. What needs a number, or a
shape that depends on numbers, is an error of `FakeTensorMode`, and so are operations on tensors of
two devices. Copies between devices are errors of `Watch`.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitzoo
from helpers import SMALL, randn
from kinds import cost, kind
from other_sizes import POSITIONS
from part_sets import FAMILIES, NETWORKS
from tables import cases
from vitzoo.schema.rows import built_of_parts

CUDA = "cuda"
COPIES = ("_to_copy", "copy_", "to")
NARROW = {"embed_dim": 96, "num_heads": 3, "mlp_dim": 192, "depth": 1}
RATES = {"name": "constant", "rate": 0.3}
PARTS = FAMILIES | NETWORKS | {f"positions: {n}": {"pos_embed": p} for n, p in POSITIONS.items()}


class Watch(TorchDispatchMode):
    """Fails where tensors of two devices meet; a number on the CPU is an argument of a kernel."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        copies = func.overloadpacket.__name__ in COPIES
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
        places = {x.device.type for x in tensors if copies or x.dim() or x.is_cuda}
        assert len(places) < 2, f"{func} copies between {' and '.join(sorted(places))}"
        return result


@contextmanager
def watched():
    with Watch(), torch.inference_mode():
        yield


def images(model, *sizes):
    channels = model.patch_embed.in_chans
    return [torch.zeros(2, channels, *size, device=CUDA) for size in sizes]


def on_cuda(model):
    """Replace the tensors of a network by fake ones on CUDA."""
    new = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor not in new:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)
                    new[tensor] = nn.Parameter(fake) if isinstance(tensor, nn.Parameter) else fake
                tensors[name] = None if tensor is None else new[tensor]
    return model


def run_every_call(model):
    """Run a network at its own size, and at others whose positions are kept."""
    (own,) = images(model, model.image_size)
    rows, columns = getattr(model.patch_embed, "grid_multiple", (1, 1))
    height, width = (a // b for a, b in zip(model.image_size, model.grid_size, strict=True))
    larger = model.image_size[0] + height * rows, model.image_size[1] + 2 * width * columns
    (other,) = images(model, larger)
    with watched():
        model(own)
        model.features(own, model.feature_names())
        model.attention_maps(own)
    model.dynamic = True
    with torch.inference_mode():
        model(other)
    mixed = [*own, *other, own[0]]
    with watched():
        model(other)
        model.forward_features_packed(mixed)
    with torch.inference_mode():
        model.train()(other)
    with watched():
        model(own)
        model.forward_packed(mixed)


def run_parts(**parts):
    model = vitzoo.create({**SMALL, "depth": 2, **parts, "drop_path": RATES}, device="meta").eval()
    with FakeTensorMode():
        run_every_call(on_cuda(model))


def test_a_network_never_waits():
    run_parts()


@pytest.mark.slow
@cases("parts", PARTS)
def test_no_part_waits(parts):
    run_parts(**PARTS[parts])


OTHERS = {
    "merged tokens": lambda: vitzoo.create(SMALL, block={"merge": 2}),
    "zero shot": lambda: vitzoo.create(
        SMALL | {"num_classes": 0}, class_embeddings=randn(5, 48), logit_scale=3.0, logit_bias=0.5
    ),
    "backbone": lambda: vitzoo.backbone(vitzoo.create(SMALL), pyramid=True),
}


@cases("network", OTHERS)
def test_no_other_network_waits(network):
    model = OTHERS[network]().eval()
    with FakeTensorMode():
        on_cuda(model)
        x = torch.zeros(2, 3, 32, 32, device=CUDA)
        with watched():
            model(x)


def cheapest_of_each_kind():
    """Return the network of each kind that is made of vitzoo's parts, by its name."""
    found = {}
    for variant in sorted(filter(built_of_parts, vitzoo.variants()), key=lambda v: cost(v.name)):
        found.setdefault(kind(variant.name), variant)
    return {variant.name: variant.spec for variant in found.values()}


@pytest.mark.slow
def test_no_family_waits():
    """With the width of a small network, and one block."""
    networks = cheapest_of_each_kind()
    assert len(networks) > 60
    for spec in networks.values():
        run_parts(**spec.to_data() | NARROW)


def waits(call, *parts):
    with FakeTensorMode(), pytest.raises((RuntimeError, AssertionError)) as caught, watched():
        call(torch.zeros(3, device=CUDA))
    assert all(part in f"{caught.type.__name__} {caught.value}" for part in parts), caught.value


@cases(
    "call",
    {
        "item": lambda x: x.sum().item(),
        "branch": lambda x: x if (x == 1).all() else -x,
        "equal": lambda x: torch.equal(x, x),
        "nonzero": torch.nonzero,
        "mask": lambda x: x[x > 0],
        "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
        "numbers of a list": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=CUDA),
        "index of a list": lambda x: x[[0, 2]],
        "index on the CPU": lambda x: x[torch.arange(2)],
        "to the GPU": lambda x: x + torch.ones(3).to(CUDA),
        "to the CPU": lambda x: x.cpu(),
        "two devices": lambda x: x + torch.ones(3),
    }.values(),
    ids=str,
)
def test_what_waits_is_an_error(call):
    waits(call)


def test_a_number_is_no_copy():
    with FakeTensorMode(), watched():
        x = torch.zeros(3, device=CUDA)
        assert (x * torch.tensor(2.0) + 1).device.type == CUDA
