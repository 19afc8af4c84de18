"""The full text of messages: each scenario provokes one, tests/golden/messages.toml keeps it.

Other tests ask a message for its values, its expectation and its fix. Whoever rewords one runs
`python tests/update_messages.py` and reads what the change to the file says.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import sys
import tempfile
import tomllib
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import vitzoo
from helpers import LAZY_MODULE
from internals import (
    COMMIT,
    Trunk,
    check_requirements,
    choose_ways,
    import_file,
    main,
    open_file,
    pip,
    read_manifest,
    registry,
    relock,
    remove,
    reply,
    save_classifier,
    serve,
)
from plugin_files import write_distribution
from tables import check_all
from vitzoo import Predictor, convert, predict
from vitzoo.errors import FirstUseWarning, VitzooError
from vitzoo.testing import Hub, check_head, check_patch_embedder

GOLDEN = Path(__file__).with_name("golden") / "messages.toml"
ROOT = Path(__file__).resolve().parents[1]
BY_HAND = "run `python tests/update_messages.py` and read the change"
SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
HEAD = {"weight": (10, 64), "bias": (10,)}
OTHER_BASE = f"sha256:{'ab' * 32} "
RECORD = json.dumps(
    {"api": 1, "spec": {"variant": "vit_digits"}, "labels": [], "preprocessing": None}
)
PREPROCESSING = '{ mean = [0.5], std = [0.5], interpolation = "bicubic" }'
MANIFEST = """\
api = 1

[heads.flat]
target = "acme.parts:Flat"
summary = "a head"

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""
VARIANT_ALONE = """\
api = 1

[variants.net]
summary = "a network"
size = "ti"
head = "lost/flat"
params = 5717416
source = "made up"
"""
ROW = """
[variants.net.weights.{}]
{}
pretraining_data = "ImageNet-{}"
repo = "acme/net"
file = "model.safetensors"
pin = "first-use"
format = "timm"
license = "MIT"
source = "made up"
preprocessing = {{ mean = [0.5], std = [0.5], interpolation = "bicubic" }}
"""
SEVERAL = (
    VARIANT_ALONE.replace('head = "lost/flat"\n', "")
    + ROW.format("in1k", "size = 22900000\ntop1 = 75.5\ndefault = true", "1k")
    + ROW.format("in21k", "predicted_size = 39000000", "21k")
)
ACME = {"acme/__init__.py": "raise ImportError('no import')\n", "acme/registry.toml": MANIFEST}


class World:
    """A folder, an environment and a Hub on loopback, all of one scenario."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, hub: Hub) -> None:
        self.tmp, self.patch, self.hub = folder, patch, hub
        self.namespaces: list[str] = []
        for name in list(os.environ):
            if name.startswith(("VITZOO_", "HF_")) or name.lower().endswith("_proxy"):
                patch.delenv(name)
        for name, value in hub.environment(folder / "home").items():
            patch.setenv(name, value)
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        patch.syspath_prepend(str(folder / "site"))
        patch.chdir(folder)
        self.only("")  # what else is installed does not count
        hub.files, hub.script, hub.always, hub.api = {}, deque(), None, None

    def env(self, **values: str) -> World:
        """Set variables and forget the registry."""
        for name, value in values.items():
            self.patch.setenv(name, value)
        importlib.invalidate_caches()
        importlib.import_module("vitzoo.registry.registry")._registry.cache_clear()
        return self

    def only(self, namespaces: str) -> World:
        """Allow these plugins alone."""
        return self.env(VITZOO_PLUGINS=namespaces)

    def alone(self) -> World:
        """Find no plugin."""
        self.patch.setattr(importlib.import_module("vitzoo.plugin.host"), "find_plugins", list)
        return self.env()

    def install(self, name: str, entry_point: str, files: dict[str, str] | None = None) -> World:
        """Write what an installed distribution leaves on disk."""
        write_distribution(self.tmp / "site", name, entry_point, files)
        self.namespaces.append(entry_point.partition(" ")[0])
        return self.only(",".join(self.namespaces))

    def acme(self, text: str = MANIFEST) -> World:
        """Install the plugin `acme` with a manifest."""
        return self.install(
            "acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text}
        )

    def globex(self, code: str = LAZY_MODULE) -> World:
        """Install the plugin `globex`, a module."""
        return self.install("globex-vit", "globex = globex", {"globex.py": code})

    def file(self, name: str, data: str | bytes) -> Path:
        """Write a file."""
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def manifest(self, text: str) -> object:
        """Read a registry file of the package `acme`."""
        sizes = registry().host.core.sizes
        return read_manifest(self.file("registry.toml", text), package="acme", sizes=sizes)

    def local(self, text: str) -> World:
        """Let VITZOO_REGISTRY name a file."""
        return self.env(VITZOO_REGISTRY=str(self.file("own.toml", text)))

    def tensors(self, **changes: Any) -> Path:
        """Save the weights of the small network; None leaves a tensor out."""
        state = small_state() | {key.replace("__", "."): v for key, v in changes.items()}
        path = self.tmp / "net.safetensors"
        safetensors.torch.save_file({k: t for k, t in state.items() if t is not None}, path)
        return path

    def one_tensor(self, name: str) -> Path:
        """Save a file with one tensor."""
        return self.file("a.safetensors", safetensors.torch.save({name: torch.ones(1)}))

    def npz(self, **arrays: Any) -> Path:
        """Save arrays as an npz file."""
        np.savez(self.tmp / "net.npz", **arrays)
        return self.tmp / "net.npz"

    def net(self, **changes: Any) -> World:
        """Register `faulty/net`, whose weights the Hub serves; None removes a key of the row."""
        data = safetensors.torch.save(small_state())
        sha256 = self.hub.add("acme/net", "model.safetensors", data)
        row = {
            "default": True, "repo": "acme/net", "file": "model.safetensors", "pin": "confirmed",
            "revision": COMMIT, "size": len(data), "sha256": sha256, "format": "timm",
            "license": "Apache-2.0", "source": "made up",
        } | changes  # fmt: skip
        lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in row.items() if v is not None)
        numbers = "".join(f"{key} = {value}\n" for key, value in SMALL.items())
        text = MANIFEST.partition("[heads")[0] + MANIFEST[MANIFEST.index("[variants") :]
        text = text.replace('size = "ti"\n', numbers).replace("5717416", "24069")
        text += f"[variants.net.weights.main]\n{lines}preprocessing = {PREPROCESSING}\n"
        files = {"faulty/__init__.py": "", "faulty/registry.toml": text}
        return self.install("faulty", "faulty = faulty:registry.toml", files)

    def first_use(self) -> World:
        """Register `faulty/net` without a pin."""
        return self.net(
            pin="first-use", revision=None, sha256=None, size=None, predicted_size=98892
        )

    def answers(self, status: int, **headers: str) -> World:
        """Let every request for a file be answered with a status."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.hub.always = lambda handler, _data: reply(handler, status, named)
        return self

    def refuses_metadata(self, status: int) -> World:
        """Let every request for metadata be answered with a status."""
        self.hub.api = lambda handler, _path: reply(handler, status)
        return self

    def sends(self, data: bytes, **headers: str) -> World:
        """Let the Hub serve other bytes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.hub.always = lambda handler, _data: serve(handler, data, headers=named)
        return self

    def create(self, **arguments: Any) -> object:
        """Create `faulty/net` with its weights."""
        return vitzoo.create("faulty/net", pretrained=True, **arguments)

    def cli(self, *args: object) -> str:
        """Run a command; return what it writes to stderr."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(arg) for arg in args])
        assert code, f"{args} succeeds: {out.getvalue()}"
        return f"exit code {code}\n{err.getvalue().rstrip()}"


