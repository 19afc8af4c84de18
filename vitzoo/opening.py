"""Which network is meant: a model, a spec, an address on the Hub, a registered name or a path.

`locate` reads what a user may write, `resolve` finds the network without its tensors, and
`weights_source` opens its weights. docs/create.md#which-network describes the rules. Importing this
module does not import torch, so that commands can refuse a wrong name early.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from vitzoo.errors import CheckpointError, InvalidOption, UnknownName, WeightsUnavailable
from vitzoo.files.access import read_regular
from vitzoo.files.names import INDEX, PATH, PATHS, SAFETENSORS, on_hub, valid_repo
from vitzoo.files.safetensors import PICKLE_INDEX
from vitzoo.files.shard_index import weights_in
from vitzoo.files.strict_json import strict_json
from vitzoo.files.strict_toml import strict_toml
from vitzoo.registry.choice import check_word, choose
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.addresses import is_repository, one_form, parts_of_name
from vitzoo.schema.reader import NAME, describe
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from torch import nn

    from vitzoo.loading.request import Request
    from vitzoo.loading.source import WeightsSource

SPEC_FILES = (".toml", ".json")
MAX_SPEC = 1024 * 1024  # bytes


class NotGiven(int):
    """The default of `pretrained`: False, but not the False of a user."""

    def __repr__(self) -> str:
        return "False"


UNTRAINED: Any = NotGiven()


class NotPretrained(NamedTuple):
    """What was given as `pretrained`, and the variant of the call."""

    value: object
    variant: Variant | None


@dataclass(frozen=True)
class Registered:
    """A registered network.

    Args:
        name: of the variant, as it was given.
        variant: its entry.
        row: the weights that were named after a colon, None if there is no colon.
    """

    name: str
    variant: Variant
    row: Weights | None = None


def locate(
    name: object, weights: object = None, zoo: Registry | None = None
) -> nn.Module | Spec | Mapping[str, Any] | str | Registered | Path:
    """Return what a user means: a model, a spec, an address (text), a variant or a path.

    Args:
        name: what the user gave.
        weights: the argument `weights`, which must be None if `name` states weights.
        zoo: the registry; None: that of this process.

    Raises:
        UnknownName, WeightsUnavailable: the variant, or its weights, are not registered.
        InvalidOption: it is none of these, or an address is malformed.
    """
    if isinstance(name, Spec | Mapping):
        return name
    if isinstance(name, os.PathLike):
        return Path(name)
    if not isinstance(name, str):
        if is_model(name):
            return name
        raise InvalidOption(
            "the network must be a registered name, a spec, a path or a model of vitzoo.create, "
            f"got {describe(name)}"
        )
    if name == "":
        raise InvalidOption(
            "the name of the network is '' (an unset shell variable?), expected a registered name "
            "such as 'vit_b16', a path, hf://owner/repo or a spec; `vitzoo list --all` shows all "
            "names"
        )
    if on_hub(name):
        return one_form(name)  # raises if it is malformed
    found = _registered_or_path(name, zoo or registry())
    if weights is not None and isinstance(found, Registered) and found.row:
        raise InvalidOption(
            f"{name} names the weights {found.row.name!r}, got weights={describe(weights)}; name "
            "weights once"
        )
    return found


def _registered_or_path(name: str, zoo: Registry) -> Registered | Path:
    """Return the registered network of a name, or else its path; no name looks like a path."""
    folder = name.endswith("/") and not is_repository(name)
    if folder or PATH.match(name) or name.endswith((*PATHS, *SPEC_FILES)):
        return Path(name)
    try:
        return registered(name, zoo)
    except UnknownName:
        if os.path.exists(name):  # noqa: PTH110  # False for a name that is too long
            return Path(name)
        raise


def registered(name: str, zoo: Registry) -> Registered:
    """Return the variant of `name` or `name:weights`, and these weights.

    Raises:
        UnknownName: no variant has this name; the message suggests similar names.
        WeightsUnavailable: the variant has no such weights.
    """
    base, weights = parts_of_name(name)
    if weights is None or "://" in name or is_repository(name):
        return Registered(name, zoo.variant(name))
    variant = zoo.variant(base)
    return Registered(base, variant, choose(variant, weights, zoo))


def check(name: str, weights: str | None = None) -> Variant | None:
    """Refuse a network or weights that cannot be meant, before torch is imported.

    Returns:
        The variant, if the name is registered.

    Raises:
        VitzooError: as `create` raises it later for the same arguments.
    """
    found = locate(name, weights)
    if isinstance(found, Path):
        _check_there(found)
    variant = found.variant if isinstance(found, Registered) else None
    if weights and not on_hub(weights):
        _checked(weights, variant, registry())
        if is_path(weights, variant):
            _check_there(Path(weights))
        elif variant:
            choose(variant, weights, registry())
    return variant


def resolve(name: object, zoo: Registry, weights: object = None) -> Request:
    """Return the request for a name, a spec, an address or a path; a model is refused.

    Args:
        name, weights, zoo: as in `locate`.

    Raises:
        VitzooError: as `locate`; or a file is missing or damaged, or does not state its network.
    """
    from vitzoo.loading.request import Request, from_hub, from_mapping

    found = locate(name, weights, zoo)
    if isinstance(found, Registered):
        return Request(found.variant.spec, variant=found.variant, row=found.row)
    if isinstance(found, Path):
        return _of_path(found, zoo)
    if isinstance(found, str):
        return from_hub(found, zoo)
    if isinstance(found, Spec | Mapping):
        return from_mapping(found, "spec", zoo)
    raise InvalidOption(
        f"expected a registered name, a spec or a path, got {describe(found)}; pass model.spec for "
        "a new network of the same kind"
    )


def behind(source: WeightsSource | None, prefix: object) -> WeightsSource | None:
    """Return the source of the network whose keys have a prefix; with None it is unchanged.

    Raises:
        InvalidOption: the prefix is no text, or there is no file whose keys could have it.
    """
    if prefix is None:
        return source
    if not isinstance(prefix, str):
        raise InvalidOption(
            f"prefix must be text, such as 'model_ema.', or None, got {describe(prefix)}"
        )
    if source is None:
        raise InvalidOption(
            f"prefix is {prefix!r}, but this call loads no weights whose keys could have it; pass "
            "weights=FILE, or leave prefix out"
        )
    return source.behind(prefix)


def weights_source(
    request: Request, weights: object, pretrained: Any, zoo: Registry, *, mmap: bool = False
) -> WeightsSource | None:
    """Return the source of the weights of a call, None for random initialisation.

    Args:
        request: of `resolve`.
        weights, pretrained, mmap: as in `create`.
        zoo: the registry.

    Raises:
        InvalidOption, WeightsUnavailable: there are no such weights, or values contradict.
    """
    from vitzoo.checkpoint.saved import read_saved
    from vitzoo.loading.source import SavedClassifier, SavedModel, WeightsFile

    if type(pretrained) is NotGiven:
        pretrained = request.row is not None
    for name, value in (("pretrained", pretrained), ("mmap", mmap)):
        if not isinstance(value, bool):
            error = InvalidOption(f"{name} must be True or False, got {describe(value)}")
            raise error.of(NotPretrained(value, request.variant)) if name == "pretrained" else error
    given = _checked(weights, request.variant, zoo)
    saved = read_saved(request.saved) if request.saved else None
    if request.saved and saved and saved.trunk:
        return SavedClassifier(request.spec, request.saved, saved.trunk, given, zoo)
    if request.saved or request.address:
        if given is not None:
            place = request.saved.source if request.saved else request.address
            raise InvalidOption(f"{place} contains weights; leave weights= out")
        if request.saved:
            return SavedModel(request.spec, request.saved)
        return WeightsFile(request, request.address, zoo, remote=on_hub(request.address))
    if request.row and not pretrained:
        raise InvalidOption(
            f"the weights {request.row.name!r} are named, which pretrained=False (--untrained) "
            "would not load; name the variant alone for random weights"
        )
    given = request.row.name if request.row else given
    return _named_source(request, given, pretrained, zoo, mmap=mmap)


def _checked(
    weights: object, variant: Variant | None, zoo: Registry
) -> str | os.PathLike[str] | None:
    """Return the argument `weights`; raise an error for what is no name, path or address."""
    if not (isinstance(weights, str) and os.path.lexists(weights)):
        check_word(weights, variant, zoo)
    if not isinstance(weights, str | os.PathLike | None):
        raise InvalidOption(f"weights must be a name or a path, got {describe(weights)}")
    return weights


def _named_source(
    request: Request,
    weights: str | os.PathLike[str] | None,
    pretrained: bool,
    zoo: Registry,
    *,
    mmap: bool,
) -> WeightsSource | None:
    """Return the source of the weights for a registered name or a spec."""
    from vitzoo.loading.source import RegisteredWeights, WeightsFile

    if weights is None and request.adapter:
        weights, pretrained = request.adapter.weights_of(request.variant), True
    if weights is None and not pretrained:
        if mmap:
            raise InvalidOption(
                "mmap is True, but this call loads no weights that could be mapped; pass "
                "weights=FILE, or leave mmap out"
            )
        return None
    if weights == "":
        raise InvalidOption(
            "weights is '' (an unset shell variable?), expected a weights name, a path or "
            "hf://owner/repo@revision/file; leave weights= out, or pass pretrained=True for the "
            "default weights"
        )
    if weights is not None and (on_hub(weights) or is_path(weights, request.variant)):
        address = one_form(str(weights)) if on_hub(weights) else weights  # or it is malformed
        return WeightsFile(request, address, zoo, remote=on_hub(weights))
    if request.variant is None:
        raise WeightsUnavailable(
            "a spec that names no variant has no registered weights; pass a file: "
            "weights='model.safetensors'"
        )
    row = choose(request.variant, weights, zoo)  # type: ignore[arg-type]  # a name or None here
    if request.adapter and row.sha256:  # before a download
        request.adapter.check_base(row.sha256, f"{request.variant.name}:{row.name}")
    return RegisteredWeights(request, request.variant, row, zoo)


def is_path(weights: str | os.PathLike[str], variant: Variant | None) -> bool:
    """Return whether `weights=` is a path; raise CheckpointError for the name of a repository."""
    if not isinstance(weights, str):
        return True
    there = os.path.lexists(weights)
    if NAME.fullmatch(weights):
        own = variant is not None and any(row.name == weights for row in variant.weights)
        return there and not own
    if not there and valid_repo(weights) and not weights.endswith(PATHS):
        raise CheckpointError(
            f"{weights}: there is no such file; to load a file from the Hub, add its revision and "
            f"name: weights='hf://{weights}@main/model.safetensors'"
        )
    return True


def is_model(value: object) -> TypeGuard[nn.Module]:
    """Return whether a value is a module of torch, of vitzoo or not."""
    from torch import nn

    return isinstance(value, nn.Module)


def _check_there(path: Path) -> None:
    """Raise an error if nothing is at a path, or no weights in a folder."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        error = InvalidOption if _is_spec(path) else CheckpointError
        raise error(f"cannot read {path}: there is no such file") from None
    except (OSError, ValueError):
        return
    if not _is_spec(path):
        weights_in(path)


