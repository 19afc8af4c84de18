"""The short cut of a forward pass: the last block computes only the tokens that the pool reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vitzoo.network.calls import recorded

HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def short_cut(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Let `forward` skip tokens of the last block where nothing but the time shows it."""

    @wraps(forward)
    def shorter(self: Any, images: Tensor, /) -> Tensor:
        pool = self._pool
        reads: int | None = getattr(pool, "reads", None)
        if reads is None or recorded(images) or _shows(self, pool, forward.__module__):
            return forward(self, images)
        last = len(self.blocks) - 1

        def run(x: Any, layer: int) -> Any:
            return self._encode(x, layer, reads if layer == last else None)

        # `forward`, because the call of a module keeps its inputs until it returns
        return self.forward_head(self.norm(self.blocks.forward(self.embed(images), run=run)))

    return shorter


def _shows(model: Any, pool: nn.Module, module: str) -> bool:
    """Whether a hook, a method of a subclass or the draws of a dropout would show the short cut."""
    for name in ("forward_features", "forward_head"):
        if name in vars(model) or getattr(type(model), name).__module__ != module:
            return True
    last: list[nn.Module] = list(model.blocks[-1].modules())
    if model.training and any(getattr(part, "p", 0) for part in last):  # a dropout rate
        return True
    seen = (model.blocks, *last, model.norm, *pool.modules())
    hooked = any(getattr(part, hooks) for part in seen for hooks in HOOKS)
    return hooked or any(vars(torch_module)[f"_global{hooks}"] for hooks in HOOKS)
