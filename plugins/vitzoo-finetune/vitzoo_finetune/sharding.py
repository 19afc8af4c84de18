"""Networks that FSDP2 divides among devices, whose files are those of one device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

BLOCK = re.compile(r"(.+\.)?blocks\.\d+")  # names of modules that are gathered alone


class Sharding(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with whole checkpoints in the format of all runs.

    Args:
        devices: among which each parameter is divided.
    """

    def __init__(self, devices: int) -> None:
        super().__init__(devices, 1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning passes the state of the optimizer of a checkpoint on."""
        return True

    def shard(self, network: nn.Module) -> None:
        """Divide the parameters of a network, which is done once."""
        if any(isinstance(one, DTensor) for one in network.parameters()):
            return
        mesh = self.device_mesh["data_parallel"]
        for name, module in network.named_modules():
            if BLOCK.fullmatch(name):
                fully_shard(module, mesh=mesh)
        fully_shard(network, mesh=mesh)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state of an optimizer in the first process, nothing in the others."""
        state: Any = super(ModelParallelStrategy, self).optimizer_state(optimizer)
        made: dict[int, dict[str, Any]] = {}
        for number, values in state["state"].items():
            for name, value in values.items():
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                if self.is_global_zero:
                    made.setdefault(number, {})[name] = (
                        whole.cpu() if isinstance(whole, Tensor) else whole
                    )
        return {"state": made, "param_groups": state["param_groups"]}

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a whole checkpoint, as strategies without shards do."""
        return super(ModelParallelStrategy, self).load_checkpoint(checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take each process's part of whole parameters."""
        set_whole(cast("nn.Module", self.lightning_module), checkpoint["state_dict"])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take each process's part of whole states of optimizers."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            names = [n for group in state["param_groups"] for n in group["params"]]
            for name, parameter in zip(names, parameters, strict=True):
                state["state"][name] = {
                    key: _part(value, parameter)
                    for key, value in state["state"].get(name, {}).items()
                }
            optimizer.load_state_dict(state)


def _part(value: Any, parameter: Tensor) -> Any:
    """Return a tensor of the shape of a parameter, divided as it is; else the value."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def get_whole(network: nn.Module) -> dict[str, Any]:
    """Return the whole tensors of a network, sharded or not, on the CPU.

    All processes call it; with several, only the first one gets the tensors.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(network, options=options)


def set_whole(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a network, sharded or not; all processes call it."""
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(network, dict(tensors), options=options)
