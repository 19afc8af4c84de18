"""Texts of registry entries as HTML: all of it escaped, with links to https addresses only."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from markupsafe import Markup, escape

from vitzoo import Weights
from vitzoo.errors import printable

PLACE = re.compile(r"(?P<paper>arXiv:(?P<id>\d{4}\.\d{4,5}))|(?P<address>https://[^\s<>\"'`,;()]+)")
HUB = "https://huggingface.co"
AFTER = ".:!?"  # ends of a sentence, not of an address


def linked(text: str) -> Markup:
    """Return a text as HTML in which arXiv identifiers and https addresses are links.

    >>> linked("<b>arXiv:2010.11929</b>")[:9]
    Markup('&lt;b&gt;')
    """
    html, end = Markup(), 0
    for match in PLACE.finditer(text):
        shown = match[0].rstrip(AFTER)
        address = f"https://arxiv.org/abs/{match['id']}" if match["paper"] else shown
        html += escape(printable(text[end : match.start()])) + link(address, shown)
        end = match.start() + len(shown)
    return html + escape(printable(text[end:]))


def link(address: str, text: str) -> Markup:
    """Return a link, or only the text if `address` is not a plain https address."""
    if not _is_https(address):
        return escape(printable(text))
    return Markup('<a href="{}" rel="noopener noreferrer">{}</a>').format(address, printable(text))


def file_place(weights: Weights) -> str:
    """Write where a file is; neither a secret query of an address nor a folder is published."""
    if weights.path:
        return Path(weights.path).name
    return weights.place


def file_address(weights: Weights) -> str:
    """Return the address of a file, or of its page on the Hub; empty for a file on a disk."""
    if not weights.repo:
        return weights.url.partition("?")[0]
    revision = quote(weights.revision or "main", safe="")
    return f"{HUB}/{weights.repo}/blob/{revision}/{quote(weights.file)}"


def px(size: tuple[int, int] | None) -> str:
    """Write (height, width) in px: one number for a square, else HEIGHTxWIDTH; empty for None."""
    return "x".join(map(str, dict.fromkeys(size))) if size else ""


def _is_https(address: str) -> bool:
    """Tell whether an address has the scheme https, a host, no other port and no user name."""
    try:
        parts = urlsplit(address)
        named = bool(parts.hostname) and parts.port in (None, 443) and "@" not in parts.netloc
    except ValueError:  # a port or an IPv6 address that cannot be read
        return False
    plain = address.isascii() and address.isprintable() and " " not in address
    return named and plain and address.startswith("https://")
