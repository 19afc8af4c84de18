"""Work that grows with the size of a file or of the store: twice the input, twice the work."""

from __future__ import annotations

import sys

from plugin_files import write_distribution
from vitzoo.registry.registry import registry


def calls_of(function) -> int:
    """Return how many calls of Python and C functions a function makes."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


# A distribution with many namespaces.

VARIANT = """\
api = 1

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""


def test_listing_many_namespaces_takes_linear_work(net, monkeypatch):
    monkeypatch.setattr("vitzoo.registry.listing_cache.MAX_ENTRIES", 10)

    def work(count):
        names = [f"many{count}x{i}" for i in range(count)]
        points = "\n".join(f"{name} = many{count}:{name}.toml" for name in names)
        files = {f"many{count}/{name}.toml": VARIANT for name in names}
        files |= {f"many{count}/__init__.py": ""}
        write_distribution(net.root / "site", f"many{count}", points, files)

        def listing():
            net.forget()
            found = [row["name"] for row in registry().listing([f"many{count}x*"])]
            assert len(found) == count

        counts = [calls_of(listing) for _ in range(2)]
        (net.root / "site" / f"many{count}-1.0.dist-info" / "entry_points.txt").unlink()
        return counts

    few, many = work(50), work(200)
    assert many[0] < 6 * few[0], "the first listing, which writes the cache"
    assert many[1] < 6 * few[1], "the second listing, which reads it"
    assert many[1] < many[0] / 2, "the cache has room for all namespaces"
