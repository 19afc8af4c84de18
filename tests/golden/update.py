"""Writes tests/golden/FAMILY.json: what the references compute from tensors that names decide.

    python tests/golden/update.py [FAMILY]...

Each reference is another library's own network, or Google's published formulas in plain tensor
operations. Only its outputs and the names and shapes of its tensors are kept.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
drawn: Any = runpy.run_path(str(HERE / "drawn.py"))
google: Any = runpy.run_path(str(HERE.parent / "google_reference.py"))

Size = tuple[int, int]
Answer = Callable[[Size], Tensor]  # image size in px to outputs
REFERENCES: dict[str, Callable[[], tuple[str, dict[str, Tensor], Answer]]] = {}


def reference(make: Callable[[], tuple[str, dict[str, Tensor], Answer]]) -> Any:
    """Register a maker of (what it is, its tensors, what it answers) under its name."""
    REFERENCES[make.__name__] = make
    return make


def filled(model: nn.Module) -> nn.Module:
    """Give a network the tensors that names decide."""
    values = drawn["tensors"]({n: t.shape for n, t in model.state_dict().items()})
    model.load_state_dict(values, strict=True)
    return model.eval()


def of_timm(
    make: Callable[..., nn.Module], **options: Any
) -> tuple[str, dict[str, Tensor], Answer]:
    """Return a reference that timm builds and resamples."""
    sizes = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    options = {"mlp_ratio": 2.0} | options
    model = filled(make(img_size=32, **sizes, **options))
    tensors = dict(model.state_dict())

    def answer(size: Size) -> Tensor:
        model.set_input_size(size)  # type: ignore[operator]  # a method of timm's networks
        return model(drawn["images"](size))

    return f"timm {version('timm')}, {type(model).__name__}", tensors, answer


@reference
def timm_vit() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(VisionTransformer)


@reference
def timm_mean() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(VisionTransformer, class_token=False, global_pool="avg")


@reference
def timm_clip() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    norm = partial(nn.LayerNorm, eps=1e-5)
    return of_timm(VisionTransformer, pre_norm=True, act_layer="quick_gelu", norm_layer=norm)


@reference
def timm_registers() -> Any:
    from timm.layers import SwiGLUPacked
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(
        VisionTransformer,
        reg_tokens=4,
        no_embed_class=True,
        init_values=1e-5,
        mlp_layer=SwiGLUPacked,
        act_layer="silu",
        mlp_ratio=4.0,
    )


@reference
def timm_attention_pool() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(VisionTransformer, class_token=False, global_pool="map", act_layer="gelu_tanh")


@reference
def timm_aimv2() -> Any:
    from timm.layers import RmsNorm, SwiGLU
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(
        VisionTransformer,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        qkv_bias=False,
        proj_bias=False,
        norm_layer=partial(RmsNorm, eps=1e-5),
        embed_norm_layer=partial(RmsNorm, eps=1e-4),
        mlp_layer=SwiGLU,
        act_layer="silu",
    )


@reference
def timm_rope() -> Any:
    from timm.models.eva import Eva

    return of_timm(
        Eva,
        global_pool="token",
        qkv_bias=False,
        num_reg_tokens=1,
        use_abs_pos_emb=False,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_temperature=100.0,
        rope_rotate_half=True,
    )


@reference
def deit_distilled() -> Any:
    from timm.models.deit import VisionTransformerDistilled

    return of_timm(VisionTransformerDistilled)


@reference
def deit3() -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return of_timm(VisionTransformer, no_embed_class=True, init_values=1e-6)


OF_TRANSFORMERS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}


def of_transformers(network: nn.Module, output: str = "logits", **options: Any) -> Any:
    """Return name, tensors and answers of a network of transformers', filled."""
    model = filled(network)

    def answer(size: Size) -> Tensor:
        return getattr(model(drawn["images"](size), **options), output)

    name = f"transformers {version('transformers')}, {type(model).__name__}"
    return name, dict(model.state_dict()), answer


@reference
def deit_transformers() -> Any:
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher

    network = DeiTForImageClassificationWithTeacher(DeiTConfig(**OF_TRANSFORMERS))
    return of_transformers(network, interpolate_pos_encoding=True)


@reference
def beit_timm() -> Any:
    from timm.models.beit import Beit

    return of_timm(Beit, use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.1)


@reference
def beit_transformers() -> Any:
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(**OF_TRANSFORMERS, use_shared_relative_position_bias=True)
    return of_transformers(BeitForImageClassification(config))


