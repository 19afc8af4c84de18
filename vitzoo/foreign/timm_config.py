"""The `config.json` of timm: `save_for_hf` and `push_to_hf_hub` write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitzoo import formats
from vitzoo.formats import Config, ConfigTable
from vitzoo.schema.spec import CHOICES, Spec
from vitzoo.schema.terms import TIMM_POOLS

if TYPE_CHECKING:
    from torch import Tensor

QUICK = "_quickgelu"  # in the name of an architecture
ACTIVATIONS = {name: name for name in CHOICES["activation"] if name != "hardswish"}
ACTIVATIONS |= {"swish": "silu", "hard_swish": "hardswish"}  # timm's names
LAYERS = {None: {}, "SwiGLUPacked": {"block": {"mlp": "swiglu_packed"}}}  # by timm's names
SILU = ("silu", "swish")  # the activation of the gates of vitzoo, as timm calls it
EVA = "eva"  # its `mlp_ratio` is that of the width after the gate
OPEN_CLIP = "open_clip_config.json"
PROJECTIONS = ("linear", "mlp")
HEAD, RESET = "projection of open_clip", "pool of open_clip"  # keys that no config of timm has
UNPOOLED = (
    "global_pool = '' in the config, so timm returns all tokens, as model.forward_features(images) "
    "does; model(images) returns one vector of them: pass pool= for another"
)
TOP = ConfigTable(
    applied={
        "num_classes": formats.whole("num_classes", least=0),
        **dict.fromkeys(("global_pool", "model_args", "init_values"), formats.read_with),
    },
    irrelevant={
        "read as the name of the network, its labels and preprocessing": (
            *("architecture", "pretrained_cfg", "label_names", "label_descriptions"),
        ),
        "the tensors show it": ("num_features",),
        "of transformers' TimmWrapper": (
            *("model_type", "architectures", "initializer_range", "transformers_version"),
            *("torch_dtype", "dtype", "do_pooling", "problem_type", "_name_or_path"),
            *("id2label", "label2id", "num_labels"),
        ),
        "of open_clip": (HEAD, RESET),
    },
)
PRETRAINED = ConfigTable(
    applied=dict.fromkeys(("input_size", "num_classes", "init_values"), formats.read_with),
    fixed={"label_offset": (None, 0)},
    irrelevant={
        "read as the labels and preprocessing": (
            *("mean", "std", "interpolation", "crop_pct", "crop_mode"),
            *("label_names", "label_descriptions"),
        ),
        "another size or preprocessing for tests": (
            *("test_input_size", "test_crop_pct", "min_input_size", "fixed_input_size"),
            *("pool_size", "test_pool_size"),
        ),
        "describes the file or the Python objects of timm": (
            *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag"),
            *("custom_load", "first_conv", "classifier", "license", "description", "origin_url"),
            *("paper_name", "paper_ids", "notes", "state_dict", "num_features"),
        ),
    },
    file="config.json: pretrained_cfg",
)
FLAT = (  # keys that timm 0.4 to 0.6 wrote beside the architecture
    *(
        "input_size",
        "label_offset",
        *PRETRAINED.irrelevant["another size or preprocessing for tests"],
    ),
    *("mean", "std", "interpolation", "crop_pct", "crop_mode"),
    *("url", "file", "hf_hub_id", "hf_hub_filename", "source", "tag", "custom_load", "first_conv"),
    *("classifier", "license", "description", "origin_url", "paper_name", "paper_ids", "notes"),
)


ARGUMENTS_OF = "config.json: model_args"
PRE_NORM = {  # a norm follows patches without a bias
    v: {"pre_norm": v, "patch_embed": {"name": "conv", "bias": not v}} for v in (True, False)
}
POSITIONS: dict[str, dict[str, Any]] = {"learn": {}} | {
    key: {"pos_embed": "none"} for key in ("", "none")
}
LAYER_SCALE = formats.positive("layer_scale")
ARGUMENTS = ConfigTable(
    applied={
        "num_classes": formats.whole("num_classes", least=0).read,  # a config has it elsewhere, too
        **{name: formats.whole(name) for name in ("in_chans", "embed_dim", "depth", "num_heads")},
        "img_size": formats.size("image_size"),
        "patch_size": formats.size("patch_size"),
        "reg_tokens": formats.whole("num_registers", least=0),
        "class_token": formats.flag("class_token"),
        "no_embed_class": formats.choice({True: False, False: True}, "pos_embed.prefix"),
        "pre_norm": formats.choice(PRE_NORM),
        "final_norm": formats.flag("final_norm"),
        "qkv_bias": formats.flag("block.qkv_bias"),
        "proj_bias": formats.flag("block.proj_bias", "block.mlp_bias"),
        "qk_norm": formats.flag("block.qk_norm"),
        "scale_attn_norm": formats.flag("block.attn_norm"),
        "scale_mlp_norm": formats.flag("block.mlp_norm"),
        "init_values": replace(LAYER_SCALE, read=lambda v: LAYER_SCALE.read(v) if v else {}),
        "pos_embed": formats.choice(POSITIONS),
        "act_layer": formats.choice(
            {None: {}} | {name: {"block": {"activation": a}} for name, a in ACTIVATIONS.items()}
        ),
        "mlp_layer": formats.choice(LAYERS).read,  # `mlp_ratio` and `act_layer` depend on it
        **dict.fromkeys(("mlp_ratio", "global_pool", "fc_norm"), formats.read_with),
    },
    fixed={
        "pool_include_prefix": (False,),
        "features_only": (False, None),
        **dict.fromkeys(("norm_layer", "embed_norm_layer", "embed_layer", "block_fn"), (None,)),
        **dict.fromkeys(("attn_layer", "out_indices"), (None,)),
        "use_naflex": (False, None),
    },
    irrelevant={
        "acts in training only": (
            *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"),
            *("attn_drop_rate", "drop_path_rate", "weight_init", "fix_init"),
        ),
        "does not change numbers at the size of the network": (
            *("dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
            *("device", "dtype", "scriptable", "exportable", "no_jit"),
        ),
    },
    file=ARGUMENTS_OF,
)


def is_timm(config: Config) -> bool:
    """Return whether timm, or transformers' TimmWrapper, wrote a config."""
    kind = config.get("model_type", "timm_wrapper")
    return isinstance(config.get("architecture"), str) and kind == "timm_wrapper"


