"""What the first results of a network depend on: the parameters that a backbone freezes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class FirstResult(nn.Module):
    """Maps images to one result of a network, without the final norm."""

    def __init__(self, network: Any, index: int) -> None:
        super().__init__()
        self.network, self.index = network, index

    def forward(self, images: Tensor) -> Tensor:
        """Return the (b, channels, h, w) map of (b, c, h, w) images."""
        (found,) = self.network.forward_intermediates(
            images, indices=[self.index], norm=False, stop_early=True, intermediates_only=True
        )
        result: Tensor = found
        return result


@torch.enable_grad()
def parameters_before(network: Any, count: int) -> list[nn.Parameter]:
    """Return all parameters that the first `count` results depend on.

    They are read from the graph of a forward pass on `meta`, because the networks of plugins do
    not tell which parameters belong to a block. In evaluation mode, no block is skipped.
    """
    first = FirstResult(network, count - 1)
    parameters = dict(first.named_parameters())
    hollow = {
        name: torch.empty_like(tensor, device="meta", requires_grad=name in parameters)
        for name, tensor in (parameters | dict(first.named_buffers())).items()
    }
    images = torch.empty(1, network.spec.in_chans, *network.spec.image_size, device="meta")
    modes = {module: module.training for module in first.modules()}
    result = functional_call(first.eval(), hollow, images.to(next(iter(hollow.values())).dtype))
    wanted = [hollow[name] for name in parameters]
    reached = torch.autograd.grad(result.sum(), wanted, allow_unused=True)
    first.train()  # LeViT then forgets what it computed
    for module, mode in modes.items():
        module.training = mode
    return [p for p, g in zip(parameters.values(), reached, strict=True) if g is not None]
