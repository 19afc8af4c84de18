"""Every element of what timm computes, for the variants as they are registered."""

import pytest
import torch

pytestmark = pytest.mark.parity


@pytest.mark.one_in(3)
def test_state_dicts_have_the_same_keys_and_shapes(twins):
    theirs = {name: tensor.shape for name, tensor in twins.reference.state_dict().items()}
    ours = {name: tensor.shape for name, tensor in twins.model.state_dict().items()}
    assert ours == theirs


@pytest.mark.one_in(3)
def test_tokens_pre_logits_and_logits(twins, parity):
    parity.assert_same_network(twins.reference, twins.model, twins.images)


@pytest.mark.one_in(3)
@torch.inference_mode()
def test_every_block_as_a_map_with_its_prefix_tokens(twins, parity):
    options = {"return_prefix_tokens": True}
    expected_tokens, expected = twins.reference.forward_intermediates(twins.images, **options)
    tokens, results = twins.model.forward_intermediates(twins.images, **options)
    parity.assert_same(tokens, expected_tokens, what="tokens")
    assert len(results) == len(expected) == 12
    for i, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        parity.assert_same(ours[0], theirs[0], what=f"map of block {i}")
        parity.assert_same(ours[1], theirs[1], what=f"prefix tokens of block {i}")


TINY = pytest.mark.parametrize(  # what the size of the network does not change
    "twins", [("vit_ti16", "own"), ("vit_ti16", "scaled")], ids="-".join, indirect=True
)


@TINY
@torch.inference_mode()
@pytest.mark.parametrize("reshape", [False, True])
def test_intermediate_layers_in_the_style_of_dino(twins, parity, reshape):
    options = {"n": [2, 7, -1], "reshape": reshape, "return_prefix_tokens": True, "norm": True}
    expected = twins.reference.get_intermediate_layers(twins.images, **options)
    results = twins.model.get_intermediate_layers(twins.images, **options)
    assert len(results) == len(expected) == 3
    for ours, theirs in zip(results, expected, strict=True):
        parity.assert_same(ours[0], theirs[0], what="patch tokens")
        parity.assert_same(ours[1], theirs[1], what="prefix tokens")


@TINY
@torch.inference_mode()
def test_attention_maps_are_what_unfused_attention_multiplies_values_by(twins, parity):
    expected = []
    hooks = []
    for block in twins.reference.blocks:
        block.attn.fused_attn = False
        hook = block.attn.attn_drop.register_forward_hook(lambda *call: expected.append(call[-1]))
        hooks.append(hook)
    try:
        twins.reference(twins.images)
    finally:
        for hook, block in zip(hooks, twins.reference.blocks, strict=True):
            hook.remove()
            block.attn.fused_attn = True
    maps = twins.model.attention_maps(twins.images)
    assert list(maps) == list(range(12))
    for i, theirs in enumerate(expected):
        parity.assert_same(maps[i], theirs, what=f"attention of block {i}")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch32_224"])
def test_fused_attention_is_on_in_the_reference(name, timm):
    model = timm.create_model(name, pretrained=False)
    assert all(block.attn.fused_attn for block in model.blocks)
