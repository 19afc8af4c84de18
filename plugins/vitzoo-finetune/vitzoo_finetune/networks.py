"""The network of a run: created, prepared by a method, and finished with the best weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitzoo
from vitzoo.cli import check_network
from vitzoo.errors import InvalidOption
from vitzoo_finetune.images import draw
from vitzoo_finetune.settings import Settings
from vitzoo_finetune.targets import Number, Target


def create(settings: Settings, target: Target, **more: Any) -> Any:
    """Return the network with its trained weights, on the CPU.

    A classifier of other classes is replaced by a new one, which is drawn by the seed.
    """
    named = check_network(settings.model, settings.weights or None)
    options: dict[str, Any] = {"num_classes": len(target.names), **more}
    if settings.image_size:
        options["image_size"] = settings.image_size
    if settings.weights:
        options["weights"] = settings.weights
    elif named.variant is not None:
        options["pretrained"] = True
    draw(settings.seed)
    model: Any = vitzoo.create(settings.model, device="cpu", **options)
    if model.labels is not None and tuple(model.labels) != target.names:
        model.reset_classifier(len(target.names))
    model.labels, model.output_activation = target.names, target.activation  # as the loss
    return model


def prepared(settings: Settings, target: Target) -> tuple[Any, nn.Module]:
    """Return the network, and the module that trains: the network, or PEFT's around it.

    Raises:
        InvalidOption: the network has no such layers.
    """
    more = {"drop_path": settings.drop_path} if settings.drop_path else {}
    model = create(settings, target, **more)
    if isinstance(target, Number):
        _last_layer(model)
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
        if not 1 <= int(count) <= blocks:
            raise InvalidOption(
                f"method is {settings.method}, expected last:1 to last:{blocks} for the {blocks} "
                "blocks of this network; head trains the classifier alone (--method head)"
            )
        vitzoo.freeze(model, until=blocks - int(count))
    return model, model


def frozen(network: nn.Module) -> list[nn.Module]:
    """Return the modules whose parameters are all frozen."""
    found = []
    for module in network.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            found.append(module)
    return found


def finish(
    settings: Settings,
    target: Target,
    best: Mapping[str, Tensor],
    preprocessing: Any,
    out: Path,
) -> Any:
    """Return the network with the best weights, ready to save; LoRA also writes its adapter."""
    lora = settings.method == "lora"
    network: Any = prepared(settings, target)[1] if lora else create(settings, target)
    network.load_state_dict(best)
    if isinstance(target, Number):
        _rescale(network.get_base_model() if lora else network, target)
    made = network
    if lora:
        network.save_pretrained(out / "adapter")
        readme = out / "adapter" / "README.md"  # PEFT's template, in which nothing is filled in
        readme.unlink(missing_ok=True)
        made = create(settings, target)
        made.load_state_dict(network.merge_and_unload().state_dict())
    made.preprocessing = preprocessing
    return made.eval()


def _last_layer(model: Any) -> nn.Linear:
    """Return the layer that computes a number.

    Raises:
        InvalidOption: the head ends in another computation.
    """
    layers = [one for one in model.head.modules() if isinstance(one, nn.Linear)]
    if not layers or layers[-1].out_features != 1 or layers[-1].bias is None:
        raise InvalidOption(
            f"the head {type(model.head).__name__} ends in no linear layer with a bias, which a "
            "number needs; name another network, or leave target='number' (--target number) out"
        )
    return layers[-1]


@torch.no_grad()
def _rescale(model: Any, target: Number) -> None:
    """Let a network return numbers of the data, instead of numbers with mean 0 and deviation 1."""
    layer = _last_layer(model)
    layer.weight.mul_(target.deviation)
    layer.bias.mul_(target.deviation).add_(target.mean)


def source_of(model: Any) -> Any:
    """Return the load report of a network; None without a weights file."""
    report = getattr(model, "load_report", None)
    return report if report is not None and report.sha256 else None
