"""The written pages of `vitzoo site`, parsed: `from site_pages import Page, full_registry`."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from plugin_files import NET

VOID = ("meta", "link", "input", "br")

# A network with every figure, two sets of weights, and results of a paper.
FULL = (
    NET.replace(
        "api = 1\n",
        """\
api = 1

[evaluations.ours]
evaluation = "ImageNet-1k validation"
evaluation_source = "table 3 of https://example.org/report.pdf"
evaluation_commit = "0123abc"

[measurements.h200]
hardware = "H200"
precision = "bf16"
mode = "compiled"
batch_size = 256
software = "torch 2.15"
source = "bench.csv"
commit = "89abcde"
""",
    )
    + """\
gmacs = 17.5832
activations = 12345678
throughput = { h200 = 2992.79 }
paper = "arXiv:2010.11929"
known_as = { timm = "net_patch8_32" }
block = { norm_eps = 1e-5, layer_scale = 0.1 }
pos_embed = { name = "sincos_2d", temperature = 20.5 }

[[variants.net.paper_results]]
pretraining_data = "Private-3B"
epochs = 7
imagenet = 84.15
pets = 95.8
exaflops = 224
source = "arXiv:2010.11929, table 6"

[variants.net.weights.best]
repo = "acme/net"
file = "model.safetensors"
pin = "confirmed"
revision = "0123456789abcdef0123456789abcdef01234567"
sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
size = 98765
default = true
format = "timm"
license = "CC-BY-NC-4.0"
gated = true
label_set = "imagenet-1k"
num_classes = 1000
source = "Acme"
pretraining = "supervised"
pretraining_data = "Acme-12M"
preprocessing.mean = [0.5, 0.4, 0.3]
preprocessing.std = [0.25, 0.5, 0.125]
preprocessing.interpolation = "bilinear"
preprocessing.crop_pct = 0.875
preprocessing.crop_mode = "squash"
block = { activation = "quick_gelu" }
pool = { name = "mean" }
evaluated = "ours"
evaluation_size = [32, 48]
top1 = 81.782
top5 = 96.1
imagenet_real = 86.754
imagenet_v2 = 71.07
imagenet_sketch = 35.776
imagenet_a = 31.587
imagenet_r = 47.4

[variants.net.weights.other]
repo = "acme/net"
file = "other.safetensors"
pin = "first-use"
predicted_size = 98000
format = "timm"
license = "MIT"
source = "Acme"
preprocessing = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }
top1 = 55.5
evaluation = "Acme's 5 classes"

[variants.bare]
summary = "a network without weights"
source = "made by the test"
params = 24069
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
patch_size = [8, 16]
image_size = [32, 64]
num_classes = 5
"""
)


class Page(HTMLParser):
    """A parsed page.

    `fields` has the texts of elements with `data-field`, by the weights around them and the field.
    `tags` has each tag with its attributes, `texts` all text, and `data` the JSON of the index.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.fields: dict[tuple[str, str], str] = {}
        self.texts: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self._open, self._open
        scripts = [text for text in self.texts if text.startswith('{"keys":')]
        self.data = json.loads(scripts[0]) if scripts else None

    @property
    def links(self) -> list[str]:
        """All addresses in the page."""
        names = ("href", "src", "action", "formaction", "srcset", "data", "poster", "ping")
        return [value or "" for _, at in self.tags for name, value in at.items() if name in names]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        self.texts.append(data)
        around = [attrs for _, attrs in self._open]
        weights = [attrs["data-weights"] for attrs in around if "data-weights" in attrs]
        for attrs in around:
            if field := attrs.get("data-field"):
                key = (weights[-1] if weights else "", field)
                self.fields[key] = self.fields.get(key, "") + data


def entries(data):
    """Return the index's variants, and their weights, as mappings."""
    keys = data["keys"]
    found = [dict(zip(keys["variant"], row, strict=True)) for row in data["variants"]]
    for row in found:
        row["throughput"] = dict(zip(data["measurements"], row["throughput"], strict=False))
        row["weights"] = [dict(zip(keys["weights"], w, strict=True)) for w in row["weights"]]
    return found
