"""Networks that vitzoo does not compute, by their names in configs and by their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vitzoo.checkpoint.tower import readers
from vitzoo.errors import CheckpointError
from vitzoo.registry.available import is_listed_type
from vitzoo.registry.registry import Registry
from vitzoo.text import escaped

OTHERS = (  # a network; how its names in configs begin; keys in timm, torchvision, transformers
    (
        "a ResNet",
        "(wide_?|se_?)?res(net|next)|regnet",
        r"layer1\.0\.conv1\.|encoder\.stages\.0\.layers\.0\.layer\.0\.convolution\.",
    ),
    (
        "a ConvNeXt",
        "convnext",
        r"stages\.0\.blocks\.0\.conv_dw\.|stages\.0\.layers\.0\.dwconv\.|features\.1\.0\.layer_scale",
    ),
    (
        "an EfficientNet or a MobileNet",
        "(tf_)?efficientnet|mobilenet",
        r"blocks\.0\.0\.conv_dw\.|features\.1\.0\.block\.0\.0\.|features\.1\.conv\.0\.0\.",
    ),
    (
        "a language model",
        "(distil|ro|al)?bert|gpt|llama|mistral|qwen",
        r"embeddings\.word_embeddings\.|embed_tokens\.|wte\.",
    ),
)

ARITHMETIC = (  # how model types of transformers begin; what vitzoo's blocks lack; what to use
    ("yolos", "detection tokens, and positions again after each block", "deit/*"),
    ("sam2", "attention within windows, in stages of several widths", "timm/hieradet_*"),
    ("sam3", "attention within windows, with rotary positions", "timm/samvit_*"),
    ("eomt", "queries that join the tokens in the last blocks", "dinov2/* or dinov3/*"),
    ("hiera", "stages of several widths", "timm/hiera_*"),
    (("swin2sr", "swinv2"), "shifted windows, in stages of several widths", "timm/swinv2_*"),
    (("swin", "maskformer-swin"), "shifted windows, in stages of several widths", "timm/swin_*"),
)

ENCODER = re.compile(r".+_vision(_model|_encoder)?")  # model types of image encoders


def encoder_in(config: Mapping[str, Any], zoo: Registry) -> str:
    """Say that a config is that of an image encoder that no format reads; else return nothing."""
    kind = str(config.get("model_type"))
    whole = isinstance(config.get("vision_config"), Mapping)
    if whole or not ENCODER.fullmatch(kind) or is_listed_type(kind) or any(readers(kind, zoo)):
        return ""
    kind = escaped(kind)[:100]
    return f"model_type {kind} is an image encoder of transformers that is not supported"


def check_vit(source: str, config: Mapping[str, Any], keys: Iterable[str] = ()) -> None:
    """Raise CheckpointError for a network that is known to be none that vitzoo computes.

    Args:
        source: of the weights, for the message.
        config: the configs beside the weights.
        keys: names of the tensors.
    """
    stated = (config.get("model_type"), config.get("architecture"), config.get("architectures"))
    names = [str(name) for one in stated for name in (one if isinstance(one, list) else [one])]
    kind = str(config.get("model_type"))
    for start, what, instead in ARITHMETIC:
        if kind.startswith(start):
            raise CheckpointError(
                f"{source}: networks of the model_type {escaped(kind)[:100]} have {what}, which "
                f"vitzoo does not compute; expected a plain Vision Transformer: use {instead} of "
                "`vitzoo list --all` with its own weights, or transformers"
            )
    if isinstance(config.get("vision_config"), Mapping) or ENCODER.fullmatch(kind):
        names = []  # what has an image tower, or is one, is none of these
    for what, name, key in OTHERS:
        shown = [f"its config states {one}" for one in names if re.match(name, one, re.IGNORECASE)]
        shown += [
            f"it has the tensor {one}" for one in keys if re.search(rf"(?:^|\.)(?:{key})", one)
        ]
        if shown:
            raise CheckpointError(
                f"{source} is {what} ({escaped(shown[0])[:200]}), expected a Vision Transformer; "
                "`vitzoo list --all` shows the networks that vitzoo can build"
            )
