"""The tensors of a network, found in one walk, and their replacement by loaded ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor, nn

CODE = (
    "_load_from_state_dict", "_save_to_state_dict", "load_state_dict", "state_dict",
    "get_extra_state", "set_extra_state",
)  # fmt: skip
HOOKS = (
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks",
)  # fmt: skip
Slot = tuple[nn.Module, str, Tensor]  # a module, the name of a tensor in it, and the tensor


class Slots:
    """Where the tensors of a network are.

    Args:
        model: the network.

    Attributes:
        expected: the tensors of its state dict.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._find()
        self.expected: Mapping[str, Tensor] = (
            {name: tensor for name, (_, _, tensor) in self._saved.items()}
            if self._plain
            else model.state_dict()
        )

    def assign(self, state: Mapping[str, Tensor]) -> None:
        """Replace the tensors of the state dict, as `load_state_dict(state, assign=True)` does.

        Torch itself does it if a module has its own code or hooks for this. If the tensors do not
        fit, torch raises its error.
        """
        fits = state.keys() == self._saved.keys() and all(
            type(tensor) is Tensor and tensor.shape == self._saved[name][2].shape
            for name, tensor in state.items()
        )
        if not (self._plain and fits):
            self.model.load_state_dict(state, strict=True, assign=True)
            self._find()
            return
        for name, (module, key, old) in self._saved.items():
            new = state[name]
            if type(old) is nn.Parameter:
                new = nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(module, key, new)
            self._saved[name] = module, key, new

    def without_data(self) -> list[str]:
        """Return the names of the tensors on `meta`."""
        found = chain(self._saved.items(), self._computed.items())
        return [name for name, (_, _, tensor) in found if tensor.is_meta]

    def buffers(self) -> list[Tensor]:
        """Return the buffers, those outside the state dict too."""
        found = chain(self._saved.values(), self._computed.values())
        return [tensor for _, _, tensor in found if not isinstance(tensor, nn.Parameter)]

    def _find(self) -> None:
        self._saved: dict[str, Slot] = {}
        self._computed: dict[str, Slot] = {}
        self._plain = not torch.__future__.get_swap_module_params_on_conversion()
        self._known: set[type] = set()  # classes without own code
        self._walk(self.model, "")

    def _walk(self, module: nn.Module, prefix: str) -> None:
        """Note the tensors of a module and of its children, in the order of a state dict."""
        found = vars(module)
        self._plain = self._plain and self._is_plain(type(module), found)
        for name, parameter in found["_parameters"].items():
            if parameter is not None:
                self._saved[prefix + name] = module, name, parameter
                self._plain = self._plain and type(parameter) is nn.Parameter
        for name, buffer in found["_buffers"].items():
            if buffer is not None:
                saved = name not in found["_non_persistent_buffers_set"]
                slots = self._saved if saved else self._computed
                slots[prefix + name] = module, name, buffer
                self._plain = self._plain and type(buffer) is Tensor
        for name, child in found["_modules"].items():
            if child is not None:
                self._walk(child, f"{prefix}{name}.")

    def _is_plain(self, kind: type, found: Mapping[str, object]) -> bool:
        """Return whether a module has neither code nor hooks for its state dict."""
        if kind not in self._known:
            if any(getattr(kind, name) is not getattr(nn.Module, name) for name in CODE):
                return False
            self._known.add(kind)
        return not any(found[name] for name in HOOKS) and found.keys().isdisjoint(CODE)
