"""Data of runs."""

import numpy as np
import pytest
from PIL import Image

KINDS = {"even": (0, 2, 4, 6, 8), "small": (0, 1, 2, 3, 4), "round": (0, 6, 8, 9)}


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """Digits in a CSV file with several classes (7 has none) and a number."""
    from sklearn.datasets import load_digits

    data, folder = load_digits(), tmp_path_factory.mktemp("data")
    lines = ["path,kinds,value,split"]
    for i, digit in enumerate(data.target[:120].tolist()):
        ink = (255 - data.images[i] * 255 / 16).round().astype(np.uint8)
        Image.fromarray(ink).save(folder / f"{i}.png")
        kinds = ";".join(name for name, members in KINDS.items() if digit in members)
        lines.append(f"{i}.png,{kinds},{1000 + 10 * digit},{'test' if i % 5 == 0 else 'train'}")
    (folder / "digits.csv").write_text("\n".join(lines))
    return folder / "digits.csv"
