"""`Format`, the base class of checkpoint formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache
from typing import Any, Self

from torch import Tensor

from vitzoo.errors import CheckpointError, InvalidOption, short_repr
from vitzoo.files.names import NPZ, SAFETENSORS
from vitzoo.formats import unsupported
from vitzoo.formats.arguments import check_fields, check_kind, check_tuple, check_tuples
from vitzoo.formats.config import Config, ConfigTable, merged
from vitzoo.formats.keymap import (
    KeyMap,
    Tensors,
    fold_class_position,
    unfold_class_position,
    unique,
)
from vitzoo.formats.sharded import ShardedFolder
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec

CLASSIFIER = re.compile(r"head\.(?!pre_logits\.)(\w+\.)?(weight|bias)")  # of the model
Keys = Collection[str]
Rule = str | Callable[[Tensors], bool]


@dataclass(frozen=True, eq=False)
class Format:
    """A checkpoint format: how a library names the tensors of its Vision Transformers.

    `Format(name, keymap=..., marks=...)` is a complete format. A subclass overrides methods where a
    key map is not enough. All methods accept tensors on `meta`, because a file is checked against a
    model before its data is read. In the arguments, keys have no prefix; `*` stands for any text.

    Args:
        name: registered name, for errors.
        keymap: the names; by default those of the model.
        keymaps: key maps that replace `keymap` if their rule is part of a key, or a function of the
            tensors that returns true.
        marks: keys that every file has. A tuple of keys stands for any one of them.
        excludes: patterns of keys that no file has.
        ignored: patterns of keys that do not belong to the network, such as a mask token.
        file_prefixes: prefixes of which all keys of the network may have one: the first with which
            the key `anchor` is in the file.
        anchor: a key that every file has.
        pooled: whether a classifier beside pre-logits may read either these or the class token.
        linear_head: beginning of the keys of a classifier of one linear layer, by which a layer is
            read that stands beside a network; by default that of the model.
        training: beginnings of keys that are ignored in a file with such a prefix.
        beside: beginnings of ignored keys of other parts of a larger model, such as a text tower;
            their tensors are not read into memory.
        configs: the configs that this format reads, by their `model_type`.
        defaults: config overrides of a file; its configs or its entry replace them.
        defaults_with: further overrides of such a file, by a key that it must have.
        network: table of the values that the library's network computes, see
            `vitzoo.formats.unsupported`; None if it computes every spec.
        mask_token: key and number of axes of a mask token, which is written as zeros.
        class_position: whether a file with registers has a row of positions for the class token;
            the model adds it to that token, and a row of zeros is written.
        authors: whether the format is that of the authors of the networks in its namespace.
        asks: block options that no file shows and that have no usual value, with the library's
            defaults, for an error: the call or the spec must state them.
        suffix: ending of written files, `.safetensors` or `.npz`.
        folder: the files of a folder in which the library stores one network; None if it uses one
            file, or the index of transformers.
        by_head: whether `from_model` needs the number of attention heads.
        heads: number of attention heads, see `with_heads`.

    Raises:
        InvalidOption: an argument has another type, such as one text instead of a tuple; `network`
            names no field of a spec; there is no such `suffix`.
    """

    name: str
    keymap: KeyMap = KeyMap(others=True)  # noqa: RUF009  # frozen
    keymaps: Mapping[Rule, KeyMap] = field(default_factory=dict)
    marks: Sequence[str | tuple[str, ...]] = ()
    excludes: Sequence[str] = ()
    ignored: Sequence[str] = ()
    file_prefixes: Sequence[str] = ()
    anchor: str = ""
    pooled: bool = False
    linear_head: str = "head."
    training: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    configs: Mapping[str, ConfigTable] = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    defaults_with: Mapping[str, Config] = field(default_factory=dict)
    network: unsupported.Network | None = None
    mask_token: tuple[str, int] | None = None
    class_position: bool = False
    authors: bool = False
    asks: Mapping[str, str] = field(default_factory=dict)
    suffix: str = SAFETENSORS
    folder: ShardedFolder | None = None
    by_head: bool = False
    heads: int | None = None

    def __post_init__(self) -> None:
        called = f"Format({short_repr(self.name)}): "
        check_kind(f"{called}keymap", self.keymap, KeyMap, "a KeyMap")
        check_tuple(f"{called}marks", self.marks, tuple | list, inside=str | tuple)
        for name in ("excludes", "ignored", "file_prefixes"):
            check_tuple(called + name, getattr(self, name), tuple | list, inside=str)
        for name in ("training", "beside"):  # `str.startswith` takes no list
            check_tuple(called + name, getattr(self, name), inside=str)
        for name in ("keymaps", "configs", "defaults", "defaults_with", "asks"):
            check_kind(called + name, getattr(self, name), Mapping, "a mapping")
        if self.network is not None:
            check_tuples(f"{called}network", self.network)
            check_fields(f"{called}network", self.network)
        if self.suffix not in (SAFETENSORS, NPZ):
            expected = f"{SAFETENSORS} or {NPZ}"
            raise InvalidOption(f"{called}suffix must be {expected}, got {describe(self.suffix)}")
        check_kind(f"{called}folder", self.folder, ShardedFolder | None, "a ShardedFolder")
        if self.folder is not None and self.suffix != SAFETENSORS:
            expected = f"{SAFETENSORS} for a folder, whose shards are such files"
            raise InvalidOption(f"{called}suffix must be {expected}, got {describe(self.suffix)}")

    def file_prefix(self, keys: Keys) -> str:
        """Return which of `file_prefixes` the keys of a file have, empty for none."""
        return next((p for p in self.file_prefixes if p + self.anchor in keys), "")

    def plain(self, keys: Keys) -> set[str]:
        """Return the keys of the network in a file without prefix, as in the key map."""
        prefix = self.file_prefix(keys)
        return {self.keymap.plain(k.removeprefix(prefix)) for k in keys if k.startswith(prefix)}

    def matches(self, keys: Keys) -> bool:
        """Return whether the keys of a file are in this format."""
        plain = self.plain(keys)
        found = [plain.intersection([m] if isinstance(m, str) else m) for m in self.marks]
        return bool(found) and all(found) and not any(fits(self.excludes, key) for key in plain)

    def knows(self, key: str) -> bool:
        """Return whether a file in this format, or the model, may have a key."""
        prefix = next((p for p in self.file_prefixes if p and key.startswith(p)), "")
        plain = self.keymap.plain(key.removeprefix(prefix))
        return fits(self.ignored, plain) or any(
            keymap.knows(plain) for keymap in (self.keymap, *self.keymaps.values())
        )

    def targets(self, key: str) -> list[str]:
        """Return the keys of the model that the key maps state for a key of a file."""
        plain = key.removeprefix(next((p for p in self.file_prefixes if key.startswith(p)), ""))
        maps = (self.keymap, *self.keymaps.values())
        return [name for keymap in maps for name in keymap.targets(plain)]

    def reads_classifier(self, key: str) -> bool:
        """Return whether a key of a file is that of a classifier, not of its pre-logits."""
        own = [key] if self.keymap.others else []
        return any(map(CLASSIFIER.fullmatch, (*own, *self.targets(key))))

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a file under the keys of the model.

        Unknown keys stay as they are. The keys of `ignored_keys` are left out.

        Raises:
            CheckpointError: the values of a tensor, or two tensors, contradict the format.
        """
        own = self.own(tensors)
        found = self.keymap_for(own).to_model(own, self.read_axes)
        return fold_class_position(found) if self.class_position else found

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of the network in a file by their keys without prefix."""
        prefix, left = self.file_prefix(tensors), set(self.ignored_keys(tensors))
        return unique((k.removeprefix(prefix), t) for k, t in tensors.items() if k not in left)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a model in this format; `to_model` gives them back bit by bit.

        Raises:
            CheckpointError: the format has no place for a tensor, or needs `with_heads`.
        """
        if self.by_head and self.heads is None:
            raise CheckpointError(
                f"the checkpoint format {self.name} depends on the number of attention heads, "
                "which the tensors do not show; name the variant (--variant), or give num_heads "
                "(--heads)"
            )
        if self.class_position:
            tensors = unfold_class_position(tensors)
        written = self.keymap_for(tensors).from_model(tensors, self.name, self.write_axes)
        token = tensors.get("cls_token")
        if self.mask_token and token is not None:
            key, axes = self.mask_token
            written[key] = token.new_zeros(token.shape[-axes:])
        return written

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the key map for the tensors of a file or of a model."""
        for rule, keymap in self.keymaps.items():
            if rule(tensors) if callable(rule) else any(rule in key for key in tensors):
                return keymap
        return self.keymap

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a stored tensor with the axes of the model, None if its shape is another."""
        return tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a tensor with the axes of the file, None if its shape is another."""
        return tensor

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return the keys of a file that do not belong to the network, for the load report."""
        if not self.ignored and not self.training:
            return []
        prefix = self.file_prefix(keys)
        return [
            key
            for key in keys
            if fits(self.ignored, self.keymap.plain(key.removeprefix(prefix)))
            or (key.startswith(self.training) and not key.startswith(prefix))
        ]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return the settings that no tensor shows, as changes to a spec.

        Args:
            config: the `config.json` beside the file; if it is empty, the defaults are returned.
            keys: of the file; empty if a registry entry is read before its file.

        Raises:
            CheckpointError: the config states something that the model cannot do.
        """
        if config:
            return self.stated(config)
        plain = self.plain(keys)
        return merged(
            deepcopy(dict(self.defaults)),
            *(changes for key, changes in self.defaults_with.items() if key in plain),
        )

    def config_table(self, config: Config) -> ConfigTable | None:
        """Return the table of the `model_type` of a config, else the first, None without any."""
        first = next(iter(self.configs.values()), None)
        return self.configs.get(str(config.get("model_type")), first)

    def own_config(self, config: Config) -> Config:
        """Return the part of a config that describes the image network, with default values."""
        table = self.config_table(config)
        known = table is not None and config.get("model_type") in self.configs
        return {**table.defaults, **config} if table and known else config

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states about the network, as changes to a spec.

        Raises:
            CheckpointError: the config states something that the model cannot do.
        """
        table = self.config_table(config)
        return table.read(self.own_config(config)) if table else {}

    def spec_in(self, config: Config) -> dict[str, Any]:
        """Return the complete network that a config describes, as keys of a spec.

        Raises:
            CheckpointError: the config states something that the model cannot do.
        """
        table = self.config_table(config)
        return merged(table.network if table else {}, self.stated(config))

    def resampling(self, spec: Spec) -> str:
        """Return how the library's code interpolates positions, empty if that is not known."""
        options = self.defaults.get("pos_embed", {})
        return str(options.get("resample", "")) if isinstance(options, Mapping) else ""

    def overrides_in(self, keys: Keys, read: Callable[[str], Tensor]) -> dict[str, Any]:
        """Return the settings that the values of small tensors show, as changes to a spec.

        Args:
            keys: of the file.
            read: returns the tensor of a key of the file.

        Raises:
            CheckpointError: the values are those of no network that the model can compute.
        """
        return {}

    def unsupported(self, spec: Spec) -> list[str]:
        """Return the parts of a spec that the library's network cannot compute, for an error."""
        return [] if self.network is None else unsupported.beyond(self.network, spec)

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of attention heads that a file states, None if it states none.

        Args:
            config: the `config.json` beside the file, or empty.
            tensors: by the keys of the file, with or without data.

        Raises:
            CheckpointError: config and tensors contradict each other.
        """
        return None

    def with_heads(self, num_heads: int) -> Self:
        """Return the format for a number of attention heads."""
        return replace(self, heads=num_heads) if self.by_head else self


def fits(patterns: Sequence[str], key: str) -> bool:
    """Return whether a key fits one of the patterns, in which `*` stands for any text."""
    return bool(patterns) and _pattern(tuple(patterns)).match(key) is not None


@cache
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))
