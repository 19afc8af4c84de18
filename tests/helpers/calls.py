"""Count what one `create` does: `python calls.py FOLDER` writes files there and prints JSON.

Counted are the calls of functions on the way of `create`, how often the file of the function
changes from one call to the next, the classes of vitzoo that get an instance (outside parts and
network), and how often each file of the call is opened. The first call of two is not counted.
Expressions, such as comprehensions and lambdas, are no functions here.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save_file

import vitzoo

WAY = {
    "advice", "checkpoint", "foreign", "loading", "plugin", "registry", "schema", "weights",
    "factory.py", "keywords.py", "known.py", "opening.py",
}  # fmt: skip
LEFT_OUT = "loading/assign.py"
EXPRESSIONS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
CONSTRUCTORS = {"__init__", "__post_init__", "__new__"}
ROOT = Path(vitzoo.__file__).parent
NAME = "vit_ti16"
TIMM = {
    "architecture": "vit_tiny_patch16_224", "num_classes": 1000, "num_features": 192,
    "pretrained_cfg": {
        "input_size": [3, 224, 224], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic", "crop_pct": 0.9, "num_classes": 1000,
        "first_conv": "patch_embed.proj", "classifier": "head",
    },
}  # fmt: skip
TRANSFORMERS = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 192,
    "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16,
    "num_channels": 3, "qkv_bias": True, "id2label": {str(i): f"LABEL_{i}" for i in range(1000)},
}  # fmt: skip


def cases(folder: Path) -> dict[str, Callable[[], object]]:
    """Write a network in all forms; return a call of `create` for each."""
    net = vitzoo.create(NAME)
    file, saved = folder / "net.safetensors", folder / "saved.safetensors"
    save_file(net.state_dict(), file)
    vitzoo.save(net, saved)
    for name, config in (("timm", TIMM), ("transformers", TRANSFORMERS)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    save_file(net.state_dict(), folder / "timm" / "model.safetensors")
    vitzoo.convert(saved, "transformers_vit", folder / "transformers" / "model.safetensors")
    return {
        "vit_digits, pretrained": lambda: vitzoo.create("vit_digits", pretrained=True),
        "a file": lambda: vitzoo.create(NAME, weights=file),
        "a saved file": lambda: vitzoo.create(saved),
        "a folder with timm's config": lambda: vitzoo.create(folder / "timm"),
        "a folder of transformers": lambda: vitzoo.create(folder / "transformers"),
    }


@contextmanager
def watched(see: Callable[[FrameType], None]) -> Iterator[None]:
    """Call `see` with the frame of each call of a function of Python."""
    sys.setprofile(lambda frame, event, _: see(frame) if event == "call" else None)
    try:
        yield
    finally:
        sys.setprofile(None)


def calls_of(call: Callable[[], object]) -> tuple[int, int]:
    """Return the numbers of calls and of changes of the file on the way of `create`."""
    files: list[str] = []

    def see(frame: FrameType) -> None:
        path = frame.f_code.co_filename
        if path.startswith(f"{ROOT}{os.sep}") and frame.f_code.co_name not in EXPRESSIONS:
            own = Path(path).relative_to(ROOT)
            if own.parts[0] in WAY and own.as_posix() != LEFT_OUT:
                files.append(path)

    with watched(see):
        call()
    return len(files), sum(a != b for a, b in zip([None, *files], files, strict=False))


def classes_of(call: Callable[[], object]) -> list[str]:
    """Return the classes whose constructor runs, outside parts and network."""
    found: set[str] = set()

    def see(frame: FrameType) -> None:
        code = frame.f_code
        first: Any = frame.f_locals.get(next(iter(code.co_varnames), ""))
        made = first if isinstance(first, type) else type(first)
        if code.co_name in CONSTRUCTORS or "_cls" in code.co_varnames:  # of a named tuple
            found.add(f"{made.__module__}.{made.__qualname__}")

    with watched(see):
        call()
    parts = ("vitzoo.parts.", "vitzoo.network.")
    return sorted(n for n in found if n.startswith("vitzoo.") and not n.startswith(parts))


def main(folder: Path) -> None:
    """Print the counts of every case."""
    opened: Counter[str] = Counter()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            opened.update([path] if path.startswith(str(folder)) else ())

    made, found = cases(folder), {}
    sys.addaudithook(audit)
    for name, call in made.items():
        call()
        opened.clear()
        call()
        most = max(opened.values(), default=0)
        calls, changes = calls_of(call)
        found[name] = {
            "calls": calls, "changes of the file": changes, "opened": most,
            "classes": classes_of(call),
        }  # fmt: skip
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
