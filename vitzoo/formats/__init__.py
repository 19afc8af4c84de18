"""Checkpoint formats: how libraries name the tensors of their Vision Transformers.

`docs/formats.md` lists the formats, `docs/hooks/checkpoint_formats.md` shows how to write one, and
`docs/format-arguments.md` has the arguments that few formats need.
"""

from __future__ import annotations

from vitzoo.formats.base import Format as Format, Keys as Keys
from vitzoo.formats.config import (
    Config as Config,
    ConfigTable as ConfigTable,
    check_config as check_config,
    choice as choice,
    count_of as count_of,
    expect as expect,
    flag as flag,
    merged as merged,
    number as number,
    positive as positive,
    read_with as read_with,
    size as size,
    whole as whole,
)
from vitzoo.formats.keymap import (
    KeyMap as KeyMap,
    Names as Names,
    Tensors as Tensors,
    prefixed as prefixed,
    same as same,
    unheld as unheld,
    unique as unique,
    without as without,
)
from vitzoo.formats.sharded import ShardedFolder as ShardedFolder
from vitzoo.formats.timm import timm_vit as timm_vit
from vitzoo.formats.transformers import (
    BIAS as BIAS,
    COMMON as COMMON,
    RELEASE_5 as RELEASE_5,
    TRANSFORMERS_LAYER as TRANSFORMERS_LAYER,
    TRANSFORMERS_QKV as TRANSFORMERS_QKV,
    TRANSFORMERS_STEM as TRANSFORMERS_STEM,
    VIT as VIT,
    WITH_BIAS as WITH_BIAS,
    WITH_GATE as WITH_GATE,
    WITH_MLP as WITH_MLP,
    WITH_RATIO as WITH_RATIO,
    TransformersFormat as TransformersFormat,
    architectures as architectures,
    classes_of as classes_of,
    is_classifier as is_classifier,
    sizes as sizes,
    transformers_vit as transformers_vit,
)
from vitzoo.formats.unsupported import (
    attention_like_blocks as attention_like_blocks,
    free as free,
)
