"""Calls of the code of plugins: every error names the plugin, and the line that raised it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from inspect import unwrap
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from vitzoo.errors import CheckpointError, PluginError, VitzooError, printable
from vitzoo.plugin.info import PluginInfo, renewal
from vitzoo.plugin.switches import NOT
from vitzoo.schema.reader import describe

HERE = f"{Path(__file__).parents[1]}{os.sep}"  # lines of vitzoo are not reported
MAX_TEXT = 1000  # characters of an error's text


def package_files() -> Any:
    """Return the module `vitzoo.plugin.package_files`, which names of the core do not need."""
    from vitzoo.plugin import package_files

    return package_files


class Blaming(NamedTuple):
    """Raises in a `with` block the error that `error` makes of an exception of foreign code.

    An exception of which it makes None passes. `contextlib` lets the StopIteration pass that an
    error is raised from; this class does not.
    """

    error: Callable[[BaseException], VitzooError | None]

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        foreign = isinstance(error, Exception | SystemExit) and not passes(error)
        if error and foreign and (blamed := self.error(error)):
            raise blamed from error


class Owner(NamedTuple):
    """The plugin that has an entry, for the errors of the entry's code.

    Args:
        info: the state of the plugin.
        name: of the entry, with its namespace.
        kind: of the entry; empty for an error of the plugin.
        file: that the entry reads or writes; empty for none.
        row: the entry; None if it is not known.
    """

    info: PluginInfo
    name: str
    kind: str = ""
    file: str = ""
    row: Any = None

    def __str__(self) -> str:
        version = f"{self.info.distribution} {self.info.version}".strip()
        entry = f"{self.kind} {self.name!r} of " if self.kind else ""
        if self.kind == "command":
            return f"command {self.name!r} of {version}"
        return f"{entry}plugin {self.info.namespace!r}" + (f" ({version})" if version else "")

    def declared(self, *key: str) -> str:
        """Return `file:line` of the entry, or of its key, in a manifest; the file of a module."""
        from vitzoo.plugin.origin import declared

        return declared(self.info, self.row, *key)

    def calling(self, code: object, name: str) -> Blaming:
        """Convert what `code`, which is called `name`, raises into a PluginError."""
        return Blaming(partial(self.error, f"{name} failed", code))

    def error(
        self, problem: str, code: object, error: BaseException | None = None, fix: str = ""
    ) -> PluginError:
        """Return the error about what `code` returned, or about the `error` that it raised.

        Without `fix`, the plugin is to be corrected or removed.
        """
        at = defined_at(code)
        if error is not None:
            at = raised_at(error, self.info.package, at)
            problem += f": {reason_of(error)}"
        file = f"{self.file}: " if self.file else ""
        place = f" ({at})" if at else ""
        return PluginError(f"{file}{self}: {problem}{place}; {fix or self.fix(error, at)}")

    def failed(self, target: str, error: BaseException, what: str, place: str = "") -> PluginInfo:
        """Return the state after an import of `package.module:name`.

        `what` has the name, at the `file:line` of `place`.
        """
        top = target.partition(":")[0].partition(".")[0]
        at = raised_at(error, top)  # empty: there is no such module, or no such name in it
        cause = f"{self}: cannot import {target!r}: {reason_of(error, at or place)}"
        near = package_files().near(target)
        fix = self.fix(error, at) if at else self.fix(None, what) + near
        return replace(self.info, state="failed", cause=cause, fix=fix)

    def fix(self, error: BaseException | None, at: str) -> str:
        """Return the fix of an error that was raised at a line, which may be unknown."""
        lacking = str(getattr(error, "name", "")).partition(".")[0]
        fix = f"correct {at}" if at else ""
        if (
            at
            and isinstance(error, ModuleNotFoundError)
            and not package_files().is_installed(lacking)
        ):
            fix = f"add {lacking!r} to the dependencies of {self.info.distribution}"
            if self.info.location.endswith(".toml"):
                place = self.declared() if self.row else self.info.location
                fix = f"add requires = [{lacking!r}] to its entry in {place}"
        return renewal(self.info, self.name, fix)


def owner_of_part(what: str) -> Owner | None:
    """Return the plugin of a part, such as `head 'acme/cosine'`; None for one without a namespace.

    The code of parts knows no registry, so the metadata of distributions name the plugin.
    """
    field, _, quoted = what.partition(" ")
    name = quoted.strip("'")
    namespace, slash, _ = name.partition("/")
    if not slash:
        return None
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group="vitzoo", name=namespace)), None)
    info = PluginInfo(namespace, "loaded", "", "", found.value if found else "")
    if found and found.dist:
        info = replace(info, distribution=found.dist.name, version=found.dist.version)
    return Owner(info, name, field)


class GuardedFormat:
    """A plugin's checkpoint format; its errors and results of a wrong type raise PluginError."""

    def __init__(self, target: Any, owner: Owner) -> None:
        self.guarded = target, owner

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance
        return type(self.guarded[0])

    def __getattr__(self, name: str) -> Any:
        target, owner = self.guarded
        bases = [one for one in type(target).__mro__ if one.__module__ == "vitzoo.formats.base"]
        if not bases:
            raise owner.error(f"it is {describe(target)}, expected an object of Format", target)
        with owner.calling(target, name) if hasattr(type(target), name) else nullcontext():
            found = getattr(target, name)
        method = callable(vars(bases[-1]).get(name))
        return partial(self._call, name, found, _result(bases[-1], name)) if method else found

    def _call(self, name: str, method: Any, kind: Any, *arguments: Any, **named: Any) -> Any:
        owner = self.guarded[1]
        try:
            with owner.calling(method, name):
                found = method(*arguments, **named)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{note_of(self)}") from error
        if not fits(found, kind):
            expected = kind.__name__ if type(kind) is type else kind
            raise owner.error(f"{name} returned {describe(found)}, expected {expected}", method)
        return GuardedFormat(found, owner) if name == "with_heads" else found


