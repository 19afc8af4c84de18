"""The types of transformers with the image tower of CLIP, by their folders.

The tower of transformers returns tokens before its last norm, vitzoo tokens after it, so that norm
of the library is applied before tokens are compared. `GitVisionModel` applies it itself.
"""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import vitzoo
from encoders import Encoder, close, numbers, numbers_at_another_size, write
from helpers import refuses
from vitzoo.errors import CheckpointError

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 9,
    **SPECIAL,
}
KOSMOS = {"embed_dim": 16, "layers": 1, "ffn_dim": 16, "attention_heads": 2, "vocab_size": 9}
KOSMOS |= SPECIAL | {"max_position_embeddings": 32}


def tower(family, kind="VisionModel", **changes):
    """Return the image tower of a family alone."""
    import transformers
    from transformers.models.kosmos2 import modeling_kosmos2 as kosmos2

    library = kosmos2 if family == "Kosmos2" else transformers
    config = getattr(library, f"{family}VisionConfig")(**SIZES | changes)
    return getattr(library, f"{family}{kind}")(config)


def whole(name, family, text=TEXT, **changes):
    """Return a network with image tower and text tower."""
    import transformers

    towers = {"vision_config": SIZES, "text_config": text}
    if family == "Git":
        towers = {"vision_config": SIZES, **text}
    config = getattr(transformers, f"{family}Config")(**towers | changes)
    return getattr(transformers, name)(config)


def row(network, path="", *, embeds=False):
    """Return the row of a network.

    Args:
        network: returns the network of the library.
        path: of the image tower, or of the module with `get_image_features`.
        embeds: whether `get_image_features` returns the pooled output.
    """

    def run(network, images, **options):
        part = network.get_submodule(path)
        out = (part.get_image_features if embeds else part)(pixel_values=images, **options)
        tokens = out.last_hidden_state
        if "Git" in type(network).__name__:
            return SimpleNamespace(last_hidden_state=tokens, pooler_output=tokens[:, 0])
        (norm,) = (m for name, m in part.named_modules() if name.endswith("post_layernorm"))
        pooled = out.image_embeds if hasattr(out, "image_embeds") else out.pooler_output
        return SimpleNamespace(last_hidden_state=norm(tokens), pooler_output=pooled)

    return Encoder(
        network,
        run=run,
        other_size=(48, 64),
        run_other=lambda *args: run(*args, interpolate_pos_encoding=True),
    )


def classify(network, images):
    """Return the tokens of a classifier, which averages the patches before the last norm."""
    tokens = network.vision_model(images).last_hidden_state
    return SimpleNamespace(last_hidden_state=tokens, pooler_output=network(images).logits)


def mlcd(**changes):
    """Return the row of MLCD, which has no table, so that it runs at every size."""
    encoder = row(partial(tower, "MLCD", **changes))
    return replace(encoder, run_other=encoder.run)


FAMILIES = ("CLIP", "MetaClip2", "ChineseCLIP", "CLIPSeg", "OwlViT", "Owlv2")
WIDTH = {"projection_dim": 24}
ALTCLIP = TEXT | {"project_dim": 8}
DECODER = {"extract_layers": [0, 1], "reduce_dim": 8}
OTHER_ANGLES = {"rope_type": "axial", "rope_theta": 100.0}
ENCODERS = {
    **{f"{name} tower": row(partial(tower, name)) for name in (*FAMILIES, "AltCLIP")},
    "Git tower": row(partial(tower, "Git")),
    "Kosmos2 tower": row(partial(tower, "Kosmos2")),
    "MLCD tower": mlcd(),
    "MLCD tower with other angles": mlcd(rope_parameters=OTHER_ANGLES),
    **{name: row(partial(whole, f"{name}Model", name, **WIDTH), embeds=True) for name in FAMILIES},
    "AltCLIP": row(partial(whole, "AltCLIPModel", "AltCLIP", ALTCLIP, **WIDTH), embeds=True),
    "CLIPSeg with decoder": row(
        partial(whole, "CLIPSegForImageSegmentation", "CLIPSeg", **DECODER), "clip", embeds=True
    ),
    **{
        f"{name} detector": row(
            partial(whole, f"{name}ForObjectDetection", name, **WIDTH), name.lower(), embeds=True
        )
        for name in ("OwlViT", "Owlv2")
    },
    "CLIP tower, 3 x 3 patches of 8 px in 29 px": replace(
        row(partial(tower, "CLIP", image_size=29)), size=(29, 29), other_size=(45, 31)
    ),
    "Git": row(partial(whole, "GitModel", "Git"), "image_encoder"),
    "Git for text": row(partial(whole, "GitForCausalLM", "Git"), "git.image_encoder"),
    "Kosmos2": row(partial(whole, "Kosmos2Model", "Kosmos2", KOSMOS), "vision_model"),
    "CLIP projection": row(
        partial(tower, "CLIP", "VisionModelWithProjection", **WIDTH),
    ),
    "CLIP classifier": Encoder(
        partial(whole, "CLIPForImageClassification", "CLIP", num_labels=5), run=classify
    ),
    "MetaClip2 classifier": Encoder(
        partial(whole, "MetaClip2ForImageClassification", "MetaClip2"), run=classify
    ),
}

test_the_folder_gives_the_numbers_of_the_library = numbers(ENCODERS)
test_the_numbers_at_another_size = numbers_at_another_size(ENCODERS)


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@torch.no_grad()
def test_the_older_table_of_the_tower_replaces_the_newer_one(tmp_path, transformers):
    """As in transformers, with the defaults of the keys that it leaves out."""
    encoder = ENCODERS["CLIP"]
    write(encoder, "drawn", tmp_path)
    sizes = {"vision_config": SIZES | {"layer_norm_eps": 0.1}}
    change(tmp_path, **sizes, vision_config_dict=SIZES | {"hidden_act": "gelu"})
    network = transformers.CLIPModel.from_pretrained(tmp_path)
    images = encoder.images()
    model = vitzoo.create(tmp_path)
    assert model.spec.block.norm_eps == 1e-5
    close(model(images), encoder.run(network, images).pooler_output)


@pytest.mark.parametrize(
    ("name", "keys", "parts"),
    [
        ("MLCD tower", {"num_key_value_groups": 2}, ["num_key_value_groups", "1", "got 2"]),
        ("MLCD tower", {"rope_theta": 500.0}, ["rope_theta", "10000.0", "got 500.0"]),
        (
            "MLCD tower",
            {"rope_parameters": {"rope_type": "yarn"}},
            ["rope_parameters", "rope_type 'axial'", "got {'rope_type': 'yarn'}"],
        ),
        ("OwlViT", {"projection_dim": None}, ["projection_dim", "a whole number", "got None"]),
    ],
)
def test_configs_that_are_refused(name, keys, parts, tmp_path):
    write(ENCODERS[name], "own", tmp_path)
    change(tmp_path, **keys)
    with refuses(CheckpointError, *parts):
        vitzoo.create(tmp_path)
