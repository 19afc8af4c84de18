"""The names of transformers' ViT, and shared names of other formats of transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vitzoo.formats.base import Format
from vitzoo.formats.config import (
    Changes,
    Config,
    ConfigTable,
    check_config,
    choice,
    count_of,
    expect,
    flag,
    merged,
    number,
    positive,
    read_with,
    size,
    whole,
)
from vitzoo.formats.keymap import KeyMap, Tensors
from vitzoo.schema.terms import TOWER

PATCHES = "embeddings.patch_embeddings.projection."
RELEASE_5 = {  # names of release 5, to those of release 4
    "layers.{}.attention.q_proj.": "encoder.layer.{}.attention.attention.query.",
    "layers.{}.attention.k_proj.": "encoder.layer.{}.attention.attention.key.",
    "layers.{}.attention.v_proj.": "encoder.layer.{}.attention.attention.value.",
    "layers.{}.attention.o_proj.": "encoder.layer.{}.attention.output.dense.",
    "layers.{}.mlp.fc1.": "encoder.layer.{}.intermediate.dense.",
    "layers.{}.mlp.fc2.": "encoder.layer.{}.output.dense.",
    "layers.{}.": "encoder.layer.{}.",
}
TRANSFORMERS_STEM = {
    "embeddings.cls_token": "cls_token",
    PATCHES: "patch_embed.proj.",
    "layernorm.": "norm.",
}
TRANSFORMERS_LAYER = {
    "layernorm_before.": "norm1.",
    "attention.output.dense.": "attn.proj.",
    "layernorm_after.": "norm2.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}
TRANSFORMERS_QKV = tuple(f"attention.attention.{x}." for x in ("query", "key", "value"))
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {"quick_gelu": "quick_gelu", "swish": "silu"}
ACTIVATIONS |= {name: name for name in ("relu", "silu", "leaky_relu", "mish", "tanh")}
IRRELEVANT = {
    "read with the class names": ("id2label", "label2id", "num_labels", "architectures"),
    "acts in training only; `create` has drop_path= and dropout=": (
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"),
        *("drop_path_rate", "initializer_range", "initializer_factor", "gradient_checkpointing"),
        *("problem_type", "finetuning_task", "task_specific_params"),
    ),
    "describes the file or the Python objects of transformers": (
        *("model_type", "_name_or_path", "name_or_path", "transformers_version", "_commit_hash"),
        *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "tf_legacy_loss", "auto_map"),
        *("return_dict", "use_return_dict", "output_attentions", "output_hidden_states"),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset"),
        *("_attn_implementation_internal", "_output_attentions", "experts_implementation"),
        *("chunk_size_feed_forward", "use_cache", "tokenizer_class", "custom_pipelines"),
    ),
    "is of a decoder, of masked image modelling or of a backbone": (
        *("encoder_stride", "pooler_output_size", "use_mask_token", "vocab_size"),
        *("out_features", "out_indices", "_out_features", "_out_indices", "stage_names"),
        *("apply_layernorm", "reshape_hidden_states"),
    ),
    "is of text generation": (
        *("add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "bos_token_id"),
        *("cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty"),
        *("do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id"),
        *("exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id"),
        *("is_decoder", "is_encoder_decoder", "length_penalty", "max_length", "min_length"),
        *("no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences"),
        *("output_scores", "pad_token_id", "prefix", "remove_invalid_values", "sep_token_id"),
        *("repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature"),
        *("tie_encoder_decoder", "tie_word_embeddings", "top_k", "top_p", "typical_p"),
    ),
}
COMMON = ConfigTable(
    fixed={"pruned_heads": ({}, None), "quantization_config": (None,)}, irrelevant=IRRELEVANT
).but(
    {  # what all of transformers' ViTs call their sizes
        "hidden_size": (whole("embed_dim"), 768),
        "num_hidden_layers": (whole("depth"), 12),
        "num_attention_heads": (whole("num_heads"), 12),
        "num_channels": (whole("in_chans"), 3),
        "image_size": (size("image_size"), 224),
        "patch_size": (size("patch_size"), 16),
        "hidden_act": (choice(ACTIVATIONS, "block.activation"), "gelu"),
        "layer_norm_eps": (number("norm_eps"), 1e-12),
    }
)
BIAS = {"qkv_bias": (flag("block.qkv_bias"), True)}
WITH_MLP = COMMON.but({"intermediate_size": (whole("mlp_dim"), 3072)})
WITH_BIAS = WITH_MLP.but(BIAS)
WITH_RATIO = COMMON.but({**BIAS, "mlp_ratio": (read_with, 4)})
WITH_GATE = WITH_RATIO.but(
    {"layerscale_value": (positive("layer_scale"), 1.0), "use_swiglu_ffn": (read_with, False)},
    defaults={"layer_norm_eps": 1e-6},
)


def sizes(embed_dim: int, depth: int, num_heads: int, mlp_dim: int = 0) -> dict[str, int]:
    """Return the sizes of a network by the names that transformers gives them."""
    found = {"hidden_size": embed_dim, "num_hidden_layers": depth, "num_attention_heads": num_heads}
    return found | ({"intermediate_size": mlp_dim} if mlp_dim else {})


DECODER = (
    *("mask_ratio", "norm_pix_loss", "decoder_num_attention_heads", "decoder_hidden_size"),
    *("decoder_num_hidden_layers", "decoder_intermediate_size"),
)
VIT = WITH_BIAS.but(fixed={"pooler_act": ("tanh",)})
FLAVA = WITH_BIAS.but(irrelevant={"is of masked image modelling": ("mask_token",)})


def _own_backbone(value: Any) -> Changes:
    """Refuse a DPT on another network; its own ViT interpolates positions bilinearly."""
    expected = "false or null (of a DPT, vitzoo reads its own ViT; use transformers for another)"
    expect(value in (None, False), expected)
    return {"pos_embed": {"resample": "bilinear"}}


DPT = VIT.but(
    {
        "image_size": (size("image_size", square="square"), 384),  # as its positions are
        "is_hybrid": (_own_backbone, False),
    },
    applied=dict.fromkeys(("backbone", "backbone_config"), _own_backbone),
    irrelevant={
        "is of neck and head": (
            *("backbone_out_indices", "readout_type", "reassemble_factors", "neck_hidden_sizes"),
            *("fusion_hidden_size", "head_in_index", "use_batch_norm_in_fusion_residual"),
            *("use_bias_in_fusion_residual", "add_projection", "use_auxiliary_head"),
            *("auxiliary_loss_weight", "semantic_loss_ignore_index", "backbone_featmap_shape"),
            *("semantic_classifier_dropout", "neck_ignore_stages"),
            *("use_pretrained_backbone", "use_timm_backbone", "backbone_kwargs"),
        )
    },
)
TYPES = {  # by `model_type`
    "vit": VIT,
    "vit_mae": WITH_BIAS.but(irrelevant={"is of the decoder": DECODER}),
    "vit_msn": WITH_BIAS.but(defaults={"layer_norm_eps": 1e-6}),
    "ijepa": WITH_BIAS.but(
        irrelevant={"is of a pooler, which a file does not have": ("pooler_act",)},
        network={"class_token": False, "pool": "mean"},
    ),
    "flava": FLAVA,
    "flava_image_model": FLAVA,
    "dpt": DPT,
}
POOLED = (  # classes with a tanh layer after the class token
    *("ViTModel", "DeiTModel", "DPTModel"),
    *("FlavaImageModel", "FlavaModel", "FlavaForPreTraining"),
)
POOLER = "pooler.dense.weight"
CLASSIFIER = "ForImageClassification"  # in the name of a class
SHOWN = {  # a class by a tensor that only its files have
    "distillation_classifier.weight": f"DeiT{CLASSIFIER}WithTeacher",
    "classifier.weight": f"ViT{CLASSIFIER}",
    POOLER: POOLED[0],
}


@dataclass(frozen=True, eq=False)
class TransformersFormat(Format):
    """A format of transformers, in names that `save_pretrained` of releases 4 and 5 writes.

    Args:
        towers: keys of the config of a larger model; the first in it has the table of the network.
        larger: model types of larger models, in whose config the table may lack.
        shared: keys of the config of a larger model that concern the network.
        gated: kind of the MLP of a config in which `use_swiglu_ffn` is true.
    """

    configs: Mapping[str, ConfigTable] = field(default_factory=lambda: {"vit": VIT})
    towers: Sequence[str] = ()
    larger: Collection[str] = ()
    shared: Sequence[str] = ()
    gated: str = "swiglu_packed"

    def own_config(self, config: Config) -> Config:
        """Return the config of the network, alone or in that of a larger model."""
        key = next((key for key in self.towers if config.get(key) is not None), "")
        if key or config.get("model_type") in self.larger:
            tower, shared = config.get(key, {}), ("model_type", *self.shared)
            check_config(isinstance(tower, Mapping), key, "a table", tower)
            tower = {k: value for k, value in tower.items() if k not in shared}
            config = tower | {k: config[k] for k in shared if k in config}
        return super().own_config(config)

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; width and kind of the MLP may depend on `mlp_ratio`."""
        found, table = super().stated(config), self.config_table(config)
        if table is None or "mlp_ratio" not in table.applied:
            return found
        known = {k: v for k, v in self.own_config(config).items() if k in table.applied}
        return merged(found, _mlp(known, found.get("embed_dim", 0), self.gated))

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        heads = self.own_config(config).get("num_attention_heads")
        return heads if type(heads) is int and heads > 0 else None

    def spec_in(self, config: Config) -> dict[str, Any]:
        """Return the network of a config, with the head of the class that wrote it."""
        return merged(super().spec_in(config), self.head(config))

    def head(self, config: Config) -> dict[str, Any]:
        """Return head and number of classes of the class that wrote a config."""
        if is_classifier(config):
            return {"num_classes": classes_of(config)}
        names = architectures(config)
        pooled = any(n in POOLED or (n == TOWER and self.keymap.knows(POOLER)) for n in names)
        return {"num_classes": 0} | ({"head": "tanh"} if pooled else {})


