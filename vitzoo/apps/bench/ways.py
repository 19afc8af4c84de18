"""The ways to compute the outputs of a network, and how a user gets each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from vitzoo.apps.export.export import export
from vitzoo.apps.export.int8 import quantise
from vitzoo.apps.export.targets import TARGETS, Run
from vitzoo.apps.publish.written import write_model
from vitzoo.errors import InvalidOption, MissingDependency
from vitzoo.installing import pip
from vitzoo.keywords import check_choice
from vitzoo.plugin.requirements import check_extra
from vitzoo.registry.registry import registry

EAGER = "eager"
CPU, GPU = "cpu", "gpu"
NETWORK = "network.pt"
QUICK = 10  # seconds
COMPILED = 20  # seconds
BLOCKS = 12  # of a usual network


@dataclass(frozen=True)
class Place:
    """Where a way finds what it runs.

    Args:
        folder: with the network as a file of `torch.save`, and the files of `write`.
        device: of the computation.
    """

    folder: Path
    device: str

    def network(self) -> nn.Module:
        """Return the network on the device; its file is mapped into memory."""
        file = self.folder / NETWORK
        network: nn.Module = torch.load(file, CPU, weights_only=False, mmap=True)  # ours
        return network.to(self.device)


@dataclass(frozen=True)
class Way:
    """A way to compute the outputs of a network.

    Args:
        open: returns the function that maps (b, c, h, w) float32 images to outputs.
        write: writes files for `open`; it runs in another process before.
        steps: lines of Python that turn `model` into this way.
        to: what `vitzoo export` writes for it, on the CPU only; `--int8` may follow.
        extra: the extra of vitzoo that it needs.
        package: another package that it needs.
        default: kinds of device on which it runs unless ways are chosen.
        rounded: whether it computes in fewer bits, so that the agreement depends on the weights.
        compared: whether it is another library's network, which is never recommended.
        once, each: seconds until it is ready on a usual machine, for a network of 12 blocks: once,
            and for each size of the batch.
    """

    open: Callable[[Place], Run]
    write: Callable[[Place], object] | None = None
    steps: Sequence[str] = ()
    to: str = ""
    extra: str = ""
    package: str = ""
    default: Collection[str] = (CPU,)
    rounded: bool = False
    compared: bool = False
    once: float = 4
    each: float = 0

    @property
    def is_quick(self) -> bool:
        """Whether it is ready after some ten seconds."""
        return not self.each and self.once <= QUICK

    def lines(self, name: str, arguments: str) -> list[str]:
        """Return the lines of Python, or the command, with which a user gets this way.

        Args:
            name: of the network with weights in the shell; empty for a model in Python.
            arguments: of `vitzoo.create`; empty for a model object.
        """
        to, _, int8 = self.to.partition(" ")
        create = [f"model = vitzoo.create({arguments})"] if arguments else []
        if to:
            more = (" --int8 IMAGES", ', int8=["IMAGES"]') if int8 else ("", "")
            command = f"vitzoo export {name} DIR --to {to}{more[0]}"
            call = f'vitzoo.export(model, "{to}", "DIR"{more[1]})'
            lines = [command] if name else ["import vitzoo", *create, call]
            return [*lines, "# DIR is a new folder; docs/exporting.md shows how to run its file"]
        imports = [line for line in self.steps if line.startswith(("import ", "from "))]
        rest = [line for line in self.steps if line not in imports]
        return ["import torch", *imports, "import vitzoo", *create, "model.eval()", *rest]


def _timm(place: Place) -> nn.Module:
    import timm

    folder = f"local-dir:{place.folder / 'timm'}"
    network: nn.Module = timm.create_model(folder, pretrained=True)
    return network.eval().to(place.device)


def _write_timm(place: Place) -> None:
    network = Place(place.folder, CPU).network()
    folder = place.folder / "timm"
    folder.mkdir()
    write_model(network, "timm", folder, registry())


def _compiled(network: nn.Module) -> Run:
    run: Run = torch.compile(network, dynamic=False)
    return run


def _frozen(place: Place) -> Run:
    from torch._inductor import config

    config.freezing = True
    return _compiled(place.network())


def _bfloat16(network: nn.Module) -> Run:
    small = network.to(torch.bfloat16)
    return lambda images: small(images.to(torch.bfloat16))


def _torchao(place: Place) -> Run:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    network = place.network()
    quantize_(network, Int8DynamicActivationInt8WeightConfig())
    return _compiled(network)


def _export(to: str) -> Callable[[Place], object]:
    return lambda place: export(place.network(), to, place.folder / to)


def _exported(to: str, folder: str = "") -> Callable[[Place], Run]:
    target = TARGETS[to]
    return lambda place: target.open(place.folder / (folder or to) / target.file)


def _export_int8(place: Place) -> None:
    full, folder = place.folder / "float32", place.folder / "int8"
    export(place.network(), "onnx", full)
    folder.mkdir()
    file = TARGETS["onnx"].file
    quantise(full / file, folder / file)


COMPILE = "model = torch.compile(model, dynamic=False)  # it compiles for each batch size"
RUN = "with torch.inference_mode(): outputs = model(images)"
BOTH = (CPU, GPU)
WAYS: Mapping[str, Way] = {
    EAGER: Way(Place.network, default=BOTH),
    "compile": Way(
        lambda place: _compiled(place.network()), steps=(COMPILE, RUN), default=BOTH, each=COMPILED
    ),
    "freeze": Way(
        _frozen,
        steps=(
            "import torch._inductor.config", "torch._inductor.config.freezing = True", COMPILE, RUN,
        ),
        each=COMPILED,
    ),
    "bf16": Way(
        lambda place: _bfloat16(place.network()),
        steps=("model = model.to(torch.bfloat16)", RUN.replace("images", "images.bfloat16()")),
        default=BOTH, rounded=True,
    ),
    "onnxruntime": Way(_exported("onnx"), _export("onnx"), to="onnx", extra="export", once=10),
    "openvino": Way(
        _exported("openvino"), _export("openvino"), to="openvino", extra="openvino", once=20,
    ),
    "torchao": Way(
        _torchao,
        steps=(
            "from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_",
            "quantize_(model, Int8DynamicActivationInt8WeightConfig())", COMPILE, RUN,
        ),
        extra="torchao", rounded=True, each=COMPILED,
    ),
    "ort-int8": Way(
        _exported("onnx", "int8"), _export_int8, to="onnx --int8", extra="export", rounded=True,
        once=30,
    ),
    "timm": Way(_timm, _write_timm, package="timm", default=(GPU,), compared=True),
    "timm-compile": Way(
        lambda place: _compiled(_timm(place)), _write_timm,
        package="timm", default=(GPU,), compared=True, each=COMPILED,
    ),
    "timm-bf16": Way(
        lambda place: _bfloat16(_timm(place)), _write_timm,
        package="timm", default=(GPU,), compared=True,
    ),
}  # fmt: skip


def choose_ways(
    names: Collection[str] | None, device: str, *, quick: bool = False
) -> tuple[list[str], list[str]]:
    """Return the ways to measure, `eager` first, and why ways that run by default are left out.

    Args:
        names: of ways; None for those that run by default on the device and are installed.
        device: kind of device.
        quick: whether None stands for those alone that are ready after some ten seconds.

    Raises:
        UnknownOption: there is no such way.
        InvalidOption: a way does not run on the device.
        MissingDependency: the package of a way is not installed.
    """
    if names is None:
        kind = CPU if device == CPU else GPU
        default = [n for n, way in WAYS.items() if kind in way.default]
        missing = {n: _missing(n) for n in default if WAYS[n].is_quick or not quick}
        left_out = [f"{name}: {error}" for name, error in missing.items() if error]
        return [name for name, error in missing.items() if error is None], left_out
    if isinstance(names, str):
        raise InvalidOption(f"ways must be a list of names, got {names!r}; put it into []")
    for name in names:
        check_choice("a way", name, WAYS)
        if WAYS[name].to and device != CPU:
            raise InvalidOption(
                f"{name} runs on the CPU only, got device {device!r}; remove it from the ways"
            )
        if error := _missing(name):
            raise error
    return [EAGER, *dict.fromkeys(name for name in names if name != EAGER)], []


def ready_in(names: Iterable[str], sizes: int, blocks: int) -> float:
    """Return about how many seconds pass until ways are ready, for a number of sizes of the batch.

    Args:
        names: of the ways.
        sizes: number of sizes of the batch.
        blocks: number of blocks of the network.
    """
    ways = [WAYS[name] for name in names]
    return sum(way.once + way.each * sizes * blocks / BLOCKS for way in ways)


def _missing(name: str) -> MissingDependency | None:
    """Return the error if the package of a way is not installed."""
    way = WAYS[name]
    try:
        if way.extra:
            check_extra(way.extra, f"the way {name} of vitzoo bench")
    except MissingDependency as error:
        return error
    if way.package and find_spec(way.package) is None:
        return MissingDependency(
            f"the way {name} of vitzoo bench needs {way.package}, which is not installed; install "
            f"it: {pip('install', way.package)}"
        )
    return None
