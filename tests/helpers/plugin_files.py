"""Registry files, and plugins as they are installed: `from plugin_files import ACME, GLOBEX`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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

# The network of `helpers.SPEC` in a registry file, and a row of weights without its pin.
NET = """\
api = 1

[variants.net]
summary = "a small network"
source = "made by the test"
params = 24069
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
num_classes = 5
"""
DETAILS = """\
format = "timm"
license = "MIT"
source = "made by the test"
preprocessing = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }
"""
ROW = f"""\
repo = "acme/net"
file = "model.safetensors"
{DETAILS}"""
FRESH = f"""
[variants.net.weights.fresh]
pin = "first-use"  # until pinned
predicted_size = 98000
{ROW}"""


def write_distribution(
    root: Path,
    name: str,
    entry_points: str,
    files: Mapping[str, str] | None = None,
    *,
    metadata: bool = True,
) -> Path:
    """Write what an installed distribution leaves on disk into a folder, and return the folder.

    Args:
        root: to put on `sys.path`.
        name: of the distribution; its version is 1.0.
        entry_points: of the group `vitzoo`.
        files: texts by path; packages need their `__init__.py`.
        metadata: False leaves the file with name and version out.
    """
    info = root / f"{name.replace('-', '_')}-1.0.dist-info"
    texts = {f"{info.name}/entry_points.txt": f"[vitzoo]\n{entry_points}\n", **(files or {})}
    if metadata:
        texts[f"{info.name}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    for file, text in texts.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
