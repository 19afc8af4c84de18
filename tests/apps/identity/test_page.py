"""docs/identity.md: another program can compute its test vectors, and its distances hold."""

import base64
import hashlib
import json
import re
import runpy
import struct
from pathlib import Path

import pytest

import vitzoo
from vitzoo.apps.identity.canary import TOLERANCES
from vitzoo.apps.identity.identity import Identity

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "identity.md"
TEXT = PAGE.read_text(encoding="utf-8")


def block(name):
    return TEXT.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end -->")[0]


def test_the_example_works():
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    scope = {}
    exec(code, scope)
    assert Identity.parse(scope["text"]).label == "vit_digits@digits_v1"


def test_blocks_that_do_not_depend_on_the_machine_are_fresh():
    tool = runpy.run_path(str(DOCS / "generate_identity.py"))
    assert tool["filled"](TEXT, tool["fixed"]()) == TEXT, "python docs/generate_identity.py"


def test_the_vectors_can_be_computed_without_vitzoo():
    """Of the JSON itself, and of a tensor whose float16 numbers are hashed as float32."""
    _, *lines, _, stated, digits, _ = block("vectors").splitlines()
    text = "".join(lines)
    digest = hashlib.sha256(text.encode()).digest()
    assert stated.split()[-1] == base64.b32encode(digest).decode().lower()[:26]
    data = json.loads(text)
    assert json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    of_bytes = hashlib.sha256(struct.pack("<2f", 0.5, -2.0)).hexdigest()
    assert data["tensors"] == {"weight": ["float32", [1, 2], of_bytes]}
    assert data["spec"]["block"] == {"norm_eps": "1e-05"}
    assert digits.split()[-1] == Identity.parse(vitzoo.identity("vit_digits")).network


def test_measured_distances_are_on_the_right_side_of_the_tolerances():
    rows = [line.strip("| ").split(" | ") for line in block("distances").splitlines()[2:]]
    assert len(rows) >= 8
    for cause, *values, tolerance in rows:
        measured = [float(value) for value in values if value.strip()]
        assert measured
        if tolerance == "another network":
            assert min(measured) > 2 * TOLERANCES["float32"], cause
        else:
            most, numerics = re.fullmatch(r"(\S+) \((\w+)\)", tolerance).groups()
            assert float(most) == TOLERANCES[numerics]
            assert max(measured) < float(most) / 2, cause


@pytest.mark.parametrize("name", ["identity", "require_identity"])
def test_the_page_shows_the_public_names(name):
    assert f"vitzoo.{name}(" in TEXT
