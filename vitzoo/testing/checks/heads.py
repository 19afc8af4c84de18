"""Checks of heads against `vitzoo.parts.Head`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitzoo.parts import protocols
from vitzoo.testing.subject import (
    ModuleSubject,
    doing,
    draw,
    fill,
    require,
    require_module,
    require_same,
    shape_of,
)

__tracebackhide__ = True
RESET = "reset(num_classes) returns a new head of the same kind and does not change this head"
NO_CLASSES = "with num_classes=0 a head has no classifier and returns the pre-logits"


class Head(ModuleSubject):
    """A head under test."""

    kind = "head"
    field_of_spec = "head"
    numbers = ("in_dim", "num_classes")
    protocol = protocols.Head

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, d) pooled features, or (b, t, d) for a head with `tokens = t`."""
        several = (self.tokens,) if self.tokens else ()
        return (draw(batch, *several, self.sizes.embed_dim),)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a spec with a pool that gives as many tokens as the head reads."""
        spec, ready = super().in_network()
        if self.tokens:
            pool = {"name": "prefix", "tokens": self.tokens}
            spec |= {"num_registers": self.tokens - 1, "pool": pool}
        return spec, ready

    @property
    def tokens(self) -> int:
        """How many tokens the head reads, 0 for one pooled vector."""
        return getattr(self.part(), "tokens", None) or 0


def check_outputs(subject: Head) -> None:
    """Logits are (b, num_classes), pre-logits are (b, pre_logits_dim). `num_classes` is the number
    of classes that the head was built for.
    """
    part = fill(subject.part())
    require(
        part.num_classes == subject.sizes.num_classes,
        f"{subject}: num_classes is {part.num_classes!r}, but it was built for "
        f"{subject.sizes.num_classes} classes",
        "set self.num_classes = num_classes",
    )
    _require_shapes(subject, part)


def check_no_classes(subject: Head) -> None:
    """With `num_classes=0` the head returns the pre-logits."""
    with doing(subject, "built with num_classes=0", NO_CLASSES):
        part: Any = subject.part(num_classes=0)
    problem = f"{subject}: built with num_classes=0, num_classes is {part.num_classes!r}"
    require(part.num_classes == 0, problem, NO_CLASSES)
    _require_shapes(subject, fill(part))


def check_reset(subject: Head) -> None:
    """`reset(num_classes)` returns a new head with other classes and the same `pre_logits_dim`. The
    two heads share no parameters, and the first does not change.
    """
    part: Any = fill(subject.part())
    with torch.no_grad():
        before = part(*subject.inputs())
    for num_classes in (7, 0):
        with doing(subject, f"reset({num_classes}) is called", RESET):
            fresh: Any = part.reset(num_classes)
        require_module(subject, fresh)
        require(
            (fresh.num_classes, fresh.pre_logits_dim) == (num_classes, part.pre_logits_dim),
            f"{subject}: reset({num_classes}) gives num_classes {fresh.num_classes}, "
            f"pre_logits_dim {fresh.pre_logits_dim}; expected {num_classes}, {part.pre_logits_dim}",
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
        after = part(*subject.inputs())
    require_same(after, before, f"{subject}: reset changes the outputs of the old head", RESET)


def _require_shapes(subject: Head, part: Any) -> None:
    (x,) = subject.inputs()
    with torch.no_grad(), doing(subject, "called in evaluation mode"):
        logits, pre_logits = part.eval()(x), part(x, pre_logits=True)
    for what, result, expected in (
        ("logits", logits, (2, part.num_classes or part.pre_logits_dim)),
        ("pre-logits", pre_logits, (2, part.pre_logits_dim)),
    ):
        require(
            shape_of(result) == expected,
            f"{subject}: with num_classes {part.num_classes} and pre_logits_dim "
            f"{part.pre_logits_dim} its {what} should be {expected}, but are {shape_of(result)}",
            "a call (x, pre_logits=False) returns (b, num_classes), with pre_logits=True "
            f"(b, pre_logits_dim); {NO_CLASSES}",
        )
    if not part.num_classes:
        problem = f"{subject}: with num_classes=0 it returns other numbers than its pre-logits"
        require_same(logits, pre_logits, problem, NO_CLASSES)
