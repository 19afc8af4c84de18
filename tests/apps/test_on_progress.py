"""Functions that take long report what they have done, and stop at an error of the caller."""

from pathlib import Path

import pytest
from PIL import Image

import vitzoo

DIGITS = Path(__file__).parents[2] / "docs" / "examples" / "digits"
FOUND = len(list(DIGITS.glob("*.png")))
NET = "vit_digits"


def probe(path, **options):
    for i, file in enumerate(sorted(DIGITS.glob("*.png"))[:8]):
        (path / "scans" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        Image.open(file).save(path / "scans" / str(i % 2) / file.name)
    return vitzoo.probe(NET, path / "scans", embeddings=path / "vectors", **options)


CALLS = {  # and what the last report says
    "predict": (
        lambda _, **options: list(vitzoo.predict(NET, DIGITS, **options)),
        (FOUND, FOUND, "digit_9_scan_0037.png"),
    ),
    "plot": (
        lambda _, **options: vitzoo.plot("attention-distance", NET, DIGITS, **options),
        (FOUND, FOUND, ""),
    ),
    "probe": (probe, (8, 8, "images")),
    "convert": (
        lambda path, **options: vitzoo.convert(NET, "timm", path / "a.safetensors", **options),
        (4, 4, ""),
    ),
    "push": (
        lambda path, **options: vitzoo.push(
            NET, "acme/digits", folder=path / "out", dry_run=True, **options
        ),
        (2, 2, ""),
    ),
    "export": (
        lambda path, **options: vitzoo.export(NET, "torch", path / "out", **options),
        (4, 4, ""),
    ),
}
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in ("export", "probe"))) for name in CALLS
]


@pytest.mark.parametrize("name", CASES)
def test_every_part_is_reported(name, tmp_path):
    call, last = CALLS[name]
    seen = []
    call(tmp_path, on_progress=lambda *report: seen.append(report))
    assert seen[-1] == last
    assert {total for _, total, _ in seen} == {last[1]}
    done = [done for done, _, _ in seen]
    assert done == sorted(done)
    assert all(type(text) is str for _, _, text in seen)


@pytest.mark.parametrize("name", CASES)
def test_an_error_of_on_progress_is_raised_as_it_is_and_nothing_is_written(name, tmp_path):
    def refuse(done, total, _):
        if done > total // 2:
            raise OSError("the disk of the caller is full")

    call, _ = CALLS[name]
    with pytest.raises(OSError, match="the disk of the caller is full") as caught:
        call(tmp_path, on_progress=refuse)
    assert type(caught.value) is OSError
    assert not {path.name for path in tmp_path.iterdir()} - {"scans", "vectors"}
