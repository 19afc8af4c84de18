"""The types of image encoders of transformers: classes, configs, and the values that are drawn.

`drawn_configs.cases` draws them. Adding a type is a row of `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Outputs = tuple[Tensor | None, Tensor | None]  # tokens and pooled output, None without comparison
Run = Callable[[nn.Module, Tensor], Outputs]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
FLAG = (True, False)
ACTIVATIONS = (
    *("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu") * 5,
    *("silu", "relu", "tanh", "selu"),
    *("gelu_fast", "gelu_10", "gelu_accurate", "mish", "elu", "leaky_relu", "sigmoid", "relu6"),
    *("hardswish", "laplace", "linear", "relu2", "gelu_python", "prelu"),
)
COMMON: dict[str, tuple[Any, ...]] = {
    "hidden_size": (24, 48, 64),
    "num_hidden_layers": (1, 3),
    "num_attention_heads": (1, 3, 4),
    "image_size": (16, 24, 36, 48, (16, 32), [40, 24]),
    "patch_size": (4, 16, (8, 4), [4, 8]),
    "num_channels": (1, 4),
    "hidden_act": ACTIVATIONS,
    "layer_norm_eps": (1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 0.1),
    "attention_dropout": (0.3,),
    "initializer_range": (0.1,),
}
MLP = COMMON | {"intermediate_size": (32, 100)}
VIT = MLP | {
    "qkv_bias": FLAG,
    "pooler_act": ("tanh", "gelu", "relu", "linear"),
    "pooler_output_size": (32, 24),
    "hidden_dropout_prob": (0.2,),
    "attention_probs_dropout_prob": (0.2,),
}
BEIT = MLP | {
    "use_relative_position_bias": (False, True, True, True),
    "use_shared_relative_position_bias": (True, False, False),
    "use_absolute_position_embeddings": (True, False, False),
    "use_mean_pooling": FLAG,
    "use_mask_token": FLAG,
    "layer_scale_init_value": (0.0, 0.5),
    "drop_path_rate": (0.2,),
}
DINOV2 = COMMON | {
    "mlp_ratio": (1, 2, 3),
    "qkv_bias": FLAG,
    "layerscale_value": (0.1,),
    "use_swiglu_ffn": FLAG,
    "use_mask_token": FLAG,
    "apply_layernorm": FLAG,
    "drop_path_rate": (0.2,),
}
DINOV3 = MLP | {
    **dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"), FLAG),
    "rope_theta": (50.0, 100.0, 10000.0),
    "layerscale_value": (0.1,),
    "use_gated_mlp": FLAG,
    "num_register_tokens": (0, 1, 4),
    "pos_embed_rescale": (None, 1.5),
}
PROJECTED = MLP | {"projection_dim": (16, 40)}
HEAD = {"vision_use_head": FLAG}
NAFLEX = {key: values for key, values in MLP.items() if key != "image_size"} | HEAD
NAFLEX |= {"num_patches": (4, 9, 12), "patch_size": (4, 16)}
AIMV2 = {key: values for key, values in MLP.items() if key != "layer_norm_eps"} | {
    "rms_norm_eps": COMMON["layer_norm_eps"],
    **dict.fromkeys(("qkv_bias", "mlp_bias", "use_head", "is_native"), FLAG),
    "hidden_act": (*ACTIVATIONS, *["silu"] * 20),
}
RADIO = COMMON | {
    "mlp_ratio": (1, 2.5),
    "qkv_bias": FLAG,
    "layerscale_value": (0.1,),
    "use_swiglu_ffn": FLAG,
    "max_img_size": (32, 64, 20),
    "num_cls_tokens": (1, 3, 4),
    "num_registers": (0, 2),
    "summary_idxs": ([0], [0, 1], [1, 0], [2]),
    "norm_mean": ([0.1, 0.2, 0.3],),
    "video_temporal_patch_size": (2,),
}
INTERNVL = MLP | {
    "image_size": ([16, 32], [48, 48], 16, [36, 36]),
    "patch_size": ([4, 4], [8, 4], 16),
    **dict.fromkeys(("attention_bias", "use_qk_norm", "use_mask_token", "use_mean_pooling"), FLAG),
    "use_absolute_position_embeddings": FLAG,
    "norm_type": ("layer_norm", "rms_norm"),
    "layer_scale_init_value": (0.5,),
}
JANUS = COMMON | {
    "mlp_ratio": (1.0, 2.5),
    "attention_bias": FLAG,
    "use_qk_norm": FLAG,
    "projection_dim": (16,),
}
FLAT = COMMON | {"qkv_bias": FLAG, "mlp_ratio": (1, 2, 3)}
SAM = FLAT | {
    "window_size": (0, 2, 3, 7),
    "global_attn_indexes": ([], [0], [0, 1, 2], [1, 5]),
    "output_channels": (8, 32),
    "mlp_dim": (None, 40),
    **dict.fromkeys(("use_abs_pos", "use_rel_pos"), (True, True, False)),
}
VITDET = FLAT | {
    "window_size": (0, 2, 5),
    "window_block_indices": ([], [0, 1, 7], [1]),
    "residual_block_indices": ([], [], [0]),
    "pretrain_image_size": (16, 32, 48, [16, 32]),
    "use_absolute_position_embeddings": FLAG,
    "use_relative_position_embeddings": FLAG,
}
BLIP = {key: values for key, values in MLP.items() if key != "num_channels"} | {"qkv_bias": FLAG}
RELATIVE = {"use_relative_position_bias": True}
NECK = {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "backbone_out_indices": [0, 0, 0, 0]}
TIMM = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 112}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "vocab_size": 9,
    "num_attention_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def pooler(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens, and what the library pools: without it the class token."""
    out = network(images)
    found = getattr(out, "pooler_output", None)
    return out.last_hidden_state, out.last_hidden_state[:, 0] if found is None else found


