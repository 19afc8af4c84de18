"""Image sizes: `set_input_size` there and back, and `dynamic`, which takes every size."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import vitzoo
from helpers import SMALL, randn, refuses
from internals import make_dynamic
from other_sizes import POSITIONS, TABLES, after, batch, make
from tables import cases
from vitzoo.parts.resample import RESAMPLING, _offset_weights, resample_grid

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 7)).map(lambda s: (8 * s[0], 8 * s[1]))


@pytest.mark.slow
@pytest.mark.parametrize("positions", TABLES)
def test_another_size_and_back_loses_nothing(positions):
    model = make(TABLES[positions])
    before, images = model.pos_embed.detach().clone(), batch((32, 32))
    expected = model(images)
    for size in ((48, 24), 64, (8, 16), (32, 32), 24, 32):
        direct = after(make(TABLES[positions]), size)
        model.set_input_size(size)
        assert torch.equal(model.pos_embed, direct.pos_embed), size
    assert torch.equal(model.pos_embed, before)
    assert torch.equal(model(images), expected)


@pytest.mark.slow
@given(sizes=st.lists(SIZES, min_size=1, max_size=5))
def test_every_way_to_a_size_gives_the_same_table(sizes):
    model, direct = make("learned"), make("learned")
    for size in sizes:
        model.set_input_size(size)
    direct.set_input_size(sizes[-1])
    assert torch.equal(model.pos_embed, direct.pos_embed)


@pytest.mark.parametrize("change", ["a step", "a copy", "loaded"])
def test_a_trained_table_is_interpolated_as_it_is(change):
    model = make("learned")
    model.set_input_size(48)
    if change == "a step":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(batch((48, 48))).square().sum().backward()
        optimizer.step()
    elif change == "a copy":
        with torch.no_grad():
            model.pos_embed[0, 5, 7] += 1e-3
    else:
        model.load_state_dict(make("learned", image_size=48).state_dict())
    trained = model.pos_embed.detach().clone()
    model.set_input_size(32)
    expected = vitzoo.parts.resample_grid(trained, (6, 6), (4, 4))
    assert torch.equal(model.pos_embed, expected)
    model.set_input_size(48)
    assert torch.equal(model.pos_embed, trained)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_keep_the_loaded_table(copied):
    model = make("learned")
    before = model.pos_embed.detach().clone()
    model.set_input_size(48)
    other = copied(model)
    other.set_input_size(32)
    assert torch.equal(other.pos_embed, before)
    assert model.pos_embed.shape == (1, 37, 48)


def test_the_loaded_table_follows_the_type_of_the_model():
    model = make("learned")
    before = model.pos_embed.detach().clone()
    model.set_input_size(48)
    model.half()
    model.set_input_size(32)
    assert torch.equal(model.pos_embed, before.half())


def test_the_table_of_a_file_is_the_loaded_one(tmp_path):
    model = make("learned")
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    for arguments in ({}, {"dtype": torch.bfloat16}):
        again = vitzoo.create(path, image_size=64, **arguments)
        again.set_input_size(32)
        assert torch.equal(again.pos_embed, model.pos_embed.to(again.pos_embed.dtype))
        assert again.pos_embed.requires_grad


def test_the_loaded_table_is_in_no_state_dict(tmp_path):
    model = make("learned")
    names = list(model.state_dict())
    model.set_input_size(48)
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_buffers()] == []
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert torch.equal(again.pos_embed, model.pos_embed)


def test_sizes_change_on_meta():
    model = vitzoo.create(SMALL, device="meta")
    for size, tokens in ((48, 37), (64, 65), (32, 17)):
        model.set_input_size(size)
        assert model.pos_embed.shape == (1, tokens, 48)


# dynamic


ENTRIES = {
    "forward": lambda model, images: [model(images)],
    "features": lambda model, images: list(model.features(images, model.feature_names()).values()),
    "forward_features": lambda model, images: [model.forward_features(images)],
    "attention_maps": lambda model, images: list(model.attention_maps(images).values()),
    "forward_intermediates": lambda model, images: model.forward_intermediates(
        images, intermediates_only=True
    ),
    "get_intermediate_layers": lambda model, images: model.get_intermediate_layers(images, 2),
    "embed": lambda model, images: [model.embed(images)],
}


@pytest.mark.one_in(5)
@pytest.mark.slow
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("gradients", [False, True])
def test_dynamic_equals_set_input_size_bit_for_bit(positions, gradients):
    model = make(POSITIONS[positions], dynamic=True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    native = batch((32, 32))
    with torch.set_grad_enabled(gradients):
        before = model(native)
        for size in ((48, 24), (32, 64), (8, 8), (32, 32), (56, 56)):
            other, images = after(model, size), batch(size, seed=1)
            for entry, call in ENTRIES.items():
                found, expected = call(model, images), call(other, images)
                assert len(found) == len(expected)
                assert all(map(torch.equal, found, expected)), (entry, size)
        assert torch.equal(model(native), before)
    assert model.image_size == model.spec.image_size == (32, 32)
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    "arguments",
    [
        {"pool": "attention"},
        {"pool": {"name": "mean", "norm_first": False}},
        {"patch_embed": "unfold"},
        {"dtype": torch.bfloat16},
        {"patch_embed": {"name": "hybrid/resnet50", "layers": [1]}},
    ],
    ids=str,
)
@torch.no_grad()
def test_dynamic_with_other_parts(arguments):
    model = make("learned", dynamic=True, **arguments)
    images = batch((40, 64)).to(model.cls_token.dtype)
    assert torch.equal(model(images), after(model, (40, 64))(images))


@pytest.mark.slow
@torch.no_grad()
@given(native=SIZES, size=SIZES)
def test_dynamic_after_set_input_size(native, size):
    model = make("learned", dynamic=True)
    model.set_input_size(native)
    images = batch(size)
    assert torch.equal(model(images), after(model, size)(images))


@pytest.mark.parametrize("positions", TABLES)
def test_dynamic_trains_the_positions(positions):
    model = make(TABLES[positions], dynamic=True).train()
    model(batch((48, 24))).square().sum().backward()
    assert model.pos_embed.grad.any()
    model.zero_grad()
    model.set_input_size(40)
    model(batch((48, 24))).square().sum().backward()
    assert model.pos_embed.grad.any()


def test_dynamic_trains_the_parameters_of_positions():
    model = make("rope_mixed", dynamic=True).train()
    model(batch((48, 24))).square().sum().backward()
    assert model.positions.freqs.grad.any()


def test_dynamic_is_an_attribute():
    model = make("learned")
    assert not model.dynamic
    with refuses(vitzoo.InvalidInput, "(b, 3, 32, 32)", "got (2, 3, 48, 24)", "dynamic=True"):
        model(batch((48, 24)))
    model.dynamic = True
    assert torch.equal(model(batch((48, 24))), after(model, (48, 24))(batch((48, 24))))


def test_dynamic_names_sizes_that_patches_do_not_tile():
    model = make("learned", dynamic=True)
    with refuses(vitzoo.InvalidInput, "36x32", "8x8", "32x32", "40x32"):
        model(batch((36, 32)))
    with refuses(vitzoo.InvalidInput, "(b, 3, h, w)", "images.permute(0, 3, 1, 2)"):
        model(batch((48, 24)).permute(0, 2, 3, 1))
    with refuses(vitzoo.InvalidInput, "got (2, 5, 48, 24)"):
        model(torch.zeros(2, 5, 48, 24))


def test_dynamic_keeps_the_labels_and_is_not_saved(tmp_path):
    model = make("learned", dynamic=True)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert not vitzoo.create(path).dynamic
    assert torch.equal(
        vitzoo.create(path, dynamic=True).eval()(batch((48, 24))), model(batch((48, 24)))
    )


class Fixed(vitzoo.parts.NoPositions):
    def resample(self, table, old, new):
        if old != new:
            raise vitzoo.InvalidOption(f"positions of the {old} grid only")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_dynamic_refuses_positions_that_cannot_move(device):
    with refuses(
        vitzoo.InvalidOption, "dynamic", "pos_embed 'Fixed'", (4, 4), (5, 4), "pass dynamic=False"
    ):
        vitzoo.create(SMALL, pos_embed=Fixed(), dynamic=True, device=device)
    vitzoo.create(SMALL, pos_embed=Fixed(), device=device)


def test_dynamic_refuses_networks_with_their_own_builder():
    with refuses(vitzoo.InvalidOption, "dynamic", "Linear", "plugin", "pass dynamic=False"):
        make_dynamic(nn.Linear(1, 1))


@cases("positions", POSITIONS)
def test_dynamic_is_decided_without_numbers(positions):
    state = torch.get_rng_state()
    vitzoo.create(SMALL, pos_embed=POSITIONS[positions], dynamic=True, device="meta")
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    vitzoo.create(SMALL, pos_embed=POSITIONS[positions], device="meta")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.one_in(3)
@pytest.mark.compile
@pytest.mark.parametrize("positions", ["moved", "mim", "rope"])
@torch.no_grad()
def test_dynamic_compiles_once_for_most_sizes(positions):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    model = make(POSITIONS.get(positions, "learned"), dynamic=True)
    if positions == "moved":  # interpolated from the table that was there before
        model.set_input_size((40, 24))
    own = model.image_size
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for size in ((32, 32), (40, 56), (24, 72)):
        compiled(batch(size))
    count = counter.frame_count
    for size in ((48, 24), (16, 64), (64, 80)):
        torch.testing.assert_close(compiled(batch(size)), model(batch(size)), rtol=0, atol=1e-6)
    assert counter.frame_count == count <= 3
    assert model.image_size == own


@pytest.mark.compile
@pytest.mark.parametrize("positions", ["moved", "mim", "rope"])
@torch.no_grad()
def test_dynamic_is_exported_for_another_size(positions):
    model = make(POSITIONS.get(positions, "learned"), dynamic=True)
    if positions == "moved":
        model.set_input_size((40, 24))
    images = batch((32, 48))
    program = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images), rtol=0, atol=1e-6)


EXPORTED = {
    "class token": {},
    "moved": {},
    "Meta's DINO": {"pos_embed": {"name": "learned", "resample": "bicubic_offset"}},
    "relative": {"pos_embed": "relative"},
    "rope": {"pos_embed": "rope"},
    "decomposed": {"pos_embed": POSITIONS["decomposed, a large table"]},
    "BEiT": {"pos_embed": "mim/relative"},
    "BEiT's own code": {"pos_embed": {"name": "mim/relative", "resample": "geometric_cubic"}},
}


@pytest.mark.one_in(5)
@pytest.mark.compile
@pytest.mark.parametrize("network", EXPORTED)
@torch.no_grad()
def test_dynamic_is_exported_for_all_sizes(network):
    """The network's own size is one of them, and the positions of that size are the table."""
    model = make(EXPORTED[network].get("pos_embed", "learned"), dynamic=True)
    if network == "moved":
        model.set_input_size((40, 24))
    shapes = {2: 8 * torch.export.Dim("h", max=8), 3: 8 * torch.export.Dim("w", max=8)}
    program = torch.export.export(model, (batch((48, 24)),), dynamic_shapes=(shapes,)).module()
    for size in ((32, 32), (40, 24), (48, 24), (16, 64)):
        images = batch(size, seed=3)
        torch.testing.assert_close(program(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.compile
@pytest.mark.parametrize("first", [(32, 32), (48, 24)])
@torch.no_grad()
def test_the_own_size_is_no_further_graph(first):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(make("learned", dynamic=True), backend=counter, fullgraph=True)
    for size in (first, (40, 56), (32, 32), (24, 72), (32, 64), (16, 32)):
        compiled(batch(size))
    assert counter.frame_count == 2  # of the first size alone, and of all


@cases("method", [*RESAMPLING])
def test_a_table_is_itself_at_its_own_grid(method):
    """Without a branch: an exported network interpolates at its own size, too."""
    table = randn(2, 3 + 5 * 7, 12)
    if method == "bicubic_offset":
        for weights, side in zip(_offset_weights(randn(1, 1, 5, 7), (5, 7)), (5, 7), strict=True):
            assert torch.equal(weights, torch.eye(side))
        return
    assert torch.equal(resample_grid(table, (5, 7), (5, 7), method), table)


def test_weights_with_an_offset_are_those_of_torch():
    """Of torch's interpolation with this scale, which no compiler takes for all sizes."""
    table = randn(1, 5 * 7, 12)
    grid = table.reshape(1, 5, 7, 12).permute(0, 3, 1, 2)
    for size in ((6, 7), (3, 9), (5, 1), (12, 14)):
        rows, columns = _offset_weights(grid, size)
        found = (rows @ grid @ columns.T).permute(0, 2, 3, 1).flatten(1, 2)
        expected = resample_grid(table, (5, 7), size, "bicubic_offset")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# features, hooks, trace


@pytest.mark.parametrize(
    ("names", "blocks", "norms"),
    [
        (["patch_embed"], 0, 0),
        (["embed"], 0, 0),
        (["blocks.0"], 1, 0),
        (["blocks.1", "blocks.0", "blocks.1"], 2, 0),
        (["norm"], 3, 1),
        (["logits", "embed"], 3, 1),
        ([], 0, 0),
    ],
)
def test_features_stop_after_the_last_one(names, blocks, norms):
    model, calls = make("learned"), []
    expected = model.features(batch((32, 32)), model.feature_names())
    for block in model.blocks:
        block.register_forward_hook(lambda *_: calls.append("block"))
    model.norm.register_forward_hook(lambda *_: calls.append("norm"))
    model.patch_embed.register_forward_hook(lambda *_: calls.append("patches"))
    found = model.features(batch((32, 32)), names)
    assert list(found) == list(dict.fromkeys(names))
    assert all(torch.equal(found[name], expected[name]) for name in names)
    counts = [calls.count(kind) for kind in ("block", "norm", "patches")]
    assert counts == [blocks, norms, 1 if names else 0]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rope", "relative"])
def test_hooks_on_the_blocks_act(positions, gradients):
    model, seen = make(positions), []
    with torch.set_grad_enabled(gradients):
        images = batch((32, 32))
        expected = model.features(images, ["embed", "blocks.2", "logits"])
        model.blocks.register_forward_hook(lambda *call: seen.append(call))
        result = model(images)
        ((module, (entering,), leaving),) = seen
        assert module is model.blocks
        assert torch.equal(entering, expected["embed"])
        assert torch.equal(leaving, expected["blocks.2"])
        torch.testing.assert_close(result, expected["logits"], rtol=0, atol=2e-6)
        model.blocks.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))
        model.blocks.register_forward_hook(lambda _, __, tokens: tokens + 1)
        changed = model(images)
        assert torch.equal(seen[1][1][0], expected["embed"] * 0.5)
        assert torch.equal(changed, model.forward_head(model.norm(seen[1][2] + 1)))