def small_state() -> dict[str, torch.Tensor]:
    """Return weights that fit the small network, none of them zero."""
    state = vitzoo.create(SMALL, device="meta").state_dict()
    return {name: torch.ones(tensor.shape) for name, tensor in state.items()}


Scenario = Callable[[World], object]


def first_warning(call: Callable[[], object]) -> str:
    """Return the text of the FirstUseWarning that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return str(next(w.message for w in caught if issubclass(w.category, FirstUseWarning)))


def state(namespace: str, distribution: str | None = None) -> str:
    """Return cause and fix of a plugin that cannot be used."""
    vitzoo.plugins()  # reads the manifests
    for info in vitzoo.plugins():
        if info.namespace == namespace and distribution in (None, info.distribution):
            return f"{info.state}: {info.trouble}"
    raise LookupError(namespace)


def model(**changes: Any) -> Any:
    """Create the small network."""
    return vitzoo.create(SMALL | changes)


def changed_model() -> Any:
    """Create the small network, and remove a block by hand."""
    changed = model()
    del changed.blocks[1]
    return changed


def load(w: World, **changes: Any) -> object:
    """Load the small network's file with changed tensors into it."""
    return vitzoo.create(SMALL, weights=w.tensors(**changes))


def locked(w: World, text: str) -> object:
    """Create from weights without a pin, with a lock of this text."""
    w.first_use().file("home/vitzoo.lock", text)
    return w.create()


def adapter(w: World, tensors: Any = None, **config: Any) -> str:
    """Write an adapter of the bundled model: a bias of the head, or other tensors."""
    table = vitzoo.lora(vitzoo.create("vit_digits", pretrained=True)) | {"peft_type": "LORA"}
    w.file("adapter/adapter_config.json", json.dumps(table | {"target_modules": []} | config))
    found = {f"base_model.model.head.{n}": torch.ones(*s) for n, s in (tensors or HEAD).items()}
    w.file("adapter/adapter_model.safetensors", safetensors.torch.save(found))
    return "adapter"


def encoder(w: World) -> Path:
    """Save a file beside the config of an image encoder that no format reads."""
    w.file("encoder/config.json", '{"model_type": "mllama_vision_model"}')
    return w.file("encoder/a.safetensors", safetensors.torch.save({"a": torch.ones(1)}))


def adapted(w: World, tensors: Any = None, **config: Any) -> object:
    """Merge an adapter into the bundled model."""
    return vitzoo.create("vit_digits", adapter=adapter(w, tensors, **config))


def damaged(w: World) -> object:
    """Fetch weights, damage them in the store, and use them offline."""
    path = vitzoo.fetch("faulty/net") if w.net() else None
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)
    w.env(VITZOO_OFFLINE="1")
    return w.create()


def zipped(w: World, name: str, data: bytes) -> Path:
    """Write an npz file with one member."""
    path = w.tmp / "net.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
    return path


def grown(path: Path) -> object:
    """Read a file that another program appends to."""
    checkpoint = open_file(path)
    with path.open("ab") as file:
        file.write(b"more")
    return checkpoint.tensors()


