"""Converts a timm model to a vitzoo network with the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.layers.attention_pool import AttentionPoolLatent
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import nn

import vitzoo
from vitzoo import LoadReport, Preprocessing
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo_timm.blocks import read_block
from vitzoo_timm.keys import tensors_of
from vitzoo_timm.look import Look, NotNative, present
from vitzoo_timm.settings import Settings, read_activation, read_dropout, read_linear, read_norm
from vitzoo_timm.stem import read_patch_embed, read_rope, read_table

USUAL = {
    "norm": "layer",
    "qkv_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "attention_dropout": 0.0,
    "qk_norm": False,
    "attn_norm": False,
    "layer_scale": None,
    "mlp": "mlp",
    "mlp_norm": False,
    "parallel": False,
    "post_norm": False,
}
NO_EFFECT = (
    *("num_features", "head_hidden_size", "grad_checkpointing", "feature_info", "default_cfg"),
    *("pretrained_cfg", "pretrained_model_args", "_traits", "_model_args", "weight_init_mode"),
    *("fix_init", "head_init_scale", "dynamic_img_size", "cls_embed", "num_reg_tokens"),
    *("has_class_token", "distilled_training", "_fused"),
)


def spec_of(model: nn.Module) -> dict[str, Any]:
    """Return the spec of the vitzoo network with the outputs of a timm model.

    The function reads every attribute of every module and refuses unknown attributes. It ignores
    augmentations of rotary coordinates in training.

    Args:
        model: a `VisionTransformer`, `VisionTransformerDistilled`, `Eva`, `Beit` or
            `VisionTransformerRelPos` of timm, with or without data.

    Returns:
        plain data that `vitzoo.create` accepts.

    Raises:
        NotNative: vitzoo has no part for a feature of the model.

    >>> import timm
    >>> spec_of(timm.create_model("vit_tiny_patch16_224"))["embed_dim"]
    192
    """
    look, settings = Look(model, "the model", *KINDS), Settings()
    width, prefix = look.take("embed_dim"), look.take("num_prefix_tokens")
    spec: dict[str, Any] = {"num_classes": look.take("num_classes"), "embed_dim": width}
    spec |= read_patch_embed(look.take("patch_embed"), width, look.take("in_chans"))
    spec |= _read_tokens(look, prefix)
    rates = [
        read_block(settings, block, f"blocks.{i}", width, prefix)
        for i, block in enumerate(look.take("blocks"))
    ]
    spec |= {"depth": len(rates), "drop_path": _drop_path(rates)}
    grid = tuple(model.patch_embed.grid_size)  # type: ignore[union-attr,arg-type]  # a PatchEmbed
    spec |= {"pos_embed": _read_positions(look, settings, prefix, grid)}
    spec |= _read_norms(look, settings, width)
    spec |= KINDS[type(model)](look)
    _read_dropouts(look, settings)
    look.ignore(*NO_EFFECT)
    look.done()
    return spec | _of_blocks(settings)


IMAGES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")  # fields of both libraries


def carry_over(model: nn.Module) -> nn.Module:
    """Convert a timm model to a vitzoo network that shares its tensors.

    The returned network is in the mode of the timm model, training or evaluation. Its
    `preprocessing` comes from the `pretrained_cfg` of the model; it is None if vitzoo does not
    support that preprocessing.
    Class names are not converted: set `labels` before you save the network.

    Raises:
        NotNative: vitzoo has no part for a feature of the model.
        CheckpointError: the tensors do not fit the network, for instance after pruning.
    """
    spec = spec_of(model)
    tensors = {name: t.detach() for name, t in tensors_of(model).items()}
    place = next(iter(tensors.values()))
    with torch.device("meta"):  # not `device=`, which would take the computed buffers there too
        ours = vitzoo.create(spec)
    expected = {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        names = sorted(n for n in {**found, **expected} if found.get(n) != expected.get(n))
        raise CheckpointError(
            f"{type(model).__name__} and the vitzoo network for it have different tensors: "
            f"{', '.join(names[:5])}"
        )
    ours.load_state_dict(tensors, strict=True, assign=True)
    ours.to(device=place.device)
    noted: Any = ours
    noted.positions.to(dtype=place.dtype)
    noted.load_report = LoadReport(f"timm {_name(model)}, converted", kept=tuple(expected))
    noted.preprocessing = _preprocessing(model, noted.spec.in_chans)
    return ours.train(model.training)


def _name(model: nn.Module) -> str:
    """Return the name of a model in timm, or its class if it was not created by name."""
    return str(_config(model).get("architecture") or type(model).__name__)


def _preprocessing(model: nn.Module, channels: int) -> Preprocessing | None:
    """Return the preprocessing in the config of a model, None if there is none for its channels."""
    config = _config(model)
    values: dict[str, Any] = {name: config.get(name) for name in IMAGES}
    values["crop_mode"] = values["crop_mode"] or "center"  # as timm reads a missing one
    try:
        found = Preprocessing(**values)
    except InvalidOption:
        return None
    return found if len(found.mean) == channels else None


def _config(model: nn.Module) -> dict[str, Any]:
    config = getattr(model, "pretrained_cfg", None)
    return config if isinstance(config, dict) else {}


def _read_tokens(look: Look, prefix: int) -> dict[str, Any]:
    tokens = {name: getattr(look.module, f"{name}_token", None) for name in ("cls", "reg", "dist")}
    look.ignore(*(f"{name}_token" for name in tokens))
    count = {name: 0 if token is None else token.shape[1] for name, token in tokens.items()}
    if sum(count.values()) != prefix or count["cls"] > 1 or (count["reg"] and count["dist"]):
        raise NotNative(f"vitzoo has no part for prefix tokens {count}, counted as {prefix}")
    return {"class_token": bool(count["cls"]), "num_registers": count["reg"] + count["dist"]}


def _drop_path(rates: list[float]) -> Any:
    """Return the policy with these rates."""
    if not any(rates):
        return "none"
    last = rates[-1]
    linear = [last * i / max(len(rates) - 1, 1) for i in range(len(rates))]
    for name, wanted in (("linear", linear), ("constant", [last] * len(rates))):
        if all(abs(rate - value) < 1e-6 for rate, value in zip(rates, wanted, strict=True)):
            return {"name": name, "rate": round(last, 6)}
    raise NotNative(f"vitzoo has no part for drop-path rates {rates}")


def _read_positions(look: Look, settings: Settings, prefix: int, grid: tuple[int, int]) -> Any:
    """Return the part for all that tells the tokens where they are."""
    without = bool(getattr(look.module, "no_embed_class", False))
    table = getattr(look.module, "pos_embed", None)
    look.ignore("no_embed_class", "pos_embed", "rope_mixed")
    patches = grid[0] * grid[1]
    part = read_table(table, patches=patches, prefix=prefix, without_prefix=without)
    half, window = settings.values.pop("rotate_half", False), settings.values.pop("window", None)
    rope = getattr(look.module, "rope", None)
    look.ignore("rope")
    if window is not None:
        if part != "none" or tuple(window) != grid:
            raise NotNative(f"vitzoo has no part for relative positions over {window}, and {part}")
        return "mim/relative"
    if rope is None:
        return part
    width: int = look.module.embed_dim  # type: ignore[assignment]  # a number
    turning = read_rope(rope, half, grid, width // settings.values["num_heads"])
    if part == "none":
        return turning
    if turning["name"] == "rope_mixed" and prefix and not without:
        raise NotNative("vitzoo has no part for mixed rope beside a table of prefix tokens too")
    if turning["name"] == "rope" and part != "learned":
        turning |= {"prefix": False}
    return turning | {"absolute": True}


def _read_norms(look: Look, settings: Settings, width: int) -> dict[str, Any]:
    """Return the norms before and after the blocks."""
    norms = {name: getattr(look.module, name, None) for name in ("norm_pre", "norm", "fc_norm")}
    look.ignore(*norms)
    for name, norm in norms.items():
        if norm is not None and present(norm):
            read_norm(settings, norm, name, width)
    if present(norms["norm"]) and present(norms["fc_norm"]):
        raise NotNative("vitzoo has no part for a norm before and another after pooling")
    final = present(norms["norm"]) or present(norms["fc_norm"])
    pre = {"pre_norm": True} if present(norms["norm_pre"]) else {}
    return pre | ({} if final else {"final_norm": False})


def _read_pool(look: Look) -> dict[str, Any]:
    """Return pool and head of a network whose classifier reads one vector."""
    latent = getattr(look.module, "attn_pool", None)
    include = bool(getattr(look.module, "pool_include_prefix", False))
    look.ignore("attn_pool", "pool_include_prefix")
    kind = look.expect("global_pool", "token", "avg", "map")
    after = present(look.module.fc_norm)  # type: ignore[arg-type]  # a module
    if (latent is not None) != (kind == "map"):
        raise NotNative(f"vitzoo has no part for pool {kind!r} with attn_pool = {latent}")
    if after and kind != "avg":
        raise NotNative(f"vitzoo has no part for a norm after pool {kind!r}")
    if include and look.module.num_prefix_tokens and kind == "avg":
        raise NotNative("vitzoo has no part for a mean over prefix tokens too")
    pool: Any = {"token": "class", "avg": "mean"}.get(kind)
    if after:
        pool = {"name": "mean", "norm_first": False}
    if latent is not None:
        prefix_too = include or isinstance(look.module, Eva)
        pool = _read_latent(latent, look.module.embed_dim, prefix=prefix_too)  # type: ignore[arg-type]
    return {"pool": pool, "head": _read_head(look, "head")}


def _read_head(look: Look, name: str) -> str:
    classes: int = look.module.num_classes  # type: ignore[assignment]  # a number
    head = look.take(name)
    if classes or present(head):
        shape = (look.module.embed_dim, classes)
        read_linear(head, name, shape, True)  # type: ignore[arg-type]  # numbers
    return "linear"


def _read_latent(pool: nn.Module, width: int, *, prefix: bool) -> dict[str, Any]:
    """Return the part for a learned query that attends to the tokens."""
    look, own = Look(pool, "attn_pool", AttentionPoolLatent), Settings()
    heads = look.take("num_heads")
    look.expect("pool", "token")
    look.expect("latent_len", 1)
    look.expect("latent_dim", width)
    look.expect("out_features", width)
    look.expect("head_dim", width // heads)
    look.expect("pos_embed", None)
    look.close("scale", (width // heads) ** -0.5)
    look.absent("q_norm", "k_norm")
    read_linear(look.take("q"), "attn_pool.q", (width, width), True)
    read_linear(look.take("kv"), "attn_pool.kv", (width, 2 * width), True)
    read_linear(look.take("proj"), "attn_pool.proj", (width, width), True)
    read_norm(own, look.take("norm"), "attn_pool.norm", width)
    mlp = look.take("mlp")
    own.note("attn_pool", norm="layer")
    activation = read_activation(mlp.act, "attn_pool.mlp.act")
    for name, shape in (
        ("fc1", (width, mlp.fc1.out_features)),
        ("fc2", (mlp.fc1.out_features, width)),
    ):
        read_linear(getattr(mlp, name), f"attn_pool.mlp.{name}", shape, True)
    if present(mlp.norm) or any(d.p for d in (mlp.drop1, mlp.drop2, look.take("proj_drop"))):
        raise NotNative("vitzoo has no part for attn_pool with dropout or a norm in its MLP")
    look.ignore("latent", "feat_size", "fused_attn")
    look.done()
    options = {
        "num_heads": heads,
        "mlp_dim": mlp.fc1.out_features,
        "norm_eps": own.values["norm_eps"],
        "activation": activation,
    }
    return {"name": "attention", **options} | ({"prefix": True} if prefix else {})


def _read_distilled(look: Look) -> dict[str, Any]:
    """Return pool and head of a network with two classifiers."""
    look.ignore("attn_pool", "pool_include_prefix", "global_pool")
    if present(look.module.fc_norm):  # type: ignore[arg-type]  # a module
        raise NotNative("vitzoo has no part for a norm after the pool of distilled networks")
    for name in ("head", "head_dist"):
        _read_head(look, name)
    return {"pool": {"name": "prefix", "tokens": 2}, "head": "deit/distilled"}


def _read_dropouts(look: Look, settings: Settings) -> None:
    if hasattr(look.module, "pos_drop"):
        rate = read_dropout(look.take("pos_drop"), "pos_drop")
        settings.note("pos_drop", dropout=rate)
    if read_dropout(look.take("head_drop"), "head_drop"):
        raise NotNative("vitzoo has no part for dropout before the head; use a rate of 0")
    if hasattr(look.module, "patch_drop"):
        look.absent("patch_drop")
    for name in ("rel_pos_bias", "shared_rel_pos"):
        if hasattr(look.module, name):
            look.absent(name)


def _of_blocks(settings: Settings) -> dict[str, Any]:
    """Return the settings of the blocks as keys of a spec, without defaults."""
    values = dict(settings.values)
    spec = {key: values.pop(key) for key in ("num_heads", "mlp_dim", "dropout")}
    block = {key: value for key, value in values.items() if USUAL.get(key, ...) != value}
    return spec | {"block": block}


KINDS: dict[type, Callable[[Look], dict[str, Any]]] = {
    VisionTransformer: _read_pool,
    VisionTransformerDistilled: _read_distilled,
    Eva: _read_pool,
    Beit: _read_pool,
    VisionTransformerRelPos: _read_pool,
}
