"""Fills the table of docs/backbones.md: what the networks of each family can do as backbones.

    python tests/update_backbones.py

The table stands between `<!-- backbones -->` and `<!-- end -->`. A family is a namespace; of
timm/*, it is a module of timm. tests/apps/backbone/test_families.py computes every cell, also those
of the families in `CANNOT`: there, an error must say why.
"""

from __future__ import annotations

import re
from pathlib import Path

import vitzoo

PAGE = Path(__file__).parents[1] / "docs" / "backbones.md"
TABLE = re.compile(r"(<!-- backbones -->\n).*?(<!-- end -->)", re.DOTALL)
BY_HAND = "python tests/update_backbones.py"
CAN = {
    "backbone": "maps of its blocks",
    "pyramid": "pyramid, trained",
    "onnx": "ONNX at two sizes",
}
ONE_SIZE = (
    *("cait", "convit", "crossvit", "hiera", "levit", "mvitv2", "pit", "tnt", "visformer"),
    *("vision_transformer_relpos", "volo"),
)
CANNOT = {f"timm/{module}": "one image size" for module in ONE_SIZE}
"""Why `vitzoo.backbone` refuses the networks of a family."""
NO_ONNX = dict.fromkeys(
    ("timm/twins", "timm/vision_transformer_sam"), "torch exports fused attention in 4-D only"
)
"""Why networks of a family are not exported to ONNX."""


def families() -> dict[str, str]:
    """Return the smallest network of each family."""
    found: dict[str, vitzoo.Variant] = {}
    for variant in sorted(vitzoo.variants(), key=lambda v: (v.params, v.name)):
        found.setdefault(family(variant), variant)
    return {name: found[name].name for name in sorted(found, key=_in_order)}


def family(variant: vitzoo.Variant) -> str:
    """Return the namespace of a variant; of timm/*, with the module of timm."""
    import timm

    if variant.namespace != "timm":
        return variant.namespace
    build = timm.model_entrypoint(variant.name.partition("/")[2])
    return f"timm/{build.__module__.rpartition('.')[2]}"


def stated() -> dict[str, str]:
    """Return `families()` as the page states it: without timm, whose import takes seconds."""
    match = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert match, f"no table in {PAGE}"
    rows = re.findall(r"^\| `(\w+)/?\*`(?:: (\w+))? \| `(.+?)` \|", match[0], re.MULTILINE)
    core = ("vit_", "")
    return {
        "core" if (space, module) == core else f"{space}/{module}".rstrip("/"): network
        for space, module, network in rows
    }


def _in_order(name: str) -> tuple[bool, str]:
    return name != "core", name


def table() -> str:
    """Return the table."""
    lines = [f"| family | network | {' | '.join(CAN.values())} |", "|---" * 5 + "|"]
    for name, network in families().items():
        space, _, module = name.partition("/")
        shown = "`vit_*`" if name == "core" else f"`{space}/*`" + (module and f": {module}")
        why = [CANNOT.get(name, NO_ONNX.get(name) if cell == "onnx" else None) for cell in CAN]
        cells = [f"no: {reason}" if reason else "yes" for reason in why]
        lines.append(f"| {shown} | `{network}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def filled(page: str) -> str:
    """Return the page with its table written anew."""
    return TABLE.sub(lambda match: match[1] + table() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
