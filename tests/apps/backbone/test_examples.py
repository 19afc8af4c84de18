"""The examples of docs/backbones.md train a network of vitzoo inside other libraries."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import vitzoo

FOLDER = Path(__file__).parents[3] / "docs" / "examples" / "backbones"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def copies(module):
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def changed(module, before):
    return {n for n, tensor in module.named_parameters() if not torch.equal(tensor, before[n])}


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Return a function that runs an example and gives its names, and the backbone before."""
    made, steps, create = [], [], vitzoo.backbone

    def recorded(*args, **options):
        made.append(create(*args, **options))
        made.append(copies(made[0]))
        return made[0]

    def check(optimizer, *_):
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(p.grad.isfinite().all() for p in tensors if p.grad is not None)
        steps.append([tensor.detach().clone() for tensor in tensors])
        if len(steps) == 1:
            assert changed(*made) == set()  # the library has not initialised it once more

    def run(name):
        scope = runpy.run_path(str(FOLDER / f"{name}.py"))
        assert len(steps) == 2
        return scope, *made, steps[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vitzoo, "backbone", recorded)
    handle = register_optimizer_step_pre_hook(check)
    yield run
    handle.remove()


@pytest.mark.one_in(3)
@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")  # those of the other libraries among themselves
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_backbone_and_head(name, example):
    scope, backbone, before, first = example(name)
    trained = {name for name, tensor in backbone.named_parameters() if tensor.requires_grad}
    assert changed(backbone, before) == trained
    assert len(trained) >= 30
    inside = {id(tensor) for tensor in backbone.parameters()}
    pairs = zip(scope["model"].parameters(), first, strict=True)
    head = [torch.equal(*pair) for pair in pairs if id(pair[0]) not in inside]
    assert 0.1 * len(head) > sum(head), (len(head), sum(head))
    assert "lightning" in name or scope["loss"].isfinite()


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")
def test_transformers_saves_and_loads_the_trained_model(example, tmp_path):
    import transformers

    scope, *_ = example("transformers_upernet")
    model, images = scope["model"].eval(), scope["images"]
    transformers.AutoConfig.register("vitzoo", scope["VitzooConfig"])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(images).logits, model(images).logits, rtol=0, atol=1e-5)
    config = model.config.backbone_config
    numbers = dict.fromkeys(("feature_size", "mask_feature_size", "hidden_dim"), 32)
    config = transformers.Mask2FormerConfig(backbone_config=config, num_queries=5, **numbers)
    maps = transformers.Mask2FormerForUniversalSegmentation(config)(images)
    assert maps.masks_queries_logits.shape == (2, 5, 24, 16)


def test_the_examples_are_short():
    assert len(EXAMPLES) == 6
    for name in EXAMPLES:
        lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
        assert len([line for line in lines if line]) <= 30, name
