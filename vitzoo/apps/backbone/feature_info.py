"""`FeatureInfo`: what a backbone returns, under the names that timm gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FeatureInfo:
    """Channels, stride and name of each feature map of a network.

    The methods describe the returned maps. Given indices, they describe these maps instead.

    Args:
        info: for each map, `num_chs` (channels), `reduction` (px of the image per element of the
            map) and `module` (name).
        out_indices: indices of the returned maps.

    Source: the methods and keys are those of timm's class of this name.
    """

    def __init__(self, info: Sequence[dict[str, Any]], out_indices: Sequence[int]) -> None:
        self.info = [{"index": i, **each} for i, each in enumerate(info)]
        self.out_indices = tuple(out_indices)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.info[index]

    def __len__(self) -> int:
        return len(self.info)

    def get(self, key: str, idx: int | Sequence[int] | None = None) -> Any:
        """Return a value of each returned map, or of the maps with other indices."""
        if isinstance(idx, int):
            return self.info[idx][key]
        return [self.info[i][key] for i in (self.out_indices if idx is None else idx)]

    def get_dicts(
        self, keys: Sequence[str] | None = None, idx: int | Sequence[int] | None = None
    ) -> Any:
        """Return all values, or those of some keys, of each map as a dictionary."""
        if isinstance(idx, int):
            return self.get_dicts(keys, [idx])[0]
        chosen = [self.info[i] for i in (self.out_indices if idx is None else idx)]
        return [{key: each[key] for key in keys or each} for each in chosen]

    def channels(self, idx: int | Sequence[int] | None = None) -> Any:
        """Return the number of channels of each map."""
        return self.get("num_chs", idx)

    def reduction(self, idx: int | Sequence[int] | None = None) -> Any:
        """Return the stride of each map: px of the image per element."""
        return self.get("reduction", idx)

    def module_name(self, idx: int | Sequence[int] | None = None) -> Any:
        """Return the name of each map."""
        return self.get("module", idx)
