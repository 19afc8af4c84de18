"""`export`: a network as a file that onnxruntime, torch or OpenVINO runs without vitzoo."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitzoo
from vitzoo.apps.export.checks import EXPORTED, EXTRAS, check_export
from vitzoo.apps.export.int8 import quantise, smallest_cosine, speed
from vitzoo.apps.export.targets import BATCH, TARGETS, Run, Target
from vitzoo.apps.identity.canary import canaries, distance_of
from vitzoo.apps.identity.hashes import reported
from vitzoo.apps.predict.fingerprint import hash_tensors
from vitzoo.apps.predict.outputs import LOGITS, POOLED, Outputs
from vitzoo.display import brief
from vitzoo.errors import ExportError, InvalidOption
from vitzoo.factory import open_network
from vitzoo.files.folder_manifest import write_manifest, writing_own
from vitzoo.images.find import find_images
from vitzoo.images.resize import MODES
from vitzoo.keywords import check_each, check_progress, check_types, short_errors
from vitzoo.known import transform
from vitzoo.log import log
from vitzoo.network.activation import activation_of
from vitzoo.opening import is_model
from vitzoo.plugin.requirements import check_extra
from vitzoo.progress import OnProgress, by_steps, reporting
from vitzoo.schema.preprocessing import Preprocessing, UnreadPreprocessing
from vitzoo.schema.spec import Spec
from vitzoo.schema.terms import SOFTMAX
from vitzoo.text import is_interrupt

BATCHES = (1, 3, 8)
TRACED = 2  # images in the batch with which the network is traced
TOLERANCE = 1e-4  # of an output element, relative to the larger of 1 and the largest element
LONGEST = 500  # characters of the text of an error of another library
OPEN, TRACE, WRITE = "open the network", "trace", "write the file"
COMPARE, QUANTISE, COMPARE_INT8 = "compare the outputs", "quantise", "compare int8"
STEPS, STEPS_INT8 = (OPEN, TRACE, WRITE, COMPARE), (QUANTISE, COMPARE_INT8)
PREPROCESSING, LABELS = "preprocessing.json", "labels.json"


@dataclass(frozen=True)
class Export:
    """An exported network.

    Args:
        folder: that was written.
        files: names of the files in it, the network first; `vitzoo.json` lists them with sha256.
        to: `onnx`, `torch` or `openvino`.
        output: `logits` or `pooled`.
        batches: sizes of the batches with which the written file was run.
        difference: largest difference of an output element to that of the network, relative to the
            larger of 1 and the largest element of the output; for int8, before quantisation.
        cosine: for int8, the smallest cosine of int8 and float32 outputs over the sample images.
        speed: for int8, the time of the float32 file by that of the int8 file, on this machine.
        identity: of the vectors of the file, see `vitzoo.identity`; empty without a preprocessing.
        canary: largest distance of the vectors of ten images to those of the network, each divided
            by its length; None without an identity.
    """

    folder: Path
    files: tuple[str, ...]
    to: str
    output: str
    batches: tuple[int, ...]
    difference: float
    cosine: float | None = None
    speed: float | None = None
    identity: str = ""
    canary: float | None = None

    __repr__ = brief


class _Output(nn.Module):
    """Maps (b, c, h, w) images to one output of a network."""

    def __init__(self, network: nn.Module, output: str) -> None:
        super().__init__()
        self.run = network if output == LOGITS else Outputs(network, [output])

    def forward(self, images: Tensor) -> Tensor:
        found = self.run(images)
        return found[POOLED] if isinstance(found, dict) else found


@short_errors
def export(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    to: str,
    folder: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    output: str = LOGITS,
    int8: Iterable[str | os.PathLike[str]] | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Export:
    """Write a network as a file that another library runs without vitzoo.

    The folder gets the network (`model.onnx`, `model.pt2`, or `model.xml` and `model.bin`),
    `preprocessing.json` and, if the class names are known, `labels.json`. The network takes
    (b, c, h, w) images in float32, of one image size and any batch size b. The written file is run
    with batches of 1, 3 and 8 images and compared with the model before the folder gets its name.
    The model is set to evaluation mode.

    Args:
        model: the network, see docs/create.md#which-network, on the CPU and in float32. A variant
            gets its default weights.
        to: `onnx`, `torch` or `openvino`.
        folder: path of the new folder.
        weights: as in `create`.
        output: `logits` for what `model(images)` returns, or `pooled` for the features that the
            head reads.
        int8: paths of sample images, or of folders with images. The network is quantised to int8,
            and its output for each image is compared with that in float32. Only for `onnx`.
        force: replace a folder that `export` wrote; a file that was changed since is kept, and an
            error.
        on_progress: is called with the number of steps so far, of all, and the name of the next
            one. An error that it raises ends the call, and nothing is written.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        MissingDependency: a package is not installed.
        InvalidOption: the model, the folder or another argument is not possible.
        ExportError: the model cannot be exported, the file does not take every batch size, an
            element of its output differs by more than 1e-4 (relative to the larger of 1 and the
            largest element), or a cosine of int8 is below 0.999.
        ImageError: a sample image cannot be read.
    """
    check_types("export", to=(to, "text"), folder=(folder, "text or a path"))
    check_types("export", int8=(int8, "an iterable or None"))
    check_progress("export", on_progress, progress)
    if not isinstance(int8, str | None):
        int8 = check_each("export", "int8", int8, "text or a path")
    path = Path(folder)
    check_export(to, path, output, int8=int8 is not None, force=force)
    check_extra(EXTRAS[to], f"vitzoo export --to {to}")
    target = TARGETS[to]
    if hasattr(model, "forward_with_filtered_kwargs"):
        raise InvalidOption(
            "vitzoo.export writes logits or pooled features, but a backbone returns feature maps; "
            "write it with torch.onnx.export(backbone, (images,), 'backbone.onnx')"
        )
    shown = reporting("export", on_progress, progress)
    with shown as report, writing_own(path, EXPORTED, force=force) as new:
        step = by_steps(report, STEPS if int8 is None else (*STEPS, *STEPS_INT8))
        step(OPEN)
        network = open_network(model, weights)
        _check_network(network)
        samples = None if int8 is None else prepared(network, "int8", int8)
        described = _described(network, output, "float32" if samples is None else "int8")
        loaded = None if is_model(model) else network.load_report
        described["weights"] = (loaded and loaded.sha256) or hash_tensors(network)
        precision = "" if samples is None else described["precision"]
        own, predictor = reported(network, output, precision=precision, runtime=to)
        described["identity"] = own
        part, file = _Output(network, output).eval(), new / target.file
        if samples is None:
            checked = _write(part, network.spec, target, described, file, step)
        else:
            checked = _write_int8(part, network.spec, target, described, file, samples, step)
        if predictor and (canary := canaries(predictor, [output]).get(output)):
            checked["canary"] = distance_of(target.open(file), predictor, canary)
            measured = {"sha256": canary.sha256, "distance": checked["canary"]}
            target.add(described | {"canary": measured}, file)
        if described["preprocessing"]:
            _write_json(new / PREPROCESSING, described["preprocessing"])
        if output == LOGITS and network.labels:
            _write_json(new / LABELS, network.labels)
        others = write_manifest(new, {"sha256": described["weights"]}).keys() - {target.file}
        step("")
    files = (target.file, *sorted(others))
    return Export(path, files, to, output, BATCHES, identity=own, **checked)


def _check_network(network: Any) -> None:
    """Raise InvalidOption unless the network can be traced, compared and described."""
    tensors = [*network.parameters(), *network.buffers()]
    devices = sorted({tensor.device.type for tensor in tensors} - {"cpu"})
    dtypes = {str(t.dtype) for t in tensors if t.is_floating_point()} - {"torch.float32"}
    labels, classes = getattr(network, "labels", ()), network.num_classes
    if getattr(network, "dynamic", False):
        problem = "takes images of any size (dynamic), an exported network has one image size"
        fix = "pass image_size= instead of dynamic=True to vitzoo.create"
    elif "meta" in devices:
        problem = "is on the device 'meta', which stores no numbers"
        fix = "create it with device='cpu'"
    elif devices:
        problem, fix = f"is on the device {devices[0]!r}, expected 'cpu'", "pass model.cpu()"
    elif dtypes:
        problem = f"has numbers of type {min(dtypes)}, expected torch.float32"
        fix = "pass model.float()"
    elif labels and len(labels) != classes:
        problem = f"has {len(labels)} names in model.labels for {classes} classes"
        fix = "set model.labels to one name per class, or to ()"
    else:
        return
    raise InvalidOption(f"the model {problem}; {fix}")


def prepared(network: Any, name: str, paths: Iterable[str | os.PathLike[str]]) -> Tensor:
    """Return the images (n, c, h, w) of the argument `name`, prepared for a network."""
    if isinstance(paths, str | os.PathLike):
        raise InvalidOption(f"{name} must be a list of paths, got {str(paths)!r}; put it into []")
    prepare = transform(network)
    found = [prepare(file) for file in find_images([Path(path) for path in paths])]
    if not found:
        raise InvalidOption(f"{name} needs at least one image, got none; name files or folders")
    return torch.stack(found)


def _described(network: Any, output: str, precision: str) -> dict[str, Any]:
    """Return what the written file says about its network."""
    preprocessing, stated = None, network.preprocessing
    bands = isinstance(stated, Preprocessing) and (stated.bands or stated.scale)
    if isinstance(stated, UnreadPreprocessing):
        log.warning("the folder gets no %s: %s", PREPROCESSING, stated.message)
    elif bands or network.spec.in_chans in MODES:
        prepare = transform(network, image_size=network.spec.image_size)
        size = {"image_size": list(prepare.image_size), "mode": prepare.mode}
        preprocessing = size | prepare.preprocessing.to_data()
    report, activation = network.load_report, activation_of(network)
    return {
        "network": network.spec.to_data(),
        "preprocessing": preprocessing,
        "output": output,
        **({} if activation == SOFTMAX or output != LOGITS else {"output_activation": activation}),
        "precision": precision,
        "license": report.license if report else "",
        "versions": {"vitzoo": vitzoo.__version__, "torch": torch.__version__},
    }


def _write(
    part: nn.Module,
    spec: Spec,
    target: Target,
    described: Mapping[str, Any],
    path: Path,
    step: Callable[[str], None],
) -> dict[str, float]:
    """Write the file, run it, and return the largest relative difference of its outputs."""
    shape = (spec.in_chans, *spec.image_size)
    name = spec.variant or "the network"
    with torch.no_grad():
        try:
            step(TRACE)
            program = torch.export.export(
                part,
                (torch.zeros(TRACED, *shape),),
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            )
            step(WRITE)
            target.write(program, described["output"], described, path)
        except OSError:
            raise
        except Exception as error:  # of torch, onnx or openvino, whose types are not documented
            problem = f"{name} cannot be exported to {path.name}: {_cause(error)}"
            raise ExportError(problem) from error
        step(COMPARE)
        return {"difference": _difference(part, target.open(path), shape)}


def _write_int8(
    part: nn.Module,
    spec: Spec,
    target: Target,
    described: Mapping[str, Any],
    path: Path,
    samples: Tensor,
    step: Callable[[str], None],
) -> dict[str, float]:
    """Write and check a float32 file, then quantise it; return what was measured."""
    full = path.parent / "float32" / path.name  # with its data beside it
    full.parent.mkdir()
    checked = _write(part, spec, target, described, full, step)
    step(QUANTISE)
    quantise(full, path)
    step(COMPARE_INT8)
    cosine = smallest_cosine(part, target.open(path), samples, BATCHES)
    ratio = speed(full, path, samples)
    shutil.rmtree(full.parent)
    return checked | {"cosine": cosine, "speed": ratio}


def _difference(network: nn.Module, run: Run, shape: tuple[int, ...]) -> float:
    """Return the largest relative difference of the outputs of a file and of its network.

    Raises:
        ExportError: it exceeds 1e-4, or the file does not take a batch size.
    """
    worst = 0.0
    generator = torch.Generator().manual_seed(0)
    for batch in BATCHES:
        images = torch.randn(batch, *shape, generator=generator)
        expected = network(images)
        try:
            found = run(images)
        except Exception as error:
            raise ExportError(
                f"the exported network does not take a batch of {batch} images, traced with "
                f"{TRACED}: {_cause(error)}; replace the part that fixes the batch size"
            ) from error
        if found.shape != expected.shape:
            raise ExportError(
                f"the exported network returns {tuple(found.shape)} for a batch of {batch} images, "
                f"expected {tuple(expected.shape)}; replace the part that fixes the batch size"
            )
        scale = max(1.0, expected.abs().max().item())
        difference = (found - expected).abs().max().item() / scale
        if not difference <= TOLERANCE:  # NaN, too
            raise ExportError(
                f"the exported network differs by {difference:.1e} from the model in a batch of "
                f"{batch} images (relative to the larger of 1 and the largest element), expected "
                f"at most {TOLERANCE:.0e}; export to another target"
            )
        worst = max(worst, difference)
    return worst


def _cause(error: Exception) -> str:
    """Return the text of an error of another library as one line of limited length.

    Raises:
        KeyboardInterrupt: the library has made the error of one.
    """
    if is_interrupt(error):
        raise KeyboardInterrupt from error
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8", newline="\n")
