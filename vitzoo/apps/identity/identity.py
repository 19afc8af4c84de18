"""`identity`: a text that says which network vectors are from; `require_identity` compares it.

Texts are compared without torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitzoo.errors import IntegrityError, InvalidOption, short_repr
from vitzoo.keywords import check_keywords, check_types

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitzoo.apps.predict.predictor import Predictor
    from vitzoo.schema.spec import Spec

    Model = str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module | Predictor

KEY = "vitzoo.identity"  # of metadata
OTHER = r"[^\w./@-]"  # what a label has not
FORM = re.compile(r"vz1:([\w./@-]{1,100}):([a-z2-7]{26}):([a-z2-7]{26})", re.ASCII)
SAME_NUMBERS = "same network, same numbers"
SAME_NETWORK = "same network, other numerics"
ANOTHER = "another network"


@dataclass(frozen=True)
class Identity:
    """The fields of an identity, whose text is `vz1:LABEL:NETWORK:NUMBERS`.

    Args:
        label: the name of the network, for people.
        network: hash of the network, its preprocessing and its output.
        numbers: hash of `network` and of all else that determines the bytes of a vector.
    """

    label: str
    network: str
    numbers: str

    def __str__(self) -> str:
        return f"vz1:{self.label}:{self.network}:{self.numbers}"

    @classmethod
    def parse(cls, text: object) -> Identity:
        """Read an identity; raise InvalidOption for anything else."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        match = FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidOption(
                f"an identity must be vz1:LABEL:NETWORK:NUMBERS, got {short_repr(text)}; store the "
                "text of vitzoo.identity(model)"
            )
        return cls(*match.groups())

    def compared(self, stored: Identity) -> str:
        """Return `SAME_NUMBERS`, `SAME_NETWORK` or `ANOTHER`; labels are not compared."""
        if self.network != stored.network:
            return ANOTHER
        return SAME_NUMBERS if self.numbers == stored.numbers else SAME_NETWORK


@check_keywords()
def identity(
    model: Model,
    output: str = "pooled",
    *,
    normalised: bool = False,
    weights: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    chunk: int | None = None,
    native_size: bool | int | None = None,
) -> str:
    """Return `vz1:LABEL:NETWORK:NUMBERS`, which says what the vectors of a network are from.

    Vectors of one NETWORK can be compared with each other. With the same NUMBERS, too, they are the
    same bytes. LABEL is the name of the network, for people. docs/identity.md specifies the hashes.

    Args:
        model: the network, as for `Predictor`; or a Predictor, with which `weights`, `dtype`,
            `device`, `chunk` and `native_size` are left out.
        output: name of the output, as for `Predictor`, but not `labels`.
        normalised: whether the vectors are stored divided by their length.
        weights, dtype, device, chunk, native_size: as for `Predictor`.

    Raises:
        InvalidOption: a value is not possible.
        UnknownOption: the model has no such output.
        VitzooError: `vitzoo.create` cannot create the model.

    >>> identity("vit_digits").rpartition(":")[0]  # NUMBERS depends on the machine
    'vz1:vit_digits@digits_v1:yd5myjhfmjjc4izupfmlr4i4ul'
    """
    from vitzoo.apps.identity.hashes import identities
    from vitzoo.apps.predict.predictor import Predictor

    check_types("identity", output=(output, "text"), normalised=(normalised, "a boolean"))
    given: dict[str, Any] = {"weights": weights, "dtype": dtype, "device": device}
    given |= {"chunk": chunk, "native_size": native_size}
    options = {name: value for name, value in given.items() if value is not None}
    if not isinstance(model, Predictor):
        model = Predictor(model, outputs=output, **options)
    elif options:
        raise InvalidOption(
            f"a Predictor has its {', '.join(options)} already; leave them out, or make another one"
        )
    return identities(model, [output], normalised=normalised)[output]


@check_keywords(passed_to=identity)
def require_identity(
    metadata: Mapping[Any, Any] | str | bytes | None,
    model: Model,
    output: str = "pooled",
    **options: Any,
) -> str:
    """Raise IntegrityError unless stored vectors are from a network; return how they compare.

    Args:
        metadata: of a collection of vectors or of a Parquet file of `embed`, with the entry
            `vitzoo.identity`; or that entry. None: a collection without metadata.
        model: the network that makes queries, as for `identity`; or the text of its identity.
        output, options: as for `identity`.

    Returns:
        `same network, same numbers`, or `same network, other numerics`, such as of another dtype.

    Raises:
        InvalidOption: the metadata have no identity, or a value is not possible.
        IntegrityError: the vectors are of another network.
        VitzooError: `vitzoo.create` cannot create the model.

    >>> text = identity("vit_digits")
    >>> require_identity({"vitzoo.identity": text}, text)
    'same network, same numbers'
    """
    check_types("require_identity", output=(output, "text"))
    stored = stored_identity(metadata, output)
    text = isinstance(model, str) and model.startswith("vz1:")
    now = Identity.parse(model if text else identity(model, output, **options))
    result = now.compared(stored)
    if result == ANOTHER:
        raise IntegrityError(
            f"the vectors are of another network, output or normalisation: stored {stored}, now "
            f"{now}; make queries with those of the stored vectors, or make all vectors again"
        )
    return result


def stored_identity(
    metadata: Mapping[Any, Any] | str | bytes | None, output: str = "pooled"
) -> Identity:
    """Return the identity in the metadata of vectors.

    Args:
        metadata: with the entry `vitzoo.identity`, or that entry. In a Parquet file of `embed` it
            is JSON with an identity for each output.
        output: name of the output.

    Raises:
        InvalidOption: the metadata have no identity.
    """
    entry: Any = metadata
    if metadata is None or isinstance(metadata, Mapping):
        metadata = metadata or {}
        entry = metadata.get(KEY, metadata.get(KEY.encode()))
        if entry is None:
            raise InvalidOption(
                f"the metadata have no {KEY!r}, only {short_repr(sorted(map(str, metadata)))}; "
                "store vitzoo.identity(model) there when you write vectors"
            )
    with suppress(ValueError, RecursionError):  # not JSON
        table = json.loads(entry) if isinstance(entry, str | bytes) else entry
        entry = table.get(output, f"no {output}") if isinstance(table, Mapping) else entry
    return Identity.parse(entry)
