"""The network that a user names in a command, before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitzoo.files.names import on_hub
from vitzoo.files.shard_index import weights_in
from vitzoo.opening import File, Folder, Named, OnHub, check_exists, is_spec, locate
from vitzoo.registry.choice import checked, choose, is_path
from vitzoo.registry.registry import registry
from vitzoo.registry.shard_indexes import indexes
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec


@dataclass(frozen=True)
class NamedNetwork:
    """The network, and the weights, that a user names in a command.

    Args:
        name: the text of the user.
        variant: the registered variant, None if the name is a path or an address.
        weights: the registered weights that are named after a colon or by `--weights`, None if no
            weights, a file or an address are named. `variant.default_weights` are the default.
        path: the file or folder that describes the network.
        address: of the network on the Hub, such as `hf://owner/repo`.
    """

    name: str
    variant: Variant | None = None
    weights: Weights | None = None
    path: Path | None = None
    address: str = ""

    @property
    def spec(self) -> Spec:
        """The network, complete; without named weights, that of the variant.

        Reading it imports torch if there is a path, an address, or named weights.

        Raises:
            VitzooError: a file is damaged or does not state its network, or a download failed.
        """
        if self.variant is not None and self.weights is None:
            return self.variant.spec
        from vitzoo.known import known

        if self.variant is not None and self.weights is not None:
            return known(f"{self.variant.name}:{self.weights.name}").spec
        return known(self.name).spec


def check(name: str, weights: str | None = None) -> NamedNetwork:
    """Return which network a user names; refuse one that cannot be meant. No torch is imported.

    Args:
        name: variant, VARIANT:WEIGHTS, path or address, as `vitzoo.create` takes it.
        weights: value of the option `--weights`, None if it is not given.

    Raises:
        VitzooError: the error that `vitzoo.create` would raise for these arguments.
    """
    located = locate(name, weights)
    variant = row = None
    if isinstance(located, Named):
        variant, row = located.variant, located.row
    elif isinstance(located, File | Folder):
        _check_path(located.path)
    if weights is not None and not on_hub(weights):
        checked(weights, variant, registry())
        if is_path(weights, variant):
            _check_path(Path(weights))
        elif variant:
            row = choose(variant, weights, registry())
    path = located.path if isinstance(located, File | Folder) else None
    address = located.address if isinstance(located, OnHub) else ""
    return NamedNetwork(name, variant, row, path, address)


def _check_path(path: Path) -> None:
    """Raise VitzooError if nothing is at a path, or no weights in a folder."""
    check_exists(path)
    if not is_spec(path):
        weights_in(path, indexes)
