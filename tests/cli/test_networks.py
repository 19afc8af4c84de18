"""Which network and weights a user names in a command; tests/test_opening.py has every form."""

from __future__ import annotations

import pytest

import vitzoo
from vitzoo.cli import NamedNetwork, check_network

DIGITS = vitzoo.describe("vit_digits")
(V1,) = DIGITS.weights


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.safetensors"
    vitzoo.save(vitzoo.create("vit_digits", num_classes=3), path)
    return path


def test_a_registered_name():
    assert check_network("vit_digits") == NamedNetwork("vit_digits", DIGITS)


@pytest.mark.parametrize("given", [(f"vit_digits:{V1.name}", None), ("vit_digits", V1.name)])
def test_named_weights(given):
    assert check_network(*given) == NamedNetwork(given[0], DIGITS, V1)


def test_paths_and_addresses(saved):
    file, folder = str(saved), f"{saved.parent}/"
    assert check_network(file) == NamedNetwork(file, path=saved)
    assert check_network(folder) == NamedNetwork(folder, path=saved.parent)
    address = "hf://acme/net"
    assert check_network(address) == NamedNetwork(address, address=address)


def test_the_spec_of_each(saved):
    assert check_network("vit_digits").spec == DIGITS.spec
    assert check_network(f"vit_digits:{V1.name}").spec == vitzoo.create("vit_digits").spec
    assert check_network(str(saved)).spec.num_classes == 3


@pytest.mark.slow
def test_no_torch_is_imported_for_a_name(python):
    code = (
        "import sys\n"
        "from vitzoo.cli import check_network, image_files, progress_bar, print_rows\n"
        "print(check_network('vit_b16:augreg_in21k').weights.name)\n"
        "print(check_network('vit_b16').spec.depth, 'torch' in sys.modules)"
    )
    assert python(code).split() == ["augreg_in21k", "12", "False"]
