"""Addresses on the Hub, as users write them."""

import pytest

from helpers import refuses
from vitzoo.errors import InvalidOption
from vitzoo.schema.addresses import parts_of_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("main", "")),
        ("/a/b.npz", ("main", "a/b.npz")),
        ("@v1", ("v1", "")),
        ("@v1/a/b.npz", ("v1", "a/b.npz")),
        ("@refs/pr/12", ("refs/pr/12", "")),
        ("@refs/pr/12/a/b.npz", ("refs/pr/12", "a/b.npz")),
        ("/refs/pr/12", ("main", "refs/pr/12")),
        ("@refs/pr/x/b.npz", ("refs", "pr/x/b.npz")),
        ("@refs/pr/12x/b.npz", ("refs", "pr/12x/b.npz")),
    ],
)
def test_an_address_has_repository_revision_and_file(text, parts):
    assert parts_of_address(f"hf://acme/net{text}") == ("acme/net", *parts)


@pytest.mark.parametrize("text", ["@refs/pr/1/", "@refs/pr/1/../x", "@", "@/x", "@refs/pr/1@v1"])
def test_a_malformed_address_is_refused(text):
    with refuses(InvalidOption, "hf://owner/repo@revision/file", f"net{text}"):
        parts_of_address(f"hf://acme/net{text}")