def nested(config: Config) -> Config:
    """Return a config of timm with the keys of its `pretrained_cfg` in that table.

    timm 0.4 to 0.6 wrote them, and `labels` for `label_names`, beside the architecture.
    """
    if not is_timm(config) or "pretrained_cfg" in config:
        return config
    inner = {key: config[key] for key in FLAT if key in config}
    labels = {"label_names": config["labels"]} if "labels" in config else {}
    rest = {key: value for key, value in config.items() if key not in (*FLAT, "labels")}
    return {**rest, **labels, "pretrained_cfg": inner} if inner or labels else config


def _of_wrapper(config: Config) -> Config:
    """Return the keys that transformers' TimmWrapper passes to timm, of a config that it wrote."""
    if "model_type" not in config:
        return config
    found = {"architecture": config["architecture"], "model_args": config.get("model_args") or {}}
    if "TimmWrapperModel" in formats.architectures(config):
        return found | {"num_classes": 0}
    return found | {key: config[key] for key in ("num_classes",) if key in config}


def of_open_clip(config: Config) -> Config | None:
    """Return timm's config of the image tower that an `open_clip_config.json` takes from timm.

    Its keys `HEAD` and `RESET` state the projection after the tower, which then keeps the norm of
    its own pool.

    Raises:
        CheckpointError: the tower has a projection that the model does not have.

    Source: `TimmModel` of open_clip.
    """
    model = config.get("model_cfg", config)
    tower = model.get("vision_cfg") if isinstance(model, Mapping) else None
    name = tower.get("timm_model_name") if isinstance(tower, Mapping) else None
    if not isinstance(name, str) or not isinstance(tower, Mapping):
        return None
    pool, projection = tower.get("timm_pool", "avg"), tower.get("timm_proj", "linear")
    good = projection in (None, "", "none", *PROJECTIONS)
    formats.check_config(good, "timm_proj", "'linear', 'mlp', 'none' or ''", projection, OPEN_CLIP)
    count = 0 if projection == "none" else model.get("embed_dim", 0)
    found: dict[str, Any] = {"architecture": name, "num_classes": count}
    if projection not in PROJECTIONS:
        found["global_pool"] = pool
    else:
        width = {"hidden_dim": 2 * count} if projection == "mlp" and type(count) is int else {}
        found |= {HEAD: {"name": projection, **width}, RESET: True}
        found |= {"global_pool": pool} if pool else {}  # else that of the architecture
    if "image_size" in tower:
        found["model_args"] = {"img_size": tower["image_size"]}
    return found


