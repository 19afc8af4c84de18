"""`register_in_timm`: registered networks under names of timm, with verified weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from vitzoo.checkpoint.checkpoint import open_registered
from vitzoo.errors import InvalidOption, MissingDependency, RegistryError, short_repr
from vitzoo.factory import create
from vitzoo.installing import pip
from vitzoo.keywords import short_errors
from vitzoo.known import known
from vitzoo.registry.choice import choose
from vitzoo.registry.registry import registry
from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec
from vitzoo.schema.terms import AVG, TIMM_POOLS

BRIDGE = "timm/"  # variants that timm's own code builds
ADDRESS = "vitzoo:{}:{}"  # of weights, in place of a URL: timm cannot download from it
ELSEWHERE = ("url", "hf_hub_id", "source")  # where timm would download from
OF_USER = ("file", "state_dict")  # which timm reads without a download
FOR_TIMM = ("features_only", "pretrained_strict", "cache_dir", "pretrained_model_args")
RENAMED = {"img_size": "image_size", "drop_path_rate": "drop_path", "dynamic_img_size": "dynamic"}
TWICE = (*RENAMED.items(), ("global_pool", "pool"))  # the argument of timm, and that of `create`
# Rates that timm's scripts always pass. `create` explains those that it does not have.
RATES = ("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "drop_block_rate")

default_cfgs: dict[str, Any] = {}  # read by timm's `register_model`, which finds it by its name
_registered: dict[str, Variant] = {}


@short_errors
def register_in_timm() -> None:
    """Give every registered network a name in timm; its weights still come through vitzoo.

    `dinov2/vit_b14` becomes `timm.create_model("vitzoo_dinov2_vit_b14")`, and its weights become
    tags, such as `vitzoo_dinov2_vit_b14.lvd142m`. With `pretrained=True` they are downloaded and
    verified as by `create`; timm downloads nothing. Arguments have the meaning that they have in
    timm, and those of `create` can be passed, too. Everything else raises an error.

    A network of timm that vitzoo does not build itself, `timm/NAME`, becomes `vitzoo_timm_NAME`:
    timm's network with all arguments of timm, and verified weights. The name that it has in timm
    itself still stands for weights that timm downloads.

    The call builds no network and downloads nothing. A further call adds what is new. Plugins that
    are modules are left out until one of their names was used.

    Raises:
        MissingDependency: timm is not installed.
        RegistryError: two registered names give the same name in timm; nothing is registered.
    """
    try:
        from timm import models
    except ImportError as error:
        raise MissingDependency(
            f"vitzoo.register_in_timm needs timm, which cannot be imported: {error}; install it: "
            f"{pip('install', 'timm')}"
        ) from error
    for name, variant in _names(registry().variants.values()).items():
        if _registered.get(name) != variant and (configs := _configs(name, variant)):
            default_cfgs.update(models.generate_default_cfgs(configs))
            with warnings.catch_warnings():
                if name in _registered:  # and its entry has changed, of which timm warns
                    warnings.simplefilter("ignore")
                models.register_model(_entrypoint(name, variant.name))
            _registered[name] = variant


def _names(variants: Iterable[Variant]) -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for variant in variants:
        name = "vitzoo_" + variant.name.replace("/", "_").replace("-", "_")
        other = found.setdefault(name, variant)
        if other is not variant:
            raise RegistryError(
                f"{other.name} and {variant.name} would both be {name!r} in timm; rename one of "
                "them, or disable it with VITZOO_DISABLE_PLUGINS"
            )
    return found


def _configs(name: str, variant: Variant) -> dict[str, Any]:
    """Return timm's config of each of the weights; none if this timm has no such network."""
    from timm.models import PretrainedCfg, get_pretrained_cfg

    spec, found = variant.spec, {}
    for row in variant.weights or (None,):
        tag = f".{row.name}{'*' * row.default}" if row else ""
        if variant.name.startswith(BRIDGE):
            try:
                config = get_pretrained_cfg(_own_name(variant) + (f".{row.name}" if row else ""))
            except RuntimeError:  # another version of timm has other weights
                config = None
            if config is None:
                continue
        else:
            config = PretrainedCfg(**_described(spec, row))
        address = ADDRESS.format(variant.name, row.name) if row else None
        source: dict[str, Any] = {"url": address, "hf_hub_id": None, "hf_hub_filename": None}
        found[name + tag] = replace(config, custom_load=False, **source)
    return found


def _own_name(variant: Variant) -> str:
    return variant.name.removeprefix(BRIDGE)


def _described(spec: Spec, row: Weights | None) -> dict[str, Any]:
    c = spec.in_chans
    images = row.preprocessing if row else Preprocessing(mean=(0.5,) * c, std=(0.5,) * c)
    stated = row.num_classes if row else None
    return {
        **images.of_timm,
        "input_size": (c, *spec.image_size),
        "fixed_input_size": True,
        "num_classes": spec.num_classes if stated is None else stated,
        "first_conv": "patch_embed.proj" if spec.patch_embed.name == "conv" else None,
        "classifier": "head" if spec.head.name == "linear" else None,
        "license": row.license if row else None,
    }


