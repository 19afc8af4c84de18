"""Operations and memory of one forward pass, against counts by hand and torch's own allocator."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import vitzoo
from internals import cost, summarize
from tables import cases

# Convolution kernels allocate temporary memory, which is larger than all else in a small network.
SMALL = {
    "embed_dim": 48, "depth": 3, "num_heads": 3, "mlp_dim": 96, "image_size": 64,
    "patch_embed": "unfold",
}  # fmt: skip


def counted(name, **options):
    model = vitzoo.create(name, device="meta", **options)
    spec = model.spec
    return cost(model, torch.empty(1, spec.in_chans, *spec.image_size, device="meta"))


def allocated(name, **options):
    """Return the peak of what torch's CPU allocator gave out during a forward, with the image."""
    model = vitzoo.create(name, **options).eval()
    spec = model.spec
    images = torch.randn(1, spec.in_chans, *spec.image_size)
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded,
    ):
        model(images)
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = images.untyped_storage().nbytes()
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    assert now == images.untyped_storage().nbytes()  # all that was allocated was freed
    return peak


@pytest.mark.slow
@cases(
    ("name", "options"),
    [
        ("vit_ti16", {}),
        ("vit_digits", {}),
        (SMALL, {}),
        (SMALL, {"pool": "mean"}),
        (SMALL, {"pool": "attention"}),
        (SMALL, {"pos_embed": "rope"}),
        (SMALL, {"pos_embed": "relative"}),
        (SMALL, {"block": {"mlp": "swiglu", "layer_scale": 0.1, "qk_norm": True}}),
        (SMALL, {"block": {"parallel": True, "activation": "quick_gelu"}}),
        (SMALL, {"image_size": (64, 96)}),
    ],
)
def test_the_peak_of_activations_is_what_torch_allocates(name, options):
    assert counted(name, **options).activations == allocated(name, **options)


def test_memory_grows_with_the_batch_and_parameters_do_not_count():
    model = vitzoo.create(SMALL, device="meta")
    one, two = (cost(model, torch.empty(b, 3, 64, 64, device="meta")) for b in (1, 2))
    assert (two.macs, two.activations) == (2 * one.macs, 2 * one.activations)
    wide = counted({**SMALL, "num_classes": 100_000})
    assert wide.activations < 4 * 48 * 100_000  # bytes of the head's weights


def test_multiply_accumulates_of_every_kind_of_layer():
    n, d, width = 17, 48, 96  # 16 patches and the class token
    block = 4 * n * d * d + 2 * n * d * width + 2 * n * n * d
    patches = 16 * d * 3 * 16 * 16
    assert counted(SMALL).macs == patches + 3 * block + 1000 * d
    swiglu = counted(SMALL, block={"mlp": "swiglu"}).macs
    assert swiglu - counted(SMALL).macs == 3 * n * d * width
    pooled = counted(SMALL, pool="attention").macs  # query, keys and values, products, MLP
    extra = d * d + 16 * 2 * d * d + 2 * 16 * d + d * d + 2 * d * width
    assert pooled - counted(SMALL).macs == extra


def test_the_last_block_counts_all_tokens_also_where_the_pool_reads_one():
    assert counted(SMALL, pool="class").macs - counted(SMALL, pool="mean").macs == 0


def test_the_model_is_left_as_it_was():
    model = vitzoo.create(SMALL, device="meta")
    for training in (True, False):
        model.train(training)
        summarize(model)
        assert model.training is training
        assert not any(module._forward_hooks for module in model.modules())


def test_a_summary_states_what_the_model_costs():
    model = vitzoo.create("vit_ti16", device="meta")
    summary, taken = summarize(model, 2), cost(model, torch.empty(2, 3, 224, 224, device="meta"))
    assert (summary.flops, summary.activations) == (2 * taken.macs, taken.activations)
