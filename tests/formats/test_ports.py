"""State dicts of networks that people write: a port of timm, and torch's own encoder."""

import hashlib

import pytest
import torch
from torch import Tensor, nn

import vitzoo
from helpers import SPEC, close, fill, refuses, same, write
from internals import port, torch_encoder
from tables import cases
from vitzoo.errors import CheckpointError, InvalidOption

WEIGHTS = ("own", "scaled")
STATED = {"norm_first": True, "activation": "relu", "norm_eps": 1e-5}


def in_timm(**changes):
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return timm.models.VisionTransformer(**(sizes | {"mlp_ratio": 2, "num_classes": 5} | changes))


@pytest.mark.parametrize("weights", WEIGHTS)
@torch.no_grad()
def test_the_port_there_and_back(tmp_path, images, weights):
    """Its arithmetic is that of timm."""
    network = fill(in_timm(), weights)
    state = network.state_dict()
    state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    model = vitzoo.create(SPEC, weights=write(tmp_path / "port.safetensors", state)).eval()
    close(model(images), network(images))
    assert model.load_report.format == "port"
    same(port.from_model(model.state_dict()), state)
    path = write(tmp_path / "timm.safetensors", network.state_dict())
    done = vitzoo.convert(path, "port", tmp_path / "again.safetensors")
    assert (done.read, done.written) == (len(state), len(state))
    again = vitzoo.create(SPEC, weights=tmp_path / "again.safetensors").eval()
    assert torch.equal(again(images), model(images))


def test_the_port_with_pre_logits(tmp_path):
    model = fill(vitzoo.create(SPEC, head="tanh"))
    state = port.from_model(model.state_dict())
    assert {"pre_logits.fc.weight", "head.bias", "pos_embedding.pos_embedding"} <= state.keys()
    path = write(tmp_path / "port.safetensors", state)
    same(vitzoo.create(SPEC, head="tanh", weights=path).state_dict(), model.state_dict())