def _entrypoint(name: str, variant: str) -> Callable[..., nn.Module]:
    """Return the function that `timm.create_model` calls."""

    def entrypoint(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return _made(name, variant, pretrained, **arguments)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    return entrypoint


def _made(
    name: str,
    registered: str,
    pretrained: bool,
    *,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    **arguments: Any,
) -> nn.Module:
    from timm import models

    zoo = registry()
    variant = zoo.variant(registered)
    config = models.resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay)
    row, of_user = None, any(getattr(config, key) for key in OF_USER)
    if pretrained and not of_user:
        row = _verified(config, variant)
        if row is None or not (pretrained_cfg or row.default):
            row = choose(variant, None, zoo)  # without a default, timm would take the first one
        _check(arguments)
    if variant.name.startswith(BRIDGE):
        if row:
            tensors = open_registered(variant, row, zoo).tensors().tensors
            config = replace(config, state_dict=dict(tensors))
        make = models.model_entrypoint(_own_name(variant))
        return _without_tensors(make(pretrained, pretrained_cfg=config, **arguments))
    _check_once(arguments)
    source = f"{variant.name}:{row.name}" if row else variant.name
    before = _sizes(_described(variant.spec, row))
    stated = dict(_sizes(vars(config)).items() - before.items())
    return _built(name, source, config, of_user and pretrained, stated | arguments)


def _verified(config: Any, variant: Variant) -> Weights | None:
    """Return the weights that a config of timm names, None if it names none.

    Raises:
        InvalidOption: it names others, which timm would download.
    """
    rows = {ADDRESS.format(variant.name, row.name): row for row in variant.weights}
    stated = [key for key in ELSEWHERE if getattr(config, key)]
    if stated == ["url"] and config.url in rows:
        return rows[config.url]
    if not stated:
        return None
    values = ", ".join(f"{key} = {short_repr(getattr(config, key))}" for key in stated)
    raise InvalidOption(
        f"the weights of {variant.name} come through vitzoo, and the config names {values}; name "
        "weights by their tag, or pass a file of yours: pretrained_cfg_overlay={'file': PATH}"
    )


def _check(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidOption for arguments about timm's download of weights, or its loading."""
    if arguments.get("cache_dir") is not None:
        raise InvalidOption(
            f"cache_dir = {short_repr(arguments['cache_dir'])} is for timm's downloads, and vitzoo "
            "keeps these weights in its store; leave cache_dir out, or set VITZOO_HOME"
        )
    if not arguments.get("pretrained_strict", True):
        raise InvalidOption(
            "pretrained_strict must be True, since vitzoo leaves no tensor out; leave it out"
        )


def _check_once(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidOption for two values of one setting."""
    for names in TWICE:
        if all(name in arguments for name in names):
            both = " and ".join(f"{name} = {short_repr(arguments[name])}" for name in names)
            raise InvalidOption(f"{both} are one setting, expected one value; leave one out")


def _without_tensors(model: nn.Module) -> nn.Module:
    """Remove loaded weights from the configs of a model, where timm leaves them."""
    for part in model.modules():
        for config in (vars(part).get("pretrained_cfg"), vars(part).get("default_cfg")):
            if isinstance(config, dict):
                config.pop("state_dict", None)
    return model


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    c, h, w = config["input_size"]
    return {"num_classes": config["num_classes"], "in_chans": c, "img_size": (h, w)}


def _built(
    name: str, source: str, config: Any, of_user: bool, arguments: dict[str, Any]
) -> nn.Module:
    """Create a network of vitzoo, and let timm attach its config and wrap it for features.

    Args:
        name: in timm.
        source: of the network, for `create`.
        config: of timm.
        of_user: whether timm loads a file of the user's.
        arguments: of timm's `create_model`.
    """
    from timm.layers.config import is_scriptable
    from timm.models import build_model_with_cfg

    if is_scriptable():  # type: ignore[no-untyped-call]  # timm's own
        raise InvalidOption(
            f"scriptable = True: TorchScript cannot compile {source}; use torch.export, or "
            "vitzoo.export"
        )
    options = {key: arguments.pop(key) for key in FOR_TIMM if key in arguments}
    if features := options.get("features_only", False):  # as of timm's Vision Transformers
        usual = {"out_indices": 3, "feature_cls": "getter"}
        options |= {key: arguments.pop(key, value) for key, value in usual.items()}
    options |= {key: arguments.get(key, size) for key, size in _sizes(vars(config)).items()}
    given = _translated(arguments, known(source).spec)
    model: Any = build_model_with_cfg(
        lambda **_: create(source, **given), name, of_user, pretrained_cfg=config, **options
    )
    if not features and (traits := vars(model).get("_traits")):
        traits["img_size"] = None  # so that timm reads the size that the model has now
    return model


def _translated(arguments: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """Return arguments of timm as those of `create`, which refuses what it does not know."""
    found = {
        RENAMED.get(key, key): value
        for key, value in arguments.items()
        if not (key in RATES and value == 0)
    }
    if "attn_drop_rate" in found:
        rate = {"attention_dropout": found.pop("attn_drop_rate")}
        found["block"] = {**found.get("block", {}), **rate}
    pool = TIMM_POOLS.get(found.get("global_pool", ""))
    if pool:
        found.pop("global_pool")
        if pool != spec.pool.name:
            found["pool"] = AVG if pool == AVG["name"] else pool
    return found
