"""What tests of positions compute by hand: `from positions import turn`."""

import math

import torch


def alive(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def turn(x, angle, pairs):
    """Turn each pair of elements of a vector by its angle."""
    result = x.clone()
    for (i, j), a in zip(pairs, angle, strict=True):
        result[i] = x[i] * math.cos(a) - x[j] * math.sin(a)
        result[j] = x[i] * math.sin(a) + x[j] * math.cos(a)
    return result
