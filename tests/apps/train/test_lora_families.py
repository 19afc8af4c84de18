"""LoRA with PEFT in every native family: without effect at zero B, merged, trained, restored."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import vitzoo
from helpers import fill, randn, same
from internals import CORE_BUILDER
from vitzoo.parts import Attention, AttentionPool, Mlp, PackedSwiGLU, SwiGLU
from vitzoo.plugin.info import FIRST_PARTY
from vitzoo.testing.checks.variants import VariantSubject, one_of_each

pytestmark = pytest.mark.workflows
FAMILIES = ["core", *sorted({*FIRST_PARTY} - {"mim", "timm"})]  # mim has no variants
OFTEN = {"core", "beit", "deit", "dinov2", "eva02", "siglip"}  # have all classes of ADAPTED
ADAPTED = (Attention, AttentionPool, Mlp, PackedSwiGLU, SwiGLU)
RATES = {"dropout": 0.1, "drop_path": 0.2}
NARROW = {"width": 32}  # of the ResNets of hybrids


def flat(result) -> list[Tensor]:
    """Return the outputs; the distilled head of DeiT has two in training."""
    return [result] if isinstance(result, Tensor) else list(result)


def outputs(model: nn.Module, images: Tensor, *, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(5)
    with torch.set_grad_enabled(grad):
        return flat(model(images))


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def architectures(namespace):
    """Yield the spec of a small copy of each architecture, with dropout and drop path."""
    if namespace != "core" and namespace not in {p.namespace for p in vitzoo.plugins()}:
        pytest.skip(f"{FIRST_PARTY[namespace]} is not installed")
    for name in one_of_each(namespace):
        network = dict(RATES)
        if namespace == "hybrid":
            embedder = vitzoo.describe(name).spec.patch_embed.name
            network["patch_embed"] = {"name": embedder} | NARROW
        yield name, VariantSubject(name, network).small()


def layers_of(model: nn.Module) -> set[str]:
    """Return the names of the linear layers that belong to attention or MLP, by their classes."""
    return {
        f"{name}.{child}"
        for name, module in model.named_modules()
        if isinstance(module, ADAPTED)
        for child, layer in module.named_children()
        if isinstance(layer, nn.Linear)
    }


def check_zero(base: nn.Module, adapted: nn.Module, images: Tensor) -> None:
    for training in (True, False):
        for grad in (True, False):
            base.train(training), adapted.train(training)
            assert equal(outputs(adapted, images, grad=grad), outputs(base, images, grad=grad)), (
                training,
                grad,
            )


def check_each_layer(adapted: nn.Module, layers: dict[str, nn.Module], images: Tensor) -> None:
    """Each product changes the outputs, so no layer is computed without its adapter."""
    before = outputs(adapted.eval(), images)
    with torch.no_grad():
        for number, (name, layer) in enumerate(sorted(layers.items())):
            b = layer.lora_B["default"].weight
            b.copy_(randn(*b.shape, seed=number) * 0.3)
            assert not equal(outputs(adapted, images), before), name
            b.zero_()
        for number, layer in enumerate(layers.values()):
            b = layer.lora_B["default"].weight
            b.copy_(randn(*b.shape, seed=number) * 0.1)


def check_step(adapted: nn.Module, images: Tensor) -> None:
    """One step of an optimiser changes every trained tensor and no other."""
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in n or ".head.modules_to_save." in n for n in trained)
    before = {n: p.detach().clone() for n, p in adapted.named_parameters()}
    optimizer = torch.optim.SGD((p for p in adapted.parameters() if p.requires_grad), lr=0.01)
    found = flat(adapted.eval()(images))
    sum((x * randn(*x.shape)).sum() for x in found).backward()
    optimizer.step()
    changed = {n for n, p in adapted.named_parameters() if not torch.equal(p, before[n])}
    assert changed == trained


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "namespace",
    [pytest.param(n, marks=() if n in OFTEN else pytest.mark.long) for n in FAMILIES],
)
def test_lora_in_every_family(namespace, tmp_path):
    import peft

    for number, (name, spec) in enumerate(architectures(namespace)):
        assert vitzoo.describe(name).builder == CORE_BUILDER
        path = vitzoo.save(fill(vitzoo.create(spec)), tmp_path / f"{number}.safetensors")
        base = vitzoo.create(path, **RATES)
        config = vitzoo.lora(base, r=2)
        adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**config))
        for (
            parameter,
            tensor,
        ) in base.named_parameters():  # torch has other kernels for trained ones
            tensor.requires_grad_(parameter.startswith("head."))
        images = randn(2, base.spec.in_chans, *base.image_size)

        layers = {
            n.removeprefix("base_model.model."): m
            for n, m in adapted.named_modules()
            if isinstance(m, peft.tuners.lora.LoraLayer)
        }
        assert {*layers} == layers_of(base)
        assert not [n for n in layers if not n.startswith(("blocks.", "attn_pool."))]
        wrapped = [
            n for n, m in adapted.named_modules()
            if isinstance(m, peft.utils.other.ModulesToSaveWrapper)
        ]  # fmt: skip
        assert wrapped == ["base_model.model.head"] * bool(config["modules_to_save"])
        check_zero(base, adapted, images)
        low = copy.deepcopy(base).bfloat16(), copy.deepcopy(adapted).bfloat16()
        check_zero(*low, images.bfloat16())

        check_each_layer(adapted, layers, images)
        check_step(adapted, images)
        folder = tmp_path / f"{number}"
        adapted.save_pretrained(folder)
        ours = vitzoo.create(path, adapter=folder).eval()
        unmerged = outputs(adapted.eval(), images)
        merged = adapted.merge_and_unload()
        ours.requires_grad_(False), merged.requires_grad_(False)
        restored = outputs(ours, images)
        for x, y, z in zip(unmerged, outputs(merged, images), restored, strict=True):
            bound = 1e-5 * max(1, x.abs().max())
            assert (x - y).abs().max() <= bound
            assert torch.equal(y, z)
        same(ours.state_dict(), merged.state_dict())
        again = vitzoo.save(merged, tmp_path / "merged.safetensors")
        same(vitzoo.create(again).state_dict(), ours.state_dict())
