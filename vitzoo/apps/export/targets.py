"""The files that `export` writes, one class for each library that runs them."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitzoo.apps.export.runtimes import import_onnxruntime, import_openvino
from vitzoo.log import only_errors

Program = torch.export.ExportedProgram
Run = Callable[[Tensor], Tensor]
KEY = "vitzoo"  # of the metadata in a file
INPUT = "images"
BATCH = "batch"
INLINE = 1_900_000_000  # bytes of tensors in an ONNX file, which may have at most 2 GiB
TRACE = "stack_trace"  # of an operator: paths of this machine


class Target(ABC):
    """A kind of exported file.

    Attributes:
        file: its name.
    """

    file: ClassVar[str]

    @abstractmethod
    def write(self, program: Program, output: str, metadata: Mapping[str, Any], path: Path) -> None:
        """Write a program with one output."""

    def add(self, metadata: Mapping[str, Any], path: Path) -> None:  # noqa: B027
        """Replace the metadata of a written file, if its kind allows that."""

    @abstractmethod
    def open(self, path: Path) -> Run:
        """Return a function that runs a written file on the CPU in float32."""


class _Written(io.BufferedWriter):
    """A file that keeps its first error; torch's writer ends the process if a write raises."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the bytes, and nothing more after an error."""
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return len(data)


class Torch(Target):
    """An archive of `torch.export.save`."""

    file = "model.pt2"

    def write(self, program: Program, output: str, metadata: Mapping[str, Any], path: Path) -> None:
        """Write the program with the metadata as an extra file."""
        for module in program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                node.meta.pop(TRACE, None)
        with _Written(io.FileIO(path, "w")) as file:
            torch.export.save(program, file, extra_files={f"{KEY}.json": json.dumps(metadata)})
            if file.failure is not None:
                raise file.failure

    def open(self, path: Path) -> Run:
        """Load the archive."""
        return torch.export.load(path).module()


class Onnx(Target):
    """An ONNX file. Tensors of more than 1.9 GB together are in `model.onnx.data` beside it."""

    file = "model.onnx"

    def write(self, program: Program, output: str, metadata: Mapping[str, Any], path: Path) -> None:
        """Convert the program; keep no notes about the source code of vitzoo."""
        with only_errors("torch.onnx"):
            converted: Any = torch.onnx.export(
                program,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                input_names=[INPUT],
                output_names=[output],
                verbose=False,
            )
        model = converted.model
        model.metadata_props[KEY] = json.dumps(metadata)
        graphs = [model.graph, *model.functions.values()]
        for part in (*(node for graph in graphs for node in graph), *_values(model.graph)):
            part.metadata_props.clear()
            part.doc_string = None
        size = sum(tensor.nbytes for tensor in program.state_dict.values())
        converted.save(path, external_data=size > INLINE)

    def add(self, metadata: Mapping[str, Any], path: Path) -> None:
        """Replace the metadata; tensors beside the file stay there."""
        import onnx

        model = onnx.load(path, load_external_data=False)
        onnx.helper.set_model_props(model, {KEY: json.dumps(metadata)})
        onnx.save(model, path)

    def open(self, path: Path) -> Run:
        """Start a session of onnxruntime."""
        run = session(path)
        return lambda images: torch.from_numpy(run(images.numpy()))


class OpenVino(Onnx):
    """An IR of OpenVINO, float32, converted from ONNX. Its tensors are in `model.bin`."""

    file = "model.xml"
    add = Target.add

    def write(self, program: Program, output: str, metadata: Mapping[str, Any], path: Path) -> None:
        """Write an ONNX file, and read it with OpenVINO."""
        openvino = import_openvino()
        scratch = path.with_suffix(".onnx")
        super().write(program, output, metadata, scratch)
        model = openvino.Core().read_model(scratch)
        model.set_rt_info(json.dumps(metadata), KEY)
        openvino.save_model(model, path, compress_to_fp16=False)
        for left in path.parent.glob(f"{scratch.name}*"):
            left.unlink()

    def open(self, path: Path) -> Run:
        """Compile the model in float32; by default some CPUs would compute in bfloat16."""
        core = import_openvino().Core()
        threads = torch.get_num_threads()
        exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        compiled = core.compile_model(core.read_model(path), "CPU", exact)
        return lambda images: torch.from_numpy(compiled(images.numpy())[0].copy())


TARGETS: dict[str, Target] = {"onnx": Onnx(), "torch": Torch(), "openvino": OpenVino()}


def session(path: Path) -> Callable[[Any], Any]:
    """Return a function that maps an array of images to the output of an ONNX file."""
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    opened = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: opened.run(None, {INPUT: images})[0]


def inline(path: Path) -> bool:
    """Tell whether an ONNX file contains its tensors."""
    return not path.with_name(f"{path.name}.data").exists()


def _values(graph: Any) -> Iterator[Any]:
    yield from (*graph.inputs, *graph.outputs, *graph.initializers.values())
    for node in graph:
        yield from node.outputs
