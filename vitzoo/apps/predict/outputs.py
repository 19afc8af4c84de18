"""The results of a network by name: logits, pooled embeddings, tokens of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitzoo.display import brief
from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean, short_repr
from vitzoo.network import members
from vitzoo.network.members import check_members, missing

LABELS, LOGITS, POOLED = "labels", "logits", "pooled"
FEATURES = {LABELS: LOGITS, POOLED: "pool"}  # names of `model.features`


@dataclass(frozen=True)
class Row:
    """The outputs for one image, or the reason why there are none.

    Args:
        error, width, height, sha256: as in `Decoded`.
        outputs: by name, an array of the shape in `Predictor.shapes`; `labels` is a tuple of
            (index, name, probability), of a regression (index, name, number). Empty if there is an
            error.
    """

    error: str
    width: int
    height: int
    sha256: str
    outputs: Mapping[str, Any]

    __repr__ = brief
    _columns = ("width", "height", "outputs", "error")


class Outputs(nn.Module):
    """Maps images to results of a network.

    Shapes: (b, c, h, w) images to {name: (b, ...)}. `pooled` is what the classifier reads, `labels`
    are the logits, and other names are those of `model.features`.

    Args:
        model: a model of `create`.
        names: of the results.

    Raises:
        InvalidOption: no name, or a name twice.
        UnknownOption: the model has no such result.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        self.model = model
        self.names = _checked(names)
        known = _known(model)
        for name in self.names:
            if name == POOLED and name not in known:
                others = f"choose one of the outputs {', '.join(known)}"
                check_members(model, members.POOLED, others)
            if name not in known:
                hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
                raise UnknownOption(f"{type(model).__name__} has no output {name!r}{hint}")

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map (b, c, h, w) images to results by name, each (b, ...)."""
        model: Any = self.model
        if hasattr(model, "feature_names"):
            wanted = {name: FEATURES.get(name, name) for name in self.names}
            found = model.features(images, list(dict.fromkeys(wanted.values())))
            return {name: found[of] for name, of in wanted.items()}
        if POOLED not in self.names:
            return dict.fromkeys(self.names, model(images))
        tokens = model.forward_features(images)
        pooled = model.forward_head(tokens, pre_logits=True)
        others = [name for name in self.names if name != POOLED]
        found = dict.fromkeys(others, model.forward_head(tokens)) if others else {}
        return {POOLED: pooled} | found


def _checked(names: Iterable[str]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given or len(set(given)) < len(given) or not all(isinstance(n, str) for n in given):
        raise InvalidOption(
            f"outputs must be one or more different names such as 'pooled', got {short_repr(names)}"
        )
    return given


def _known(model: Any) -> list[str]:
    """Return the names of the results that a network can give."""
    known = [LABELS, LOGITS]
    if hasattr(model, "feature_names"):
        return [*known, POOLED, *(n for n in model.feature_names() if n not in known)]
    return known if missing(model, members.POOLED) else [*known, POOLED]
