"""The layers of a network, in the order of computation, as `group_matcher` describes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.network.members import LAYERS, check_members

SAME_LAYER = 99999  # timm's mark of what belongs to the layer before it, such as the final norm
REST = (float("inf"),)  # what no pattern matches: head, attention pool and norms behind the trunk
Key = tuple[float, ...]


def keys_of(model: nn.Module) -> dict[str, Key]:
    """Return the sort key of each parameter's layer, by name.

    Raises:
        InvalidOption: the model has no `group_matcher`, or no parameter matches it.
    """
    check_members(model, LAYERS, "pass layer_decay=1 or until='head'")
    asked: Any = model.group_matcher
    key = _keys(asked(coarse=False))
    keys = {name: key(name) for name, _ in model.named_parameters()}
    if all(key == REST for key in keys.values()):
        raise InvalidOption(
            f"no parameter of {type(model).__name__} matches its group_matcher(); the first is "
            f"{next(iter(keys), 'missing')!r}. Pass the model itself, not a wrapper"
        )
    return keys


def numbers_of(keys: Mapping[str, Key]) -> dict[str, int]:
    """Return the layer of each parameter: 0 is the first, the last one has what is behind."""
    numbers: dict[Key, int] = {}
    for key in sorted(set(keys.values())):
        new = not numbers or key[-1] != SAME_LAYER
        numbers[key] = max(numbers.values(), default=-1) + new
    return {name: numbers[key] for name, key in keys.items()}


def _keys(matcher: Any) -> Callable[[str], Key]:
    """Return the function that maps the name of a parameter to the key of its layer."""
    patterns = None if callable(matcher) else list(_patterns(matcher))

    def key(name: str) -> Key:
        if patterns is None:
            found = matcher(name)
            return tuple(found) if isinstance(found, list | tuple) else (found,)
        for pattern, group, suffix in patterns:
            if match := pattern.match(name):
                return (group, *map(float, match.groups()), *suffix)
        return REST

    return key


def _patterns(
    matcher: Mapping[str, Any],
) -> Iterator[tuple[re.Pattern[str], float, tuple[int, ...]]]:
    """Yield pattern, number of the group, and suffix of the key."""
    for number, stated in enumerate(matcher.values()):
        if stated is not None:
            pairs = [(stated, None)] if isinstance(stated, str) else stated
            for pattern, suffix in pairs:
                yield re.compile(pattern), float(number), suffix or ()
