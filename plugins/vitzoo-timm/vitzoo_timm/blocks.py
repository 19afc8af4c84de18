"""Reads the encoder blocks of timm into settings of a vitzoo spec."""

from __future__ import annotations

from collections.abc import Callable

from timm.layers.attention import AttentionRope
from timm.models import beit, eva, vision_transformer as vit, vision_transformer_relpos as relpos
from torch import nn

from vitzoo_timm.look import Look, NotNative, present
from vitzoo_timm.settings import (
    Settings,
    read_activation,
    read_attention,
    read_drop_path,
    read_dropout,
    read_gamma,
    read_layer_scale,
    read_linear,
    read_mlp,
    read_norm,
)


def read_block(settings: Settings, block: nn.Module, where: str, width: int, prefix: int) -> float:
    """Read a block of the encoder into the settings, and return its drop-path rate.

    Args:
        settings: of all blocks.
        block: of timm.
        where: name of the block.
        width: of the tokens.
        prefix: number of tokens before the patches.

    Raises:
        NotNative: vitzoo has no part for a module of the block.
    """
    look = Look(block, where, *READERS)
    rate = READERS[type(block)](settings, look, width, prefix)
    look.done()
    return rate


def _read_plain(settings: Settings, look: Look, width: int, prefix: int) -> float:
    _read_branches(settings, look, width, prefix)
    for name in ("ls1", "ls2"):
        read_layer_scale(settings, look.take(name), f"{look.where}.{name}", width)
    settings.note(look.where, parallel=False, post_norm=False)
    return _drop_path(look)


def _read_gammas(settings: Settings, look: Look, width: int, prefix: int) -> float:
    _read_branches(settings, look, width, prefix)
    for name in ("gamma_1", "gamma_2"):
        read_gamma(settings, look, name, width)
    settings.note(look.where, parallel=False, post_norm=False)
    return _drop_path(look)


def _read_post_norm(settings: Settings, look: Look, width: int, prefix: int) -> float:
    _read_branches(settings, look, width, prefix)
    look.ignore("init_values")  # of the norms' gains
    settings.note(look.where, parallel=False, post_norm=True, layer_scale=None)
    return _drop_path(look)


def _read_branches(settings: Settings, look: Look, width: int, prefix: int) -> None:
    where = look.where
    for name in ("norm1", "norm2"):
        read_norm(settings, look.take(name), f"{where}.{name}", width)
    attn = read_attention(settings, look.take("attn"), f"{where}.attn", width, prefix)
    _read_positions(settings, attn)
    attn.done()
    read_mlp(settings, look.take("mlp"), f"{where}.mlp", width)


def _read_positions(settings: Settings, attn: Look) -> None:
    """Read how an attention uses positions."""
    if isinstance(attn.module, (eva.EvaAttention, AttentionRope)):
        settings.note(attn.where, rotate_half=attn.take("rotate_half"))
    if isinstance(attn.module, beit.Attention):
        table = attn.take("relative_position_bias_table")
        settings.note(attn.where, window=None if table is None else attn.take("window_size"))
        attn.ignore("window_size", "num_relative_distance", "relative_position_index")
    if isinstance(attn.module, relpos.RelPosAttention):
        attn.absent("rel_pos")


def _drop_path(look: Look) -> float:
    rates = {
        read_drop_path(look.take(n), f"{look.where}.{n}") for n in ("drop_path1", "drop_path2")
    }
    if len(rates) > 1:
        raise NotNative(f"{look.where} drops its branches at different rates: {sorted(rates)}")
    return rates.pop()


def _read_parallel(settings: Settings, look: Look, width: int, prefix: int) -> float:
    where, heads = look.where, look.take("num_heads")
    del prefix  # no positions act inside
    look.expect("head_dim", width // heads)
    look.close("scale", (width // heads) ** -0.5)
    look.absent("out_proj")
    hidden = look.take("mlp_out_proj").in_features
    look.expect("in_split", [hidden, width, width, width])
    bias = read_linear(
        look.take("in_proj"), f"{where}.in_proj", (width, hidden + 3 * width), True, False
    )
    if (look.take("mlp_bias") is None) != bias:
        raise NotNative(f"vitzoo has no part for {where}, whose MLP has two biases or none")
    read_linear(look.take("attn_out_proj"), f"{where}.attn_out_proj", (width, width), True)
    read_linear(look.take("mlp_out_proj"), f"{where}.mlp_out_proj", (hidden, width), True)
    activation = read_activation(look.take("mlp_act"), f"{where}.mlp_act")
    read_norm(settings, look.take("in_norm"), f"{where}.in_norm", width)
    norms = [look.take("q_norm"), look.take("k_norm")]
    if present(norms[0]) != present(norms[1]):
        raise NotNative(f"vitzoo has no part for {where}, which norms queries or keys alone")
    for norm in filter(present, norms):
        read_norm(settings, norm, f"{where}.q_norm", width // heads)
    read_layer_scale(settings, look.take("ls"), f"{where}.ls", width)
    settings.note(where, num_heads=heads, mlp_dim=hidden, qkv_bias=bias, qk_norm=present(norms[0]))
    settings.note(where, mlp="mlp", activation=activation, mlp_norm=False, attn_norm=False)
    settings.note(where, proj_bias=True, mlp_bias=True)
    settings.note(where, parallel=True, post_norm=False, dropout=0.0)
    rate = read_dropout(look.take("attn_drop"), f"{where}.attn_drop")
    settings.note(where, attention_dropout=rate)
    if read_dropout(look.take("mlp_drop"), f"{where}.mlp_drop"):
        raise NotNative(f"{where} drops inside the MLP alone; vitzoo drops after each layer")
    look.ignore("fused_attn")
    return read_drop_path(look.take("drop_path"), f"{where}.drop_path")


READERS: dict[type, Callable[[Settings, Look, int, int], float]] = {
    vit.Block: _read_plain,
    relpos.RelPosBlock: _read_plain,
    eva.EvaBlock: _read_gammas,
    beit.Block: _read_gammas,
    vit.ResPostBlock: _read_post_norm,
    relpos.ResPostRelPosBlock: _read_post_norm,
    eva.EvaBlockPostNorm: _read_post_norm,
    vit.ParallelScalingBlock: _read_parallel,
}
