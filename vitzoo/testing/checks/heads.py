"""Checks of heads against `vitzoo.parts.Head`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitzoo.testing.checks.modules import shared
from vitzoo.testing.subject import ModuleSubject, draw, fill, shape_of

__tracebackhide__ = True
RESET = (
    "reset(num_classes) returns a head of the same kind with a new classifier and the same "
    "pre-logits, and does not change this head"
)
ON_CPU = (
    "make new layers without the device of this head, and copy no data of this head: to load "
    "weights with other classes, vitzoo calls reset of a head on meta"
)
NO_CLASSES = "with num_classes=0 a head has no classifier and returns the pre-logits"
CALL = (
    "a call (x, pre_logits=False) returns (b, num_classes), with pre_logits=True "
    f"(b, pre_logits_dim); {NO_CLASSES}"
)


class Head(ModuleSubject):
    """A head under test."""

    field_of_spec = "head"
    numbers = ("in_dim", "num_classes")

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
    part: Any = fill(subject.part())
    built, stated = subject.sizes.num_classes, part.num_classes
    problem = f"num_classes is {stated!r}, but it was built for {built} classes"
    subject.require(stated == built, problem, "set self.num_classes = num_classes")
    _require_shapes(subject, part)


def check_no_classes(subject: Head) -> None:
    """With `num_classes=0` the head returns the pre-logits."""
    with subject.doing("built with num_classes=0", NO_CLASSES):
        part: Any = subject.part(num_classes=0)
    problem = f"built with num_classes=0, num_classes is {part.num_classes!r}"
    subject.require(part.num_classes == 0, problem, NO_CLASSES)
    _require_shapes(subject, fill(part))


def check_reset(subject: Head) -> None:
    """`reset(num_classes)` returns a head with other classes and the same pre-logits. The two heads
    share no parameters, and the first does not change. The new layers of a head on `meta` have
    data.
    """
    part: Any = fill(subject.part())
    with torch.no_grad():
        before, features = part(*subject.inputs()), part(*subject.inputs(), pre_logits=True)
    for num_classes in (7, 0):
        with subject.doing(f"reset({num_classes}) is called", RESET):
            fresh: Any = part.reset(num_classes)
        subject.require_module(fresh)
        expected: dict[str, Any] = {"num_classes": num_classes}
        expected |= {n: getattr(part, n, None) for n in ("pre_logits_dim", "tokens")}
        for name, value in expected.items():
            problem = f"reset({num_classes}) gives {name} {getattr(fresh, name, None)}"
            same = getattr(fresh, name, None) == value
            subject.require(same, f"{problem}, expected {value}", RESET)
        _require_shapes(subject, fresh.eval())
        with torch.no_grad():
            found = fresh(*subject.inputs(), pre_logits=True)
        problem = f"reset({num_classes}) gives other pre-logits than this head"
        subject.require_same(found, features, problem, RESET)
        subject.require_none(shared(part, fresh), "after reset both heads share", RESET)
    with torch.no_grad():
        after = part(*subject.inputs())
    subject.require_same(after, before, "reset changes the outputs of the old head", RESET)
    _require_data(subject)


def _require_data(subject: Head) -> None:
    """Fail unless the layers are on the CPU that `reset` of a head on `meta` makes."""
    with torch.device("meta"):
        hollow: Any = subject.part()
    with subject.doing("reset(7) of a head on meta is called", ON_CPU):
        fresh = hollow.reset(7).state_dict()
    old = hollow.state_dict()
    lacking = [
        name
        for name, tensor in fresh.items()
        if tensor.is_meta and (name not in old or old[name].shape != tensor.shape)
    ]
    subject.require_none(lacking, "reset(7) of a head on meta returns no data for", ON_CPU)


def _require_shapes(subject: Head, part: Any) -> None:
    (x,) = subject.inputs()
    with torch.no_grad(), subject.doing("called in evaluation mode"):
        logits, pre_logits = part.eval()(x), part(x, pre_logits=True)
    classes, width = part.num_classes, part.pre_logits_dim
    numbers = f"with num_classes {classes} and pre_logits_dim {width}"
    for what, result, size in (
        ("logits", logits, classes or width),
        ("pre-logits", pre_logits, width),
    ):
        problem = f"{numbers} its {what} should be {(2, size)}, but are {shape_of(result)}"
        subject.require(shape_of(result) == (2, size), problem, CALL)
    if not classes:
        problem = "with num_classes=0 it returns other numbers than its pre-logits"
        subject.require_same(logits, pre_logits, problem, NO_CLASSES)
