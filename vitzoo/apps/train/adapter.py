"""LoRA adapters in PEFT's format: read without trust, and merged into the weights they adapt."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.containers import DTYPES, Reading, SafetensorsFile, open_own
from vitzoo.checkpoint.description import Description
from vitzoo.checkpoint.saved import parsed
from vitzoo.errors import CheckpointError, InvalidOption, short_repr
from vitzoo.files.access import read_regular
from vitzoo.files.strict_json import strict_json
from vitzoo.loading.adapt import LOADABLE
from vitzoo.loading.load import raise_if
from vitzoo.report import LoadReport
from vitzoo.schema.reader import Reader, describe
from vitzoo.schema.rows import Variant

CONFIG, TENSORS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_CONFIG = 4 * 1024 * 1024  # bytes; the names of 21,843 classes take 0.5 MB
MAX_WHOLE = 16  # modules that are trained whole
PREFIX = "base_model.model."  # PEFT puts it before the names of the model
RECORD = re.compile(r"sha256:([0-9a-f]{64}) (\{.*\})", re.DOTALL)
LAYER = re.compile(r"(blocks\.\d+|attn_pool)\.(.+)")
EMPTY: tuple[object, ...] = (None, False, "none", [], {})
STARTS = (True, False, "gaussian")  # values of init_lora_weights that leave the base as it is
WITHOUT_EFFECT = {  # keys of the config that do not change what is merged
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "task_type"),
    *("exclude_modules", "layers_pattern", "layers_to_transform"),
    *("ensure_weight_tying", "lora_dropout", "megatron_core", "qalora_group_size"),
}
WRITE = "peft_model.save_pretrained(folder) writes an adapter"
WITH_PEFT = (
    "PEFT can apply it to a model that you made as in training: "
    "peft.PeftModel.from_pretrained(model, folder).merge_and_unload()"
)


@dataclass(frozen=True)
class Adapter:
    """An open adapter.

    Args:
        folder: its path, for messages.
        file: its tensors.
        base: SHA-256 of the weights file that it was trained on.
        trained: network, labels and preprocessing that it was trained with.
        rank: number of rows of each matrix A.
        scale: factor of the products B A.
        targets: the names of adapted layers, as a list or as one pattern.
        whole: ends of the names of modules that were trained whole, such as `head`.
    """

    folder: str
    file: SafetensorsFile
    base: str
    trained: Description
    rank: int
    scale: float
    targets: object
    whole: tuple[str, ...]

    def weights_of(self, variant: Variant | None) -> str | None:
        """Return the name of the weights that the adapter was trained on, None if unknown."""
        rows = variant.weights if variant else ()
        return next((row.name for row in rows if row.sha256 == self.base), None)

    def check_base(self, sha256: str, source: str) -> None:
        """Raise CheckpointError for weights that the adapter was not trained on."""
        if sha256 != self.base:
            network = (self.trained.spec or {}).get("variant", "a network without a name")
            raise CheckpointError(
                f"{self.folder} was trained on weights of {short_repr(network)} with sha256 "
                f"{self.base}, {source} has sha256 {sha256}; name the same network and weights="
            )

    def described(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the weights file with the classes and the preprocessing of the adapter."""
        own, row = self.trained, checkpoint.row
        stated = replace(
            checkpoint.stated,
            labels=own.labels,
            output_activation=own.output_activation,
            preprocessing=own.preprocessing or checkpoint.stated.preprocessing,
        )
        return replace(checkpoint, row=row and replace(row, label_set=""), stated=stated)

    def check(self, model: nn.Module) -> None:
        """Raise CheckpointError, with all problems, unless the adapter fits a model."""
        fitting, needed = self._shapes(model)
        found = self.file.header.tensors
        missing = [name for name in needed if name not in found]
        unexpected = [name for name in found if name not in fitting]
        shapes = [
            f"{name} is {info.shape}, expected {fitting[name]}"
            for name, info in found.items()
            if name in fitting and info.shape != fitting[name]
        ]
        counts = {
            PREFIX + n: (t.dtype,)
            for n, t in model.state_dict().items()
            if not t.is_floating_point()
        }
        types = [
            f"{name} is {info.dtype}"
            for name, info in found.items()
            if DTYPES[info.dtype] not in counts.get(name, LOADABLE)
        ]
        of_head = any(n.startswith(f"{PREFIX}head.") for n in (*unexpected, *shapes))
        raise_if(
            self.folder,
            ("missing", missing),
            ("unexpected", unexpected),
            ("with another shape", shapes),
            ("of a type that weights do not have", types),
            hint="; leave num_classes= and head= out: the adapter states them" if of_head else "",
        )

    def _shapes(self, model: nn.Module) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        """Return the shapes of all possible tensors by name, and the names of those needed."""
        fitting: dict[str, tuple[int, ...]] = {}
        modules, needed = dict(model.named_modules()), list[str]()
        pattern = self.targets if self.targets == pattern_of(model) else None
        for name, layer in modules.items():
            if not isinstance(layer, nn.Linear):
                continue
            pair = _pair(name)
            shapes = (self.rank, layer.in_features), (layer.out_features, self.rank)
            fitting |= dict(zip(pair, shapes, strict=True))
            partly = any(key in self.file.header.tensors for key in pair)
            if partly or (isinstance(pattern, str) and re.fullmatch(pattern, name)):
                needed += pair
        whole = tuple(f"{name}." for name in modules if name.endswith(self.whole))
        state = {
            PREFIX + n: tuple(t.shape) for n, t in model.state_dict().items() if n.startswith(whole)
        }
        return fitting | state, [*needed, *state]

    @torch.no_grad()
    def merge(self, model: nn.Module, report: LoadReport, *, check_finite: bool) -> LoadReport:
        """Merge the adapter into a model with loaded weights; return the report with its tensors.

        A weight W becomes W + scale * B A, computed at least in float32.

        Raises:
            CheckpointError: the adapter was trained on other weights, has or gives values that are
                not finite, or lacks a newly initialised tensor of the head.
        """
        self.check_base(report.sha256, report.source)
        lost = [n for n in report.reinitialised if PREFIX + n not in self.file.header.tensors]
        raise_if(self.folder, ("missing, which the weights do not have either", lost))
        tensors, sha256, finite, _ = self.file.read(Reading())
        if check_finite and not finite:
            odd = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
            raise_if(self.folder, ("with NaN or infinite values", odd))
        old, new = model.state_dict(), dict[str, Tensor]()
        for name, weight in old.items():
            exact = torch.promote_types(weight.dtype, torch.float32)
            a, b = (tensors.get(key) for key in _pair(name.removesuffix(".weight")))
            if PREFIX + name in tensors:
                new[name] = tensors[PREFIX + name].to(weight.dtype)
            elif name.endswith(".weight") and a is not None and b is not None:
                change = (b.to(exact) @ a.to(exact)) * self.scale
                new[name] = (weight.to(exact) + change).to(weight.dtype)
        if check_finite:
            odd = [name for name, tensor in new.items() if not tensor.isfinite().all()]
            what = f"with NaN or infinite values after merging it with the factor {self.scale}"
            raise_if(self.folder, (what, odd))
        model.load_state_dict(new, strict=False, assign=True)
        fates = ("kept", "resampled", "converted", "reinitialised")
        left: dict[str, Any] = {
            fate: tuple(n for n in getattr(report, fate) if n not in new) for fate in fates
        }
        return replace(report, adapter=sha256, merged=tuple(new), **left)


