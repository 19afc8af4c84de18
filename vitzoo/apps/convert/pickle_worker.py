"""Write the tensors of a pickle as safetensors; `vitzoo.apps.convert.pickles` starts this process.

Nothing that a pickle names is imported or called, except what torch's weights-only loader allows
(tensors, numbers, texts and their containers). In place of any other class stands an `Inert` one,
unless the name is one of torch or of the standard library.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import torch
from packaging.version import parse
from torch import Tensor

from vitzoo.checkpoint.writers import write_safetensors
from vitzoo.errors import CheckpointError
from vitzoo.files.safetensors import check_count, place
from vitzoo.plugin.limited import OUT_OF_MEMORY
from vitzoo.text import listed

# Entries of a checkpoint of training in which scripts keep the tensors of a network.
KNOWN = (
    *("state_dict", "model_state_dict", "model", "module", "net", "network", "backbone", "encoder"),
    *("teacher", "student", "target_encoder", "model_ema", "state_dict_ema", "ema"),
)
SAFE = "2.10"  # of torch, whose loader has no known hole
DEPTH = 3  # of entries in entries
FORBIDDEN = re.compile(r"GLOBAL (\S+)")  # in a message of torch
FILLED = re.compile(r"Can only (SETITEMS?|append|extend) .* but got <class '(.*)'>")  # in another
MOST_CLASSES = 500  # inert ones in one pickle
REFUSED = sys.stdlib_module_names | {"torch"}  # packages whose names are refused
DATA = {"argparse", "collections", "datetime", "pathlib"}  # except these, whose classes hold data
PLAIN = {  # and these names, of values and of types in configs
    *("functools.partial", "typing.Any", "builtins.bool", "builtins.bytes", "builtins.dict"),
    *("builtins.float", "builtins.frozenset", "builtins.int", "builtins.list", "builtins.object"),
    *("builtins.range", "builtins.slice", "builtins.str", "builtins.tuple"),
}


class Inert:
    """Stands for an object of a class that is not imported. It takes anything, and does nothing."""

    filled: Callable[[], object] | None = None  # what stands for a subclass of dict or list

    def __new__(cls, *_: object, **__: object) -> Any:
        """Make an object; of a class whose objects are filled, a plain container."""
        return object.__new__(cls) if cls.filled is None else cls.filled()

    def __init__(self, *_: object, **__: object) -> None:
        """Ignore the arguments."""

    def __setstate__(self, _: object) -> None:
        """Ignore the state."""

    def __setitem__(self, _: object, __: object) -> None:
        """Ignore an item; older versions of torch set it."""


def write(source: BinaryIO, target: BinaryIO, key: str | None, most: int) -> str:
    """Write the tensors of a pickle as safetensors; return the names of their entry.

    Args:
        source: the pickle.
        target: an empty file.
        key: names of the entry with the tensors, separated by dots; None to look for it.
        most: bytes of the tensors that are accepted.
    """
    torch.set_num_threads(1)
    tensors, entry = chosen(load(source), key)
    _check(tensors, most)
    write_safetensors(target, tensors, {"format": "pt"})
    return entry


def load(file: BinaryIO) -> object:
    """Unpickle a file with torch's weights-only loader, and inert classes for those it lacks."""
    if parse(torch.__version__) < parse(SAFE):
        raise CheckpointError(
            f"with torch {torch.__version__}, a pickle can run code in the weights-only loader "
            f"(CVE-2026-24747); install torch>={SAFE}"
        )
    inert: dict[str, type[Inert]] = {}
    for name in _named(file):
        _learn(inert, name)
    while True:
        file.seek(0)
        try:
            with torch.serialization.safe_globals([*inert.values()]):
                return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
        except MemoryError:
            raise
        except Exception as error:
            cause = error.__context__ or error  # without the advice that torch adds
            text = f"{type(cause).__name__}: {cause}"
            if not _learned(inert, text):
                raise _explained(error, text) from error