class Written(nn.Module):
    """A ViT around `nn.TransformerEncoder`."""

    def __init__(self, activation="relu", eps=1e-5, norm_first=True, norm_in_head=True) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, 32, 8, 8)
        self.class_token = nn.Parameter(torch.randn(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(
            32, 2, 64, 0.1, activation, eps, batch_first=True, norm_first=norm_first
        )
        norm = nn.LayerNorm(32, eps)
        own = None if norm_in_head else norm
        self.encoder = nn.TransformerEncoder(layer, 2, own, enable_nested_tensor=False)
        linear = nn.Linear(32, 5)
        self.mlp_head = nn.Sequential(norm, linear) if norm_in_head else linear

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embedding(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.mlp_head(self.encoder(x)[:, 0])

    def tensors(self, **names: str) -> dict[str, Tensor]:
        """Return the state dict with other beginnings of keys."""
        names = {"positions": "pos_embedding"} | names
        return {
            next(
                (key.replace(old, new, 1) for old, new in names.items() if key.startswith(old)), key
            ): t
            for key, t in self.state_dict().items()
        }


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("activation", "eps", "norm_in_head"),
    [("relu", 1e-5, True), ("gelu", 1e-6, False), (nn.functional.silu, 1e-3, True)],
)
@torch.no_grad()
def test_networks_of_torchs_encoder(tmp_path, images, weights, activation, eps, norm_in_head):
    network = fill(Written(activation, eps, norm_in_head=norm_in_head), weights)
    path = write(tmp_path / "own.safetensors", network.tensors())
    name = activation if isinstance(activation, str) else "silu"
    stated = {"norm_first": True, "activation": name, "norm_eps": eps}
    model = vitzoo.create(SPEC, weights=path, block=stated).eval()
    close(model(images), network(images))
    assert (model.load_report.format, model.load_report.assumed) == ("torch_encoder", ())
    by_spec = vitzoo.create(SPEC | {"block": stated}, weights=path).eval()
    assert torch.equal(by_spec(images), model(images))
    same(torch_encoder.to_model(torch_encoder.from_model(model.state_dict())), model.state_dict())


@pytest.mark.parametrize(
    "names",
    [
        {"encoder.layers": "layers", "mlp_head.": "head.", "positions": "pos_embed"},
        {"encoder": "transformer_encoder", "class_token": "cls_token", "positions": "pos_emb"},
        {"encoder": "transformer", "patch_embedding": "conv_proj", "class_token": "cls"},
        {"encoder.layers": "blocks", "patch_embedding": "patch_embed.0", "mlp_head": "fc"},
        {"encoder.layers": "transformer_encoder", "mlp_head.0": "norm", "mlp_head.1": "classifier"},
        {"positions": "module.pos_embedding", "": "module."},
    ],
)
@torch.no_grad()
def test_usual_names_around_the_encoder(tmp_path, images, names):
    network = fill(Written())
    state = network.tensors(**names)
    model = vitzoo.create(SPEC, weights=write(tmp_path / "own.safetensors", state), block=STATED)
    close(model.eval()(images), network(images))


@torch.no_grad()
def test_tokens_without_axes_of_length_one(tmp_path, images):
    network = fill(Written())
    state = network.tensors(positions="pos_embedding.weight")  # of nn.Embedding
    for key in ("pos_embedding.weight", "class_token"):
        state[key] = state[key][0]
    model = vitzoo.create(SPEC, weights=write(tmp_path / "own.safetensors", state), block=STATED)
    close(model.eval()(images), network(images))


@cases("stated", [(), ("activation",), ("norm_eps", "norm_first"), tuple(STATED)])
@cases("by", ["call", "spec", "variant"])
def test_what_no_tensor_shows_must_be_stated(tmp_path, stated, by):
    path = write(tmp_path / "own.safetensors", Written().tensors())
    block = {key: STATED[key] for key in stated}
    spec = SPEC | ({} if by == "call" else {"block": block})
    spec |= {"variant": "vit_ti16"} if by == "variant" else {}
    options = {"weights": path, "block": block if by == "call" else None}
    missing = ", ".join(key for key in STATED if key not in stated)
    if not missing:
        vitzoo.create(spec, **options)
        return
    says = f"no tensor shows {missing};"
    with refuses(CheckpointError, path, "torch_encoder", says, "block="):
        vitzoo.create(spec, **options)


def test_conversion_of_torchs_encoder_is_refused(tmp_path):
    path = write(tmp_path / "own.safetensors", Written().tensors())
    with refuses(CheckpointError, path, "norm_first, activation, norm_eps"):
        vitzoo.convert(path, "timm", tmp_path / "timm.safetensors")


@pytest.mark.parametrize("block", [{"norm_first": False}, {"norm_first": True, "post_norm": True}])
def test_norms_on_the_sum_are_refused(block):
    with refuses(InvalidOption, "norm_first", "must be true", "without post_norm", "sum"):
        vitzoo.create(SPEC, block=block)


@pytest.mark.parametrize(
    ("key", "tensor", "said"),
    [
        ("pos_embedding", (4, 17, 32), ("pos_embed", "batch dimension of 4", "(1, 17, 32)")),
        ("class_token", (4, 1, 32), ("cls_token", "batch dimension of 4", "(1, 1, 32)")),
        ("patch_embedding.weight", (32, 192), ("order", "weight.reshape(32, 3, 8, 8)")),
        ("encoder_layer.norm1.weight", (32,), ("1 unexpected", "encoder_layer.norm1.weight")),
        ("encoder.norm.weight", (32,), ("two tensors", "norm.weight")),
        ("mlp_head.3.weight", (5, 5), ("1 unexpected", "mlp_head.3.weight")),
    ],
)
def test_tensors_without_a_place_in_a_written_network(tmp_path, key, tensor, said):
    state = Written().tensors() | {key: torch.ones(tensor)}
    path = write(tmp_path / "own.safetensors", state)
    with refuses(CheckpointError, *said):
        vitzoo.create(SPEC, weights=path, block=STATED)


@pytest.mark.parametrize("size", [32, 48])
def test_positions_with_a_batch_dimension_are_refused_in_every_format(tmp_path, size):
    state = vitzoo.create(SPEC).state_dict()
    state["pos_embed"] = state["pos_embed"].repeat(8, 1, 1)
    path = write(tmp_path / "timm.safetensors", state)
    with refuses(CheckpointError, "pos_embed has a batch dimension of 8", "expected 1"):
        vitzoo.create(SPEC, weights=path, image_size=size)


ENTRY = """\
api = 1

[variants.own]
image_size = 32
patch_size = 8
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
num_classes = 5
params = 19621
summary = "a network of torch's encoder"
source = "run 7"

[variants.own.weights.run7]
path = "own.safetensors"
pin = "confirmed"
size = {size}
sha256 = "{sha256}"
format = "torch_encoder"
license = "proprietary"
source = "run 7"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""
BLOCK = 'block = { norm_first = true, activation = "relu", norm_eps = 1e-5 }\n'


@torch.no_grad()
def test_an_entry_states_what_no_tensor_shows(tmp_path, images, local_registry):
    network = fill(Written())
    data = write(tmp_path / "own.safetensors", network.tensors()).read_bytes()
    entry = ENTRY.format(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    local_registry(entry)
    with refuses(CheckpointError, "local/own:run7", "norm_first, activation, norm_eps"):
        vitzoo.create("local/own", pretrained=True)
    local_registry(entry + BLOCK)
    close(vitzoo.create("local/own", pretrained=True).eval()(images), network(images))