def open_adapter(folder: object) -> Adapter:
    """Open the folder of an adapter that PEFT saved, and read its config.

    Raises:
        InvalidOption: it is no folder.
        CheckpointError: a file is missing, damaged or a pickle, the config does not state the base,
            or it states a kind of adapter that is not merged here.
    """
    if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):  # noqa: PTH112
        known = isinstance(folder, str | os.PathLike) and not os.path.exists(folder)  # noqa: PTH110
        raise InvalidOption(
            f"adapter must be a folder with {CONFIG} and {TENSORS}, got {describe(folder)}"
            f"{', which does not exist' if known else ''}; {WRITE}"
        )
    path = Path(folder)
    if not (path / TENSORS).exists() and (path / PICKLE).exists():
        raise CheckpointError(
            f"{path / PICKLE} is a pickle, which can run code, so vitzoo never loads one; save the "
            "adapter again: peft_model.save_pretrained(folder, safe_serialization=True)"
        )
    table = _config(path / CONFIG)
    file = SafetensorsFile(open_own(path / TENSORS), str(path / TENSORS))
    return _read(table, file, str(path))


def _config(path: Path) -> Mapping[str, Any]:
    if (text := read_regular(path, MAX_CONFIG, CheckpointError)) is None:
        raise CheckpointError(f"cannot read {path}: there is no such file; {WRITE}")
    try:
        data = strict_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    return Reader(data, str(path), CheckpointError).table