def _is_spec(path: Path) -> bool:
    index = path.name.endswith(INDEX) or PICKLE_INDEX.fullmatch(path.name)
    return path.suffix in SPEC_FILES and not index


def _of_path(path: Path, zoo: Registry) -> Request:
    """Return the request of a spec file, a file of `save`, or weights with a config beside them."""
    from vitzoo.foreign.opened import open_described
    from vitzoo.loading.request import Nameless, from_folder, from_mapping, from_saved

    _check_there(path)
    if _is_spec(path):
        return from_mapping(_parse(path), str(path), zoo)
    if os.path.isdir(path):  # noqa: PTH112  # False for a name that is too long
        return from_folder(path, zoo)
    if path.suffix == SAFETENSORS:
        return from_saved(path, zoo)
    checkpoint = open_described(path)  # or it raises another error, without weights
    raise CheckpointError().of(Nameless(checkpoint, str(path), zoo))


def _parse(path: Path) -> Any:
    """Return the data in a TOML or JSON file; raise InvalidOption if it cannot be read."""
    text = read_regular(path, MAX_SPEC, InvalidOption) or b""
    try:
        return strict_toml(text) if path.suffix == ".toml" else strict_json(text)
    except ValueError as error:
        verb = "" if path.suffix == ".toml" else "is not valid JSON: "
        raise InvalidOption(f"{path} {verb}{error}") from error
