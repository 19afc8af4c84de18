"""The parts of a Vision Transformer, and the protocols of replaceable parts.

Each part is an `nn.Module` in a short file, with no base class of vitzoo.
"""

from __future__ import annotations

from vitzoo.parts.attention import Attention as Attention
from vitzoo.parts.block import (
    Block as Block,
    LayerScale as LayerScale,
    Merged as Merged,
    MergingBlock as MergingBlock,
    ParallelBlock as ParallelBlock,
    TokenMerging as TokenMerging,
)
from vitzoo.parts.decomposed import DecomposedPositions as DecomposedPositions
from vitzoo.parts.drop_path import (
    MaskDropPath as MaskDropPath,
    SubsetDropPath as SubsetDropPath,
    constant_rates as constant_rates,
    linear_rates as linear_rates,
    zero_rates as zero_rates,
)
from vitzoo.parts.heads import (
    CosineHead as CosineHead,
    LinearHead as LinearHead,
    NoHead as NoHead,
    PreLogitsHead as PreLogitsHead,
    linear_head as linear_head,
    mlp_head as mlp_head,
    tanh_head as tanh_head,
)
from vitzoo.parts.init import lecun_normal_ as lecun_normal_
from vitzoo.parts.mlp import (
    Mlp as Mlp,
    PackedSwiGLU as PackedSwiGLU,
    QuickGELU as QuickGELU,
    SwiGLU as SwiGLU,
)
from vitzoo.parts.patch_embed import (
    ConvPatchEmbed as ConvPatchEmbed,
    UnfoldPatchEmbed as UnfoldPatchEmbed,
    tiled as tiled,
)
from vitzoo.parts.pools import (
    AttentionPool as AttentionPool,
    ClassMeanPool as ClassMeanPool,
    ClassPool as ClassPool,
    MeanPool as MeanPool,
    PrefixPool as PrefixPool,
    check_class_token as check_class_token,
)
from vitzoo.parts.pos_embed import (
    Learned2dPositions as Learned2dPositions,
    LearnedPositions as LearnedPositions,
    NoPositions as NoPositions,
    SinCos1dPositions as SinCos1dPositions,
    SinCos2dPositions as SinCos2dPositions,
)
from vitzoo.parts.protocols import (
    DropPath as DropPath,
    DropPathPolicy as DropPathPolicy,
    Head as Head,
    Network as Network,
    PatchEmbedder as PatchEmbedder,
    Pool as Pool,
    PositionEmbedding as PositionEmbedding,
    WeightsAdapter as WeightsAdapter,
)
from vitzoo.parts.resample import (
    resample_grid as resample_grid,
    same_grid as same_grid,
    unless_same as unless_same,
)
from vitzoo.parts.rope import (
    MixedRotaryPositions as MixedRotaryPositions,
    RotaryPositions as RotaryPositions,
)
