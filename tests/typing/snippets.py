"""Snippets of user code; `mypy` and `basedpyright` check them, nothing runs them.

`Wrong` in a name marks calls that both checkers must refuse. A checker also reports an `ignore`
comment that it does not need.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import vitzoo
from vitzoo import formats, parts


def s01_create_a_model() -> vitzoo.VisionTransformer:
    return vitzoo.create("vit_b16", pretrained=True)


def s02_create_with_numbers() -> Tensor:
    model = vitzoo.create("vit_ti16", num_classes=10, in_chans=1, image_size=(64, 96), dropout=0.1)
    model.eval().requires_grad_(requires_grad=False)
    logits: Tensor = model(torch.zeros(1, 1, 64, 96))
    return logits.softmax(dim=-1)


def s03_create_with_parts_by_name() -> None:
    vitzoo.create("vit_s16", patch_embed="unfold", pos_embed="sincos_2d", pool="mean", head="mlp")
    vitzoo.create("vit_s16", head={"name": "mlp", "hidden_dim": 512}, drop_path=0.1)
    vitzoo.create("vit_s16", drop_path={"rate": 0.4, "mode": "subset"})
    vitzoo.create("vit_s16", block={"norm_eps": 1e-5, "activation": "gelu_tanh", "qkv_bias": False})


def s04_create_on_a_device(device: torch.device) -> list[vitzoo.VisionTransformer]:
    return [
        vitzoo.create("vit_b16", device="meta"),
        vitzoo.create("vit_b16", device=device, dtype=torch.bfloat16),
    ]


def s05_load_a_file(folder: Path) -> None:
    vitzoo.create("vit_b16", weights=folder / "model.safetensors")
    vitzoo.create("vit_b16", weights="hf://timm/vit_base_patch16_224@main/model.safetensors")
    vitzoo.create("vit_b16", weights="augreg_in21k", num_classes=None)
    vitzoo.create(folder / "saved.safetensors")


def s06_create_from_a_spec(folder: Path) -> None:
    vitzoo.create({"variant": "vit_b16", "depth": 6, "block": {"layer_scale": 1e-5}})
    vitzoo.create(tomllib.loads((folder / "spec.toml").read_text("utf-8")))
    spec = vitzoo.Spec(image_size=(32, 32), embed_dim=32, depth=2, num_heads=2, mlp_dim=64)
    vitzoo.create(spec, num_classes=5)


def s07_describe(name: str) -> tuple[int, str | None]:
    variant = vitzoo.describe(name)
    weights = variant.default_weights
    height, width = variant.spec.image_size
    return variant.params // (height * width), weights.license if weights else None


def s08_list_variants() -> list[str]:
    def is_small(params: int) -> bool:
        return params < 10**8

    found = vitzoo.variants("vit_b*", embed_dim=768, image_size=384)
    found += vitzoo.variants(["vit_*", "deit/*"], params=is_small)
    return [variant.name for variant in found if variant.spec.pool.name == "class"]


def s09_prepare_images(model: vitzoo.VisionTransformer) -> Tensor:
    prepare = vitzoo.transform(model)
    squash = vitzoo.transform("vit_b16", image_size=384, crop_pct=1.0, crop_mode="squash")
    own = vitzoo.transform("vit_digits", mean=[0.5], std=(0.5,), interpolation="bilinear")
    images = [prepare("cat.png"), squash(Path("dog.png")), own(Image.new("L", (28, 28)))]
    return torch.stack(images[:1])


class Photos(Dataset[Tensor]):
    def __init__(self, files: Sequence[Path], prepare: vitzoo.Transform) -> None:
        self.files, self.prepare = files, prepare

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return self.prepare(self.files[index])


def s10_load_a_data_set(files: list[Path]) -> DataLoader[Tensor]:
    return DataLoader(Photos(files, vitzoo.transform("vit_b16")), batch_size=32, num_workers=4)


def s11_name_the_classes(logits: Tensor, model: nn.Module) -> str:
    names: tuple[str, ...] = vitzoo.labels("imagenet-1k") or vitzoo.labels(model)
    return names[int(logits.argmax())]


def s12_read_wordnet_ids() -> dict[int, list[str]]:
    return {i: list(words) for i, (_, words) in enumerate(vitzoo.synsets("imagenet-1k"))}


def s13_save_and_restore(model: vitzoo.VisionTransformer, folder: Path) -> bool:
    path: Path = vitzoo.save(model, folder / "model.safetensors")
    vitzoo.save(model, str(path))
    return vitzoo.create(path).labels == model.labels


def s14_fetch_with_progress() -> Path:
    def note(done: int, total: int, text: str) -> None:
        print(f"{text}: {done / total:.0%}")

    vitzoo.fetch("vit_l16", "augreg_in21k", on_progress=note)
    return vitzoo.fetch("vit_b16")


def s15_verify_files() -> dict[str, Path | None]:
    found = [*vitzoo.verify(), *vitzoo.verify("vit_b16"), *vitzoo.verify(Path("own.safetensors"))]
    return {one.name: one.path for one in found if one.state == "damaged"}


def s16_list_plugins() -> list[str]:
    return [f"{p.namespace}: {p.cause}" for p in vitzoo.plugins() if p.state == "broken"]


def s17_classify_images(model: vitzoo.VisionTransformer, files: list[str]) -> Iterator[str]:
    bad: list[vitzoo.ImageError] = []
    stream = vitzoo.predict(model, files, top=1, batch_size=8, on_error=bad.append, stream=True)
    for found in (one for one in stream if not one.error):
        index, label, probability = found.classes[0]
        yield f"{found.image.name}: {index} {label} {probability:.2f}"


def s18_convert_a_file() -> list[str]:
    done = vitzoo.convert("vit_b16:augreg_in21k", "transformers", Path("out.safetensors"))
    vitzoo.convert(done.target, "timm", "timm.safetensors", num_heads=12, force=True)
    return [*done.notes, f"{done.written} tensors"]


def s19_read_the_load_report(model: vitzoo.VisionTransformer) -> str:
    report = model.load_report
    if report is None or report.reinitialised:
        return "a layer is new"
    return f"{report.summary()} {report.sha256[:12]} {', '.join(report.assumed)}"


def s20_keep_the_spec(model: vitzoo.VisionTransformer) -> str:
    spec = model.spec
    return "" if spec is None else json.dumps(spec.to_data() | {"depth": spec.depth // 2})


def s21_read_features(model: vitzoo.VisionTransformer, images: Tensor) -> Tensor:
    named = model.features(images, ["blocks.0", "pool"])
    maps = model.attention_maps(images, layers=[-1])
    tokens = model.forward_features(images)
    return named["pool"] + model.forward_head(tokens, pre_logits=True) + maps[11].mean()


def s22_read_layers(model: vitzoo.VisionTransformer, images: Tensor) -> list[Tensor]:
    layers: list[Tensor] = model.get_intermediate_layers(images, n=4, reshape=True)
    _, results = model.forward_intermediates(images, indices=[2, 5], output_fmt="NLC")
    return [*layers, *results]


def s23_fine_tune(model: vitzoo.VisionTransformer, x: Tensor, target: Tensor) -> None:
    model.reset_classifier(7)
    model.set_input_size(384)
    model.set_grad_checkpointing()
    frozen: list[str] = vitzoo.freeze(model, until="blocks.2")
    model.get_parameter(frozen[0])
    groups = vitzoo.param_groups(model, 1e-4, layer_decay=0.75, weight_decay=0.1)
    optimiser = torch.optim.AdamW(groups)
    loss: Any = nn.functional.cross_entropy(model(x), target)
    loss.backward()
    optimiser.step()


def s24_compose_a_network(model: vitzoo.VisionTransformer) -> nn.Module:
    head = parts.LinearHead(in_dim=model.num_features, num_classes=3)
    embedder: parts.PatchEmbedder = parts.ConvPatchEmbed(
        patch_size=(16, 16), in_chans=3, embed_dim=model.embed_dim
    )
    rates: parts.DropPathPolicy = parts.linear_rates
    print(embedder.grid((224, 224)), rates(depth=12, rate=0.1))
    return vitzoo.create("vit_b16", head=head, pool=parts.MeanPool(norm_first=False))


class CosineHead(nn.Module):
    def __init__(self, *, in_dim: int, num_classes: int, scale: float = 16.0) -> None:
        super().__init__()
        self.pre_logits_dim, self.num_classes, self.scale = in_dim, num_classes, scale
        self.prototypes = nn.Linear(in_dim, num_classes, bias=False)

    def reset(self, num_classes: int) -> CosineHead:
        return CosineHead(in_dim=self.pre_logits_dim, num_classes=num_classes, scale=self.scale)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if pre_logits:
            return x
        return self.scale * nn.functional.linear(x, self.prototypes.weight)


def s25_write_a_head() -> vitzoo.VisionTransformer:
    head = CosineHead(in_dim=768, num_classes=5)
    checked: parts.Head = head
    print(checked.reset(3).num_classes)
    return vitzoo.create("vit_b16", head=head)


acme = formats.Format(
    "acme/acme",
    keymap=formats.KeyMap(
        {"token": "cls_token", "stem.": "patch_embed.proj."},
        {("q.", "k.", "v."): "attn.qkv.", "out.": "attn.proj."},
        block="encoder.{}.",
    ),
    marks=("stem.weight", ("encoder.0.q.weight", "encoder.0.qkv.weight")),
    ignored=["decoder.*"],
    defaults={"block": {"norm_eps": 1e-5}},
    network={},
)


class Shifted(formats.Format):
    def overrides(self, config: formats.Config, keys: formats.Keys) -> dict[str, Any]:
        return super().overrides(config, keys) | {"pool": "mean"}


def s26_convert_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    layout: formats.Format = acme if acme.matches(tensors) else Shifted("acme/shifted")
    return layout.to_model(tensors)


def late(*, depth: int, rate: float, start: float = 0.5) -> list[float]:
    return [0.0 if i < start * depth else rate for i in range(depth)]


@vitzoo.hookimpl
def vitzoo_heads() -> Iterator[vitzoo.Head]:
    yield vitzoo.Head("cosine", CosineHead, "cosine similarity to prototypes", requires=("timm",))


@vitzoo.hookimpl
def vitzoo_drop_path_policies() -> list[vitzoo.DropPathPolicy]:
    return [vitzoo.DropPathPolicy("late", late, "0 in the first half, the rate in the second")]


@vitzoo.hookimpl
def vitzoo_checkpoint_formats() -> list[vitzoo.CheckpointFormat]:
    return [vitzoo.CheckpointFormat("acme", acme, "Acme's ViT")]


@vitzoo.hookimpl
def vitzoo_variants() -> Iterator[vitzoo.Variant]:  # s27: a module plugin, with the hooks above
    block = vitzoo.BlockSpec(norm_eps=1e-5, layer_scale=1e-4)
    head = vitzoo.PartSpec("acme/cosine", (("scale", 8.0),))
    spec = vitzoo.Spec(embed_dim=192, depth=12, num_heads=3, mlp_dim=768, block=block, head=head)
    yield vitzoo.Variant("net", "a network", spec, 5_526_346, source="the plugin's paper")


def s28_set_the_preprocessing(model: vitzoo.VisionTransformer) -> tuple[float, ...]:
    model.preprocessing = vitzoo.Preprocessing(
        mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28), interpolation="bicubic", crop_pct=1.0
    )
    model.labels = ("cat", "dog")
    return model.preprocessing.mean


def s29_handle_errors(name: str) -> vitzoo.VisionTransformer | None:
    try:
        return vitzoo.create(name, pretrained=True)
    except (vitzoo.UnknownName, vitzoo.WeightsUnavailable) as error:
        print(error)
    except vitzoo.errors.GatedRepo as error:
        print(error, error.exit_code)
    except vitzoo.VitzooError:
        raise
    return None


def s31_predictor(images: list[bytes], pixels: npt.NDArray[np.uint8]) -> None:
    predictor = vitzoo.Predictor("vit_b16", outputs=("labels", "pooled"), dtype=torch.bfloat16)
    for row in predictor([*images, pixels, Path("cat.png")]):
        print(row.error or row.outputs["pooled"], row.width, row.sha256)
    print(predictor.shapes["pooled"], predictor.fingerprint().to_data()["weights"])
    found: vitzoo.Predictions = predictor.predict(pixels)
    best: list[vitzoo.Prediction] = [one for one in found if not one.error]
    every: vitzoo.Predictions = vitzoo.predict("vit_b16", Image.new("L", (28, 28)))
    print(best[0].classes, every.left_out, *predictor(pixels))
    step = vitzoo.ray.Embedder(predictor, column="bytes")
    print(step.predictor.chunk)


def s32_measure_ways(model: vitzoo.VisionTransformer) -> dict[str, float | None]:
    done: vitzoo.Benchmark = vitzoo.bench(model, ways=["bf16"], batches=[1, 8], device="cpu")
    vitzoo.bench()
    return {row.way: row.ratio for row in done.rows if row.recommended and not row.error}


def s30_wrong_calls(model: vitzoo.VisionTransformer) -> None:
    vitzoo.creat("vit_b16")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(parts.MeanPol)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]
    vitzoo.create("vit_b16", num_clases=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.create("vit_b16", num_classes="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.create("vit_b16", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.create(16)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.create("vit_b16", head=CosineHead)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.create("vit_b16", block="norm_eps")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.create("vit_b16", dtype="bfloat16")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.describe()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print(vitzoo.describe("vit_b16").parms)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]
    vitzoo.transform("vit_b16", crop_pc=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.transform("vit_b16", crop_pct="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.transform()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.labels(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.save("model.safetensors", model)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.fetch("vit_b16", on_progress="done")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.verify().items()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    vitzoo.predict(model, "cat.png", tops=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    vitzoo.convert("in.safetensors", "timm")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.Preprocessing(crop_pct="1.0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    vitzoo.Spec(192, 12)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    vitzoo.Head("cosine", 3, "a number is no head")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    formats.Format()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    model.reset_classifier("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    model.features("cat.png", ["pool"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(model.load_report.sha256)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    vitzoo.create("vit_b16", pool=parts.MeanPool(num_prefix_tokens=1))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    head: parts.Head = nn.Linear(768, 5)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    head.reset(3)
