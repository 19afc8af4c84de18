"""The plan of a call is a pure function of what is stated and of the call: no file is read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

import vitzoo
from helpers import SPEC
from internals import registry
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.description import Description
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.files.safetensors import Header, TensorInfo
from vitzoo.loading.differences import HEAD_FIELDS
from vitzoo.loading.plan import Plan
from vitzoo.loading.statement import Statement, from_mapping

CALLS = st.fixed_dictionaries(
    {},
    optional={
        "num_classes": st.integers(0, 9),
        "in_chans": st.integers(1, 5),
        "image_size": st.sampled_from((16, 32, 64, (16, 64))),
        "pool": st.sampled_from(("class", "mean", "none")),
        "head": st.sampled_from(("linear", "tanh", "none")),
        "pos_embed": st.sampled_from(("learned", "rope", "sincos_2d")),
        "drop_path": st.sampled_from((0.0, 0.1)),
        "dropout": st.sampled_from((0.0, 0.1)),
        "block": st.fixed_dictionaries(
            {}, optional={"norm_eps": st.sampled_from((1e-5, 1e-3)), "qkv_bias": st.booleans()}
        ),
    },
)


def spec_of(data):
    """Return the spec of some data."""
    return from_mapping(data, "spec", registry()).spec


class HeaderAlone:
    """Names, shapes and types of a file of timm; reading its numbers is an error."""

    def __init__(self, tensors):
        infos = {n: TensorInfo("F32", tuple(t.shape), 0, 4 * t.numel()) for n, t in tensors.items()}
        self.header, self.file = Header(infos, {}), SimpleNamespace()

    def read(self, reading):
        raise AssertionError(f"a plan reads no numbers: {reading}")


def of_file(**changes) -> Statement:
    """A statement about the network of SPEC with a file without entry, of the same network."""
    tensors = vitzoo.create(SPEC | changes, device="meta").state_dict()
    file = Checkpoint("net.safetensors", HeaderAlone(tensors), format="timm")
    return replace(from_mapping(SPEC, "spec", registry()), opening=lambda _: file)


def of_entry(name="vit_b16", weights="orig_in21k") -> Statement:
    """A statement about registered weights; opening their file is an error."""
    zoo = registry()
    variant = zoo.variant(name)
    row = next(row for row in variant.weights if row.name == weights)

    def opening(_):
        raise AssertionError("a plan for registered weights opens no file")

    return Statement(variant.spec, zoo, variant, row, opening=opening)


def of_saved() -> Statement:
    """A statement about a file of `save`."""
    statement = from_mapping(SPEC, "spec", registry())
    about = Description("net.safetensors", spec=SPEC)
    return replace(statement, changes={}, place="net.safetensors", about=about)


STATEMENTS = {"file": of_file(), "entry": of_entry(), "saved": of_saved()}


@pytest.mark.parametrize("kind", STATEMENTS)
@given(CALLS)
def test_the_call_changes_what_it_names_and_nothing_else(kind, call):
    plan = Plan.of(STATEMENTS[kind], call)
    trained, wanted = plan.trained.to_data(), plan.wanted.to_data()
    alone = spec_of({**trained, **call, "block": {**trained["block"], **call.get("block", {})}})
    expected = alone.to_data()
    if kind == "entry" and "head" not in call and wanted["num_classes"]:
        expected["head"] = wanted["head"]  # of an unpublished classifier, below
    assert wanted == expected
    same = {key for key in wanted if wanted[key] == trained[key]}
    assert {*wanted} - same <= call.keys() | ({"head"} if kind == "entry" else set())


@pytest.mark.parametrize("kind", STATEMENTS)
@given(CALLS)
def test_what_the_plan_says_about_adaptation(kind, call):
    plan = Plan.of(STATEMENTS[kind], call)
    own = {"num_classes"} if kind == "file" else set()  # SPEC states its classes, without a variant
    assert plan.asked <= HEAD_FIELDS
    assert plan.asked - own == HEAD_FIELDS & call.keys() - own
    if kind == "saved" or "image_size" not in call or "pos_embed" in call:
        assert plan.resampling == ""
    over = {text.partition(" =")[0] for text in plan.assumed if "not the weights'" in text}
    named = {f"block.{key}" for key in call.get("block", {})} | call.keys()
    assert over <= named


@given(CALLS, CALLS)
def test_a_plan_depends_on_nothing_else(first, second):
    """Equal statements and calls give equal plans, whatever was planned before."""
    for make in (of_file, of_entry, of_saved):
        statement = make()
        before = Plan.of(statement, first)
        Plan.of(statement, second)
        assert Plan.of(make(), first) == Plan.of(statement, first) == before


def test_the_network_of_the_plan_is_that_of_create(tmp_path):
    path = vitzoo.save(vitzoo.create(SPEC), tmp_path / "net.safetensors")
    for call in ({}, {"num_classes": 3}, {"image_size": 64}, {"pool": "mean", "num_classes": 2}):
        model = vitzoo.create(path, **call)
        plan = Plan.of(of_saved(), call)
        assert model.spec == plan.wanted
        assert all(note in model.load_report.assumed for note in plan.assumed)


def test_an_unpublished_classifier_gives_features_or_one_new_layer():
    statement = of_entry()
    assert statement.row.num_classes == 0, "the entry has no classifier"
    assert Plan.of(statement, {}).wanted.num_classes == 0
    assert Plan.of(statement, {"num_classes": 3}).wanted.head.name == "linear"
    assert Plan.of(statement, {"num_classes": 3, "head": "tanh"}).wanted.head.name == "tanh"
    replaced = Plan.of(statement, {"num_classes": 3}, replaced=True).wanted.head
    assert replaced == statement.spec.head


def test_a_file_of_another_network_is_refused_by_its_header():
    heads = replace(of_file(), spec=spec_of({**SPEC, "head": "tanh"}))
    assert Plan.of(heads, {}).trained.head.name == "tanh"
    without = of_file(num_classes=0, head="none")
    without = replace(without, spec=spec_of({**SPEC, "head": "tanh"}))
    plan = Plan.of(without, {})
    assert plan.trained.head.name == "linear"
    assert any("no pre-logits" in note for note in plan.assumed)
    saved = replace(of_file().checkpoint, spec=spec_of({**SPEC, "num_heads": 4}))
    with pytest.raises(CheckpointError, match="4 attention heads, the model 2"):
        Plan.of(replace(of_file(), opening=lambda _: saved), {})
    with pytest.raises(InvalidOption, match="image_size"):
        Plan.of(of_file(), {"image_size": 0})


def test_a_step_around_states_the_head():
    assert Plan.of(of_saved(), {}).asked == frozenset()
    assert Plan.of(of_saved(), {}, asked=HEAD_FIELDS).asked == HEAD_FIELDS
