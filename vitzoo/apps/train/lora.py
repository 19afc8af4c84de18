"""`lora`: which layers of a network LoRA adapts, as arguments of PEFT's `LoraConfig`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitzoo.apps.train.adapter import MAX_WHOLE, pattern_of, record
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.keywords import short_errors
from vitzoo.log import log
from vitzoo.network.model import VisionTransformer
from vitzoo.registry.registry import registry
from vitzoo.report import LoadReport
from vitzoo.saving import metadata_of
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec
from vitzoo.text import fold, listed

FIX = (
    "; save the model, and adapt the saved model: model = vitzoo.create(vitzoo.save(model, "
    "'base.safetensors'))"
)


@short_errors
def lora(model: nn.Module, *, r: int = 8, lora_alpha: float | None = None) -> dict[str, Any]:
    """Return the arguments of PEFT's `LoraConfig` that adapt a model.

    LoRA adapts the linear layers of attention and MLP in every block, and in an attention pool. The
    head is trained whole, and so are batch norms and other modules that keep statistics, which
    training changes. Nothing else is trained.

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
            changed after it was loaded; its file, which is loaded again to compare them, is
            missing or differs; the rank is not possible; or too many modules keep statistics.

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
    whole = [*["head"] * bool(model.head.state_dict()), *_with_statistics(model)]
    if len(whole) > MAX_WHOLE:
        raise InvalidOption(
            f"{len(whole)} modules keep statistics that training changes, such as {whole[-1]}, and "
            f"an adapter holds {MAX_WHOLE}; name the layers yourself: LoraConfig(target_modules="
            "[...]), and load the adapter with PEFT"
        )
    return {
        "r": r,
        "lora_alpha": r if lora_alpha is None else lora_alpha,
        "target_modules": targets,
        "modules_to_save": whole or None,
        "revision": _record(model, model.spec),
    }


def _with_statistics(model: nn.Module) -> list[str]:
    """Return the names of modules outside the head whose buffers training may change.

    These are batch norms, and modules without others in them that have buffers in the state dict.
    Those of the patch embedder, such as the mean of pixels, are constants.
    """
    found = []
    for name, module in model.named_modules():
        if name.partition(".")[0] == "head":
            continue
        kept = vars(module)["_buffers"].keys() - vars(module)["_non_persistent_buffers_set"]
        own = any(getattr(module, key) is not None for key in kept)
        alone = not any(True for _ in module.children()) and not name.startswith("patch_embed")
        if own and (alone or isinstance(module, _BatchNorm)):
            found.append(name)
    return found


def _record(model: VisionTransformer, spec: Spec) -> str | None:
    report = model.load_report
    if report and report.sha256:
        _check_unchanged(model, report)
        return record(report.sha256, metadata_of(model, spec, registry()))
    log.warning(
        "the model was not loaded from a weights file, so create(adapter=) will refuse this "
        "adapter; save the model with vitzoo.save and create it from that file first"
    )
    return None


def _check_unchanged(model: VisionTransformer, report: LoadReport) -> None:
    """Raise InvalidOption if weights other than the head's were changed after they were loaded."""
    merged = [name for name in report.merged if not name.startswith("head.")]
    if changed := merged or _changed(model, _loaded_again(model, report)):
        names = listed(fold(changed))
        raise InvalidOption(f"the model was changed after it was loaded: {names}{FIX}")


@torch.no_grad()
def _changed(model: VisionTransformer, again: VisionTransformer) -> list[str]:
    """Return the names of tensors outside the head that differ, or that one model lacks."""
    own, loaded = model.state_dict(), again.state_dict()
    found = [
        name
        for name in own | loaded
        if not name.startswith("head.")
        and not (name in own and name in loaded and _same(own[name], loaded[name]))
    ]
    if found == ["pos_embed"] and _same_source(model, again):
        return []
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bytes, on the CPU and in the type of the first."""
    one = one.cpu()
    found, wanted = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other.to(one)))
    return one.shape == other.shape and torch.equal(found, wanted)


def _same_source(model: VisionTransformer, again: VisionTransformer) -> bool:
    """Return whether the positions of two models are interpolated from the same table.

    A GPU, on which a model got its image size, interpolates to other last digits than the CPU.
    """
    (table, grid), (loaded, source) = model._source(), again._source()  # noqa: SLF001
    return grid == source and _same(table, loaded)


def _loaded_again(model: VisionTransformer, report: LoadReport) -> VisionTransformer:
    """Return the model as `create` returned it, from the same file, but on the CPU.

    On the device of the model, a large network may not fit a second time.

    Raises:
        InvalidOption: the file is not there any more, or has changed.
    """
    try:
        again: Any = model.create_again(device="cpu", check_finite=False)  # type: ignore[operator]
        again.set_input_size(model.image_size)
    except (VitzooError, AttributeError) as error:
        raise InvalidOption(
            f"{report.source} cannot be loaded again, to compare the weights with it: {error}{FIX}"
        ) from error
    found = again.load_report.sha256 if again.load_report else ""
    if found != report.sha256:
        raise InvalidOption(
            f"{report.source} has sha256 {found}, the model was loaded from sha256 "
            f"{report.sha256}{FIX}"
        )
    return again
