"""Twins with equal random weights, and the one comparison that all parity tests use."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import vitzoo

TIMM = {
    "vit_ti16": "vit_tiny_patch16_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_s32": "vit_small_patch32_224",
    "vit_b16": "vit_base_patch16_224",
    "vit_b32": "vit_base_patch32_224",
    "vit_ti16_384": "vit_tiny_patch16_384",
}
WEIGHTS = ("own", "scaled")
OFTEN = dict.fromkeys(TIMM, ("scaled",)) | dict.fromkeys(("vit_ti16", "vit_s16"), WEIGHTS)  # in CI
LARGE = 224  # px
TOLERANCE = 5e-5  # times the largest reference value, where that is above 1


def assert_same(actual, expected, *, what="result"):
    """Compare every element in fp32; nan is never equal."""
    largest = expected.abs().max().item()
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * max(1, largest))
    except AssertionError as error:
        raise AssertionError(f"{what} (reference up to {largest:.3g}): {error}") from None


def assert_same_network(reference, model, images):
    """Compare the tokens, pre-logits and logits of two networks."""
    with torch.inference_mode():
        theirs_tokens, ours = reference.forward_features(images), model.forward_features(images)
        assert_same(ours, theirs_tokens, what="tokens")
        theirs = reference.forward_head(theirs_tokens, pre_logits=True)
        assert_same(model.forward_head(ours, pre_logits=True), theirs, what="pre-logits")
        assert_same(model(images), reference.forward_head(theirs_tokens), what="logits")


DRAWS = ("normal_", "uniform_", "erfinv_", "clamp_", "trunc_normal_")


class _Unfilled(TorchFunctionMode):
    """Leaves out what draws random numbers in place."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def unfilled(weights="scaled"):
    """Return a context for making networks whose parameters `fill` sets: they are not drawn twice.

    It also makes networks on `meta`, where drawing takes most of the time. `own` weights are a
    network's own initialisation, which the context then leaves alone. It is for timm's networks:
    transformers draws again until no number lies too far out, for ever.
    """
    return contextlib.nullcontext() if weights == "own" else _Unfilled()


def images_for(model, *, cut):
    """Return two images for a network of two blocks, one for full depth or over `LARGE` px."""
    count = 2 if cut and max(model.image_size) <= LARGE else 1
    return torch.randn(count, model.patch_embed.in_chans, *model.image_size)


def carried(described, tensors, **options):
    """Return our network with these tensors, in evaluation mode; it draws no weights of its own."""
    with torch.device("meta"):
        model = vitzoo.create(described, **options)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval()


@torch.no_grad()
def fill(model, weights):
    """Give a reference network one of the two sets of weights.

    `own` is its own initialisation. `scaled` makes every layer matter: fan-in scaled normals,
    norm gains of 1 +- 0.2, and random biases, class token and positions.
    """
    from timm.layers import RmsNorm

    if weights == "own":
        assert all(p.any() for n, p in model.named_parameters() if n.endswith("head.weight"))
        return
    norms = (nn.LayerNorm, nn.RMSNorm, RmsNorm)
    gains = {id(m.weight) for m in model.modules() if isinstance(m, norms)}
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if id(parameter) in gains:
            parameter.normal_(1, 0.2, generator=generator)
        elif parameter.dim() == 1 or name in ("cls_token", "pos_embed"):
            parameter.normal_(0, 0.1, generator=generator)
        else:
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=generator)


def make_twins(name, weights, *, timm_options=None, vitzoo_options=None, spec=None, depth=None):
    """Return timm's network, ours with the same weights, and images for both.

    The weights go both ways, strictly and without renaming. `spec` are keys that change the
    variant where `create` has no argument for them. `depth` cuts both where every block is alike.
    """
    import timm

    torch.manual_seed(1)
    cut = {} if depth is None else {"depth": depth}
    theirs = cut | (timm_options or {})
    with unfilled(weights):
        reference = timm.create_model(TIMM[name], pretrained=False, **theirs).eval()
    fill(reference, weights)
    ours = {"variant": name} | cut | (spec or {})
    model = carried(ours, reference.state_dict(), **(vitzoo_options or {}))
    reference.load_state_dict(model.state_dict(), strict=True)
    images = torch.randn(2, model.patch_embed.in_chans, *model.image_size)
    return SimpleNamespace(reference=reference, model=model, images=images)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Keep torch to one thread: on a busy machine two that wait for each other take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def parity():
    """The helpers above, for tests that are no package."""
    return SimpleNamespace(
        assert_same=assert_same,
        assert_same_network=assert_same_network,
        make_twins=make_twins,
        fill=fill,
        unfilled=unfilled,
        carried=carried,
        images_for=images_for,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, weights), marks=() if weights in often else pytest.mark.long)
        for name, often in OFTEN.items()
        for weights in WEIGHTS
    ],
    ids="-".join,
)
def twins(request):
    """Each variant with each set of weights; CI runs those of `OFTEN`."""
    return make_twins(*request.param)


@pytest.fixture(params=(pytest.param("own", marks=pytest.mark.long), "scaled"))
def weights(request):
    """Each set of weights by name; CI runs `scaled`, and both for the small `twins`."""
    return request.param