def _read(table: Mapping[str, Any], file: SafetensorsFile, folder: str) -> Adapter:
    """Read a config of PEFT; every key without a known meaning must be empty."""
    reader = Reader(table, str(Path(folder, CONFIG)), CheckpointError)
    reader.one_of("peft_type", ("LORA",))
    rank, alpha = reader.count("r"), reader.take("lora_alpha", float)
    root = math.sqrt(rank) if reader.take("use_rslora", bool, False) else rank
    if not math.isfinite(alpha):
        raise reader.fail(f"lora_alpha must be a finite number, got {alpha}")
    whole = reader.texts("modules_to_save") if table.get("modules_to_save") else ()
    if len(whole) > MAX_WHOLE:
        raise reader.fail(f"modules_to_save may name {MAX_WHOLE} modules, got {len(whole)}")
    known = {"peft_type", "r", "lora_alpha", "use_rslora", "modules_to_save", "revision"}
    known |= {"target_modules"} | WITHOUT_EFFECT
    if table.get("init_lora_weights", True) in STARTS:
        known.add("init_lora_weights")
    for key, value in table.items():
        if key not in known and value not in EMPTY:
            raise reader.fail(
                f"{key!a} is {short_repr(value)}, which create does not merge; {WITH_PEFT}"
            )
    stated = RECORD.fullmatch(str(table.get("revision")))
    if stated is None:
        raise reader.fail(
            f"revision must state the base as LoraConfig(**vitzoo.lora(model)) does, got "
            f"{describe(table.get('revision'))}; {WITH_PEFT}"
        )
    trained = parsed(stated[2], f"{reader.where}: revision")
    return Adapter(
        folder, file, stated[1], trained, rank, alpha / root, table.get("target_modules"), whole
    )


def record(base: str, metadata: str) -> str:
    """Return the text that states the base of an adapter.

    Args:
        base: SHA-256 of the weights file.
        metadata: what `save` writes about the model, as JSON.
    """
    return f"sha256:{base} {metadata}"


def pattern_of(model: nn.Module) -> str:
    """Return a pattern of the names of all linear layers in blocks and in the pool.

    It is empty if there are none. Names of other modules, such as `patch_embed.proj`, do not match.
    """
    places: dict[str, set[str]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and (found := LAYER.fullmatch(name)):
            place = "blocks[.][0-9]+" if found[1] != "attn_pool" else "attn_pool"
            places.setdefault(place, set()).add(found[2].replace(".", "[.]"))
    return "|".join(f"{place}[.]({'|'.join(sorted(ends))})" for place, ends in places.items())


def _pair(layer: str) -> tuple[str, str]:
    """Return the names of the matrices A and B of a layer."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"
