"""What a checkpoint format is: a map of keys, and what no map of keys says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.files.names import SAFETENSORS
from vitzoo.formats import unsupported
from vitzoo.formats.keymap import KeyMap, Tensors, without
from vitzoo.schema.spec import Spec

Config = Mapping[str, Any]
Keys = Collection[str]


@dataclass(frozen=True, eq=False)
class Format:
    """A checkpoint format: how a library names the tensors of its Vision Transformers.

    What a `KeyMap` says needs no code: `Format(name, keymap=..., marks=...)` is a whole format.
    What it does not say is a method of a subclass. All methods take tensors with data and tensors
    on `meta` alike: a file is checked against a model before its data is read.

    Args:
        name: as registered, for errors.
        keymap: the names. Without one they are the model's own.
        marks: keys that every file of the format has, without prefix; in place of a key may stand a
            tuple of keys, of which a file has at least one.
        excludes: keys that no file of the format has, without prefix.
        ignored: keys of tensors that are no part of the network, without prefix; one that ends in a
            dot is the beginning of keys.
        defaults: what `overrides` returns where there is no `config.json`.
        network: what the library's network has beyond the paper's, as arguments of
            `unsupported.beyond_paper`; None if it computes every network.
        suffix: ending of the files that are written, `.safetensors` or `.npz`.
        by_head: whether `from_model` must know the number of attention heads.
        heads: their number, for `from_model`; see `with_heads`.
    """

    name: str
    keymap: KeyMap = KeyMap(others=True)  # noqa: RUF009  # frozen
    marks: Sequence[str | tuple[str, ...]] = ()
    excludes: Sequence[str] = ()
    ignored: Sequence[str] = ()
    defaults: Config = field(default_factory=dict)
    network: Config | None = None
    suffix: str = SAFETENSORS
    by_head: bool = False
    heads: int | None = None

    def matches(self, keys: Keys) -> bool:
        """Return whether the keys of a file are in this format."""
        plain = {self.keymap.plain(key) for key in keys}
        found = [plain.intersection([m] if isinstance(m, str) else m) for m in self.marks]
        return bool(found) and all(found) and plain.isdisjoint(self.excludes)

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a file under the model's own keys.

        Keys that are not known stay as they are; those of `ignored_keys` are left out.

        Raises:
            CheckpointError: the values of a tensor, or two tensors, contradict the format.
        """
        own = without(tensors, self.ignored_keys(tensors))
        return self.keymap_for(own).to_model(own, self.read_axes)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return tensors under the model's own keys in this format.

        What comes back through `to_model` is equal bit by bit.

        Raises:
            CheckpointError: the format has no place for some of the tensors, which are named; or
                it needs the number of attention heads (`with_heads`).
        """
        if self.by_head and self.heads is None:
            raise CheckpointError(
                f"the layout {self.name} depends on the number of attention heads, and the tensors "
                "do not say how many there are; name the variant (--variant), or give num_heads "
                "(--heads)"
            )
        return self.keymap_for(tensors).from_model(tensors, self.name, self.write_axes)

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the key map for tensors of a file or of a model, for formats that have several."""
        return self.keymap

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a tensor of a file with the axes of the model's; None where that cannot be.

        Args:
            key: of the checkpoint, as the key map has it.
            tensor: as stored.
        """
        return tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a tensor with the axes that are stored; None where that cannot be."""
        return tensor

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return the keys of a file that are no part of the network, such as a mask token.

        The load report names them.
        """
        begin = tuple(key for key in self.ignored if key.endswith("."))
        plain = {key: self.keymap.plain(key) for key in keys}
        return [k for k, own in plain.items() if own in self.ignored or own.startswith(begin)]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what no tensor shows, as changes to a spec: activation, norm epsilon and others.

        Plain data under the keys of a spec: `block` holds block options; `pool`, `pos_embed` and
        `patch_embed` hold options for the part that the spec names, or with a `name` another part.

        Args:
            config: the file's sibling `config.json`. With an empty one the format's defaults are
                returned, else what the config states.
            keys: of the file; empty where a registry entry is read before its file.

        Raises:
            CheckpointError: the config states something that the model cannot do.
        """
        return {} if config else deepcopy(dict(self.defaults))

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what the library's network cannot compute of a spec; empty if it can all.

        `vitzoo convert` refuses such a network. What a setting of the library changes does not
        count: the norm's epsilon, the activation, the way positions are resampled.

        Args:
            spec: of the network that the weights belong to.

        Returns:
            phrases such as `pos_embed = rope`, for an error.
        """
        return [] if self.network is None else unsupported.beyond_paper(spec, **self.network)

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of attention heads that a file states, None where it does not.

        Shapes do not show it: a network with another number of heads loads and computes nonsense.

        Args:
            config: the file's sibling `config.json`, or empty.
            tensors: by the file's own keys, with data or without.

        Raises:
            CheckpointError: its statements contradict each other.
        """
        return None

    def with_heads(self, num_heads: int) -> Self:
        """Return the format that writes for so many heads, itself if it need not know."""
        return replace(self, heads=num_heads) if self.by_head else self
