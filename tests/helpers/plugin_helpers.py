"""A plugin with a manifest and what is asked about it: `from plugin_helpers import state`."""

from __future__ import annotations

import threading
from pathlib import Path

import vitzoo

MANIFEST = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[checkpoint_formats.layout]
target = "acme.formats:layout"
summary = "a layout"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"

[variants.other]
summary = "another"
size = "s"
params = 22050664
source = "made up"

[aliases]
former = "net"
"""


def state(namespace: str, distribution: str | None = None) -> vitzoo.PluginInfo:
    (found,) = (
        info
        for info in vitzoo.plugins()
        if info.namespace == namespace and distribution in (None, info.distribution)
    )
    return found


def names(pattern: str = "*") -> list[str]:
    return [variant.name for variant in vitzoo.variants(pattern)]


def damage(
    root: Path, data: bytes, name: str = "acme_parts", file: str = "entry_points.txt"
) -> None:
    folder = root / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(file).write_bytes(data)


def together(function, count: int = 8) -> list:
    """Call a function in threads that start at once; return results, or errors."""
    barrier, found = threading.Barrier(count), []

    def work():
        barrier.wait(30)
        try:
            found.append(function())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count, "a thread hangs"
    return found


EVENTS = "import threading\nstarted, go = threading.Event(), threading.Event()\n"
WAIT = "import initech\ninitech.started.set()\ninitech.go.wait(60)\n"


def fails(*_, **__):
    raise AssertionError("a manifest is parsed")
