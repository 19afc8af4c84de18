"""The names of networks that people write themselves: a port of timm, and torch's own encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vitzoo.formats.base import Format
from vitzoo.formats.keymap import KeyMap
from vitzoo.formats.timm import timm_vit

POSITIONS = {"pos_embedding.pos_embedding": "pos_embed"}
PRE_LOGITS = {"pre_logits.fc.": "head.pre_logits.", "head.": "head.fc."}
BLOCK = "encoder.layers.{}."
MARKS = ("self_attn.in_proj_weight", "linear1.weight", "linear2.weight", "norm1.weight")
ENCODERS = (  # other names of the module with the layers
    *("transformer.encoder.layers", "transformer_encoder.layers", "transformer.layers", "layers"),
    *("encoder_layers", "encoder_blocks", "transformer_encoder", "transformer_blocks", "blocks"),
)
PARTS = ("norm1.", "norm2.", "linear1.", "linear2.", "self_attn.")
POSITION_NAMES = (
    *("pos_embedding", "position_embedding", "position_embeddings"),
    *("positional_embedding", "pos_encoding", "positional_encoding"),
)
CLASSIFIERS = ("mlp_head", "classifier", "fc", "head")  # 0 and 1: a norm and a linear layer
PATCHES = ("patch_embed", "patch_embedding", "patch_embeddings")
TOKENS = {  # other names of tensors and modules
    "cls_token": ("cls_token", "class_token", "class_embedding", "cls_embedding", "cls"),
    "pos_embed": (
        *("pos_embed", "pos_emb", "pos_embedding.pos_embedding", *POSITION_NAMES),
        *(f"{name}.weight" for name in POSITION_NAMES),
    ),
}
MODULES = {
    "patch_embed.": (
        *(f"{name}.{layer}" for name in PATCHES for layer in ("proj", "projection", "conv", "0")),
        *("patch_embedding", "patch_embeddings", "patch_embedding.patcher", "conv_proj"),
        *("patch_proj", "patch_conv"),
    ),
    "encoder.norm.": (
        *("transformer.encoder.norm", "transformer_encoder.norm", "transformer.norm", "norm", "ln"),
        *("layer_norm", "final_norm", "encoder_norm", *(f"{name}.0" for name in CLASSIFIERS)),
    ),
    "head.": ("mlp_head", "classifier", "fc", *(f"{name}.1" for name in CLASSIFIERS)),
}
ALIASES = {other: own for own, names in TOKENS.items() for other in names}
ALIASES |= {
    f"{other}.{kind}": own + kind
    for own, names in MODULES.items()
    for other in names
    for kind in ("weight", "bias")
}
ALIASES |= {f"{name}.{{}}.{part}": BLOCK + part for name in ENCODERS for part in PARTS}


@dataclass(frozen=True, eq=False)
class TorchEncoder(Format):
    """Networks around `nn.TransformerEncoder`; positions and class token may lack axes."""

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        lacking = 3 - tensor.dim() if key in TOKENS and tensor.dim() else 0
        return tensor[(None,) * max(0, lacking)]

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        return None if key in TOKENS and tensor.dim() < 3 else tensor


port = replace(
    timm_vit,
    name="port",
    keymap=KeyMap(POSITIONS, others=True),
    keymaps={"pre_logits.": KeyMap(POSITIONS | PRE_LOGITS, others=True)},
    excludes=tuple(key for key in timm_vit.excludes if key not in POSITIONS),
    marks=(*POSITIONS, "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
    network={**(timm_vit.network or {}), "pos_embed": ("learned",)},
)
torch_encoder = TorchEncoder(
    "torch_encoder",
    keymap=KeyMap(
        {
            "cls_token": "cls_token",
            "pos_embed": "pos_embed",
            "patch_embed.": "patch_embed.proj.",
            "encoder.norm.": "norm.",
            "head.": "head.",
        },
        {
            "norm1.": "norm1.",
            "self_attn.in_proj_weight": "attn.qkv.weight",
            "self_attn.in_proj_bias": "attn.qkv.bias",
            "self_attn.out_proj.": "attn.proj.",
            "norm2.": "norm2.",
            "linear1.": "mlp.fc1.",
            "linear2.": "mlp.fc2.",
        },
        BLOCK,
        aliases=dict(sorted(ALIASES.items(), key=lambda row: -len(row[0]))),
    ),
    marks=tuple(BLOCK.format(0) + key for key in MARKS),
    asks={"norm_first": "False", "activation": "'relu'", "norm_eps": "1e-5"},
    network={"class_token": (True, False), "pool": ("class", "mean")},
)
