"""Reading a module of timm's so that nothing of it stays unread."""

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
    """One module, each of whose attributes must be read, or named as without effect.

    Args:
        module: of timm's.
        where: its name in the model, for messages.
        classes: what it may be an instance of; a subclass may compute something else.

    Raises:
        NotNative: it is of another class, or something is hooked into it.
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
        """Return an attribute, which counts as read.

        Raises:
            NotNative: there is none: another timm than the one this was written for.
        """
        self._left.discard(name)
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise NotNative(f"{self.where} has no attribute {name!r}; {VERSION}") from None

    def expect(self, name: str, *values: object) -> Any:
        """Return an attribute that must be one of a few values.

        Raises:
            NotNative: it is another.
        """
        value = self.take(name)
        if not any(
            value is known or (type(value) is type(known) and value == known) for known in values
        ):
            raise NotNative(f"vitzoo has no part for {self.where}.{name} = {shown(value)}")
        return value

    def close(self, name: str, value: float) -> None:
        """Check a number.

        Raises:
            NotNative: it is another.
        """
        found = self.take(name)
        if not math.isclose(found, value, rel_tol=1e-6):
            raise NotNative(f"vitzoo has no part for {self.where}.{name} = {found}, not {value}")

    def absent(self, *names: str) -> None:
        """Check that modules do nothing: none there, or an identity.

        Raises:
            NotNative: one does something.
        """
        for name in names:
            module = self.take(name)
            if module is not None and type(module) is not nn.Identity:
                raise NotNative(f"vitzoo has no part for {self.where}.{name}: {shown(module)}")

    def ignore(self, *names: str) -> None:
        """Say that attributes do not change what is computed, whether they are there or not."""
        self._left.difference_update(names)

    def done(self) -> None:
        """Check that nothing stays unread.

        Raises:
            NotNative: something does; it may change what is computed.
        """
        if self._left:
            raise NotNative(
                f"{self.where} has attributes that are not known here: "
                f"{', '.join(sorted(self._left))}; {VERSION}"
            )


VERSION = "timm 1.0.31 is what vitzoo-timm was checked with"


def present(module: nn.Module | None) -> bool:
    """Tell whether a module does something."""
    return module is not None and type(module) is not nn.Identity


def name_of(module: object) -> str:
    """Return the class of a module, for messages."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def shown(value: object) -> str:
    """Return a value, for messages."""
    return name_of(value) if isinstance(value, nn.Module) else repr(value)[:80]
