"""Addresses on the Hub, as users write them."""

import pytest

from helpers import refuses
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.schema.addresses import address_of, one_form, parts_of_address


@cases(
    ("text", "parts"),
    [
        ("", ("main", "")),
        ("/a/b.npz", ("main", "a/b.npz")),
        ("@v1", ("v1", "")),
        ("@v1/a/b.npz", ("v1", "a/b.npz")),
        ("@refs/pr/12", ("refs/pr/12", "")),
        ("@refs/pr/12/a/b.npz", ("refs/pr/12", "a/b.npz")),
        ("@refs%2Fpr%2f12/b.npz", ("refs/pr/12", "b.npz")),
        ("@refs/convert/parquet", ("refs/convert/parquet", "")),
        ("@refs/convert/a_b.c-d/x/b.npz", ("refs/convert/a_b.c-d", "x/b.npz")),
        ("@feature%2Fx", ("feature/x", "")),
        ("@a%2Fb%2Fc/d/e.npz", ("a/b/c", "d/e.npz")),
        ("@feature/x", ("feature", "x")),
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


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", ""),
        ("/x.npz", "/x.npz"),
        ("@refs%2Fpr%2F1/x.npz", "@refs/pr/1/x.npz"),
        ("@refs/pr/1", "@refs/pr/1"),
        ("@refs%2fconvert/parquet/x.npz", "@refs%2Fconvert/parquet/x.npz"),
        ("@refs%2fconvert%2fparquet/x.npz", "@refs/convert/parquet/x.npz"),
        ("@a%2fb%2fc/x.npz", "@a%2Fb%2Fc/x.npz"),
    ],
)
def test_an_address_has_one_form(text, form):
    """The second `refs%2fconvert` is a branch, with a folder `parquet`."""
    address = f"hf://acme/net{form}"
    assert one_form(f"hf://acme/net{text}") == address
    assert parts_of_address(address) == parts_of_address(f"hf://acme/net{text}")
    if "@" in form:
        assert address_of(*parts_of_address(address)) == address


@pytest.mark.parametrize("text", ["@%2Fx", "@a%2F..%2Fb", "@a%20b", "@a%252Fb"])
def test_only_a_slash_is_written_with_a_percent_sign(text):
    with refuses(InvalidOption, "%2F for a slash", f"net{text}"):
        parts_of_address(f"hf://acme/net{text}")
