"""Whatever torch's default device is, the tensors of a model are on the device asked for."""

import pytest
import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitzoo
from helpers import SPEC, fill, refuses
from tables import check_all
from vitzoo.errors import InvalidOption
from vitzoo.registry.registry import registry

NAME = "vit_digits"
CALLS = {
    "as it is": {},
    "classes": {"num_classes": 3},
    "tanh": {"num_classes": 3, "head": "tanh"},
    "cosine": {"num_classes": 3, "head": {"name": "cosine", "logit_bias": True}},
    "mlp": {"head": "mlp"},
    "size": {"image_size": 56},
    "channels": {"in_chans": 3},
    "dtype": {"dtype": torch.bfloat16, "num_classes": 3},
    "dynamic": {"dynamic": True, "num_classes": 3},
}

DYNAMIC = {"learned", "learned_2d", "rope", "sincos_2d"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["default", "context"])
def test_the_device_that_is_asked_for(way, tmp_path):
    """Also with torch's default device on meta: all tensors have data, the same as usual."""
    spec = SPEC | {"pos_embed": {"name": "rope", "absolute": True}}
    saved = vitzoo.save(fill(vitzoo.create(spec)), tmp_path / "net.safetensors")
    file = tmp_path / "plain.safetensors"
    safetensors.torch.save_file(safetensors.torch.load_file(saved), file)
    sources = {
        "registered": (NAME, {"pretrained": True}),
        "saved": (saved, {}),
        "file": (spec, {"weights": file}),
        "random": (spec, {}),
    }

    def check(case):
        name, given = case
        torch.manual_seed(0)
        expected = vitzoo.create(name, **given).state_dict()
        torch.manual_seed(0)
        if way == "default":
            torch.set_default_device("meta")
            try:
                model = vitzoo.create(name, device="cpu", **given)
                other = vitzoo.create(name, **given)
            finally:
                torch.set_default_device(None)
        else:
            with torch.device("meta"):
                model = vitzoo.create(name, device="cpu", **given)
                other = vitzoo.create(name, **given)
        for tensor in (*model.parameters(), *model.buffers()):
            assert tensor.device.type == "cpu"
        assert {tensor.device.type for tensor in other.state_dict().values()} == {"meta"}
        assert model.state_dict().keys() == expected.keys()
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, expected[key]), key

    check_all(
        {
            f"{source} {call}": (name, given | CALLS[call])
            for source, (name, given) in sources.items()
            for call in CALLS
        },
        check,
    )


TYPES = (
    *("hpu", "xpu", "mps", "cuda:99", "privateuseone", "xla", "vulkan", "lazy", "fpga", "maia"),
    *(
        "mtia",
        "ipu",
        "ve",
        "ideep",
        "hip",
        "mkldnn",
        "opengl",
        "opencl",
        "ort",
        "nope",
        "",
        "cpu:-1",
    ),
    *(-1, 10**30, 1.5, True, object()),
)


def test_a_dtype_that_a_device_lacks(monkeypatch):
    """MPS has no float64; torch says so as soon as a tensor is made."""
    empty = torch.empty

    def on_mps(*sizes, device=None, dtype=None, **options):
        if device == "mps" and dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype\nmore")
        return empty(*sizes, device=None if device == "mps" else device, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", on_mps)
    with refuses(InvalidOption, "'mps'", "MPS Tensor to float64", "--device (device=): cpu"):
        vitzoo.create(NAME, device="mps", dtype=torch.float64)


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_device_that_is_not_here(pretrained):
    def check(device):
        parts = "cannot be used here", "--device (device=): cpu"
        with refuses(InvalidOption, *parts) as caught:
            vitzoo.create(NAME, pretrained=pretrained, device=device)
        assert repr(device)[:20] in str(caught.value)

    check_all({repr(device): device for device in TYPES}, check)


class NoFloat64(TorchDispatchMode):
    """A device without float64, as MPS: every result of an operation on it is checked."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                self.count += 1
                assert tensor.dtype is not torch.float64, function
        return result

    count = 0


@pytest.mark.slow
def test_nothing_is_float64_on_a_device():
    """Networks of every kind of position: moved, at other sizes, trained and evaluated."""

    def check(name):
        spec = SPEC | {"pos_embed": name, "pool": "mean" if name != "learned" else "class"}
        with NoFloat64() as mode:
            model = vitzoo.create(spec, device="cpu", dynamic=name in DYNAMIC).to("meta")
            optimizer = torch.optim.AdamW(vitzoo.param_groups(model, 1e-3, weight_decay=0.1))
            for size in (32, 40) if name in DYNAMIC else (32,):
                model(torch.zeros(2, 3, size, size, device="meta")).sum().backward()
            optimizer.step()
            model.eval()(torch.zeros(2, 3, 32, 32, device="meta"))
        assert mode.count > 100

    check_all({name: name for name in registry().parts["position embedding"]}, check)