def architecture_of(config: Config) -> tuple[str, str]:
    """Return the architecture of a config without `_quickgelu`, and its tag."""
    inner = config.get("pretrained_cfg")
    tag = inner.get("tag") if isinstance(inner, Mapping) else None
    return config["architecture"].replace(QUICK, ""), tag if isinstance(tag, str) else ""


def changes_of(config: Config, spec: Spec) -> dict[str, Any]:
    """Return the changes that a config makes to the network of its architecture.

    Args:
        config: of timm.
        spec: the network of the architecture, as timm builds it.

    Raises:
        CheckpointError: a key states what the model cannot do, or an argument is not known.
    """
    config = _of_wrapper(config)
    inner = config.get("pretrained_cfg", {})
    arguments = {} if config.get("model_args") is None else config["model_args"]
    formats.check_config(isinstance(inner, Mapping), "pretrained_cfg", "a table", inner)
    formats.check_config(isinstance(arguments, Mapping), "model_args", "a table", arguments)
    PRETRAINED.read(inner)
    unknown = ARGUMENTS.unknown(arguments)
    expected = (
        "an argument that vitzoo knows; convert the timm model instead: "
        "vitzoo_timm.native.carry_over(timm.create_model('local-dir:FOLDER'))"
    )
    formats.check_config(not unknown, f"model_args: {', '.join(unknown)[:200]}", expected, unknown)
    quick = {"block": {"activation": "quick_gelu"}} if QUICK in config["architecture"] else {}
    found = formats.merged(_input(inner, spec), quick, ARGUMENTS.read(arguments))
    kind = found.get("block", {}).get("mlp", spec.block.mlp)
    if kind != "mlp":
        found = formats.merged(found, _gate(arguments, spec))
    count = config.get("num_classes", inner.get("num_classes"))
    if count is not None:
        found = TOP.read({"num_classes": count}) | found
    width = found.get("embed_dim", spec.embed_dim)
    if "mlp_ratio" in arguments:
        ratio = arguments["mlp_ratio"]
        good = type(ratio) in (int, float) and 0 < ratio < 1000
        formats.check_config(good, "mlp_ratio", "a positive number", ratio, ARGUMENTS_OF)
        halved = kind == "swiglu_packed" and not config["architecture"].startswith(EVA)
        found["mlp_dim"] = int(width * ratio) // (2 if halved else 1)
    elif width != spec.embed_dim and spec.embed_dim:
        found["mlp_dim"] = int(width * spec.mlp_dim / spec.embed_dim)
    found |= _pool(config, arguments, spec, class_token=found.get("class_token", spec.class_token))
    return found | ({"head": config[HEAD]} if HEAD in config else {})


