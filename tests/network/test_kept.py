"""Positions of the last few sizes are kept, until what they were made from changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from helpers import randn
from other_sizes import POSITIONS, after, batch, make
from tables import cases
from vitzoo.network import kept
from vitzoo.network.sizes import sharing

SIZE = 48, 24
KIND = "cpu"


@pytest.fixture
def made(monkeypatch):
    """Return the grids for which positions were made, in order."""
    found = []
    cls = type(make("learned"))
    original = cls._made
    monkeypatch.setattr(cls, "_made", lambda self, *a: (found.append(a[1]), original(self, *a))[1])
    return found


@cases("positions", POSITIONS)
@torch.no_grad()
def test_a_size_is_interpolated_once(positions):
    model, images = make(POSITIONS[positions], dynamic=True), batch(SIZE)
    expected = after(model, SIZE)(images)
    model(images)
    place = model._kept.places[0][1]
    assert torch.equal(model(images), expected)
    assert model._kept.places[0][1] is place
    assert list(model.state_dict()) == list(make(POSITIONS[positions]).state_dict())


def write_data(model):
    model.pos_embed.data[0, 3] += 1


def other_data(model):
    model.pos_embed.data = model.pos_embed.data.flip(1)


def other_table(model, index=0):
    model.tables = getattr(model, "tables", randn(2, *model.pos_embed.shape))
    model.pos_embed.data = model.tables[index]


@torch.no_grad()
def in_place(model):
    model.pos_embed[0, 3] += 1


def loaded(model):
    model.load_state_dict({n: 2 * t for n, t in model.state_dict().items()})


def assigned(model):
    model.load_state_dict({n: 2 * t for n, t in model.state_dict().items()}, assign=True)


def another_parameter(model):
    model.pos_embed = nn.Parameter(model.pos_embed.detach().flip(1))


def same_memory(model):
    """The version of the new parameter becomes that of the old one."""
    model.pos_embed = nn.Parameter(model.pos_embed.data)
    with torch.no_grad():
        model.pos_embed.view(-1)[:5] += 1


def forgotten(model):
    model.set_input_size(64)
    model(batch(SIZE))
    model.loaded_positions = None


CHANGES = {
    "of numbers": in_place,
    "of .data": write_data,
    ".data": other_data,
    "tables": lambda model: other_table(model, 1),
    "load_state_dict": loaded,
    "assign": assigned,
    "parameter": another_parameter,
    "parameter in the same memory": same_memory,
    "size": lambda model: model.set_input_size((40, 56)),
    "loaded table": lambda model: (model.set_input_size(64), in_place(model)),
    "no loaded table": forgotten,
    "type": lambda model: model.double(),
    "method": lambda model: setattr(model.positions, "method", "bilinear"),
    "part": lambda model: setattr(model, "positions", make("learned").positions),
}


@cases("change", CHANGES)
@torch.no_grad()
def test_changed_positions_are_interpolated_again(change):
    model, images = make("learned", dynamic=True), batch(SIZE)
    model(images)
    assert model._kept.places
    CHANGES[change](model)
    images = images.to(model.pos_embed.dtype)
    assert torch.equal(model(images), after(model, SIZE)(images))


@torch.no_grad()
def test_without_a_table_the_type_of_the_model_counts():
    for change in (nn.Module.double, lambda m: m.positions.double(), lambda m: m.positions.half()):
        model, images = make("rope", dynamic=True), batch(SIZE)
        model(images)
        change(model)
        images = images.to(model.cls_token.dtype)
        place = model._place_of(images)
        assert place.positions.sine.dtype == model.positions.sine.dtype != torch.float32


@torch.no_grad()
def test_on_a_gpu_no_number_is_read(monkeypatch):
    """There, versions and memory tell a change, and `train` and `eval` forget."""
    same = torch.equal
    monkeypatch.setattr(torch, "equal", None)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    for change in ("of numbers", ".data", "tables", "load_state_dict", "assign", "parameter"):
        model, images = make("learned", dynamic=True), batch(SIZE)
        other_table(model)
        model(images)
        first = model._kept.places
        model(images)
        assert model._kept.places is first
        CHANGES[change](model)
        assert same(model(images), after(model, SIZE)(images)), change
    write_data(model)
    assert same(model.eval()(images), after(model, SIZE)(images))


def test_a_step_of_an_optimizer_changes_positions():
    model, images = make("learned", dynamic=True), batch(SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(images)
    model(batch((32, 32))).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert torch.equal(model(images), after(model, SIZE)(images))


def test_nothing_is_kept_where_gradients_reach_positions(made):
    for positions in ("learned", "rope_mixed"):
        model, images = make(positions, dynamic=True), batch(SIZE)
        for _ in range(2):
            model(images)
        assert made == [(6, 3)] * 2
        assert not model._kept.places
        made.clear()
        for call in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with call():
                model.requires_grad_(requires_grad=False)(images)
        assert made == [(6, 3)]
        made.clear()


def test_positions_of_inference_mode_serve_every_mode():
    model, images = make("relative", dynamic=True).requires_grad_(requires_grad=False), batch(SIZE)
    with torch.inference_mode():
        expected = model(images).clone()
    images.requires_grad_()
    found = model(images)
    found.sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert images.grad.any()


def test_tensors_that_count_no_changes_are_interpolated_in_each_call(made):
    with torch.inference_mode():
        model = make("learned", dynamic=True)
        for _ in range(2):
            model(batch(SIZE))
    assert made == [(6, 3)] * 2


@torch.no_grad()
def test_torch_func_has_its_own_tensors():
    model, images = make("learned", dynamic=True), batch(SIZE)
    for block in model.blocks:
        block.attn.fused_attn = False  # torch has no batching rule
    model(images)
    states = {n: torch.stack([t, 2 * t]) for n, t in model.named_parameters()}

    def twice(state):
        return [torch.func.functional_call(model, state, images) for _ in range(2)]

    found = torch.func.vmap(twice)(states)
    expected = torch.func.functional_call(model, {n: t[1] for n, t in states.items()}, images)
    for one in found:
        torch.testing.assert_close(one[1], expected, rtol=0, atol=1e-3)


def test_positions_follow_autocast(made):
    model, images = make("learned", dynamic=True), batch(SIZE)
    with torch.no_grad():
        model(images)
        for _ in range(2):
            with torch.autocast(KIND, torch.bfloat16):
                model(images)
    assert made == [(6, 3)] * 2


def test_a_group_of_processes_keeps_nothing(made, monkeypatch):
    model = make("learned", dynamic=True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with torch.no_grad():
        for _ in range(2):
            model(batch(SIZE))
    assert made == [(6, 3)] * 2


@torch.no_grad()
def test_the_last_sizes_are_kept(made, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 2)
    model = make("learned", dynamic=True)
    for size in (SIZE, (8, 8), SIZE, (16, 8), SIZE, (8, 8)):
        model(batch(size))
    assert made == [(6, 3), (1, 1), (2, 1), (1, 1)]
    made.clear()
    monkeypatch.setattr(kept, "MOST_BYTES", 48 * 4 * (1 + 6 * 3))  # a table
    for size in (SIZE, (8, 8), SIZE, (56, 56), (56, 56)):
        model(batch(size))
    assert made == [(1, 1), (6, 3), (7, 7), (7, 7)]


@torch.no_grad()
def test_packed_images_share_the_kept_sizes(made):
    model = make("learned", dynamic=True)
    images = [batch(size)[0] for size in (SIZE, (8, 8), (32, 32), SIZE)]
    first = model.forward_packed(images)
    assert torch.equal(model.forward_packed(images), first)
    assert sorted(made) == [(1, 1), (6, 3)]


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        sharing,
        lambda model: pickle.loads(pickle.dumps(model)),
    ],
    ids=["deepcopy", "sharing", "pickle"],
)
@torch.no_grad()
def test_copies_have_positions_of_their_own(copied):
    model, images = make("rope", dynamic=True), batch(SIZE)
    size = len(pickle.dumps(model))
    expected = model(images)
    assert len(pickle.dumps(model)) == size
    other = copied(model)
    other.positions = make({"name": "rope", "temperature": 7.0}).positions
    changed = other(images)
    assert not torch.equal(changed, expected)
    assert torch.equal(changed, after(other, SIZE)(images))
    assert torch.equal(model(images), expected)