def sharded(w: World, index: str) -> object:
    """Load from an index of shards."""
    return vitzoo.create(SMALL, weights=w.file("model.safetensors.index.json", index))


def image(w: World) -> Path:
    """Write a picture."""
    Image.new("RGB", (8, 8)).save(w.tmp / "image.png")
    return w.tmp / "image.png"


def probed(w: World, table: str) -> object:
    """Probe a labelled data set."""
    return vitzoo.probe("vit_digits", w.file("data.csv", table))


def classifier(w: World, **trunk: str) -> Path:
    """Write a classifier whose trunk is another file."""
    path, net = w.tmp / "classifier.safetensors", model()
    head = {"head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}
    stated = Trunk("0" * 64, **(trunk or {"file": "flowers.safetensors"}))
    save_classifier(path, net.spec, head, stated, labels=(), preprocessing=None)
    return path


HEADS = "import vitzoo\n@vitzoo.hookimpl\ndef vitzoo_heads():\n    "
VARIANT = """\
import vitzoo
@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.Variant("net", "x", vitzoo.describe("vit_ti16").spec, {})
"""


def redirected(w: World) -> Any:
    """Create a network whose metadata the trusted Hub redirects to another host."""
    to = {"Location": "http://other.example/api/models/acme/net"}
    w.hub.api = lambda handler, _path: reply(handler, 302, to)
    return w.create()


SCENARIOS: dict[str, dict[str, Scenario]] = {
    "names": {
        "empty": lambda _: vitzoo.create(""),
        "empty_weights": lambda _: vitzoo.create("vit_ti16", weights=""),
        "empty_source": lambda w: convert("", "timm", w.tmp / "new.safetensors"),
        "variant_misspelt": lambda _: vitzoo.describe("vit_b61"),
        "variant_unlike_any": lambda _: vitzoo.describe("zzzzzz"),
        "variant_not_a_string": lambda _: registry().variant(5),
        "variant_of_timm": lambda _: vitzoo.describe("vit_base_patch16_224"),
        "variant_of_timm_with_unknown_tag": lambda _: vitzoo.create("vit_base_patch16_224.nope"),
        "variant_of_no_plugin": lambda _: vitzoo.describe("qqqq/net"),
        "filter_misspelt": lambda _: vitzoo.variants(embed_dims=768),
        "filter_unlike_any": lambda _: vitzoo.variants(zzz=1),
        "pool_of_timm": lambda _: vitzoo.create(SMALL, pool="avg"),
        "weights_as_pretrained": lambda _: vitzoo.create("vit_b16", pretrained="augreg_in21k"),
        "part_misspelt": lambda _: vitzoo.create(SMALL, head="liner"),
        "label_set_misspelt": lambda _: vitzoo.labels("imagenet1k"),
        "weights_misspelt": lambda w: w.acme(SEVERAL) and vitzoo.create("acme/net", weights="in21"),
    },
    "registry": {
        "missing_key": lambda w: w.manifest("heads = {}"),
        "unknown_key": lambda w: w.manifest(MANIFEST + "sumary = 1\n"),
        "no_toml": lambda w: w.manifest("api = "),
        "nested_too_deep": lambda w: w.manifest("x = " + "[" * 14 + "]" * 14),
        "number_of_another_type": lambda w: w.manifest(MANIFEST.replace("5717416", '"many"')),
        "number_below_one": lambda w: w.manifest(MANIFEST.replace("5717416", "0")),
        "size_unknown": lambda w: w.manifest(MANIFEST.replace('"ti"', '"tiny"')),
        "name_malformed": lambda w: w.manifest(MANIFEST.replace(".net]", ".Net]")),
        "target_outside": lambda w: w.manifest(MANIFEST.replace("acme.parts", "os")),
        "alias_of_nothing": lambda w: w.manifest(MANIFEST + '[aliases]\nold = "nett"\n'),
        "newer_api": lambda w: w.manifest(MANIFEST.replace("api = 1", "api = 2")),
        "file_missing": lambda w: read_manifest(w.tmp / "none.toml", package="acme"),
        "own_file_with_parts": lambda w: w.local(MANIFEST) and vitzoo.variants(),
        "sha256_malformed": lambda w: w.net(sha256="ab") and vitzoo.describe("faulty/net"),
    },
    "spec": {
        "unknown_option": lambda _: vitzoo.create("vit_ti16", depht=3),
        "argument_of_timm": lambda _: vitzoo.create("vit_ti16", drop_rate=0.1),
        "features_only": lambda _: vitzoo.create("vit_ti16", features_only=True),
        "number_of_another_type": lambda _: model(depth="two"),
        "heads_do_not_divide": lambda _: model(num_heads=3),
        "field_missing": lambda _: vitzoo.create({"depth": 2}),
        "image_size_of_another_type": lambda _: model(image_size="large"),
        "image_size_no_multiple": lambda _: model(image_size=33),
        "rate_out_of_range": lambda _: model(dropout=1.5),
        "activation_unknown": lambda _: model(block={"activation": "glu"}),
        "part_without_a_name": lambda _: model(head={"hidden_dim": 3}),
        "part_option_unknown": lambda _: model(head={"name": "mlp", "hiden_dim": 3}),
        "part_by_import_path": lambda _: vitzoo.create({**SMALL, "head": "os:system"}),
        "drop_path_without_rate": lambda _: model(drop_path="constant"),
        "pool_without_its_token": lambda _: model(class_token=False),
        "name_of_another_type": lambda _: vitzoo.create(5),
        "file_missing": lambda _: vitzoo.create("./none.json"),
        "file_no_json": lambda w: vitzoo.create(w.file("spec.json", "x")),
        "text_vectors_without_bias": lambda _: vitzoo.create(
            SMALL, class_embeddings=torch.ones(3, 32), logit_scale=100
        ),
        "text_vectors_for_a_classifier": lambda _: vitzoo.create(
            SMALL, class_embeddings=torch.ones(3, 32), logit_scale=100, logit_bias=0
        ),
        "data_not_a_mapping": lambda w: vitzoo.create(w.file("spec.json", "[]")),
    },
    "model": {
        "image_shape": lambda _: model()(torch.zeros(1, 3, 40, 40)),
        "image_dtype": lambda _: model()(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)),
        "image_half": lambda _: model()(torch.zeros(1, 3, 32, 32).half()),
        "image_channels_last": lambda _: model()(torch.zeros(1, 32, 32, 3)),
        "image_as_list": lambda _: model()([torch.zeros(3, 32, 32)]),
        "images_of_two_sizes": lambda _: model()([torch.zeros(3, 32, 32), torch.zeros(3, 8, 8)]),
        "packed_image_shape": lambda _: model().forward_packed([torch.zeros(1, 32, 32)]),
        "packed_merge": lambda _: model(block={"merge": 2}).forward_packed([torch.zeros(3, 8, 8)]),
        "packed_patches": lambda _: model().forward_packed(
            {"pixel_values": torch.zeros(1, 4, 192), "spatial_shapes": torch.tensor([[3, 2]])}
        ),
        "native_patches": lambda _: vitzoo.transform("vit_ti16", native_size=0),
        "native_ratio": lambda _: vitzoo.transform("vit_ti16", native_size=2)(
            Image.new("L", (9, 3))
        ),
        "native_and_a_crop": lambda _: vitzoo.transform("vit_ti16", native_size=64, crop_pct=0.9),
        "save_after_changes": lambda w: vitzoo.save(changed_model(), w.tmp / "x.safetensors"),
        "output_fmt": lambda _: model().forward_intermediates(
            torch.zeros(1, 3, 32, 32), output_fmt="NHWC"
        ),
        "num_classes": lambda _: model().reset_classifier(-1),
        "input_size": lambda _: model().set_input_size(33),
        "transform_of_nothing": lambda _: vitzoo.transform(None),
        "transform_without_a_spec": lambda _: vitzoo.transform(torch.nn.Linear(1, 1)),
        "save_without_a_spec": lambda w: vitzoo.save(
            torch.nn.Linear(1, 1), w.tmp / "x.safetensors"
        ),
        "save_under_another_suffix": lambda w: vitzoo.save(model(), w.tmp / "x.pt"),
        "save_into_no_folder": lambda w: vitzoo.save(model(), w.tmp / "none" / "x.safetensors"),
        "no_published_weights": lambda _: vitzoo.create("vit_gg14", pretrained=True),
    },
    "plugins": {
        "switched_off": lambda w: (
            w.acme().env(VITZOO_DISABLE_PLUGINS="acme") and vitzoo.describe("acme/net")
        ),
        "not_among_the_only": lambda w: w.acme().only("globex") and vitzoo.describe("acme/net"),
        "all_off": lambda w: (
            w.acme().env(VITZOO_DISABLE_PLUGINS="*") and vitzoo.describe("acme/net")
        ),
        "name_off": lambda w: (
            w.acme().env(VITZOO_DISABLE_PLUGINS="acme/net") and vitzoo.describe("acme/net")
        ),
        "in_the_current_directory": lambda w: (
            w.acme().patch.chdir(w.tmp / "site")
            or w.patch.delenv("VITZOO_PLUGINS")
            or (w.env() and state("acme"))
        ),
        "strict": lambda w: (
            w.acme("api = ").env(VITZOO_STRICT_PLUGINS="1") and vitzoo.describe("vit_b16")
        ),
        "strict_value": lambda w: (
            w.env(VITZOO_STRICT_PLUGINS="perhaps") and vitzoo.describe("vit_b16")
        ),
        "manifest_broken": lambda w: w.acme("api = ") and vitzoo.describe("acme/net"),
        "manifest_newer": lambda w: w.acme("api = 2") and vitzoo.describe("acme/net"),
        "manifest_missing": lambda w: (
            w.install("acme-parts", "acme = acme:registry.toml") and vitzoo.describe("acme/net")
        ),
        "namespace_of_the_core": lambda w: (
            w.install("acme-parts", "core = acme:registry.toml") and state("core", "acme-parts")
        ),
        "namespace_reserved": lambda w: (
            w.install("acme-parts", "deit = acme:registry.toml") and state("deit", "acme-parts")
        ),
        "entry_point_malformed": lambda w: (
            w.install("acme-parts", "acme = acme:my-zoo.toml") and state("acme")
        ),
        "entry_point_into_the_core": lambda w: (
            w.install("acme-parts", "acme = vitzoo") and state("acme")
        ),
        "two_distributions": lambda w: (
            w.acme().install("acme-fork", "acme = acme:registry.toml")
            and vitzoo.describe("acme/net")
        ),
        "module_raises": lambda w: w.globex("\n\n1 / 0") and vitzoo.describe("globex/net"),
        "module_without_hooks": lambda w: (
            w.globex("import vitzoo") and vitzoo.describe("globex/net")
        ),
        "module_undecorated": lambda w: (
            w.globex("def vitzoo_heads():\n    return []\n") and vitzoo.describe("globex/net")
        ),
        "module_unknown_hook": lambda w: (
            w.globex(HEADS.replace("heads", "hats") + "return []") and vitzoo.describe("globex/net")
        ),
        "module_row_of_another_type": lambda w: (
            w.globex(HEADS + "yield 3") and vitzoo.describe("globex/net")
        ),
        "module_two_rows": lambda w: (
            w.globex(HEADS + "return [vitzoo.Head('a', 1, 'x'), vitzoo.Head('a', 2, 'y')]")
            and vitzoo.describe("globex/net")
        ),
        "module_wrong_field": lambda w: (
            w.globex(VARIANT.format("'many'")) and vitzoo.describe("globex/net")
        ),
        "name_misspelt": lambda w: w.globex() and vitzoo.describe("globex/nett"),
        "part_cannot_be_imported": lambda w: (
            w.acme() and vitzoo.create("vit_ti16", head="acme/flat", device="meta")
        ),
        "requirement_missing": lambda _: check_requirements(
            ["no-such-lib>=2"], "plugin 'acme' (acme-parts 1.0): 'flat'"
        ),
        "requirement_older": lambda _: check_requirements(["pluggy>=99"], "'flat'"),
    },
    "misfits": {
        "missing_tensor": lambda w: load(w, norm__bias=None),
        "unexpected_tensor": lambda w: load(w, extra=torch.ones(1)),
        "another_shape": lambda w: load(w, norm__bias=torch.ones(3)),
        "another_type": lambda w: load(w, norm__bias=torch.ones(32, dtype=torch.int64)),
        "not_a_number": lambda w: load(w, norm__bias=torch.full((32,), torch.nan)),
        "other_classes": lambda w: vitzoo.create(SMALL | {"num_classes": 7}, weights=w.tensors()),
        "other_sizes": lambda w: vitzoo.create(
            SMALL | {"num_classes": 7, "image_size": 64}, weights=w.tensors()
        ),
        "another_network": lambda w: vitzoo.create(
            SMALL, weights=w.one_tensor("layer1.0.conv1.weight")
        ),
        "encoder_alone": lambda w: vitzoo.create(encoder(w).parent),
        "encoder_as_weights": lambda w: vitzoo.create(SMALL, weights=encoder(w)),
        "unknown_format": lambda w: vitzoo.create(SMALL, weights=w.one_tensor("a")),
        "all_zero": lambda w: vitzoo.create(
            SMALL, weights=w.tensors(**{k: torch.zeros_like(v) for k, v in small_state().items()})
        ),
    },
    "adapters": {
        "no_folder": lambda _: vitzoo.create("vit_digits", adapter="adapter"),
        "without_config": lambda w: vitzoo.create("vit_digits", adapter=w.tmp),
        "of_other_weights": lambda w: adapted(w, revision=OTHER_BASE + RECORD),
        "without_record": lambda w: adapted(w, revision="main"),
        "not_merged_here": lambda w: adapted(w, use_dora=True),
        "without_a_tensor": lambda w: adapted(w, {"weight": (10, 64)}),
        "of_another_network": lambda w: vitzoo.create("vit_ti16", adapter=adapter(w)),
        "rank_too_large": lambda _: vitzoo.lora(model(), r=64),
        "of_timm": lambda _: vitzoo.lora(torch.nn.Linear(2, 2)),
    },
    "files": {
        "missing": lambda w: vitzoo.create(SMALL, weights=w.tmp / "none.safetensors"),
        "folder_without_weights": lambda w: vitzoo.create(SMALL, weights=w.tmp),
        "empty": lambda w: vitzoo.create(SMALL, weights=w.file("a.safetensors", b"")),
        "html": lambda w: vitzoo.create(SMALL, weights=w.file("a.safetensors", "<html></html>")),
        "pickle": lambda w: vitzoo.create(SMALL, weights=w.file("a.pt", b"\x80\x04." + b"x" * 20)),
        "pickle_of_torch": lambda w: vitzoo.create(
            SMALL, weights=torch.save({"a": torch.ones(1)}, w.tmp / "a.pth") or w.tmp / "a.pth"
        ),
        "header_too_long": lambda w: vitzoo.create(
            SMALL, weights=w.file("a.safetensors", b"\xff" * 7 + b"\0" + b"{}")
        ),
        "header_no_json": lambda w: vitzoo.create(
            SMALL, weights=w.file("a.safetensors", (8).to_bytes(8, "little") + b"no JSON!")
        ),
        "truncated": lambda w: vitzoo.create(
            SMALL, weights=w.file("a.safetensors", w.tensors().read_bytes()[:-10])
        ),
        "npz_broken": lambda w: vitzoo.create(SMALL, weights=w.file("a.npz", b"PK\x03\x04xx")),
        "npz_pickled": lambda w: vitzoo.create(
            SMALL, weights=w.npz(a=np.array([{}], dtype=object))
        ),
        "mapped_nothing": lambda _: vitzoo.create(SMALL, mmap=True),
        "changed_while_read": lambda w: grown(w.tensors()),
        "npz_dtype": lambda w: vitzoo.create(SMALL, weights=w.npz(a=np.array(["text"]))),
        "npz_member_no_array": lambda w: vitzoo.create(
            SMALL, weights=zipped(w, "a.npy", b"x" * 99)
        ),
        "index_no_json": lambda w: sharded(w, "{x"),
        "index_without_a_map": lambda w: sharded(w, "{}"),
        "index_outside": lambda w: sharded(w, '{"weight_map": {"a": "../b.safetensors"}}'),
        "shard_missing": lambda w: sharded(w, '{"weight_map": {"a": "b.safetensors"}}'),
    },
    "hub": {
        "unauthorised_401": lambda w: w.net().answers(401).create(),
        "gated_403": lambda w: w.net().answers(403, X_Error_Code="GatedRepo").create(),
        "forbidden_403": lambda w: w.net().answers(403).create(),
        "file_404": lambda w: w.net().answers(404, X_Error_Code="EntryNotFound").create(),
        "revision_404": lambda w: w.net().answers(404, X_Error_Code="RevisionNotFound").create(),
        "repository_404": lambda w: w.net().answers(404, X_Error_Code="RepoNotFound").create(),
        "repository_of_a_user_401": lambda w: (
            w.refuses_metadata(401) and vitzoo.create("hf://me/typo")
        ),
        "too_many_429": lambda w: w.net().answers(429, Retry_After="100000").create(),
        "server_500": lambda w: w.net().answers(500).create(),
        "server_503": lambda w: w.net().answers(503).create(),
        "teapot_418": lambda w: w.net().answers(418).create(),
        "redirect_refused": lambda w: w.net().answers(302, Location="ftp://127.0.0.1/x").create(),
        "larger_file": lambda w: w.net().sends(b"x" * 99_999).create(),
        "other_bytes": lambda w: w.net(size=5).sends(b"wrong", Content_Type="text/html").create(),
        "encoded_body": lambda w: w.net().sends(b"x", Content_Encoding="gzip").create(),
        "unreachable": lambda w: (
            w.net()
            .env(VITZOO_ENDPOINTS="http://127.0.0.1:9", VITZOO_TRUST_ENDPOINT="http://127.0.0.1:9")
            .create()
        ),
        "trusted_hub_redirects": lambda w: redirected(w.first_use()),
        "trusted_hub_offline": lambda w: (
            w.first_use().env(VITZOO_OFFLINE="1") and relock("faulty/net")
        ),
        "offline": lambda w: w.net().env(VITZOO_OFFLINE="1").create(),
        "offline_of_huggingface_hub": lambda w: w.net().env(HF_HUB_OFFLINE="1").create(),
        "offline_first_use": lambda w: w.first_use().env(VITZOO_OFFLINE="1").create(),
        "offline_value": lambda w: w.net().env(VITZOO_OFFLINE="maybe").create(),
        "address_malformed": lambda _: vitzoo.create(SMALL, weights="hf://acme"),
        "timeout_value": lambda w: w.net().env(VITZOO_TIMEOUT="soon").create(),
    },
    "lock": {
        "first_use": lambda w: first_warning(w.first_use().env(VITZOO_PINS="warn").create),
        "pins_required": lambda w: w.first_use().env(VITZOO_PINS="required").create(),
        "frozen": lambda w: w.first_use().env(VITZOO_FROZEN="1").create(),
        "no_json": lambda w: locked(w, "{"),
        "another_version": lambda w: locked(w, '{"version": 99, "weights": {}}'),
        "broken_row": lambda w: locked(w, '{"version": 1, "weights": {"hf://a": 5}}'),
        "pins_value": lambda w: w.first_use().env(VITZOO_PINS="yes").create(),
    },
    "store": {
        "damaged_offline": damaged,
        "home_is_a_file": lambda w: w.net().file("home", "x") and w.create(),
        "import_unknown": lambda w: import_file(w.net().file("x.bin", b"x")),
        "import_missing": lambda w: import_file(w.net().tmp / "none"),
        "import_into_memory": lambda w: (
            w.net().env(VITZOO_HOME=":memory:") and import_file(w.file("x.bin", b"x"))
        ),
        "remove_unknown_weights": lambda w: w.net() and remove("faulty/net", "other"),
        "fetch_unknown_weights": lambda w: w.net() and vitzoo.fetch("faulty/net", "mian"),
        "gated_license": lambda w: (
            w.net(license="CC-BY-NC-4.0", gated=True)
            .answers(403, X_Error_Code="GatedRepo")
            .create()
        ),
    },
    "convert": {
        "unknown_format": lambda w: convert(w.tensors(), "torchvison", w.tmp / "o.npz"),
        "output_exists": lambda w: convert(
            w.tensors(), "torchvision", w.file("o.safetensors", "x")
        ),
        "source_missing": lambda w: convert(w.tmp / "none", "google", w.tmp / "o.npz"),
        "network_not_expressed": lambda w: convert(
            "vit_digits", "torchvision", w.tmp / "o.safetensors"
        ),
    },
    "export": {
        "unknown_kind": lambda w: vitzoo.export(model(), "onxn", w.tmp / "out"),
        "other_files": lambda w: vitzoo.export(
            model(), "torch", w.file("out/photo.png", "x").parent, force=True
        ),
        "folder_exists": lambda w: vitzoo.export(
            model(), "torch", w.file("out/model.pt2", "x").parent
        ),
        "any_image_size": lambda w: vitzoo.export(
            vitzoo.create(SMALL, dynamic=True), "torch", w.tmp / "out"
        ),
        "half_precision": lambda w: vitzoo.export(model().half(), "torch", w.tmp / "out"),
        "int8_without_onnx": lambda w: vitzoo.export(
            model(), "torch", w.tmp / "out", int8=[image(w)]
        ),
    },
    "Predictor": {
        "unknown_output": lambda _: Predictor(model(), outputs="blocks.9"),
        "weights_of_a_model": lambda _: Predictor(model(), weights="a.safetensors"),
        "top_without_labels": lambda _: Predictor(model(), top=3),
        "argument_of_create": lambda _: Predictor("vit_digits", adapter="turned"),
        "tokens_of_native_sizes": lambda _: (
            Predictor(model(), outputs="embed", native_size=True).shapes
        ),
        "input_of_native_size": lambda _: Predictor(model(), native_size=True).compute(
            [torch.zeros(3, 9, 32)]
        ),
    },
    "predict": {
        "no_image_at_all": lambda _: predict(model(), [5]),
        "no_image": lambda w: list(predict(model(), [w.file("broken.png", "x")])),
        "image_missing": lambda _: list(predict(model(), ["nope.jpg"])),
        "top_below_one": lambda w: list(predict(model(), [image(w)], top=0)),
        "no_classifier": lambda w: list(predict(model(num_classes=0), [image(w)])),
    },
    "bench": {
        "few_rounds": lambda _: vitzoo.bench(rounds=5),
        "no_way": lambda _: vitzoo.bench(ways=["bf61"]),
        "not_on_this_device": lambda _: choose_ways(["openvino"], "cuda"),
        "not_of_vitzoo": lambda _: vitzoo.bench(torch.nn.Linear(1, 1)),
        "half": lambda _: vitzoo.bench(model().bfloat16()),
    },
    "probe": {
        "one_class": lambda w: probed(w, "path,label\n1.png,cat\n2.png,cat\n"),
        "few_images": lambda w: probed(w, "path,label\n1.png,cat\n2.png,dog\n"),
        "no_column": lambda w: probed(w, "path,species\n1.png,cat\n"),
        "no_label": lambda w: probed(w, "path,label\n1.png,cat\n2.png,\n"),
        "no_data": lambda w: vitzoo.probe("vit_digits", w.tmp / "none"),
        "an_image": lambda w: vitzoo.probe("vit_digits", w.file("digit.png", "x")),
        "trunk_missing": lambda w: vitzoo.create(classifier(w)),
        "trunk_changed": lambda w: vitzoo.create(classifier(w), weights=w.tensors()),
        "trunk_on_the_hub": lambda w: vitzoo.create(classifier(w, weights="hf://acme/net@main/x")),
        "no_trunk": lambda w: vitzoo.create(SMALL, weights=classifier(w)),
    },
    "plot": {
        "kind_misspelt": lambda _: vitzoo.plot("filter", model()),
        "option_unused": lambda _: vitzoo.plot("filters", model(), layers=[0]),
        "no_image": lambda _: vitzoo.plot("attention", model()),
        "no_positions": lambda _: vitzoo.plot("positions", model(pos_embed="none")),
        "not_of_vitzoo": lambda _: vitzoo.plot("tokens", torch.nn.Linear(1, 1), "x.png"),
        "query_outside": lambda w: vitzoo.plot("attention", model(), image(w), query=(4, 0)),
        "other_ending": lambda _: vitzoo.plot("filters", model()).save("x.pdf"),
    },
    "conformance": {
        "head_is_no_head": lambda w: (
            w.globex(
                HEADS
                + "yield vitzoo.Head('h', H, 'x')\nclass H:\n    def __init__(self, **_): pass\n"
            )
            and check_head("globex/h")
        ),
        "embedder_unknown": lambda _: check_patch_embedder("conf"),
    },
    "command_line": {
        "unknown_command": lambda w: w.cli("lst"),
        "command_of_other_tools": lambda w: w.cli("create", "vit_b16"),
        "unknown_option": lambda w: w.cli("list", "--jsn"),
        "missing_argument": lambda w: w.cli("show"),
        "unknown_variant": lambda w: w.cli("show", "vit_b61"),
        "variant_of_a_plugin": lambda w: w.alone().cli("show", "dinov2/vit_b14"),
        "no_variant_of_a_plugin": lambda w: w.alone().cli("show", "dinov2/vit_b15"),
        "name_of_timm_for_a_plugin": lambda w: w.alone().cli("show", "vit_base_patch14_dinov2"),
        "no_match": lambda w: w.cli("list", "nothing*"),
        "no_match_without_plugins": lambda w: w.alone().cli("list", "dinov2/*"),
        "no_match_in_plugins": lambda w: w.alone().cli("list", "--available", "dinov22"),
        "field_of_plugins": lambda w: w.alone().cli("list", "--available", "--sort", "top1"),
        "no_match_of_one_pattern": lambda w: w.cli("list", "vit_b16", "vit_b61"),
        "no_match_of_a_family": lambda w: w.acme().cli("list", "acne", "-q"),
        "condition_malformed": lambda w: w.cli("list", "--where", "params"),
        "condition_of_another_type": lambda w: w.cli("list", "--where", "params<big"),
        "condition_of_an_unknown_field": lambda w: w.cli("list", "--where", "parms<1M"),
        "condition_with_a_rest": lambda w: w.cli("list", "--where", "params<1M depth=12"),
        "condition_with_a_wrong_operator": lambda w: w.cli("list", "--where", "license<5"),
        "filter_of_another_type": lambda _: vitzoo.variants(license=5),
        "sort_direction": lambda w: w.cli("list", "--sort", "params:up"),
        "image_size": lambda w: w.cli("summary", "vit_b16", "--image-size", "224x"),
        "image_size_no_multiple": lambda w: w.cli("summary", "vit_b16", "--image-size", "225"),
        "which_unknown_weights": lambda w: w.cli("which", "vit_base_patch16_224.nope"),
        "predict_no_file": lambda w: w.cli("predict", "vit_digits", "x.png"),
        "fetch_offline": lambda w: w.net().env(VITZOO_OFFLINE="1").cli("fetch", "faulty/net"),
        "verify_nothing": lambda w: w.cli("verify"),
        "registry_check_of_no_file": lambda w: w.cli("registry", "check", "none.toml"),
        "registry_check_without_the_plugin": lambda w: w.cli(
            "registry", "check", w.file("a/registry.toml", VARIANT_ALONE)
        ),
        "plugins_check_of_no_plugin": lambda w: w.acme().cli("plugins", "check", "acne"),
        "plugins_json_before_check": lambda w: w.cli("plugins", "--json", "check"),
        "plugins_new_reserved": lambda w: w.cli("plugins", "new", "deit"),
        "plugins_new_malformed": lambda w: w.cli("plugins", "new", "Acme"),
        "plugins_compile_a_manifest": lambda w: w.acme().cli("plugins", "compile", "acme"),
        "plugins_compile_a_lambda": lambda w: w.globex(
            LAZY_MODULE.replace("late, ", "lambda *, depth, rate: [], ")
        ).cli("plugins", "compile", "globex"),
    },
    "training": {
        "freeze_unknown_layer": lambda _: vitzoo.freeze(model(), until="blocks.9"),
        "freeze_too_many_layers": lambda _: vitzoo.freeze(model(), until=9),
        "freeze_without_classifier": lambda _: vitzoo.freeze(model(num_classes=0), until="head"),
        "groups_without_layers": lambda _: vitzoo.param_groups(
            torch.nn.Linear(2, 2), 1e-3, layer_decay=0.75
        ),
        "groups_of_a_frozen_model": lambda _: vitzoo.param_groups(
            model().requires_grad_(False), 1e-3
        ),
        "groups_with_a_percentage": lambda _: vitzoo.param_groups(model(), 1e-3, layer_decay=75),
    },
}


