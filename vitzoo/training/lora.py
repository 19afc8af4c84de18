"""`lora`: which layers of a network LoRA adapts, as arguments of PEFT's `LoraConfig`."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.loading.adapter import pattern_of, record
from vitzoo.log import log
from vitzoo.model import VisionTransformer
from vitzoo.registry.registry import registry
from vitzoo.saving import metadata_of
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec
from vitzoo.text import fold, listed


def lora(model: nn.Module, *, r: int = 8, lora_alpha: float | None = None) -> dict[str, Any]:
    """Return the arguments of PEFT's `LoraConfig` that adapt a model.

    LoRA adapts the linear layers of attention and MLP in every block, and in an attention pool. The
    head is trained whole. Nothing else is trained, and the patch embedder never is.

    `revision` records the SHA-256 of the weights that the model was loaded from, and its network,
    labels and preprocessing. PEFT keeps it in `adapter_config.json`, and `create(adapter=)` reads
    it. Therefore set head, labels and image size first, and train nothing else before.

    Args:
        model: a model made by `create`, before it is wrapped or compiled.
        r: rank of the products B A, at most the width of the model.
        lora_alpha: the products are multiplied by `lora_alpha / r`; `r` if None.

    Returns:
        `r`, `lora_alpha`, `target_modules` (a pattern of complete names), `modules_to_save` and
        `revision`.

    Raises:
        InvalidOption: the model is no network of vitzoo's blocks, already has adapters, or was
            trained after it was loaded; or the rank is not possible.

    Source: arXiv:2106.09685, which also merges the products into the weights.

    >>> from vitzoo.factory import create
    >>> lora(create("vit_digits", pretrained=True))["target_modules"]
    'blocks[.][0-9]+[.](attn[.]proj|attn[.]qkv|mlp[.]fc1|mlp[.]fc2)'
    """
    if not isinstance(model, VisionTransformer) or not isinstance(model.spec, Spec):
        raise InvalidOption(
            f"vitzoo.lora adapts models of create with vitzoo's blocks, before they are wrapped, "
            f"got {type(model).__name__}; for other networks, name the layers yourself: "
            "LoraConfig(target_modules=[...])"
        )
    targets = pattern_of(model)
    if not targets or any(hasattr(module, "base_layer") for module in model.modules()):
        raise InvalidOption(
            "the model has no linear layers in its blocks, or has adapters already; remove them "
            "with PEFT: peft_model.unload() or peft_model.merge_and_unload()"
        )
    if isinstance(r, bool) or not isinstance(r, int) or not 1 <= r <= model.embed_dim:
        raise InvalidOption(
            f"r must be a whole number from 1 to the width {model.embed_dim}, got {describe(r)}"
        )
    head = any(True for _ in model.head.parameters())
    return {
        "r": r,
        "lora_alpha": r if lora_alpha is None else lora_alpha,
        "target_modules": targets,
        "modules_to_save": ["head"] if head else None,
        "revision": _record(model, model.spec),
    }


def _record(model: VisionTransformer, spec: Spec) -> str | None:
    base = model.load_report.sha256 if model.load_report else ""
    if base:
        _check_unchanged(model)
        return record(base, metadata_of(model, spec, registry()))
    log.warning(
        "the model was not loaded from a weights file, so create(adapter=) will refuse this "
        "adapter; save the model with vitzoo.save and create it from that file first"
    )
    return None


def _check_unchanged(model: nn.Module) -> None:
    """Raise InvalidOption if weights other than the head's were changed after they were loaded."""
    kept = [(n, w) for n, w in model.named_parameters() if not n.startswith("head.")]
    # The version counts changes in place, such as those of an optimiser.
    changed = [n for n, w in kept if not w.is_inference() and w._version]  # noqa: SLF001
    if changed:
        raise InvalidOption(
            f"the model was changed after it was loaded: {listed(fold(changed))}; save it, and "
            "adapt the saved model: model = vitzoo.create(vitzoo.save(model, 'base.safetensors'))"
        )