@cache
def _result(base: type, method: str) -> Any:
    """Return the type of the result of a method."""
    kind = get_type_hints(getattr(base, method)).get("return", Any)
    return base if kind is Self else kind


def fits(found: Any, kind: Any) -> bool:
    """Return whether an object is of a type, such as `dict[str, Tensor]`."""
    origin = get_origin(kind)
    if origin in (None, UnionType):
        return kind is Any or isinstance(found, kind)
    columns = (found, found.values()) if isinstance(found, Mapping) else (found,)
    inside = zip(columns, get_args(kind), strict=False)
    return isinstance(found, origin) and all(fits(one, k) for column, k in inside for one in column)


def guarded(layout: Any) -> tuple[Any, Owner] | None:
    """Return a plugin's format and its plugin, None for a format of the core."""
    found: tuple[Any, Owner] | None = layout.guarded if type(layout) is GuardedFormat else None
    return found


def for_file(layout: Any, file: str) -> Any:
    """Return the format of a file; if it is a plugin's, its errors name the file."""
    if found := guarded(layout):
        return GuardedFormat(found[0], found[1]._replace(file=file))
    return layout


def not_inverse(layout: Any, problem: str, method: str) -> PluginError | None:
    """Return the error about a plugin's format whose methods do not undo each other.

    `method` is the wrong one of `from_model` and `to_model`.
    """
    found = guarded(layout)
    return found and found[1].error(problem, getattr(found[0], method))


def note_of(layout: Any) -> str:
    """Return the end of an error about a file: its format, if that is a plugin's."""
    found = guarded(layout)
    if found is None or not found[1].file:
        return ""
    owner = found[1]
    return f"; its format is {owner}; if that is wrong, set {NOT}={owner.name}"


def passes(error: BaseException) -> bool:
    """Return whether an error in the code of a plugin is one of vitzoo or torch, or of memory.

    torch ends a recomputation with an error of its own. `torch._C` has those of linear algebra.
    """
    module = type(error).__module__
    own = module.partition(".")[0] == "torch" and module != "torch._C"
    return own or isinstance(error, VitzooError | MemoryError)


def defined_at(code: object) -> str:
    """Return `file:line` of a function, or of the class of an object, outside vitzoo."""
    from vitzoo.plugin.source_lines import where_defined  # reads source files

    place = getattr(unwrap(code), "__code__", None) if callable(code) else None
    found = f"{place.co_filename}:{place.co_firstlineno}" if place else where_defined(code)
    if found.startswith(HERE):  # a method that the class of a plugin inherits
        found = where_defined(getattr(code, "__self__", code))
    return "" if code is None or found.startswith(HERE) else found


def reason_of(error: BaseException, at: str = "") -> str:
    """Describe an error in the code of a plugin, which was raised `at` a line."""
    if isinstance(error, VitzooError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    return f"{type(error).__name__}: {text}" + (f" ({at})" if at else "")


def text_of(value: object) -> str:
    """Return the printable, shortened text of an object, even if its `__str__` fails."""
    try:
        text = " ".join(str(value).split())
    except (Exception, SystemExit):  # noqa: BLE001
        return f"an unprintable {type(value).__name__}"
    return printable(text, MAX_TEXT) + ("..." if len(text) > MAX_TEXT else "")


def raised_at(error: BaseException, package: str = "", at: str = "") -> str:
    """Return `file:line` of the innermost frame in `package`, else `at`.

    If `at` is empty, it is that of the innermost frame outside vitzoo.

    An error of vitzoo or of a conformance test is replaced by its cause.
    """
    while isinstance(error, VitzooError | AssertionError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    from traceback import walk_tb  # costs milliseconds, and only errors need it

    own = innermost = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(("<", HERE)) and file != importlib.__file__:
            innermost = f"{file}:{line}"
            if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                own = innermost
    return own or at or innermost
