"""What each family can do as a backbone: every cell of the table in docs/backbones.md.

The tier `backbones` of `.ci/nightly` computes all cells. `.ci/run` computes a tenth of them,
another one every day, but no ONNX file of timm/*, which takes up to 40 seconds. VITZOO_TENTH, a
number, chooses the tenth.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import runpy
import warnings
from pathlib import Path

import pytest
import torch

import vitzoo
from helpers import fill, randn, refuses
from vitzoo.apps.export.runtimes import import_onnxruntime
from vitzoo.errors import InvalidOption
from vitzoo.testing.checks.variants import VariantSubject, one_of_each

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "update_backbones.py"))
FAMILIES, CANNOT = TOOL["stated"](), TOOL["CANNOT"]
TENTH = int(os.environ.get("VITZOO_TENTH") or dt.datetime.now(dt.UTC).toordinal()) % 10
TOLERANCE = 1e-4  # of an element, relative to the larger of 1 and the largest element of its map
NARROW = {"width": 32}  # of the stems of hybrid/*


def cells():
    """Yield each family with each cell."""
    every = [(family, cell) for family in FAMILIES for cell in TOOL["CAN"]]
    for i, (family, cell) in enumerate(every):
        long = cell == "onnx" and family.startswith("timm/") and family not in CANNOT
        often = i % 10 == TENTH and not long
        marks = [pytest.mark.backbones, *[pytest.mark.workflows] * often]
        yield pytest.param(family, cell, id=f"{family} {cell}", marks=marks)


CELLS = list(cells())


def specs(family, cell):
    """Return small networks of all architectures of a family, as specs; of one for ONNX."""
    name = FAMILIES[family]
    if family.startswith("timm/"):
        small = "image_size" in vitzoo.describe(name).accepts and family not in CANNOT
        return [{"variant": name, **({"image_size": (64, 96)} if small else {})}]
    found = [VariantSubject(n).small() for n in ([name] if cell == "onnx" else one_of_each(family))]
    if family == "hybrid":
        for spec in found:
            stem = vitzoo.describe(spec["variant"]).spec.patch_embed
            spec["patch_embed"] = {"name": stem.name, **dict(stem.options), **NARROW}
    return found


def made(spec, out=(0, -1), **options):
    """Return a backbone, as it is with the maps of the first and of the last block."""
    torch.manual_seed(1)
    return vitzoo.backbone(fill(vitzoo.create(spec | {"num_classes": 0})), out=out, **options)


def sizes(backbone):
    """Return the image size of the network, and a larger one that has to be padded."""
    stride = math.ceil(max(backbone.feature_info.reduction()))
    return [backbone.image_size, tuple(side + stride + 3 for side in backbone.image_size)]


def images(backbone, size, seed=0):
    return randn(1, backbone.network.spec.in_chans, *size, seed=seed)


def maps_of(backbone, size):
    """Return the maps; they have the stated channels and strides, of the padded image."""
    maps, info = backbone(images(backbone, size)), backbone.feature_info
    assert [m.shape[1] for m in maps] == info.channels()
    strides = info.reduction()
    (padded,) = {tuple(n * s for n in m.shape[2:]) for m, s in zip(maps, strides, strict=True)}
    assert all(0 <= new - old < 2 * max(strides) for new, old in zip(padded, size, strict=True))
    return maps


def block(network, name):
    """Return the module that computes a map; of Twins, timm states a name that is none."""
    if type(network).__name__ == "Twins":
        return network.blocks[int(name.removeprefix("block."))][-1]
    return network.get_submodule(name)


def as_map(found, shape):
    """Return the output of a block in the shape (b, channels, h, w) of its map."""
    found = found[0] if isinstance(found, tuple) else found
    if found.dim() == 4:
        return found if found.shape == shape else found.permute(0, 3, 1, 2)
    patches = found[:, found.shape[1] - shape[2] * shape[3] :]
    return patches.transpose(1, 2).reshape(shape)


def check_backbone(spec):
    """The maps are what the network's own blocks return."""
    backbone = made(spec).eval()
    outputs, names = {}, backbone.out_features
    for name in names:
        keep = block(backbone.network, name).register_forward_hook
        keep(lambda *given, key=name: outputs.update({key: given[2]}))
    with torch.inference_mode():
        for size in sizes(backbone):
            for name, found in zip(names, maps_of(backbone, size), strict=True):
                assert torch.equal(found, as_map(outputs[name], found.shape))


