"""`Look`: reads a module of timm completely."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from vitzoo.errors import InvalidInput

PLAIN = frozenset(vars(nn.Module()))
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class NotNative(InvalidInput):
    """A timm model with a feature that vitzoo has no part for."""


class Look:
    """A module whose attributes must all be read or ignored.

    Args:
        module: of timm.
        where: name of the module in the model, for messages.
        classes: accepted classes. Subclasses are not accepted, because they may compute something
            else.

    Raises:
        NotNative: the module has another class, or hooks.
    """

    def __init__(self, module: nn.Module, where: str, *classes: type) -> None:
        self.where = where
        self.module = module
        if type(module) not in classes:
            raise NotNative(f"vitzoo has no part for {where}: {name_of(module)}")
        if any(getattr(module, hooks) for hooks in HOOKS) or "forward" in vars(module):
            raise NotNative(f"{where} has hooks, which may change what it computes; remove them")
        groups = (module._modules, module._parameters, module._buffers)
        self._left = set(vars(module)) - PLAIN | {name for group in groups for name in group}

    def take(self, name: str) -> Any:
        """Return an attribute and mark it as read; NotNative if another timm does not have it."""
        self._left.discard(name)
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise NotNative(f"{self.where} has no attribute {name!r}; {VERSION}") from None

    def expect(self, name: str, *values: object) -> Any:
        """Return an attribute, or raise NotNative if it is none of these values."""
        value = self.take(name)
        if not any(
            value is known or (type(value) is type(known) and value == known) for known in values
        ):
            raise NotNative(f"vitzoo has no part for {self.where}.{name} = {shown(value)}")
        return value

    def close(self, name: str, value: float) -> None:
        """Raise NotNative if an attribute is another number."""
        found = self.take(name)
        if not math.isclose(found, value, rel_tol=1e-6):
            raise NotNative(f"vitzoo has no part for {self.where}.{name} = {found}, not {value}")

    def absent(self, *names: str) -> None:
        """Raise NotNative unless modules are None or an identity."""
        for name in names:
            module = self.take(name)
            if module is not None and type(module) is not nn.Identity:
                raise NotNative(f"vitzoo has no part for {self.where}.{name}: {shown(module)}")

    def ignore(self, *names: str) -> None:
        """Mark attributes without an effect on the outputs, whether they exist or not."""
        self._left.difference_update(names)

    def done(self) -> None:
        """Raise NotNative if an attribute is unread, because it may change the outputs."""
        if self._left:
            raise NotNative(
                f"{self.where} has unknown attributes: {', '.join(sorted(self._left))}; {VERSION}"
            )


VERSION = "vitzoo-timm was tested with timm 1.0.31"


def present(module: nn.Module | None) -> bool:
    """Return whether a module is neither None nor an identity."""
    return module is not None and type(module) is not nn.Identity


def name_of(module: object) -> str:
    """Return the class of a module, for messages."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def shown(value: object) -> str:
    """Return a value, for messages."""
    return name_of(value) if isinstance(value, nn.Module) else repr(value)[:80]
