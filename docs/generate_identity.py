"""Measure what docs/identity.md says of distances, and fill its tables.

    python docs/generate_identity.py

It takes some minutes and needs onnxruntime. The test vectors and the tables of fields do not depend
on the machine; a test compares them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch

import vitzoo
from vitzoo.apps.identity.canary import TOLERANCES, Canary, canaries
from vitzoo.apps.identity.canonical import BLOCK, DEFAULTS, Network, exact, short_hash, to_json
from vitzoo.apps.identity.identity import Identity
from vitzoo.apps.predict.fingerprint import describe_tensors

PAGE = Path(__file__).with_name("identity.md")
NETWORKS = ("vit_digits", "vit_ti16", "vit_b16")  # the last two with random weights
OLD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
QUANTISED = ("vit_digits", "vit_ti16")
CAUSES: dict[str, tuple[str, dict[str, Any]]] = {
    "other instruction sets of the CPU": ("float32", OLD),
    "epsilon 1e-5 for 1e-6": ("", {"block": {"norm_eps": 1e-5}}),
    "GELU by tanh": ("", {"block": {"activation": "gelu_tanh"}}),
    "GELU by a sigmoid": ("", {"block": {"activation": "quick_gelu"}}),
    "float16": ("float16", {"dtype": torch.float16}),
    "bfloat16": ("bfloat16", {"dtype": torch.bfloat16}),
    "ONNX file in float32": ("float32", {"int8": None}),
    "ONNX file in int8": ("int8", {"int8": True}),
}
DIGITS = Path(__file__).parent / "examples" / "digits"


@torch.no_grad()
def network(name: str, **changes: Any) -> torch.nn.Module:
    """Return vit_digits, or another network with random weights of the size of trained ones."""
    model: Any = vitzoo.create(name, pretrained=name == "vit_digits", **changes)
    generator = torch.Generator().manual_seed(0)
    for key, tensor in model.named_parameters() if name != "vit_digits" else ():
        draws = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1:
            tensor.copy_(draws * tensor[0].numel() ** -0.5)
        else:
            tensor.copy_(1 + draws * 0.1 if "norm" in key and "weight" in key else draws * 0.2)
    return model


def canary(name: str, dtype: torch.dtype | None = None, **changes: Any) -> Canary:
    """Return the canary of a network."""
    predictor = vitzoo.Predictor(network(name, **changes), dtype=dtype)
    return canaries(predictor, ["pooled"])["pooled"]


def distance(name: str, own: Canary, changes: dict[str, Any]) -> float:
    """Return the distance of a network to a changed one, or to the same with other numerics."""
    if changes is OLD:
        command = [sys.executable, __file__, name]
        env = {**os.environ, **OLD}
        text = subprocess.check_output(command, env=env, text=True)  # noqa: S603
        return own.distance(Canary.from_data(json.loads(text)))
    if "int8" not in changes:
        return own.distance(canary(name, **changes))
    with tempfile.TemporaryDirectory() as folder:
        place, images = Path(folder, "out"), [DIGITS] if changes["int8"] else None
        done = vitzoo.export(network(name), "onnx", place, output="pooled", int8=images)
        return float(done.canary or 0)


def distances() -> str:
    """Return the table of distances, which this measures."""
    table: dict[str, list[str]] = {cause: [] for cause in CAUSES}
    for name in NETWORKS:
        own = canary(name)
        for cause, (_, changes) in CAUSES.items():
            left_out = "int8" in changes and name not in QUANTISED
            table[cause].append("" if left_out else f"{distance(name, own, changes):.0e}")
            sys.stderr.write(f"{name}, {cause}: {table[cause][-1]}\n")
    lines = [f"| cause | {' | '.join(f'`{name}`' for name in NETWORKS)} | tolerance |"]
    lines.append("|---" * (len(NETWORKS) + 2) + "|")
    for cause, values in table.items():
        numerics = CAUSES[cause][0]
        most = f"{TOLERANCES[numerics]:.0e} ({numerics})" if numerics else "another network"
        lines.append(f"| {cause} | {' | '.join(values)} | {most} |")
    return "\n".join(lines)


def vectors() -> str:
    """Return test vectors, which another program can compute."""
    layer = torch.nn.Linear(2, 1, bias=False, dtype=torch.float16)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -2.0]]))
    data = Network(
        tensors=describe_tensors(layer),
        spec={"embed_dim": 2, "block": {"norm_eps": 1e-05}},
        preprocessing={"mean": [0.5], "std": [1.0], "interpolation": "bicubic"},
        output="pooled",
        normalised=False,
    )
    stated = {name: value for name, value in vars(data).items() if value not in ((), "")}
    text = to_json(exact(stated)).decode()
    digits = Identity.parse(vitzoo.identity("vit_digits"))
    shown = re.sub(r"(?<=,)(?=\"(spec|tensors|preprocessing)\")", "\n", text)
    lines = [shown, "", f"NETWORK of it: {short_hash(data)}"]
    return "\n".join(["```text", *lines, f"vit_digits:    {digits.network}", "```"])


def defaults() -> str:
    """Return the defaults of vz1."""
    text = json.dumps({**DEFAULTS, "block": BLOCK})
    return "\n".join(["```json", *textwrap.wrap(text, 100), "```"])


def fixed() -> dict[str, str]:
    """Return the blocks that do not depend on the machine, by their names."""
    return {"defaults": defaults(), "vectors": vectors()}


def filled(text: str, blocks: dict[str, str]) -> str:
    """Return the text of the page with other blocks."""
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(start)
        text = before + start + block + "\n" + end + rest.partition(end)[2]
    return text


def main() -> None:
    """Fill the page, or print the canary of a network for another process."""
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(canary(sys.argv[1]).to_data()))
        return
    blocks = fixed() | {"distances": distances()}
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