def check_one_size(spec):
    """Without padding, all maps of an image of the network's size are those of the network."""
    network = fill(vitzoo.create(spec["variant"], num_classes=0)).eval()
    backbone = vitzoo.backbone(network, out=len(network.feature_info), dynamic=False)
    batch = images(backbone, backbone.image_size)
    with torch.inference_mode():
        expected = network.forward_intermediates(batch, intermediates_only=True)
        for found, wanted, width in zip(backbone(batch), expected, backbone.channels, strict=True):
            assert torch.equal(found, wanted)
            assert found.shape[1] == width


def check_pyramid(spec):
    """The maps have the strides of the pyramid; it is trained, and gradients reach the blocks."""
    backbone = made(spec, out=1, pyramid={"channels": 8, "top": True}).train()
    layers = [*backbone.pyramid.parameters()]
    before = [p.detach().clone() for p in layers]
    maps = maps_of(backbone, sizes(backbone)[1])
    sum((m * randn(*m.shape, seed=3)).mean() for m in maps).backward()
    torch.optim.SGD(layers, lr=0.1).step()
    assert not any(torch.equal(a, b) for a, b in zip(layers, before, strict=True))
    reached = [p.grad is not None and bool(p.grad.any()) for p in backbone.network.parameters()]
    assert sum(reached) > 0.5 * len(reached)


def check_onnx(spec, folder):
    """onnxruntime gives torch's numbers, with a file for each image size."""
    backbone = made(spec).eval()
    for size in sizes(backbone):
        file = folder / f"{size}.onnx"
        first, second = (images(backbone, size, seed) for seed in (0, 1))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's exporter
            torch.onnx.export(backbone, (first,), file, input_names=["images"], verbose=False)
            expected = backbone(second)
        session = import_onnxruntime().InferenceSession(file)
        found = session.run(None, {"images": second.numpy()})
        for one, other in zip(found, expected, strict=True):
            atol = TOLERANCE * max(1.0, other.abs().max().item())
            torch.testing.assert_close(torch.from_numpy(one), other, rtol=0, atol=atol)


@pytest.mark.parametrize(("family", "cell"), CELLS)
def test_a_cell(family, cell, tmp_path):
    check = {"backbone": check_backbone, "pyramid": check_pyramid}.get(cell)
    for spec in specs(family, cell):
        if family in CANNOT:
            with refuses(InvalidOption, spec["variant"]):
                vitzoo.backbone(spec)
            if cell == "backbone":
                check_one_size(spec)
        elif check:
            check(spec)
        elif family in TOOL["NO_ONNX"]:
            with pytest.raises(torch.onnx.OnnxExporterError, match="only 4D query"):
                check_onnx(spec, tmp_path)
        else:
            check_onnx(spec, tmp_path)


def test_ci_takes_each_kind_of_cell_in_ten_days():
    """The tenths differ by cell, because 3 is no divisor of 10."""
    often = {param.values[1] for param in CELLS if len(param.marks) > 1}
    assert often == set(TOOL["CAN"])
    assert CANNOT.keys() < FAMILIES.keys()


@pytest.mark.docs
def test_the_table_is_that_of_the_families():
    text = TOOL["PAGE"].read_text(encoding="utf-8")
    assert TOOL["filled"](text) == text, TOOL["BY_HAND"]
    assert list(FAMILIES.items()) == list(TOOL["families"]().items())
    assert "<!-- backbones -->\n| family" in text
