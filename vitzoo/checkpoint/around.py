"""What people and programs put around a known network in a file, as data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Modules of torch.compile, activation checkpointing and FSDP, around any module of a network."""

STATE = {  # what no network has: patterns of whole keys, by the reason for which they are left out
    "counts that thop adds": (r"(.+\.)?total_(ops|params)",),
    "a count of torch's AveragedModel": (r"n_averaged",),
    "state of the training": (
        r"(optimi[sz]ers?|optim|(lr_)?schedulers?(_\w+)?|(grad_|loss_)?scaler)\..+",
        r"(epochs?|(global_|current_|num_)?steps?|iter(ation)?s?|best_\w+|last_epoch)",
        r"(num_updates|ema_decay)",
    ),
    "of a loss": (
        r"(criteri(on|a)|(\w+_)?loss(es)?(_(fn|func|function|fct))?)\d*(\..+)?",
        r"(class|sample|pos|label)_weights?",
    ),
    "of a metric": (
        r"(train|val(id|idation)?|test)_(acc|f1|au|ap|map|conf|prec|recall|metric|top)\w*(\..+)?",
        r"(metrics?|accuracy|auroc|f1_score|confusion_matrix)(\..+)?",
    ),
}
HEADS = {  # of pre-training without labels, beside a network
    "a head of pre-training": (
        r"((dino|ibot|koleo|gram)_(head|loss)|ibot_patch_loss)(\..+)?",
        r"(\w+_)?(projectors?|predictors?|projection_head|proj_head|prototypes?)(\..+)?",
        r"(queue|queue_ptr|center)\w*",
    ),
}
REASONS = {why: re.compile("|".join(rows)) for why, rows in (STATE | HEADS).items()}
OUTSIDE = re.compile("|".join(pattern.pattern for pattern in REASONS.values()))
OF_ALL = {why: REASONS[why] for why in STATE}  # around any network, also of another builder

CLASSIFIERS = (  # names of a linear layer on the features of a network
    *("head", "heads", "classifier", "fc", "linear", "mlp_head", "linear_head"),
    *("classifier_head", "classification_head", "classify_head", "cls_head", "class_head"),
    *("head_cls", "fc_out", "final_fc", "output_layer", "fc_layer", "last_linear", "linear_probe"),
)
LAYER = re.compile(  # alone, as the only layer with tensors of an `nn.Sequential`, or in a module
    rf"(?P<name>{'|'.join(CLASSIFIERS)})(?P<inner>(?:\.(?:head|fc|linear|classifier|out))?"
    r"(?:\.\d+)?)\.(?P<kind>weight|bias)"
)
CHUNKED = re.compile(r"((?:.+\.)?blocks\.)(\d+)\.(\d+)(\..+)")  # of DINOv2, for FSDP


def reason_of(key: str, reasons: Mapping[str, re.Pattern[str]] = REASONS) -> str:
    """Return why a key is no key of a network, empty if it may be one."""
    return next((why for why, pattern in reasons.items() if pattern.fullmatch(key)), "")


def linear_layers(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the classifiers of one linear layer among some keys.

    Returns:
        By the name of the module, `weight` and `bias`, if there is one, with their keys.
    """
    layers: dict[str, dict[str, dict[str, str]]] = {}
    others = set()
    for key in keys:
        match = LAYER.fullmatch(key)
        name = match["name"] if match else key.partition(".")[0]
        if match:
            layers.setdefault(name, {}).setdefault(match["inner"], {})[match["kind"]] = key
        else:
            others.add(name)
    return {
        name: next(iter(found.values()))
        for name, found in layers.items()
        if name not in others and len(found) == 1 and "weight" in next(iter(found.values()))
    }


def plain_keys(keys: Collection[str], *, chunks: bool = True) -> dict[str, str]:
    """Return keys without the modules of `WRAPPERS` and the chunks of blocks, with those of a file.

    Keys stay as they are where two of them would become one.

    Args:
        keys: of a file.
        chunks: whether blocks within blocks are chunks, as in every network of vitzoo's blocks.
    """
    plain = {key: key for key in keys}
    if any(wrapper in key for key in keys for wrapper in WRAPPERS):
        plain = _unless_equal(plain, {k: _unwrapped(k) for k in keys})
    if chunks and any(CHUNKED.fullmatch(name) for name in plain.values()):
        plain = _unless_equal(plain, _unchunked(plain))
    return {name: key for key, name in plain.items()}


def _unwrapped(key: str) -> str:
    """Return a key without wrappers inside it; those at its beginning are a prefix."""
    parts = key.split(".")
    start = next((i for i, part in enumerate(parts) if part not in (*WRAPPERS, "module")), 0)
    return ".".join(p for i, p in enumerate(parts) if i < start or p not in WRAPPERS)


def _unless_equal(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    return new if len({*new.values()}) == len(new) else old


def _unchunked(plain: Mapping[str, str]) -> dict[str, str]:
    """Return names with one number for each block, in the order of the chunks."""
    found = {key: match for key, name in plain.items() if (match := CHUNKED.fullmatch(name))}
    places = {key: (match[1], int(match[2]), int(match[3])) for key, match in found.items()}
    counts, numbers = Counter[str](), dict[tuple[str, int, int], int]()
    for place in sorted({*places.values()}):
        numbers[place] = counts[place[0]]
        counts[place[0]] += 1
    new = {key: f"{m[1]}{numbers[places[key]]}{m[4]}" for key, m in found.items()}
    return {**plain, **new}
