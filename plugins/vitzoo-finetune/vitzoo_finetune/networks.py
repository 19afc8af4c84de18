"""The network of a run: created, prepared by a method, and finished with the best weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitzoo
from vitzoo.cli import check_network
from vitzoo_finetune.images import draw
from vitzoo_finetune.settings import Settings


def create(settings: Settings, classes: Sequence[str], **more: Any) -> Any:
    """Return the network with its trained weights, on the CPU; a new head is drawn by the seed."""
    named = check_network(settings.model, settings.weights or None)
    options: dict[str, Any] = {"num_classes": len(classes), **more}
    if settings.image_size:
        options["image_size"] = settings.image_size
    if settings.weights:
        options["weights"] = settings.weights
    elif named.variant is not None:
        options["pretrained"] = True
    draw(settings.seed)
    model: Any = vitzoo.create(settings.model, device="cpu", **options)
    model.labels, model.output_activation = tuple(classes), "softmax"  # as the loss
    return model


def prepared(settings: Settings, classes: Sequence[str]) -> tuple[Any, nn.Module]:
    """Return the network, and the module that trains: the network, or PEFT's around it.

    Raises:
        InvalidOption: the network has no such layers.
    """
    more = {"drop_path": settings.drop_path} if settings.drop_path else {}
    model = create(settings, classes, **more)
    kind, _, count = settings.method.partition(":")
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        draw(settings.seed)
        config = LoraConfig(**vitzoo.lora(model, r=settings.rank), lora_dropout=0.0)
        return model, get_peft_model(model, config)
    if kind == "head":
        vitzoo.freeze(model, until="head")
    elif kind == "last":
        groups = vitzoo.param_groups(model, 1.0, layer_decay=0.5)
        blocks = groups[-1]["layer"] - 1  # layer 0 is before the first one
        vitzoo.freeze(model, until=max(blocks - int(count), 0))
    return model, model


def still(network: nn.Module) -> None:
    """Put modules whose parameters are all frozen into evaluation: no drop path, no statistics."""
    for module in network.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()


def finish(
    settings: Settings,
    classes: Sequence[str],
    network: Any,
    best: Mapping[str, Tensor],
    preprocessing: Any,
    out: Path,
) -> Any:
    """Return the network with the best weights, ready to save; LoRA also writes its adapter."""
    if settings.method == "lora":
        network.load_state_dict(best)
        network.save_pretrained(out / "adapter")
        model = network.merge_and_unload()
        best = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    made = create(settings, classes)
    made.load_state_dict(best)
    made.preprocessing = preprocessing
    return made.eval()


@torch.no_grad()
def source_of(model: Any) -> str:
    """Return the SHA-256 of the weights file that a network was loaded from; "" without one."""
    report = getattr(model, "load_report", None)
    return str(report.sha256) if report is not None else ""