def test_backward_hooks_on_the_blocks_act():
    model, seen = make("learned"), []
    model.blocks.register_full_backward_hook(lambda _, into, out: seen.append((into, out)))
    model.train()(batch((32, 32))).sum().backward()
    (((into,), (out,)),) = seen
    assert into.shape == out.shape == (2, 17, 48)
    assert into.any()


@torch.no_grad()
def test_blocks_are_a_sequence_of_modules():
    model, images = make("learned"), batch((32, 32))
    assert isinstance(model.blocks, nn.Sequential)
    embedded = model.embed(images)
    expected = model.features(images, ["blocks.1", "blocks.2"])
    assert torch.equal(model.blocks(embedded), expected["blocks.2"])
    blocks = list(model.blocks)
    for changed in (model.blocks[:2], nn.Sequential(*blocks[:2])):
        model.blocks = changed
        assert torch.equal(model.forward_features(images), model.norm(expected["blocks.1"]))
        torch.testing.assert_close(
            model(images), model.forward_head(model.norm(expected["blocks.1"])), rtol=0, atol=2e-6
        )


@pytest.mark.one_in(5)
@pytest.mark.compile
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        *({"pos_embed": part} for part in POSITIONS.values()),
        {"pool": "mean"},
        {"pool": "attention"},
        {"patch_embed": "unfold", "block": {"parallel": True}},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.torch.jit.trace")  # it is deprecated
def test_a_trace_passes_its_own_check(arguments, gradients):
    others = {name: part for name, part in arguments.items() if name != "pos_embed"}
    model = make(arguments.get("pos_embed", "learned"), **others)
    with torch.set_grad_enabled(gradients):
        traced = torch.jit.trace(model, batch((32, 32)))
        for seed in (3, 4):
            images = batch((32, 32), seed=seed)
            torch.testing.assert_close(traced(images), model(images), rtol=0, atol=2e-6)
