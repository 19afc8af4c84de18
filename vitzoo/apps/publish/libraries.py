"""Which library has the network of some weights: its checkpoint format, its configs, its call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitzoo.apps.convert.configs import open_clip_of, processor_of, timm_of, transformers_of
from vitzoo.apps.publish.checks import MODEL, OPEN_CLIP_MODEL
from vitzoo.errors import CheckpointError
from vitzoo.foreign.labels import problem_of
from vitzoo.foreign.sidecars import CONFIG, OPEN_CLIP, PROCESSOR
from vitzoo.formats import Format
from vitzoo.log import log
from vitzoo.registry.registry import Registry
from vitzoo.schema.preprocessing import Preprocessing, StatedPreprocessing
from vitzoo.schema.spec import PartSpec, Spec

LIBRARIES = ("timm", "transformers", "open_clip", "torchvision")
KIND = "checkpoint format"
PREPROCESS = "preprocess_cfg"  # in the config of open_clip
WEIGHTS_FILE = {"open_clip": OPEN_CLIP_MODEL}  # of the other libraries: the first


@dataclass(frozen=True)
class Network:
    """A network with weights, as another library would build it.

    Args:
        name: of the weights, for messages.
        spec: the network.
        tensors: by the names of the model, with or without data.
        format: name of the checkpoint format of the weights file.
        shapes: of all tensors in that file.
        labels, preprocessing: of the weights, if known.
        output_activation: how logits become answers, empty for the usual way.
    """

    name: str
    spec: Spec
    tensors: Mapping[str, Tensor]
    format: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    preprocessing: StatedPreprocessing | None = None
    output_activation: str = ""

    @property
    def images(self) -> Preprocessing | None:
        """The preprocessing, None for a statement that vitzoo cannot follow."""
        return self.preprocessing if isinstance(self.preprocessing, Preprocessing) else None


@dataclass(frozen=True)
class LibraryFolder:
    """How a library stores a network in a folder.

    Args:
        library: one of `LIBRARIES`.
        layout: the checkpoint format of the weights file.
        weights: name of the weights file.
        configs: contents of the configs by file name.
        call: the call of the library; `{}` stands for the path of the folder.
    """

    library: str
    layout: Format
    weights: str
    configs: Mapping[str, Mapping[str, Any]]
    call: str

    def write_configs(self, folder: Path) -> None:
        """Write the configs to a folder."""
        for file, content in self.configs.items():
            text = json.dumps(content, indent=2, ensure_ascii=False)
            (folder / file).write_text(f"{text}\n", encoding="utf-8", newline="\n")


def target_of(network: Network, library: str, zoo: Registry) -> LibraryFolder:
    """Return how a library stores a network; warn if it prepares images in another way.

    Raises:
        CheckpointError: the library has no such network; the message names the libraries that have.
    """
    found, lacking = _first(network, library, zoo)
    channels = network.spec.in_chans
    if found is not None:
        if library == "transformers" and channels != 3:
            log.warning(
                "the network reads images with %d channel%s, but image processors of transformers "
                "return 3; prepare images with vitzoo.transform, or write the folder for timm",
                channels,
                "" if channels == 1 else "s",
            )
        elif network.images and not _state_images(found):
            log.warning(
                "no config of %s can state the preprocessing of %s, so %s prepares images in "
                "another way; prepare them with vitzoo.transform of the network: %s",
                library,
                network.name,
                library,
                network.images.summary,
            )
        return found
    others = [name for name in LIBRARIES if name != library and _first(network, name, zoo)[0]]
    fix = f"pass one of: {', '.join(others)}" if others else "vitzoo.save writes it for vitzoo"
    raise CheckpointError(
        f"{library} has no network for {network.name}; it would need {lacking}; {fix}"
    )


def _state_images(folder: LibraryFolder) -> bool:
    """Return whether the configs of a folder have a preprocessing, or the library has none."""
    timm = folder.configs.get(CONFIG, {}).get("pretrained_cfg", {})
    stated = "mean" in timm or PREPROCESS in folder.configs.get(OPEN_CLIP, {})
    return stated or PROCESSOR in folder.configs or not folder.configs


def _first(network: Network, library: str, zoo: Registry) -> tuple[LibraryFolder | None, str]:
    """Return how a library stores a network, or what the library lacks first."""
    lacking = ""
    for layout in _layouts(network, library, zoo):
        try:
            return _target(network, library, layout, zoo), ""
        except CheckpointError as error:
            lacking = lacking or str(error)
    return None, lacking or "a checkpoint format"


def _layouts(network: Network, library: str, zoo: Registry) -> Iterator[Format]:
    """Yield the checkpoint formats of a library: first that of the file, then of its plugin."""
    names = [n for n in zoo.parts[KIND] if n.rpartition("/")[2].startswith(library)]
    of_file = network.format.rpartition("/")[0]
    used = {of_file, *network.spec.namespaces}
    for name in sorted(
        names,
        key=lambda n: (n != network.format, n.rpartition("/")[0] not in used, "/" in n, n),
    ):
        yield zoo.part(KIND, name)


def _target(network: Network, library: str, layout: Format, zoo: Registry) -> LibraryFolder:
    spec, head = network.spec, {k for k in network.tensors if k.startswith("head.")}
    if layout.name != network.format:
        if lacking := layout.unsupported(spec):
            raise CheckpointError(", ".join(lacking))
        layout.with_heads(spec.num_heads).from_model(network.tensors)
    weights = WEIGHTS_FILE.get(library, MODEL)
    if head == {"head.weight", "head.bias"}:  # one layer, whatever its name and its first values
        network = replace(network, spec=replace(spec, head=PartSpec("linear")))
    configs, call = _FILES[library](network, layout, zoo)
    return LibraryFolder(library, layout.with_heads(spec.num_heads), weights, configs, call)


Files = tuple[dict[str, Mapping[str, Any]], str]


def _timm(network: Network, layout: Format, zoo: Registry) -> Files:
    labels, preprocessing = network.labels, network.images
    config = timm_of(layout, network.spec, zoo, labels=labels, preprocessing=preprocessing)
    config |= problem_of(network.output_activation)  # which transformers reads, also for timm
    return {CONFIG: config}, 'timm.create_model("local-dir:{}", pretrained=True)'


def _transformers(network: Network, layout: Format, zoo: Registry) -> Files:
    spec = network.spec
    config = transformers_of(layout, spec, zoo, labels=network.labels)
    config |= problem_of(network.output_activation)
    files: dict[str, Mapping[str, Any]] = {CONFIG: config}
    if network.images is not None:
        with suppress(CheckpointError):  # the network is the same; its images need vitzoo.transform
            files[PROCESSOR] = processor_of(network.images, spec.image_size)
    name = next(iter(config["architectures"]), "AutoModel")
    more = ", add_pooling_layer=False" if name == "AutoModel" else ""
    return files, f'transformers.{name}.from_pretrained("{{}}"{more})'


def _open_clip(network: Network, layout: Format, zoo: Registry) -> Files:
    if layout.name != network.format:
        raise CheckpointError("a text tower, which only files of open_clip have")
    config = open_clip_of(layout, network.spec, zoo, network.shapes, network.images)
    return {OPEN_CLIP: config}, 'open_clip.create_model("local-dir:{}")'


def _torchvision(network: Network, layout: Format, _: Registry) -> Files:
    spec = network.spec
    fixed = {f"block.{key}": value for key, value in layout.defaults["block"].items()}
    own = {key: getattr(spec.block, key.partition(".")[2]) for key in fixed}
    lacking = [f"{key} = {own[key]}" for key, value in fixed.items() if own[key] != value]
    if not spec.num_classes or spec.head.name not in ("linear", "tanh"):
        lacking.append("a network without classifier")
    if lacking:
        raise CheckpointError(", ".join(lacking))
    numbers = {
        "image_size": spec.image_size[0],
        "patch_size": spec.patch_size[0],
        "num_layers": spec.depth,
        "num_heads": spec.num_heads,
        "hidden_dim": spec.embed_dim,
        "mlp_dim": spec.mlp_dim,
        "num_classes": spec.num_classes,
    }
    if spec.head.name == "tanh":
        numbers["representation_size"] = network.tensors["head.pre_logits.weight"].shape[0]
    arguments = ", ".join(f"{key}={value}" for key, value in numbers.items())
    return {}, (
        f"model = torchvision.models.VisionTransformer({arguments}); "
        f'model.load_state_dict(safetensors.torch.load_file("{{}}/{MODEL}"))'
    )


_FILES = {
    "timm": _timm,
    "transformers": _transformers,
    "open_clip": _open_clip,
    "torchvision": _torchvision,
}