@reference
def eva02_timm() -> Any:
    from timm.models.eva import Eva

    return of_timm(
        Eva,
        global_pool="token",
        qkv_fused=False,
        swiglu_mlp=True,
        scale_mlp=True,
        scale_attn_inner=True,
        use_rot_pos_emb=True,
        ref_feat_shape=(16, 16),
    )


@reference
def transformers_vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    network = ViTForImageClassification(ViTConfig(**OF_TRANSFORMERS))
    return of_transformers(network, interpolate_pos_encoding=True)


@reference
def transformers_vit_pooler() -> Any:
    from transformers import ViTConfig, ViTModel

    return of_transformers(ViTModel(ViTConfig(**OF_TRANSFORMERS)), "pooler_output")


@reference
def torchvision() -> Any:
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    def make(size: int) -> nn.Module:
        return VisionTransformer(
            image_size=size,
            patch_size=8,
            num_layers=2,
            num_heads=2,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=5,
        ).eval()

    tensors = dict(filled(make(32)).state_dict())

    def answer(size: Size) -> Tensor:
        model = make(size[0])
        model.load_state_dict(interpolate_embeddings(size[0], 8, dict(tensors)))  # type: ignore[arg-type]  # any mapping will do
        return model(drawn["images"](size))

    return f"torchvision {version('torchvision')}, VisionTransformer", tensors, answer


@reference
def timm_hybrid() -> Any:
    from timm.layers import StdConv2dSame
    from timm.models.resnetv2 import ResNetV2
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import HybridEmbed

    def embed(**options: Any) -> nn.Module:
        backbone = ResNetV2(
            layers=(1, 1),
            channels=(128, 256),
            stem_chs=32,
            num_classes=0,
            global_pool="",
            preact=False,
            stem_type="same",
            conv_layer=partial(StdConv2dSame, eps=1e-8),
        )
        return HybridEmbed(backbone, **options | {"patch_size": 1})

    return of_timm(VisionTransformer, embed_layer=embed)


def _google(
    layout: str, shapes: dict[str, tuple[int, ...]]
) -> tuple[str, dict[str, Tensor], Answer]:
    """Return a reference that Google's formulas give, positions moved with SciPy's zoom."""
    import scipy.ndimage

    arrays = drawn["tensors"](shapes)
    key = google["LAYOUTS"][layout]["positions"]

    def answer(size: Size) -> Tensor:
        table = arrays[key]
        patches = table[:, -16:].reshape(4, 4, -1).numpy()
        zoomed = scipy.ndimage.zoom(patches, (size[0] / 32, size[1] / 32, 1), order=1)
        moved = torch.from_numpy(zoomed).reshape(1, -1, table.shape[2])
        moved = torch.cat((table[:, :-16], moved), dim=1)
        return google["forward"](arrays | {key: moved}, drawn["images"](size), layout)[2]

    return "formulas of vit_jax in tests/google_reference.py", arrays, answer


@reference
def google_original() -> Any:
    return _google("original", google["shapes"]("original", pre_logits=32))


@reference
def google_hybrid() -> Any:
    return _google("original", google["hybrid_shapes"]((1, 1), root=32))


@reference
def big_vision() -> Any:
    return _google("big_vision", google["shapes"]("big_vision"))


def answered(answer: Answer, size: int | list[int]) -> list[list[float]]:
    """Return outputs, checked to be worth comparing with."""
    height, width = (size, size) if isinstance(size, int) else size
    result = answer((height, width))
    if not 0.1 < result.abs().max() < 100 or not math.isfinite(result.sum()):
        raise ValueError(f"the outputs are trivial or wild: {result}")
    return result.tolist()


@torch.inference_mode()
def main(names: list[str]) -> None:
    """Write the files of the families, all of them if none is named."""
    families = tomllib.loads((HERE / "families.toml").read_text())
    families.pop("common")
    for name, family in families.items():
        if names and name not in names:
            continue
        torch.set_num_threads(1)
        what, tensors, answer = REFERENCES[name]()
        data: dict[str, Any] = {
            "reference": what,
            "tensors": {key: list(tensor.shape) for key, tensor in tensors.items()},
            "outputs": answered(answer, 32),
        }
        if "resized" in family:
            data["resized_outputs"] = answered(answer, family["resized"])
        (HERE / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
        sys.stdout.write(f"{name}: {what}, largest output {max(map(max, data['outputs'])):.3g}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
