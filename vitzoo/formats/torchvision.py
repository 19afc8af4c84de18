"""The names of torchvision's ViT."""

from __future__ import annotations

from dataclasses import replace

from vitzoo.formats.base import Format
from vitzoo.formats.keymap import KeyMap, Tensors
from vitzoo.schema.spec import Spec

BLOCK = "encoder.layers.encoder_layer_{}."
LINEAR = KeyMap(
    {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj.": "patch_embed.proj.",
        "encoder.ln.": "norm.",
        "heads.pre_logits.": "head.pre_logits.",
        "heads.head.": "head.",
    },
    {
        "ln_1.": "norm1.",
        "self_attention.in_proj_weight": "attn.qkv.weight",
        "self_attention.in_proj_bias": "attn.qkv.bias",
        "self_attention.out_proj.": "attn.proj.",
        "ln_2.": "norm2.",
        "mlp.0.": "mlp.fc1.",
        "mlp.3.": "mlp.fc2.",
    },
    BLOCK,
    aliases={  # of files before release 0.14
        f"{BLOCK}mlp.linear_1.": f"{BLOCK}mlp.0.",
        f"{BLOCK}mlp.linear_2.": f"{BLOCK}mlp.3.",
    },
)
TANH = replace(LINEAR, stem={**LINEAR.stem, "heads.head.": "head.fc."})


class TorchvisionFormat(Format):
    """torchvision's `VisionTransformer`, for square colour images."""

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the names of a head with pre-logits, which tanh follows, or of a linear one."""
        return TANH if any("pre_logits." in key for key in tensors) else LINEAR

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what torchvision's network lacks of a spec."""
        square = all(h == w for h, w in (spec.image_size, spec.patch_size))
        return [
            *([] if square else ["images or patches that are not square"]),
            *([] if spec.in_chans == 3 else [f"in_chans = {spec.in_chans}"]),
            *super().unsupported(spec),
        ]


torchvision = TorchvisionFormat(
    "torchvision",
    keymap=LINEAR,
    marks=("conv_proj.weight", f"{BLOCK.format(0)}self_attention.in_proj_weight"),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic_corners"},  # its `interpolate_embeddings`
    },
    network={},
)