def shown(config: Config, spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the tensors of a file show beyond its config, as changes of a spec.

    They show whether a part exists, and its width. They do not show the activation of a gate.

    Args:
        config: of timm.
        spec: the network that the config states.
        tensors: of the file under the keys of the model, with or without data.
    """
    shape = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    found: dict[str, Any] = {"block": {}}
    if "blocks.0.ls1.gamma" in shape and spec.block.layer_scale is None:
        inner = config.get("pretrained_cfg")
        levels = (config, inner if isinstance(inner, Mapping) else {})
        stated = next((level["init_values"] for level in levels if level.get("init_values")), 1e-5)
        found = ARGUMENTS.read({"init_values": stated})
    if "blocks.0.attn.q_norm.weight" in shape:
        found["block"]["qk_norm"] = True
    if spec.class_token and "pos_embed" in shape and "cls_token" not in shape:
        found["class_token"] = False
    registers, table = shape.get("reg_token", ()), shape.get("pos_embed", ())
    if not spec.num_registers and len(registers) == 3:
        found["num_registers"] = registers[1]
        (height, width), (h, w) = spec.image_size, spec.patch_size
        if len(table) == 3:
            found["pos_embed"] = {"prefix": table[1] != (height // h) * (width // w)}
    first, last = (shape.get(f"blocks.0.mlp.{name}.weight", ()) for name in ("fc1", "fc2"))
    if len(first) == len(last) == 2 and first[0] == 2 * last[1]:
        found["mlp_dim"] = last[1]
    return found


def notes_on(config: Config) -> list[str]:
    """Return what the load report says about a config besides its unknown keys."""
    arguments = config.get("model_args")
    own = arguments.get("global_pool") if isinstance(arguments, Mapping) else None
    return [UNPOOLED] if "" in (own, config.get("global_pool") if own is None else own) else []


def unknown_keys(config: Config) -> list[str]:
    """Return the keys of a config that are not known, for the load report."""
    inner = config.get("pretrained_cfg")
    nested = PRETRAINED.unknown(inner) if isinstance(inner, Mapping) else []
    return TOP.unknown(config) + [f"pretrained_cfg.{key}" for key in nested]


def _input(inner: Config, spec: Spec) -> dict[str, Any]:
    """Return channels and image size of the weights."""
    if inner.get("input_size") is None:
        return {}
    shape = inner["input_size"]
    good = isinstance(shape, list | tuple) and len(shape) == 3
    good = good and all(type(side) is int and side > 0 for side in shape)
    formats.check_config(good, "input_size", "[channels, height, width]", shape, PRETRAINED.file)
    (h, w), (rows, columns) = shape[1:], spec.patch_size
    whole_patches = not (h % rows or w % columns)
    sides = {"image_size": h if h == w else [h, w]} if whole_patches else {}
    return {"in_chans": shape[0], **sides}


def _gate(arguments: Config, spec: Spec) -> dict[str, Any]:
    """Return the activation of the blocks; the gates of the model have SiLU whatever it is."""
    act = arguments.get("act_layer")
    own = act is None and spec.block.mlp != "mlp"  # of the architecture
    expected = "'silu', the activation of the gate in vitzoo"
    formats.check_config(own or act in SILU, "act_layer", expected, act, ARGUMENTS_OF)
    return {} if act is None else {"block": {"activation": spec.block.activation}}


def _pool(config: Config, arguments: Config, spec: Spec, *, class_token: Any) -> dict[str, Any]:
    """Return the pool, if a config states another than that of the architecture."""
    stated = config.get("global_pool")
    given = arguments.get("global_pool", stated)
    one = given == "" or stated in (None, given)
    formats.check_config(one, "global_pool", f"{given!r}, as in model_args", stated)
    stated = given
    after = arguments.get("fc_norm")
    formats.check_config(
        after in (None, True, False), "fc_norm", "true or false", after, ARGUMENTS_OF
    )
    if stated is None and after is None:
        return {}
    names = {ours: timm for timm, ours in TIMM_POOLS.items()} | {"prefix": "token"}
    own = names.get(spec.pool.name.rpartition("/")[2])
    kind = own if stated is None else stated
    good = isinstance(kind, str) and kind in ("", *TIMM_POOLS)
    formats.check_config(good, "global_pool", f"one of {', '.join(TIMM_POOLS)}", stated)
    good = kind == "avg" or not after
    formats.check_config(good, "fc_norm", "false for this global_pool", after, ARGUMENTS_OF)
    if kind == "":
        return {"pool": "class" if class_token else "mean"}
    if kind == own and after is None:
        return {}
    if kind == "avg" and config.get(RESET):  # the norm stays where the architecture has it
        return {"pool": "mean"}
    formats.check_config(not config.get(RESET), "timm_pool", f"{own!r} or 'avg'", kind, OPEN_CLIP)
    if kind == "avg":
        return {"pool": "mean" if after is False else {"name": "mean", "norm_first": False}}
    rotary = spec.pos_embed.name.rpartition("/")[2].startswith("rope")
    if kind == "map" and (rotary or config["architecture"].startswith(EVA)):  # timm's `Eva`
        return {"pool": {"name": "attention", "prefix": True}}
    return {"pool": TIMM_POOLS[str(kind)]}
