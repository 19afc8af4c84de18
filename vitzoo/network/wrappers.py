"""The network of `create` inside the wrappers of torch and PEFT."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec


def network_of(model: Any) -> Any:
    """Return the network of `create` in a model.

    Raises:
        InvalidOption: vitzoo did not create it.
    """
    network = unwrapped(model)
    if isinstance(getattr(network, "spec", None), Spec):
        return network
    name = type(network).__name__
    fix = "a model made by vitzoo.create, alone or in a wrapper of torch or PEFT"
    inner = getattr(network, "network", None)
    if isinstance(getattr(inner, "spec", None), Spec):  # a Backbone
        fix = f"its network, {name.lower()}.network"
    raise InvalidOption(f"{name} has no spec; pass {fix}")


def unwrapped(model: Any, *, compiled: bool = True) -> Any:
    """Return the network inside torch.compile, (Distributed)DataParallel, FSDP, an average or PEFT.

    Args:
        model: a module; any other value is an InvalidOption.
        compiled: whether torch.compile is taken off, too.
    """
    if not isinstance(model, nn.Module):
        raise InvalidOption(f"expected a network, got {describe(model)}; pass that of create")
    found: Any = model
    while not isinstance(vars(found).get("spec"), Spec):
        inner = None
        if type(found).__module__.startswith("torch."):
            inner = getattr(found, "module", None)
            if "_orig_mod" in found._modules:  # noqa: SLF001  # torch.compile has no public name
                inner = found._orig_mod if compiled else None  # noqa: SLF001
        elif callable(getattr(found, "get_base_model", None)):  # of PEFT
            inner = found.get_base_model()
        if not isinstance(inner, nn.Module):
            break
        found = inner
    return found
