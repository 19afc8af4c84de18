"""Small networks with weights that show every mistake: `from load_helpers import pretrained`."""

import logging

import torch

import vitzoo

PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
PRE_LOGITS = ("head.pre_logits.weight", "head.pre_logits.bias")
CLASSIFIER = ("head.weight", "head.bias")


def fill(model, seed=0):
    """Fan-in scaled normals, gains of 1 +- 0.2: numbers in which every mistake shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1 and "embed" not in name.rpartition(".")[2]:
                values /= parameter[0].numel() ** 0.5
            gain = "norm" in name and name.endswith("weight")
            parameter.copy_(values * 0.2 + gain if parameter.dim() == 1 else values)
    return model.eval()


def differs(actual, expected):
    """Tell whether `close` would see it, with a margin of two."""
    return (actual - expected).abs().max() > 1e-4 * max(1, expected.abs().max())


def pretrained(name, **arguments):
    return vitzoo.create(name, pretrained=True, **arguments).eval()


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def classify(model, *names):
    """Give a fresh classifier numbers, after checking that it is one: all zero."""
    state = model.state_dict()
    assert all(not state[name].any() for name in names)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        weight, bias = (model.get_parameter(name) for name in names)
        weight.copy_(torch.randn(weight.shape, generator=generator))
        bias.copy_(torch.randn(bias.shape, generator=generator))
    return weight, bias


def config(**changes):
    from transformers import ViTConfig

    return ViTConfig(
        **{
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
            "num_labels": 5,
        }
        | changes
    )
