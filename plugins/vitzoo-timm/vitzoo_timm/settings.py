"""Reads the modules of a timm block into settings of a vitzoo spec."""

from __future__ import annotations

from typing import Any

from timm.layers.activations import GELU, GELUTanh, QuickGELU
from timm.layers.attention import Attention, AttentionRope
from timm.layers.drop import DropPath
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import GluMlp, Mlp, SwiGLU
from timm.layers.norm import LayerNorm, LayerNormFp32, RmsNorm, RmsNormFp32
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.vision_transformer_relpos import RelPosAttention
from torch import nn

from vitzoo_timm.look import Look, NotNative, present, shown

NORMS = {nn.LayerNorm: "layer", LayerNorm: "layer", LayerNormFp32: "layer"}
NORMS |= {RmsNorm: "rms", RmsNormFp32: "rms"}
ATTENTIONS = (Attention, AttentionRope, EvaAttention, BeitAttention, RelPosAttention)


class Settings:
    """Settings of the blocks. All blocks must have the same, because vitzoo's blocks are alike."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._first: dict[str, str] = {}

    def note(self, where: str, **settings: Any) -> None:
        """Add the settings of a module; raise NotNative if another module has other values."""
        for key, value in settings.items():
            if self.values.setdefault(key, value) != value:
                raise NotNative(
                    f"all blocks of a vitzoo network are alike: {where} has {key} = {value}, "
                    f"{self._first[key]} has {self.values[key]}"
                )
            self._first.setdefault(key, where)


def read_norm(settings: Settings, norm: nn.Module, where: str, width: int) -> None:
    """Read kind and epsilon of a norm over `width` channels; all norms have the same."""
    kind, eps = norm_of(norm, where, width)
    settings.note(where, norm=kind, norm_eps=eps)


def norm_of(norm: nn.Module, where: str, width: int) -> tuple[str, float]:
    """Return kind and epsilon of a norm over `width` channels."""
    look = Look(norm, where, *NORMS)
    look.expect("normalized_shape", (width,))
    look.expect("elementwise_affine", True)
    kind = NORMS[type(norm)]
    if look.take("weight") is None or (kind == "layer" and look.take("bias") is None):
        raise NotNative(f"vitzoo has no part for {where}, a norm without gain or bias")
    eps: float = look.take("eps")
    look.ignore("_fast_norm")
    look.done()
    return kind, eps


def read_linear(layer: nn.Module, where: str, shape: tuple[int, int], *biases: bool) -> bool:
    """Check the (in, out) widths of a linear layer and return whether it has a bias.

    Args:
        layer: of the model.
        where: name of the layer.
        shape: expected widths.
        biases: accepted results.
    """
    look = Look(layer, where, nn.Linear)
    found = (look.take("in_features"), look.take("out_features"))
    look.take("weight")
    bias = look.take("bias") is not None
    look.done()
    if found != shape:
        raise NotNative(f"{where} maps {found[0]} to {found[1]} channels, not {shape}")
    if bias not in biases:
        raise NotNative(f"vitzoo has no part for {where} {'with' if bias else 'without'} a bias")
    return bias


def read_dropout(layer: nn.Module, where: str) -> float:
    """Return the rate of a dropout."""
    if type(layer) is nn.Identity:
        return 0.0
    look = Look(layer, where, nn.Dropout)
    look.ignore("inplace")
    rate: float = look.take("p")
    look.done()
    return rate


def read_drop_path(layer: nn.Module, where: str) -> float:
    """Return the rate at which a branch is dropped."""
    if type(layer) is nn.Identity:
        return 0.0
    look = Look(layer, where, DropPath)
    look.expect("scale_by_keep", True)
    rate: float = look.take("drop_prob")
    look.done()
    return rate


def read_activation(layer: nn.Module, where: str) -> str:
    """Return the name of an activation in vitzoo."""
    if type(layer) in (QuickGELU, GELU, GELUTanh):
        look = Look(layer, where, QuickGELU, GELU, GELUTanh)
        look.ignore("inplace")
        look.done()
        return {QuickGELU: "quick_gelu", GELU: "gelu", GELUTanh: "gelu_tanh"}[type(layer)]
    look = Look(layer, where, nn.GELU)
    kind: str = look.expect("approximate", "none", "tanh")
    look.done()
    return {"none": "gelu", "tanh": "gelu_tanh"}[kind]


def read_layer_scale(settings: Settings, layer: nn.Module, where: str, width: int) -> None:
    """Read whether a branch has LayerScale, and its initial value."""
    if type(layer) is nn.Identity:
        settings.note(where, layer_scale=None)
        return
    look = Look(layer, where, LayerScale)
    look.ignore("inplace")
    _note_scale(settings, where, look.take("gamma"), look.take("init_values"), width)
    look.done()


def read_gamma(settings: Settings, block: Look, name: str, width: int) -> None:
    """Read a LayerScale that is a parameter of the block, as in EVA and BEiT."""
    initial = block.take("init_values")
    _note_scale(settings, f"{block.where}.{name}", block.take(name), initial, width)


def _note_scale(
    settings: Settings, where: str, gamma: Any, initial: float | None, width: int
) -> None:
    if gamma is not None and tuple(gamma.shape) != (width,):
        raise NotNative(f"vitzoo has no part for {where} of shape {tuple(gamma.shape)}")
    # The initial value has no effect on loaded weights, so 1e-5 stands for an unknown one.
    settings.note(where, layer_scale=None if gamma is None else initial or 1e-5)


def read_mlp(settings: Settings, mlp: nn.Module, where: str, width: int) -> None:
    """Read kind, width, activation and norm of an MLP."""
    look = Look(mlp, where, Mlp, GluMlp, SwiGLU)
    act, fc2 = look.take("act"), look.take("fc2")
    hidden = fc2.in_features
    bias = read_linear(fc2, f"{where}.fc2", (hidden, width), True, False)
    settings.note(where, mlp_bias=bias)
    if isinstance(mlp, Mlp):
        read_linear(look.take("fc1"), f"{where}.fc1", (width, hidden), bias)
        settings.note(where, mlp="mlp", activation=read_activation(act, f"{where}.act"))
    else:
        if type(act) is not nn.SiLU:
            raise NotNative(f"vitzoo has no part for {where}.act: {shown(act)}")
        _read_gate(settings, look, width, hidden, bias)
    for drop in ("drop1", "drop2"):
        settings.note(f"{where}.{drop}", dropout=read_dropout(look.take(drop), f"{where}.{drop}"))
    norm = look.take("norm")
    settings.note(where, mlp_dim=hidden, mlp_norm=present(norm))
    if present(norm):
        read_norm(settings, norm, f"{where}.norm", hidden)
    look.done()


def _read_gate(settings: Settings, look: Look, width: int, hidden: int, bias: bool) -> None:
    if isinstance(look.module, SwiGLU):
        for name in ("fc1_g", "fc1_x"):
            read_linear(look.take(name), f"{look.where}.{name}", (width, hidden), bias)
        settings.note(look.where, mlp="swiglu")
    else:
        look.expect("gate_last", False)
        look.expect("chunk_dim", -1)
        read_linear(look.take("fc1"), f"{look.where}.fc1", (width, 2 * hidden), bias)
        settings.note(look.where, mlp="swiglu_packed")


def read_attention(
    settings: Settings, attn: nn.Module, where: str, width: int, prefix: int
) -> Look:
    """Read heads, biases, scale and norms of an attention.

    Returns:
        the `Look`, for attributes that only some classes have.
    """
    look = Look(attn, where, *ATTENTIONS)
    heads = look.take("num_heads")
    head_dim = width // heads
    settings.note(where, num_heads=heads, qkv_bias=_qkv_bias(look, width))
    look.close("scale", head_dim**-0.5)
    _expect_where_there(look, head_dim=head_dim, attn_dim=width, kv_dim=width)
    _expect_where_there(look, num_kv_heads=heads, num_kv_groups=1, num_prefix_tokens=prefix)
    if getattr(attn, "gate", None) is not None:
        raise NotNative(f"vitzoo has no part for {where}.gate: {shown(attn.gate)}")
    look.ignore("fused_attn", "gate", "qkv_bias_separate")
    norms = {name: getattr(attn, name, None) for name in ("q_norm", "k_norm", "norm")}
    look.ignore(*norms)
    settings.note(where, qk_norm=present(norms["q_norm"]), attn_norm=present(norms["norm"]))
    if present(norms["q_norm"]) != present(norms["k_norm"]):
        raise NotNative(f"vitzoo has no part for {where}, which norms queries or keys alone")
    for name, norm in norms.items():
        if norm is not None and present(norm):
            read_norm(settings, norm, f"{where}.{name}", width if name == "norm" else head_dim)
    bias = read_linear(look.take("proj"), f"{where}.proj", (width, width), True, False)
    settings.note(where, proj_bias=bias)
    rate = read_dropout(look.take("attn_drop"), f"{where}.attn_drop")
    settings.note(where, attention_dropout=rate)
    settings.note(where, dropout=read_dropout(look.take("proj_drop"), f"{where}.proj_drop"))
    return look


def _expect_where_there(look: Look, **numbers: int) -> None:
    for name, number in numbers.items():
        if hasattr(look.module, name):
            look.expect(name, number)


def _qkv_bias(look: Look, width: int) -> bool | str:
    """Return which of query, key and value have biases: all, none, or `qv`."""
    where, qkv = look.where, look.take("qkv")
    parts: list[Any] = [getattr(look.module, f"{x}_proj", None) for x in "qkv"]
    vectors = [getattr(look.module, f"{x}_bias", None) is not None for x in "qv"]
    look.ignore(*(f"{x}_proj" for x in "qkv"), *(f"{x}_bias" for x in "qkv"))
    if qkv is not None:
        bias = read_linear(qkv, f"{where}.qkv", (width, 3 * width), True, False)
        if bias and any(vectors):
            raise NotNative(f"vitzoo has no part for {where}, which has biases twice")
        return bias or _which((vectors[0], False, vectors[1]), where)
    shape = (width, width)
    found = tuple(
        read_linear(part, f"{where}.{x}_proj", shape, True, False)
        for x, part in zip("qkv", parts, strict=True)
    )
    return _which(found, where)


def _which(found: tuple[bool, ...], where: str) -> bool | str:
    known: dict[tuple[bool, ...], bool | str] = {
        (True,) * 3: True,
        (False,) * 3: False,
        (True, False, True): "qv",
    }
    if found not in known:
        raise NotNative(f"vitzoo has no part for {where} with biases (q, k, v) = {found}")
    return known[found]
