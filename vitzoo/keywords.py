"""Errors for arguments that a function does not have or that have another type, and tracebacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from vitzoo.errors import InvalidOption, UnknownOption, VitzooError, did_you_mean, short_repr
from vitzoo.text import quoted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
INTERNAL = {  # packages whose frames say nothing to who calls vitzoo
    *sys.stdlib_module_names,
    *("vitzoo", "torch", "numpy", "safetensors", "huggingface_hub", "httpx2", "httpcore2", "anyio"),
    *("h11", "PIL", "pluggy", "rtoml", "tomlkit"),
}
ON_PROGRESS = "pass the function as on_progress, which gets (done, total, text)"
KINDS: dict[str, Any] = {  # words of a message, and the type
    "text": str,
    "a path": os.PathLike,
    "an iterable": Iterable,
    "a sequence": Iterable,
    "a tuple": Iterable,
    "a function": Callable,
    "None": type(None),
    "a boolean": bool,
}


def check_types(called: str, **arguments: tuple[object, str]) -> None:
    """Raise `InvalidOption` for an argument of another type; bytes are no iterable.

    Args:
        called: name of the function, for the message.
        arguments: value of each argument, and the kinds that it may have.

    >>> check_types("size", path=(5.5, "text or a path"))
    Traceback (most recent call last):
    vitzoo.errors.InvalidOption: size(): path must be text or a path, got 5.5 (float)
    """
    for name, (value, expected) in arguments.items():
        kinds = tuple(KINDS[kind] for kind in expected.split(" or "))
        if not isinstance(value, kinds) or isinstance(value, bytes):
            got = f"{short_repr(value)} ({type(value).__name__})"
            raise InvalidOption(f"{called}(): {name} must be {expected}, got {got}")


def check_each(called: str, name: str, values: Iterable[T], expected: str) -> list[T]:
    """Return the elements of an argument; raise `InvalidOption` for one of another type."""
    every = list(values)
    check_types(called, **{f"{name}[{i}]": (one, expected) for i, one in enumerate(every)})
    return every


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `UnknownOption` unless a value is one of the known names."""
    names = tuple(known)
    if value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise UnknownOption(
            f"{name} must be one of {', '.join(names)}, got {short_repr(value)}{hint}"
        )


def check_progress(called: str, on_progress: object, progress: object) -> None:
    """Raise `InvalidOption` unless the arguments of a function that takes long are of their types.

    Args:
        called: name of the function, for the message.
        on_progress, progress: its arguments.
    """
    check_types(called, on_progress=(on_progress, "a function or None"))
    try:
        check_types(called, progress=(progress, "a boolean"))
    except InvalidOption as error:
        fix = f"; {ON_PROGRESS}" if callable(progress) else ""
        raise InvalidOption(f"{error}{fix}") from None


def hint_of_progress(name: str, _value: object) -> str:
    """Return the fix for an argument that other functions call `on_progress`."""
    return ON_PROGRESS if name in ("note", "callback", "progress_callback") else ""


def check_keywords(
    hint: Callable[[str, object], str] = lambda _name, _value: "",
    passed_to: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise `UnknownOption` for a keyword argument that it does not have.

    It does so, too, for a positional argument that has to be a keyword argument; the error repeats
    the call with the keyword. For an `__init__`, the error names the class.

    The function keeps its signature for type checkers, `help` and `inspect.signature`.

    Args:
        hint: maps the unknown name and its value to the text of a fix. If the text is empty, the
            error suggests the arguments with the most similar names, or lists all arguments.
        passed_to: a function that gets the other arguments of `function`, so has them too.

    >>> @check_keywords()
    ... def resize(size: int, *, method: str = "bicubic") -> int:
    ...     return size
    >>> resize(2, methd="bilinear")
    Traceback (most recent call last):
    vitzoo.errors.UnknownOption: resize() has no argument 'methd'; did you mean 'method'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        parameters = signature(function).parameters.values()
        known = [p.name for p in parameters if p.kind in kinds]
        several = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
        only = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY and not several]
        positional = [p.name for p in parameters if p.kind <= Parameter.POSITIONAL_OR_KEYWORD]
        called, skipped = function.__name__, 0
        if called == "__init__":
            called, known, skipped = function.__qualname__.split(".")[-2], known[1:], 1
        if passed_to:
            known = [*dict.fromkeys([*known, *list(signature(passed_to).parameters)[1:]])]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                if more := dict(zip(only, args[len(positional) :], strict=False)):
                    _raise_positional(called, positional[skipped:], more)
                for name, value in kwargs.items():
                    if name not in known:
                        nearest = did_you_mean(name, known) or f"; it has: {', '.join(known)}"
                        fix = f"; {text}" if (text := hint(name, value)) else nearest
                        raise UnknownOption(f"{called}() has no argument {quoted(name)}{fix}")
                return function(*args, **kwargs)
            except VitzooError as error:  # its values may be closed later
                create = called == "create"  # whose call some texts repeat
                error.complete(dict(zip(known, args, strict=False)) | kwargs if create else {})
                shorten(error)
                raise

        return checked

    return decorate


def _raise_positional(called: str, positional: list[str], more: Mapping[str, object]) -> None:
    """Raise `UnknownOption` for positional arguments that have to be keyword arguments."""
    given = [*positional, *(f"{name}={short_repr(value)}" for name, value in more.items())]
    number = len(positional)
    raise UnknownOption(
        f"{called}() takes {number} positional argument{'s' * (number != 1)}, got {len(given)}; "
        f"the others are keyword arguments: {called}({', '.join(given)})"
    )


def short_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a public function raise errors of vitzoo without the frames of vitzoo's modules.

    `check_keywords` does so, too.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except VitzooError as error:
            shorten(error)
            raise

    return called


def shorten(error: VitzooError) -> None:
    """Cut the tracebacks of an error and its causes, unless `VITZOO_DEBUG` is 1.

    A traceback with a frame of a plugin, or of a function that the user gave, stays whole. An error
    of vitzoo whose text the next error repeats is no longer its cause.
    """
    if os.environ.get("VITZOO_DEBUG") == "1":
        return
    one: BaseException | None = error
    while one is not None:
        if _is_internal(one):
            one.__traceback__ = None
        if one.__cause__ is None and one.__context__ and _is_internal(one.__context__):
            one.__suppress_context__ = True
        cause = one.__cause__
        if isinstance(cause, VitzooError) and _is_internal(cause) and str(cause) in str(one):
            one.__cause__ = cause.__cause__
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _is_internal(error: BaseException) -> bool:
    """Tell whether all frames of a traceback are of vitzoo and of what it is built on."""
    at = error.__traceback__
    while at is not None:
        if str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] not in INTERNAL:
            return False
        at = at.tb_next
    return True