def given(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens and pooled output; None if the library has none."""
    out = network(images)
    return out.last_hidden_state, getattr(out, "pooler_output", None)


def first(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens and class token."""
    tokens = network(images).last_hidden_state
    return tokens, tokens[:, 0]


def tokens(network: nn.Module, images: Tensor) -> Outputs:
    """Return the tokens of Janus, whose pooled output is a patch after a second norm."""
    return network(images).last_hidden_state, None


def logits(network: nn.Module, images: Tensor) -> Outputs:
    """Return the logits."""
    return None, network(images).logits


def average(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens and their average."""
    tokens = network(images).last_hidden_state
    return tokens, tokens.mean(1)


def inside(path: str) -> Run:
    """Return a function that reads tokens and class token of a module."""
    return lambda network, images: first(network.get_submodule(path), images)


def masked(network: nn.Module, images: Tensor) -> Outputs:
    """Run MAE without a mask, in the order of the patches."""
    network.config.mask_ratio = 0.0
    count = network.embeddings.patch_embeddings.num_patches
    tokens = network(images, noise=torch.arange(float(count)).expand(2, -1)).last_hidden_state
    return tokens, tokens[:, 0]


def normed(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens after the last norm, which CLIP applies to the class token alone."""
    out = network(images)
    (norm,) = (m for name, m in network.named_modules() if name.endswith("post_layernorm"))
    found = out.image_embeds if hasattr(out, "image_embeds") else out.pooler_output
    return norm(out.last_hidden_state), found


def embeds(network: nn.Module, images: Tensor) -> Outputs:
    """Return the embedding of a whole model."""
    out = network.get_image_features(pixel_values=images)
    return None, out if isinstance(out, Tensor) else out.pooler_output


def internvl(network: nn.Module, images: Tensor) -> Outputs:
    """Return the mean of the patches, or the class token."""
    tokens = network(images).last_hidden_state
    return tokens, tokens[:, 1:].mean(1) if network.config.use_mean_pooling else tokens[:, 0]


def beit(network: nn.Module, images: Tensor) -> Outputs:
    """Return the pooled output; without a pooler, that of a class token alone."""
    out = network(images)
    if out.pooler_output is None and network.config.use_mean_pooling:
        return out.last_hidden_state, None
    return pooler(network, images)


def summary(network: nn.Module, images: Tensor) -> Outputs:
    """Return tokens, and the class tokens that C-RADIO joins."""
    out = network(images)
    return out.last_hidden_state, out.summary


def maps(network: nn.Module, images: Tensor) -> Outputs:
    """Return the last map of a backbone as tokens, and their average."""
    index = torch.zeros(len(images), dtype=torch.long) if network.config.num_experts > 1 else None
    tokens = network(images, dataset_index=index).feature_maps[-1]
    return tokens, tokens.mean(1)


def flat(network: nn.Module, images: Tensor) -> Outputs:
    """Return the last map of a network as tokens, and their average."""
    tokens = network(images).last_hidden_state.flatten(2).transpose(1, 2)
    return tokens, tokens.mean(1)


def naflex(network: nn.Module, images: Tensor) -> Outputs:
    """Run SigLIP 2 on the patches of the stored grid."""
    whole = hasattr(network, "get_image_features")
    size = (network.config.vision_config if whole else network.config).patch_size
    grid = [side // size for side in images.shape[-2:]]
    patches = images.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 4, 5, 1)
    patches = patches.reshape(len(images), grid[0] * grid[1], -1)
    mask = torch.ones(patches.shape[:2], dtype=torch.long)
    shapes = torch.tensor([grid] * len(images))
    if whole:
        return None, network.get_image_features(patches, mask, shapes).pooler_output
    out = network(patches, mask, shapes)
    return out.last_hidden_state, out.pooler_output


@dataclass(frozen=True)
class Type:
    """A type of image encoder.

    Args:
        config: name of the class of the config in transformers.
        networks: names of classes, each with the function that runs it. A name followed by
            arguments in parentheses is called with these.
        pools: values that are drawn, by key.
        usual: values of keys that are not drawn.
        whole: name of the config of the whole model, which has the drawn one as `vision_config`.
        outside: values that are drawn for the config of the whole model, by key.
        text: `text_config` of the whole model; None if it has none.
    """

    config: str
    networks: Mapping[str, Run]
    pools: Mapping[str, tuple[Any, ...]]
    usual: Mapping[str, Any] = field(default_factory=dict)
    whole: str = ""
    outside: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    text: Mapping[str, Any] | None = None


def _tower(family: str, run: Run = normed, **networks: Run) -> Type:
    found = {f"{family}VisionModel": run} | networks
    return Type(f"{family}VisionConfig", found, PROJECTED)


def _both(family: str, run: Run, text: Mapping[str, Any], name: str = "") -> Type:
    networks = {name or f"{family}Model": run}
    outside = {"projection_dim": (16, 40), "logit_scale_init_value": (1.0,), "num_labels": (3, 5)}
    pools = {"Siglip": MLP | HEAD, "Siglip2": NAFLEX, "Aimv2": AIMV2, "Tipsv2": DINOV2}
    return Type(
        f"{family}VisionConfig",
        networks,
        pools.get(family, PROJECTED),
        {"num_patches": 16},
        f"{family}Config",
        outside,
        text,
    )


ALONE = "add_pooling_layer=False"
CLASSES = "ForImageClassification"
TYPES = {
    "vit": Type(
        "ViTConfig",
        {
            "ViTModel": pooler,
            f"ViTModel({ALONE})": first,
            f"ViT{CLASSES}": logits,
            "ViTForMaskedImageModeling": inside("vit"),
        },
        VIT,
    ),
    "deit": Type(
        "DeiTConfig",
        {
            "DeiTModel": pooler,
            f"DeiTModel({ALONE})": first,
            f"DeiT{CLASSES}": logits,
            f"DeiT{CLASSES}WithTeacher": logits,
        },
        VIT,
    ),
    "vit_mae": Type("ViTMAEConfig", {"ViTMAEModel": masked}, VIT | {"mask_ratio": (0.0,)}),
    "vit_msn": Type("ViTMSNConfig", {"ViTMSNModel": first, f"ViTMSN{CLASSES}": logits}, VIT),
    "ijepa": Type("IJepaConfig", {"IJepaModel": average, f"IJepa{CLASSES}": logits}, VIT),
    "flava_image_model": Type(
        "FlavaImageConfig",
        {"FlavaImageModel": pooler, f"FlavaImageModel({ALONE})": first},
        VIT | {"mask_token": FLAG},
    ),
    "dpt": Type("DPTConfig", {"DPTModel": pooler, f"DPTModel({ALONE})": first}, VIT, NECK),
    "beit": Type(
        "BeitConfig",
        {"BeitModel": beit, f"BeitModel({ALONE})": beit, f"Beit{CLASSES}": logits},
        BEIT,
        RELATIVE,
    ),
    "data2vec-vision": Type(
        "Data2VecVisionConfig",
        {
            "Data2VecVisionModel(add_pooling_layer=True)": beit,
            "Data2VecVisionModel": beit,
            f"Data2VecVision{CLASSES}": logits,
        },
        BEIT,
        RELATIVE,
    ),
    "dinov2": Type("Dinov2Config", {"Dinov2Model": pooler, f"Dinov2{CLASSES}": logits}, DINOV2),
    "dinov2_with_registers": Type(
        "Dinov2WithRegistersConfig",
        {"Dinov2WithRegistersModel": pooler, f"Dinov2WithRegisters{CLASSES}": logits},
        DINOV2 | {"num_register_tokens": (0, 1, 3)},
    ),
    "dinov3_vit": Type(
        "DINOv3ViTConfig", {"DINOv3ViTModel": pooler}, DINOV3, {"num_register_tokens": 2}
    ),
    "pixio": Type("PixioConfig", {"PixioModel": pooler}, DINOV2 | {"n_cls_tokens": (1, 2, 3)}),
    "radio": Type(
        "RadioConfig",
        {"RadioModel": summary},
        RADIO,
        {"max_img_size": 48, "num_registers": 1},
    ),
    "tipsv2_vision_model": Type(
        "Tipsv2VisionConfig",
        {"Tipsv2VisionModel": pooler},
        DINOV2 | {"num_register_tokens": (0, 2)},
    ),
    "clip_vision_model": _tower("CLIP", CLIPVisionModelWithProjection=normed),
    "clip": _both("CLIP", embeds, TEXT),
    "clip, classes": _both("CLIP", logits, TEXT, f"CLIP{CLASSES}"),
    "metaclip_2_vision_model": _tower("MetaClip2", MetaClip2VisionModelWithProjection=normed),
    "metaclip_2": _both("MetaClip2", embeds, TEXT),
    "chinese_clip_vision_model": _tower("ChineseCLIP"),
    "chinese_clip": _both("ChineseCLIP", embeds, TEXT),
    "altclip_vision_model": _tower("AltCLIP"),
    "altclip": _both("AltCLIP", embeds, TEXT | {"project_dim": 8}),
    "clipseg_vision_model": _tower("CLIPSeg"),
    "clipseg": _both("CLIPSeg", embeds, TEXT),
    "owlvit_vision_model": _tower("OwlViT"),
    "owlvit": _both("OwlViT", embeds, TEXT),
    "owlv2_vision_model": _tower("Owlv2"),
    "owlv2": _both("Owlv2", embeds, TEXT),
    "git_vision_model": _tower("Git", first),
    "kosmos_2_vision_model": _tower("Kosmos2"),
    "mlcd_vision_model": Type(
        "MLCDVisionConfig",
        {"MLCDVisionModel": normed},
        MLP
        | {
            "num_key_value_groups": (1, 2),
            "rope_parameters": (
                {"rope_type": "axial", "rope_theta": 100.0},
                {"rope_type": "axial", "rope_theta": 10000.0},
            ),
        },
    ),
    "siglip_vision_model": Type("SiglipVisionConfig", {"SiglipVisionModel": given}, MLP | HEAD),
    "siglip": _both("Siglip", embeds, TEXT),
    "siglip, classes": _both("Siglip", logits, TEXT, f"Siglip{CLASSES}"),
    "siglip2_vision_model": Type(
        "Siglip2VisionConfig",
        {"Siglip2VisionModel": naflex},
        NAFLEX,
        {"num_patches": 16},
    ),
    "siglip2": _both("Siglip2", naflex, TEXT),
    "tipsv2": _both("Tipsv2", embeds, TEXT | {"hidden_size": 32}),
    "idefics2_vision": Type("Idefics2VisionConfig", {"Idefics2VisionTransformer": given}, MLP),
    "idefics3_vision": Type("Idefics3VisionConfig", {"Idefics3VisionTransformer": given}, MLP),
    "smolvlm_vision": Type("SmolVLMVisionConfig", {"SmolVLMVisionTransformer": given}, MLP),
    "janus_vision_model": Type("JanusVisionConfig", {"JanusVisionModel": tokens}, JANUS),
    "aimv2_vision_model": Type("Aimv2VisionConfig", {"Aimv2VisionModel": given}, AIMV2),
    "aimv2": _both("Aimv2", embeds, TEXT),
    "internvl_vision": Type("InternVLVisionConfig", {"InternVLVisionModel": internvl}, INTERNVL),
    "blip_vision_model": Type("BlipVisionConfig", {"BlipVisionModel": first}, BLIP),
    "blip_2_vision_model": Type("Blip2VisionConfig", {"Blip2VisionModel": first}, BLIP),
    "instructblip_vision_model": Type(
        "InstructBlipVisionConfig", {"InstructBlipVisionModel": first}, BLIP
    ),
    "vitpose_backbone": Type(
        "VitPoseBackboneConfig",
        {"VitPoseBackbone": maps},
        DINOV2 | {"num_experts": (1, 3), "part_features": (8,)},
    ),
    "sam_vision_model": Type(
        "SamVisionConfig",
        {"SamVisionModel": flat},
        SAM,
        {"window_size": 3, "global_attn_indexes": [1], "output_channels": 24},
    ),
    "vitdet": Type(
        "VitDetConfig",
        {"VitDetModel": flat},
        VITDET,
        {
            "pretrain_image_size": 24,
            "window_size": 3,
            "window_block_indices": [0],
            "use_relative_position_embeddings": True,
        },
    ),
    "timm_wrapper": Type(
        "TimmWrapperConfig",
        {"TimmWrapperModel": given, f"TimmWrapper{CLASSES}": logits},
        {
            "architecture": (
                *("vit_small_patch14_dinov2", "vit_base_patch16_clip_224", "deit_tiny_patch16_224"),
                *("vit_base_patch16_siglip_224", "beit_base_patch16_224", "eva02_tiny_patch14_224"),
            ),
            "model_args": tuple(
                TIMM | change
                for change in (
                    *({"reg_tokens": 2}, {"global_pool": "avg"}, {"qkv_bias": False}),
                    *({"init_values": 0.1}, {"qk_norm": True}, {"num_heads": 4}),
                    *({"class_token": False, "global_pool": "avg"}, {"img_size": (112, 224)}),
                )
            ),
            "do_pooling": FLAG,
        },
        {"architecture": "vit_tiny_patch16_224", "model_args": TIMM},
    ),
}