def _mlp(config: Config, embed_dim: int, gated: str) -> Changes:
    """Return the MLP that `mlp_ratio` and `use_swiglu_ffn` state."""
    ratio, packed = config.get("mlp_ratio", 4), config.get("use_swiglu_ffn", False)
    good = type(ratio) in (int, float) and 0 < ratio < 100
    check_config(good, "mlp_ratio", "a positive number", ratio)
    check_config(type(packed) is bool, "use_swiglu_ffn", "true or false", packed)
    width = int(embed_dim * ratio)
    width = (int(width * 2 / 3) + 7) // 8 * 8 if packed else width
    block = {"block": {"mlp": gated if packed else "mlp"}} if "use_swiglu_ffn" in config else {}
    return ({"mlp_dim": width} if width else {}) | block


def architectures(config: Config) -> list[str]:
    """Return the names of classes that a config of transformers states."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def is_classifier(config: Config) -> bool:
    """Return whether a class for image classification wrote a config."""
    return any(CLASSIFIER in name for name in architectures(config))


def with_class(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Config:
    """Return a config with the class that wrote it, which the tensors of its file show.

    The config of another library, and one that names its class, are returned as they are.

    Args:
        config: the `config.json` beside the file.
        shapes: of the tensors, by the keys of the format without prefix.
    """
    if architectures(config) or not isinstance(config.get("model_type"), str):
        return config
    shown = next((name for key, name in SHOWN.items() if key in shapes), "")
    if not shown or "architecture" in config:
        return config
    found = {**config, "architectures": [shown]}
    for key in SHOWN:
        if key in shapes and CLASSIFIER in shown and shapes[key]:
            found["num_labels"] = shapes[key][0]
            table = found.get("id2label")
            if isinstance(table, Mapping) and len(table) != shapes[key][0]:
                del found["id2label"]
    return found


def classes_of(config: Config) -> int:
    """Return the number of classes of a config; transformers has two unless it states another."""
    table, count = config.get("id2label"), config.get("num_labels", 2)
    return count_of("num_labels", len(table) if isinstance(table, Mapping) else count)


def _on_pooler(tensors: Tensors) -> bool:
    """Return whether a file has a classifier beside a pooler, which no class of the library has."""
    plain = {VIT_KEYS.plain(key) for key in tensors}
    return {POOLER, "classifier.weight"} <= plain


VIT_KEYS = KeyMap(
    {
        **TRANSFORMERS_STEM,
        "embeddings.position_embeddings": "pos_embed",
        "pooler.dense.": "head.pre_logits.",
        "classifier.": "head.",
    },
    {**TRANSFORMERS_LAYER, TRANSFORMERS_QKV: "attn.qkv."},
    "encoder.layer.{}.",
    aliases=RELEASE_5,
    prefixes=("vit.", "ijepa.", "dpt.", "flava.image_model.", "image_model.", "flava."),
    bare=("classifier.",),
)
transformers_vit = TransformersFormat(
    "transformers_vit",
    keymap=VIT_KEYS,
    keymaps={_on_pooler: replace(VIT_KEYS, stem={**VIT_KEYS.stem, "classifier.": "head.fc."})},
    pooled=True,
    linear_head="classifier.",
    marks=(f"{PATCHES}weight", "encoder.layer.0.attention.attention.query.weight"),
    excludes=(
        "*relative_position_bias_table",  # of a BEiT
        "embeddings.distillation_token",  # of a DeiT, which has another head
        "encoder.layer.0.norm1.weight",  # of a DINOv2 or a Pixio
        "encoder.layer.0.mlp.fc1.weight",  # of a ViTPose
    ),
    beside=("text_model.", "multimodal_model.", "image_codebook."),  # of a FLAVA
    ignored=(
        *("decoder.mask_token", "decoder.decoder_*"),  # of `ViTMAEForPreTraining`
        *("embeddings.mask_token", "decoder.0.*"),  # of `ViTForMaskedImageModeling`
        *("neck.*", "head.head.*", "head.projection.*", "auxiliary_head.*"),  # of a DPT
        *("text_model.*", "multimodal_model.*", "logit_scale", "image_codebook.*"),  # of a FLAVA
        *("image_projection.*", "text_projection.*", "*_to_mm_projection.*"),
        *("mim_head.*", "mlm_head.*", "mmm_*_head.*", "itm_head.*"),
    ),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-12},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={"block.qkv_bias": (True, False)},
    configs=TYPES,
    towers=("image_config_dict", "image_config"),
    larger=("flava",),
)