def _named(file: BinaryIO) -> list[str]:
    """Return what the pickle names and the loader lacks, as far as can be told without loading."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # no zip, or damaged: the loader says so
        return []


def _learned(inert: dict[str, type[Inert]], text: str) -> bool:
    """Tell whether an error of the loader was answered by another inert class."""
    if match := FORBIDDEN.search(text):
        return _learn(inert, match[1] if "." in match[1] else f"builtins.{match[1]}")
    match = FILLED.search(text)
    known = inert.get(match[2]) if match else None
    if match is None or known is None or known.filled:
        return False
    known.filled = OrderedDict if match[1].startswith("SETITEM") else list
    return True


def _learn(inert: dict[str, type[Inert]], path: str) -> bool:
    """Make an inert class for a name; False if the name is refused, or has one."""
    package = path.partition(".")[0]
    if path in inert or (package in REFUSED - DATA and path not in PLAIN):
        return False
    if len(inert) >= MOST_CLASSES:
        raise CheckpointError(f"it names more than {MOST_CLASSES} classes that are not tensors")
    module, _, name = path.rpartition(".")
    inert[path] = type("Inert", (Inert,), {"__module__": module, "__qualname__": name})
    return True


def _explained(error: Exception, text: str) -> Exception:
    """Return the error to raise for an error of torch's loader."""
    if "TorchScript" in str(error):
        return CheckpointError(
            "it is a TorchScript archive, which is code; write its state_dict() with "
            "safetensors.torch.save_file"
        )
    if any(part in text for part in OUT_OF_MEMORY):
        return MemoryError()
    if match := FORBIDDEN.search(text):
        return CheckpointError(
            f"it names {match[1]}, which is not called; expected tensors, numbers, texts and "
            "tables of them: save the state_dict() alone"
        )
    return CheckpointError(f"torch's weights-only loader cannot read it: {text}")


def chosen(data: object, key: str | None) -> tuple[Mapping[str, Tensor], str]:
    """Return the tensors of a network in an unpickled object, and the names of their entry.

    Args:
        data: a table of tensors, or a table with an entry of `KNOWN`.
        key: names of entries within each other, separated by dots; None for `KNOWN`.

    Raises:
        CheckpointError: there is no table of tensors, or there are several.
    """
    path: list[str] = []
    for name in key.split(".") if key else ():
        if not isinstance(data, Mapping) or name not in data:
            raise CheckpointError(f"it has no entry {'.'.join([*path, name])!a}; {_entries(data)}")
        data = data[name]
        path.append(name)
    while not _is_table(data):
        names = [name for name in KNOWN if isinstance(data, Mapping) and _holds(data.get(name))]
        if len(names) > 1:
            keys = ", ".join(".".join([*path, name]) for name in names)
            raise CheckpointError(
                f"it has several tables of tensors: {keys}; name one: --key "
                f"{'.'.join([*path, names[0]])}"
            )
        if not names:
            mixed = next(
                (n for n in KNOWN if isinstance(data, Mapping) and _mixed(data.get(n))), ""
            )
            where = f" in its entry {'.'.join([*path, mixed])}" if mixed else ""
            data = data[mixed] if mixed else data  # type: ignore[index]  # a mapping
            raise CheckpointError(f"it has no table of tensors{where}; {_entries(data)}")
        data = data[names[0]]  # type: ignore[index]  # a mapping, as it has names
        path.append(names[0])
    return data, ".".join(path)  # type: ignore[return-value]  # a table


def _is_table(data: object) -> bool:
    return (
        isinstance(data, Mapping)
        and bool(data)
        and all(isinstance(k, str) and isinstance(t, Tensor) for k, t in data.items())
    )


def _mixed(data: object) -> bool:
    """Tell whether an object is a table of tensors and of other things."""
    return isinstance(data, Mapping) and any(isinstance(one, Tensor) for one in data.values())


def _kind(value: object) -> str:
    """Return the name of an object's class; of an inert one, that in the pickle."""
    kind = type(value)
    named = f"{kind.__module__}.{kind.__qualname__}, which is not imported"
    return named if isinstance(value, Inert) else kind.__name__


def _holds(data: object, depth: int = DEPTH) -> bool:
    """Return whether an object is a table of tensors, or has one in an entry of `KNOWN`."""
    inside = depth and isinstance(data, Mapping)
    return _is_table(data) or bool(
        inside and any(_holds(data.get(name), depth - 1) for name in KNOWN)  # type: ignore[attr-defined]
    )


def _entries(data: object) -> str:
    """Return the end of a message: what an object is that is no table of tensors."""
    if not isinstance(data, Mapping):
        return f"found a {_kind(data)}, expected a table of tensors"
    odd = [f"{k} ({_kind(v)})" for k, v in data.items() if not isinstance(v, Tensor)]
    odd += [f"{k!r} (no text)" for k in data if not isinstance(k, str)]
    return (
        f"entries that are no tensors: {listed(odd, 5) or 'none'}, of {len(data)}; expected a "
        "table of tensors: save the state_dict() alone, or name an entry with --key"
    )


def _check(tensors: Mapping[str, Tensor], most: int) -> None:
    """Refuse what no safetensors file may have, before anything is written."""
    check_count(len(tensors), "it")
    for name in tensors:
        place(name, "it")
    total = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors.values())
    if total > most:
        raise CheckpointError(
            f"its tensors have {total} bytes, more than the {most} accepted: views of "
            "little memory become large tensors"
        )
