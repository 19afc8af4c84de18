"""Texts as HTML: escaped, with links to https addresses only."""

import pytest

from tables import cases
from vitzoo import Weights
from vitzoo_site.links import file_address, file_place, link, linked


@cases(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a & \"b\" 'c'", "a &amp; &#34;b&#34; &#39;c&#39;"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("http://example.org/x", "http://example.org/x"),
        ("data:text/html,x //example.org", "data:text/html,x //example.org"),
        ("https://", "https://"),
        ("https://user:secret@example.org/", "https://user:secret@example.org/"),
        ("https://example.org:8080/x", "https://example.org:8080/x"),
        ("https://example.org:x/", "https://example.org:x/"),
        ("https://[::1", "https://[::1"),
        ("https://exämple.org/", "https://exämple.org/"),
        ("line\nend \u202e \x1b[2J", r"line\nend \u202e \x1b[2J"),
        ("arXiv:20.11929", "arXiv:20.11929"),
    ],
)
def test_what_is_no_https_address_is_escaped_text(text, html):
    assert linked(text) == html


@pytest.mark.parametrize(
    ("text", "address", "shown", "after"),
    [
        ("see https://example.org/a?b=1&c=2.", "https://example.org/a?b=1&amp;c=2", None, "."),
        ("see https://example.org/a, table 3", "https://example.org/a", None, ", table 3"),
        ("see (https://example.org)", "https://example.org", None, ")"),
        ("see arXiv:2010.11929.", "https://arxiv.org/abs/2010.11929", "arXiv:2010.11929", "."),
        ('see https://example.org/"onclick=', "https://example.org/", None, "&#34;onclick="),
        ("see https://example.org/<b>", "https://example.org/", None, "&lt;b&gt;"),
    ],
)
def test_https_addresses_and_arxiv_numbers_are_links(text, address, shown, after):
    opened = text.partition("https")[0].partition("arXiv")[0]
    anchor = f'<a href="{address}" rel="noopener noreferrer">{shown or address}</a>'
    assert linked(text) == f"{opened}{anchor}{after}"


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "http://a.b/", "ftp://a.b/", "", " https://a.b"]
)
def test_a_link_needs_an_https_address(address):
    assert link(address, "<shown>") == "&lt;shown&gt;"


def test_the_page_of_a_file_is_on_the_official_hub():
    commit = "0123456789abcdef0123456789abcdef01234567"
    row = Weights("w", file="a/b c.safetensors", repo="acme/net", revision=commit)
    assert file_address(row) == f"https://huggingface.co/acme/net/blob/{commit}/a/b%20c.safetensors"
    assert file_address(Weights("w", file="x", repo="acme/net")).endswith("/acme/net/blob/main/x")
    row = Weights("w", file="x", repo="acme/net", revision="refs/pr/4")
    assert file_address(row).endswith("/acme/net/blob/refs%2Fpr%2F4/x")
    assert not file_address(Weights("w", file="bundled.safetensors"))


def test_neither_a_secret_address_nor_a_folder_is_published():
    row = Weights("w", url="https://files.example.org/net.safetensors?signature=secret")
    assert file_address(row) == file_place(row) == "https://files.example.org/net.safetensors"
    row = Weights("w", path="/home/jane/project-x/net.safetensors")
    assert (file_address(row), file_place(row)) == ("", "net.safetensors")