@contextlib.contextmanager
def world(hub: Hub) -> Iterator[World]:
    """Make a world, and forget it."""
    modules = set(sys.modules)
    with (
        tempfile.TemporaryDirectory(prefix="messages-") as folder,
        pytest.MonkeyPatch.context() as p,
    ):
        clock = _Clock()
        for name in ("download", "locks"):
            p.setattr(importlib.import_module(f"vitzoo.store.{name}"), "time", clock)
        yield World(Path(folder).resolve(), p, hub)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("acme", "globex", "faulty"):
            del sys.modules[name]
    importlib.import_module("vitzoo.registry.registry")._registry.cache_clear()


class _Clock:
    """Stands in for `time` in the fetcher: its pauses pass at once."""

    def __init__(self) -> None:
        import time

        self.slept, self.real = 0.0, time

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def monotonic(self) -> float:
        return self.real.monotonic() + self.slept


def provoke(scenario: Scenario, hub: Hub) -> str:
    """Return the message of a scenario, with placeholders for what differs between runs."""
    with world(hub) as w:
        try:
            text = scenario(w)
        except (VitzooError, AssertionError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
        assert isinstance(text, str), f"nothing is raised, got {text!r}"
        return placeholders(text, w)


def placeholders(text: str, w: World) -> str:
    """Replace paths, addresses, hashes, versions and line numbers; leave click's usage out."""
    for old, new in (
        (str(w.tmp), "<folder>"),
        (pip(), "<python> -m pip"),
        (str(ROOT), "<repository>"),
        (w.hub.host, "<host>"),
        (vitzoo.__version__, "<version>"),
        (f"pluggy {version('pluggy')}", "pluggy <version>"),
    ):
        text = text.replace(old, new)
    text = re.sub(r"\b[0-9a-f]{64}(\.\d+)?\b", "<sha256>", text)
    text = re.sub(r"/[0-9a-f]{2}/<sha256>", "/<sha256>", text)
    text = re.sub(r"Usage: .*\nTry .*\n\n", "", text)  # click's own words
    text = re.sub(r"(\.py):\d+", r"\1:<line>", text)
    text = re.sub(r"\(PNG, [A-Z0-9, ]+\)", "(<image formats>)", text)
    return re.sub(r"0x[0-9a-f]{6,}", "<address>", text)


def texts() -> dict[str, dict[str, str]]:
    """Return the message of every scenario."""
    with Hub() as hub:
        return {
            area: {name: provoke(scenario, hub) for name, scenario in scenarios.items()}
            for area, scenarios in SCENARIOS.items()
        }


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub() as server:
        yield server


NAMES = [(area, name) for area, scenarios in SCENARIOS.items() for name in scenarios]
KEPT = tomllib.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


@pytest.mark.parametrize("area", SCENARIOS)
def test_messages_have_the_texts_of_the_golden_file(hub, area):
    def check(name):
        assert name in KEPT.get(area, {}), BY_HAND
        assert provoke(SCENARIOS[area][name], hub) == KEPT[area][name], BY_HAND

    check_all({name: name for name in SCENARIOS[area]}, check)


def test_every_message_of_the_golden_file_has_a_scenario():
    kept = {(area, name) for area, messages in KEPT.items() for name in messages}
    assert kept - set(NAMES) == set(), BY_HAND
