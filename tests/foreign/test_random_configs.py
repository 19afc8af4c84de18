"""Random configs of image encoders: equal to the library, or refused by a sentence.

`VITZOO_FUZZ_SEED` draws other configs, `VITZOO_CONFIG_CASES` another number of them (nightly).
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitzoo
from drawn_configs import Case, cases
from encoder_types import TYPES, Outputs
from encoders import TOLERANCE
from vitzoo.errors import VitzooError

SEED = int(os.environ.get("VITZOO_FUZZ_SEED", "1"))
CASES = int(os.environ.get("VITZOO_CONFIG_CASES", "300"))
EQUAL = 1 / 3  # share of the configs that must be equal, and at least one of each type
PARTS = 4  # each test draws configs of a part of the types


@torch.no_grad()
def outcome(case: Case, folder: Path) -> str:
    """Return `equal`, `refused`, or what is wrong."""
    case.network.save_pretrained(folder)  # type: ignore[operator]
    try:
        model = vitzoo.create(folder).eval()
    except VitzooError as error:
        _, *more = str(error).splitlines()  # the tensors that do not fit are a line of their own
        others = [line for line in more if not line.startswith("  problems with tensors: ")]
        return f"wrong: an error of several lines: {error}" if others else "refused"
    except Exception as error:  # noqa: BLE001  # the finding
        return f"wrong: {type(error).__name__}: {error}"
    try:
        found = different(model, case.images, case.outputs)
        if found:
            found = different(model.double(), *case.doubled())
    except (VitzooError, RuntimeError, ValueError) as error:
        return f"wrong: images of the config: {error}"
    return f"wrong: {found}" if found else "equal"


def different(model: vitzoo.VisionTransformer, images: Tensor, outputs: Outputs) -> str:
    """Return what is not equal, empty if all is."""
    actual = model.forward_features(images), model(images)
    for what, found, expected in zip(("tokens", "output"), actual, outputs, strict=True):
        if expected is None:
            continue
        if found.shape != expected.shape:
            return f"{what} {tuple(found.shape)} instead of {tuple(expected.shape)}"
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        if not difference <= TOLERANCE:
            return f"{what} differ by {difference:.2g} of the largest element"
    return ""


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_configs_give_equal_numbers_or_an_error(part, tmp_path):
    names = sorted(TYPES)[part::PARTS]
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for number, case in enumerate(cases(SEED, CASES // PARTS, names)):
        folder = tmp_path / str(number)
        found = outcome(case, folder)
        for path in folder.iterdir():
            path.unlink()
        counts[case.type, found.partition(":")[0]] += 1
        if found.startswith("wrong"):
            wrong.append(f"{case}: {found}")
    assert not wrong, "\n".join(wrong)
    equal = {name: counts[name, "equal"] for name in names}
    assert min(equal.values()) > 0, equal
    assert sum(equal.values()) >= EQUAL * counts.total(), counts
