"""Which keys of a spec are changes of the user, and which only repeat the variant."""

import pytest
import torch

import vitzoo
from helpers import close, says


@pytest.fixture
def finetuned(local_registry, randomise, tmp_path):
    """A registered variant, saved with other classes, another epsilon and another image size."""
    local_registry()
    changes = {"num_classes": 3, "block": {"norm_eps": 1e-2}}
    model = randomise(vitzoo.create("local/net", **changes))
    return model, vitzoo.save(model, tmp_path / "net.safetensors")


def test_keys_that_repeat_the_variant_keep_what_the_file_states(finetuned, images):
    model, path = finetuned
    repeated = vitzoo.create("local/net", device="meta").spec.to_data()
    for spec in ("local/net", repeated, vitzoo.create("local/net", device="meta").spec):
        again = vitzoo.create(spec, weights=path).eval()
        close(again(images), model(images))
        assert (again.num_classes, again.spec.block.norm_eps) == (3, 1e-2)
        assert again.load_report.assumed == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"block": {"norm_eps": 1e-3}}, "block.norm_eps = 0.001"),
        ({"pool": "mean"}, "pool = mean"),
    ],
    ids=str,
)
def test_a_key_that_changes_the_variant_comes_after_the_file(finetuned, change, field):
    _, path = finetuned
    in_spec = vitzoo.create({"variant": "local/net"} | change, weights=path)
    in_call = vitzoo.create("local/net", weights=path, **change)
    assert in_spec.spec == in_call.spec
    for model in (in_spec, in_call):
        (line,) = model.load_report.assumed
        says(line, field, "not the weights'")


def test_the_call_comes_after_the_spec(finetuned):
    _, path = finetuned
    spec = {"variant": "local/net", "block": {"norm_eps": 1e-3, "activation": "gelu_tanh"}}
    model = vitzoo.create(spec, weights=path, block={"norm_eps": 1e-4})
    assert (model.spec.block.norm_eps, model.spec.block.activation) == (1e-4, "gelu_tanh")


def test_structural_changes_belong_to_the_trained_network(local_registry, randomise, tmp_path):
    """Weights are not adapted to another depth: the file must have this depth."""
    local_registry()
    deep = {"variant": "local/net", "depth": 1}
    reference = randomise(vitzoo.create(deep))
    path = vitzoo.save(reference, tmp_path / "deep.safetensors")
    again = vitzoo.create(deep, weights=path)
    state = reference.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    with pytest.raises(vitzoo.CheckpointError, match=r"blocks\.1\."):
        vitzoo.create("local/net", weights=path)
