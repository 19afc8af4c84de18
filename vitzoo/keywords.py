"""Errors with a suggestion for keyword arguments that a function does not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from vitzoo.errors import UnknownOption, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(
    hint: Callable[[str], str] = lambda _name: "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise `UnknownOption` for a keyword argument that it does not have.

    For an `__init__`, the error names the class.

    The function keeps its signature for type checkers, `help` and `inspect.signature`.

    Args:
        hint: maps the unknown name to the text of a fix. If the text is empty, the error suggests
            the arguments with the most similar names, or lists all arguments.

    >>> @check_keywords()
    ... def resize(size: int, *, method: str = "bicubic") -> int:
    ...     return size
    >>> resize(2, methd="bilinear")
    Traceback (most recent call last):
    vitzoo.errors.UnknownOption: resize() has no argument 'methd'; did you mean 'method'?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        known = [p.name for p in signature(function).parameters.values() if p.kind in kinds]
        called = function.__name__
        if called == "__init__":
            called, known = function.__qualname__.split(".")[-2], known[1:]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    nearest = did_you_mean(name, known) or f"; it has: {', '.join(known)}"
                    fix = f"; {text}" if (text := hint(name)) else nearest
                    raise UnknownOption(f"{called}() has no argument {name!r}{fix}")
            return function(*args, **kwargs)

        return checked

    return decorate
