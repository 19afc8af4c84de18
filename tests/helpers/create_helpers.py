"""What `create` refuses and computes: `from create_helpers import refused`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import vitzoo
from helpers import says
from vitzoo.errors import CheckpointError, VitzooError


def refused(error: type[VitzooError], *args, **kwargs) -> str:
    """Return the message with which `create` refuses a call."""
    with pytest.raises(error) as caught:
        vitzoo.create(*args, **kwargs)
    assert type(caught.value) is error
    return str(caught.value)


def logits(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    place = next(model.parameters())
    shape = (2, model.spec.in_chans, *model.spec.image_size)
    with torch.no_grad():
        return model.eval()(torch.randn(shape, generator=generator).to(place.dtype))


PARTS_BY_NAME = ("registered name", "'linear'", "'acme/overlap'")  # what a part must be


def misfit(path) -> str:
    message = refused(CheckpointError, "local/net", weights=path)
    says(message, path)
    return message.removeprefix(str(path))


def operations(call: Callable[[], object]) -> Counter[str]:
    """Return how often a call runs each of torch's operations, by name."""
    with torch.autograd.profiler.profile() as profiled:
        call()
    return Counter(event.name.removeprefix("aten::") for event in profiled.function_events)
