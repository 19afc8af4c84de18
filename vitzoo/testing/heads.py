"""Heads against `vitzoo.parts.Head`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitzoo.parts import protocols
from vitzoo.testing.patch_embed import require_module
from vitzoo.testing.subject import ModuleSubject, doing, draw, fill, require, require_same

RESET = "reset(num_classes) returns a new head of the same kind and leaves this one as it is"
NO_CLASSES = "with num_classes=0 leave the classifier out: what comes out is the pre-logits"


class Head(ModuleSubject):
    """A head under test."""

    kind = "head"
    field_of_spec = "head"
    numbers = ("in_dim", "num_classes")

    def number(self, name: str) -> Any:
        """Return one of the network's numbers."""
        return super().number("embed_dim" if name == "in_dim" else name)

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, d) pooled features, or (b, t, d) for a head that reads `tokens`."""
        several = (self.tokens,) if self.tokens else ()
        return (draw(batch, *several, self.sizes.embed_dim),)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a spec with as many tokens as the head reads."""
        spec, ready = super().in_network()
        if self.tokens:
            pool = {"name": "prefix", "tokens": self.tokens}
            spec |= {"num_registers": self.tokens - 1, "pool": pool}
        return spec, ready

    @property
    def tokens(self) -> int:
        """How many tokens the head reads, 0 for one pooled vector."""
        return getattr(self.part(), "tokens", None) or 0


def check_protocol(subject: Head) -> None:
    """It is a module with `num_classes`, `pre_logits_dim` and `reset`."""
    __tracebackhide__ = True
    require_module(subject, subject.part(), protocols.Head)


def check_outputs(subject: Head) -> None:
    """Logits are (b, num_classes), pre-logits (b, pre_logits_dim)."""
    __tracebackhide__ = True
    part = fill(subject.part())
    require(
        part.num_classes == subject.sizes.num_classes,
        f"{subject}: num_classes is {part.num_classes!r}, built for {subject.sizes.num_classes}",
        "set self.num_classes = num_classes",
    )
    _require_shapes(subject, part)


def check_no_classes(subject: Head) -> None:
    """With 0 classes the pre-logits come out."""
    __tracebackhide__ = True
    with doing(subject, "built with num_classes=0", NO_CLASSES):
        part: Any = subject.part(num_classes=0)
    require(part.num_classes == 0, f"{subject}: num_classes is {part.num_classes!r}", NO_CLASSES)
    _require_shapes(subject, fill(part))


def check_reset(subject: Head) -> None:
    """`reset` gives a fresh head for other classes, of the same pre-logits."""
    __tracebackhide__ = True
    part: Any = fill(subject.part())
    with torch.no_grad():
        before = part(*subject.inputs())
    for num_classes in (7, 0):
        with doing(subject, f"reset({num_classes}) is called", RESET):
            fresh: Any = part.reset(num_classes)
        require_module(subject, fresh, protocols.Head)
        require(
            (fresh.num_classes, fresh.pre_logits_dim) == (num_classes, part.pre_logits_dim),
            f"{subject}: reset({num_classes}) gives num_classes {fresh.num_classes}, "
            f"pre_logits_dim {fresh.pre_logits_dim} (was {part.pre_logits_dim})",
            RESET,
        )
        require(
            getattr(fresh, "tokens", None) == getattr(part, "tokens", None),
            f"{subject}: after reset it reads another number of tokens",
            RESET,
        )
        _require_shapes(subject, fresh.eval())
        mine = {p.data_ptr() for p in part.parameters() if p.numel()}
        shared = [n for n, p in fresh.named_parameters() if p.data_ptr() in mine]
        require(not shared, f"{subject}: after reset both heads share {', '.join(shared)}", RESET)
    with torch.no_grad():
        require_same(part(*subject.inputs()), before, f"{subject}: reset changed it", RESET)


def _require_shapes(subject: Head, part: Any) -> None:
    __tracebackhide__ = True
    (x,) = subject.inputs()
    with torch.no_grad(), doing(subject, "called in evaluation mode"):
        logits, pre_logits = part.eval()(x), part(x, pre_logits=True)
    width = part.num_classes or part.pre_logits_dim
    for what, result, expected in (
        ("logits", logits, (2, width)),
        ("pre-logits", pre_logits, (2, part.pre_logits_dim)),
    ):
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        require(
            shape == expected,
            f"{subject}: with num_classes {part.num_classes} and pre_logits_dim "
            f"{part.pre_logits_dim} its {what} should be {expected}, but are {shape}",
            "call (x, pre_logits=False) returns (b, num_classes), with pre_logits=True "
            f"(b, pre_logits_dim); {NO_CLASSES}",
        )
    if not part.num_classes:
        problem = f"{subject}: without classes it gives something else than its pre-logits"
        require_same(logits, pre_logits, problem, NO_CLASSES)
