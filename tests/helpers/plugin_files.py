"""The files of two plugins that work: `from plugin_files import ACME, GLOBEX`."""

from __future__ import annotations

MANIFEST = """\
api = 1

[drop_path_policies.late]
target = "acme.parts:late"
summary = "the rate in the last block only"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"

[aliases]
old = "net"
"""
PARTS = "def late(*, depth, rate=0.1):\n    return [0.0] * (depth - 1) + [rate]\n"
ACME = {"acme/__init__.py": "", "acme/parts.py": PARTS, "acme/registry.toml": MANIFEST}
UNTOUCHABLE = ACME | {"acme/__init__.py": "raise ImportError('nobody may import me')"}
MODULE = """\
import vitzoo

@vitzoo.hookimpl
def vitzoo_drop_path_policies():
    yield vitzoo.DropPathPolicy("late", late, "the rate in the last block only")

@vitzoo.hookimpl
def vitzoo_variants():
    spec = vitzoo.describe("vit_ti16").spec
    yield vitzoo.Variant("net", "a network", spec, 5717416, source="made up")

def late(*, depth, rate=0.1):
    return [0.0] * (depth - 1) + [rate]
"""
GLOBEX = {"globex/__init__.py": "", "globex/plugin.py": MODULE}
