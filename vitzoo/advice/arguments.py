"""Arguments of timm and transformers that `create` does not have."""

from __future__ import annotations

from dataclasses import fields

from vitzoo.errors import short_repr
from vitzoo.files.safetensors import PICKLES, no_pickle
from vitzoo.schema.spec import BlockSpec, Spec
from vitzoo.schema.terms import AVG, TIMM_POOLS

OF_TIMM = {  # timm's names of block options
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "attn_drop_rate": "attention_dropout",
}
EVERYWHERE = "acts after positions, attention projection and MLP"
ANY_MODEL = (
    "vitzoo.backbone(name, out=...) returns feature maps, and every model has the results of its "
    "blocks: model.forward_intermediates(images, indices) or model.features(images, names)"
)
INSTEAD = {  # of arguments of timm and transformers; {} is their value
    "drop_path_rate": "pass drop_path={}",
    "drop_rate": f"in timm it is a dropout before the head, and dropout= {EVERYWHERE}; for one "
    "before the head, where model.fc_norm is nn.Identity(): model.fc_norm = torch.nn.Dropout({})",
    **dict.fromkeys(("pos_drop_rate", "proj_drop_rate"), f"dropout={{}} {EVERYWHERE}"),
    **dict.fromkeys(("features_only", "out_indices"), ANY_MODEL),
    **dict.fromkeys(("frozen", "out", "pyramid"), "it is an argument of vitzoo.backbone"),
    "img_size": "pass image_size={}",
    "dynamic_img_size": "pass dynamic={}",
    "dynamic_img_pad": "vitzoo.backbone pads images, other models take whole patches only",
    "num_labels": "pass num_classes={}",
    "torch_dtype": "pass dtype={}",
}


def hint(name: str, value: object) -> str:
    """Return how to pass a setting that is no argument of `create`, empty if it is unknown."""
    if name in INSTEAD:
        return INSTEAD[name].format(short_repr(value))
    if name == "global_pool":
        if value == "":
            return "model.forward_features(images) returns all tokens"
        if value == "avg":
            return f"pass pool={AVG}: timm's norm acts after the mean, that of pool='mean' before"
        known = TIMM_POOLS.get(str(value))
        return f"pass pool={known!r}" if known else "pass pool="
    if name == "checkpoint_path":
        path = str(value)
        return f"pass weights={path!r}" + (f"; {no_pickle(path)}" if path.endswith(PICKLES) else "")
    name = OF_TIMM.get(name, name)
    if name in {"norm_first", *(field.name for field in fields(BlockSpec))}:
        return f"it is an option of the blocks: block={{{name!r}: ...}}"
    if name in {field.name for field in fields(Spec)} - {"variant", "options"}:
        return f"it is a key of a spec: create({{'variant': ..., {name!r}: ...}})"
    return ""
