"""Errors about weights that do not fit and about paths given as names, with their fixes."""

import re

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

import vitzoo
from create_helpers import misfit, refused
from helpers import SPEC, message, refuses, says
from load_helpers import fill
from tables import cases
from vitzoo.errors import CheckpointError, UnknownName, WeightsUnavailable


@pytest.fixture
def write(tmp_path):
    def write(model, name="net.safetensors"):
        save_file(model.state_dict(), tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize("head", ["linear", "tanh"])
def test_other_classes(small, write, head):
    path = write(vitzoo.create(small | {"head": head}, num_classes=7))
    with refuses(CheckpointError, "7 classes", "num_classes=7"):
        vitzoo.create(small | {"head": head}, weights=path)
    vitzoo.create(small | {"head": head}, weights=path, num_classes=7)


def pasted(text):
    """Run the call that a message ends with."""
    return eval(re.search(r"vitzoo\.create\(.*\)", text)[0])


SIZES = {"image_size": 96, "in_chans": 1, "num_classes": 37}


@pytest.mark.parametrize("changed", [("image_size",), ("image_size", "num_classes"), tuple(SIZES)])
@pytest.mark.parametrize(
    "name", ["vit_ti16", SPEC | {"patch_size": 16, "image_size": 64}], ids=type
)
def test_all_other_sizes_are_named_together_with_a_call_that_works(write, name, changed):
    sizes = {key: SIZES[key] for key in changed}
    model = vitzoo.create(name, **sizes)
    path = write(model)
    text = message(CheckpointError, vitzoo.create, name, weights=path)
    says(text, "96 px", "pass " + ", ".join(f"{key}={value}" for key, value in sizes.items()))
    again = pasted(text)
    assert {*again.load_report.kept} == {*again.state_dict()}
    assert torch.equal(again.pos_embed, model.pos_embed)


def test_the_call_keeps_what_was_typed(small, write):
    path = write(vitzoo.create(small, num_classes=37, image_size=64))
    text = message(CheckpointError, vitzoo.create, small, weights=path, drop_path=0.1)
    assert (
        pasted(text).spec
        == vitzoo.create(small | SIZES | {"image_size": 64, "in_chans": 3, "drop_path": 0.1}).spec
    )
    pool = vitzoo.parts.ClassPool()
    text = message(CheckpointError, vitzoo.create, small, weights=path, pool=pool)
    assert "vitzoo.create(" not in text  # a module cannot be written


def test_another_size_without_a_classifier(small, write):
    path = write(vitzoo.create(small, num_classes=0, image_size=64))
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    says(text, "64 px", "pass image_size=64, num_classes=0")
    assert pasted(text).num_classes == 0


@pytest.mark.parametrize("sizes", [{}, {"num_classes": 37}], ids=["same", "classes"])
def test_the_norm_after_timms_mean_is_named_with_a_call_that_works(small, write, sizes):
    model = vitzoo.create(small, pool={"name": "mean", "norm_first": False}, **sizes)
    text = message(CheckpointError, vitzoo.create, small, weights=write(model))
    says(text, "normalised (timm's pool 'avg')", "pool={'name': 'mean', 'norm_first': False}")
    again = pasted(text)
    assert {*again.load_report.kept} == {*model.state_dict()}
    assert again.spec.pool == model.spec.pool


@pytest.mark.slow
@cases("shape", [(), (3,), (1, 2, 3), (1, 1, 1, 1, 1)])
@cases("key", ["head.bias", "head.weight", "patch_embed.proj.weight", "pos_embed"])
def test_no_argument_makes_a_tensor_of_other_dimensions_fit(small, tmp_path, key, shape):
    state = vitzoo.create(small).state_dict() | {key: torch.ones(shape)}
    save_file(state, tmp_path / "x.safetensors")
    text = message(CheckpointError, vitzoo.create, small, weights=tmp_path)
    says(text, key, shape)
    if len(shape) != vitzoo.create(small).state_dict()[key].dim():
        assert "pass " not in text


@pytest.mark.slow
def test_a_saved_file_of_another_size_is_answered_with_the_call(tmp_path):
    model = vitzoo.create("vit_ti16", image_size=64, num_classes=37)
    path = vitzoo.save(model, tmp_path / "x.safetensors")
    text = message(CheckpointError, vitzoo.create, "vit_ti16", weights=path)
    says(text, "64x64 px", "224x224", "pass image_size=64", "image_size=(224, 224)")
    again = pasted(text.partition("; or ")[0])
    assert (again.image_size, again.num_classes) == ((64, 64), 37)


def test_sizes_of_a_config_are_named_together_with_a_call_that_works(tmp_path, transformers):
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 768, "image_size": 96, "num_labels": 37}
    config = transformers.ViTConfig(**sizes)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    text = message(CheckpointError, vitzoo.create, "vit_ti16", weights=tmp_path)
    says(text, "pass image_size=96, num_classes=37", "(224, 224)", "num_classes=1000")
    model = pasted(text.partition("; to adapt")[0])
    assert (model.image_size, model.num_classes, model.load_report.resampled) == ((96, 96), 37, ())


def test_no_classifier(small, write):
    path = write(vitzoo.create(small, num_classes=0))
    with refuses(CheckpointError, "num_classes=", 0):
        vitzoo.create(small, weights=path)
    vitzoo.create(small, weights=path, num_classes=0)


def test_another_variant_is_suggested(write):
    path = write(vitzoo.create("vit_ti16", num_classes=3))
    with refuses(CheckpointError, "fit vit_ti16"):
        vitzoo.create("vit_s16", weights=path)


def test_nothing_is_suggested_where_nothing_fits(small, write):
    path = write(vitzoo.create(small | {"depth": 3}))
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(small, weights=path)
    assert "fit vit" not in str(caught.value)
    assert "num_classes" not in str(caught.value)


def test_a_folder_without_a_slash(small, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    model = vitzoo.create(small)
    write(model, "folder/model.safetensors")
    again = vitzoo.create(small, weights="folder")
    assert torch.equal(again.norm.weight, model.norm.weight)
    assert again.load_report.source == "folder/model.safetensors"
    with refuses(WeightsUnavailable, "spec"):
        vitzoo.create(small, weights="nowhere")


def test_weights_of_the_variant_come_before_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = vitzoo.describe("vit_digits").weights[0].name
    (tmp_path / name).mkdir()
    assert vitzoo.create("vit_digits", weights=name).load_report.source == f"vit_digits:{name}"


def test_a_folder_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf_base").mkdir()
    for name in ("hf_base", tmp_path / "hf_base"):
        with refuses(CheckpointError, name, ".safetensors"):
            vitzoo.create(name)
    with refuses(UnknownName, "'hf_bass'"):
        vitzoo.create("hf_bass")


def test_a_pickle_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with refuses(CheckpointError, "x.pt", ".npz", "pickle"):
        vitzoo.create("x.pt")


def test_weights_without_their_ending_as_a_name(small, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(vitzoo.create(small), "weights.bin")
    with refuses(CheckpointError, "create('vit_b16', weights='weights.bin')"):
        vitzoo.create("weights.bin")


def test_a_repository_as_weights():
    repository = "google/vit-base-patch16-224"
    fix = f"weights='hf://{repository}@main/model.safetensors'"
    with refuses(CheckpointError, repository, fix):
        vitzoo.create("vit_b16", weights=repository)
    text = message(CheckpointError, vitzoo.create, "vit_b16", weights="no/such.safetensors")
    says(text, "no/such.safetensors")
    assert "hf://" not in text


def test_timm_file_of_another_mlp_width_is_refused(tmp_path):
    path = tmp_path / "timm.safetensors"
    other = fill(vitzoo.create(SPEC | {"mlp_dim": 128}))
    safetensors.torch.save_file(other.state_dict(), path)
    shapes = ("blocks.{0-1}.mlp.fc1.weight", "(128, 32)", "(64, 32)")
    with refuses(CheckpointError, path, "6 with another shape", *shapes):
        vitzoo.create(SPEC, weights=path)


def test_a_missing_block_is_reported(weights):
    def change(tensors):
        for name in [n for n in tensors if n.startswith("blocks.1.")]:
            del tensors[name]

    message = misfit(weights(change))
    says(message, "12 missing", "blocks.1.norm1.weight", "blocks.1.norm1.bias", "2 more")
    assert "unexpected" not in message


def test_a_renamed_layer_is_reported(weights):
    def change(tensors):
        tensors["blocks.0.mlp.dense1.weight"] = tensors.pop("blocks.0.mlp.fc1.weight")

    # two of the three names that tell timm's layout are left
    says(
        misfit(weights(change)),
        *("1 missing: blocks.0.mlp.fc1.weight", "1 unexpected: blocks.0.mlp.dense1.weight"),
    )


def test_another_shape_is_reported(weights):
    def change(tensors):
        tensors["norm.weight"] = torch.ones(33)

    message = misfit(weights(change))
    says(message, "1 with another shape", "norm.weight", "(33,)", "(32,)")
    assert "missing" not in message
    assert "unexpected" not in message


def test_a_transposed_matrix_is_reported(weights):
    def change(tensors):
        tensors["blocks.0.mlp.fc1.weight"] = tensors["blocks.0.mlp.fc1.weight"].T.contiguous()

    says(misfit(weights(change)), "blocks.0.mlp.fc1.weight", "(32, 64)", "(64, 32)")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bool, torch.int8], ids=str)
def test_a_type_that_weights_do_not_have_is_reported(weights, dtype):
    def change(tensors):
        tensors["norm.bias"] = torch.zeros(32, dtype=dtype)

    says(misfit(weights(change)), "1 of a type", "norm.bias", dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_reported(weights, value):
    def change(tensors):
        tensors["cls_token"][0, 0, 7] = value

    says(misfit(weights(change)), "NaN", "infinite", "cls_token")


def test_extra_tensors_are_reported(weights):
    def change(tensors):
        tensors["ema.decay"] = torch.zeros(1)
        tensors["head_dist.weight"] = torch.zeros(1)

    says(misfit(weights(change)), "2 unexpected", "ema.decay", "head_dist.weight")


def test_a_hostile_tensor_name_is_printed_as_ascii(weights):
    def change(tensors):
        tensors["\x1b[2J\nnorm"] = torch.zeros(1)

    path = weights(change)
    message = refused(CheckpointError, "local/net", weights=path)
    says(message, path, r"'\x1b[2J\nnorm'", 256, "printable")
    assert message.isprintable()


def test_all_that_is_wrong_is_said_at_once(weights):
    def change(tensors):
        del tensors["head.bias"]
        tensors["extra"] = torch.zeros(1)
        tensors["norm.weight"] = torch.ones(33)

    message = misfit(weights(change))
    says(message, "1 missing: head.bias", "1 unexpected: extra")
    says(message, "1 with another shape", "norm.weight", "(33,)", "(32,)")


@pytest.mark.parametrize(
    "names", [["conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias"], []]
)
def test_another_architecture_is_refused_by_its_keys(weights, names):
    def change(tensors):
        tensors.clear()
        tensors.update({name: torch.zeros(3) for name in names})

    path = weights(change)
    message = refused(CheckpointError, "local/net", weights=path)
    first = ", ".join(sorted(names)) or "none"
    says(message, path, first, "timm", "torchvision")


def test_the_fix_is_in_the_first_line_and_the_tensors_in_the_second(tmp_path):
    save_file(vitzoo.create("vit_digits").state_dict(), tmp_path / "plain.safetensors")
    text = message(
        CheckpointError, vitzoo.create, "vit_b16", weights=tmp_path / "plain.safetensors"
    )
    first, second = text.splitlines()
    assert first.endswith("does not fit the model; the tensors fit vit_digits")
    says(second, "96 missing", "56 with another shape")


def test_the_variant_that_a_plain_file_fits_is_in_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file(vitzoo.create("vit_s32", num_classes=3).state_dict(), "plain.safetensors")
    text = message(CheckpointError, vitzoo.create, "plain.safetensors")
    says(text, "its tensors fit vit_s32", "create('vit_s32', weights='plain.safetensors')")
    call = text.partition("variant: ")[2]
    with refuses(CheckpointError, "num_classes=3"):  # it says what the call lacks
        eval(call, {"create": vitzoo.create})
    save_file({"x": torch.ones(1)}, "other.safetensors")
    with refuses(CheckpointError, "create('vit_b16', weights='other.safetensors')"):
        vitzoo.create("other.safetensors")


# Patches, and grids that are no square.


@pytest.mark.parametrize("name", ["vit_ti16", {"variant": "vit_ti16"}], ids=type)
def test_patches_of_another_size_are_answered_with_both_ways(write, name):
    model = vitzoo.create({"variant": "vit_ti16", "patch_size": 32})
    path = write(model)
    text = message(CheckpointError, vitzoo.create, name, weights=path)
    says(text, "patches of 32 px", "the model of 16 px", "does not resample patch kernels")
    says(text, "timm.layers.resample_patch_embed(kernel, [16, 16])")
    call = re.search(r"vitzoo\.create\(\{.*?\}, .*?\)", text)[0]
    again = eval(call)
    assert torch.equal(again.patch_embed.proj.weight, model.patch_embed.proj.weight)
    assert {*again.load_report.kept} == {*again.state_dict()}


def test_the_named_way_to_resample_a_kernel_works(tmp_path, timm):
    state = vitzoo.create({"variant": "vit_ti16", "patch_size": 32}, image_size=448).state_dict()
    key = "patch_embed.proj.weight"
    state[key] = timm.layers.resample_patch_embed(state[key], [16, 16])
    save_file(state, tmp_path / "net.safetensors")
    model = vitzoo.create("vit_ti16", weights=tmp_path / "net.safetensors")
    assert torch.equal(model.patch_embed.proj.weight, state[key])


def test_the_variant_with_the_patches_of_the_file_is_named(write):
    path = write(vitzoo.create("vit_s32"))
    with refuses(CheckpointError, "fit vit_s32", "patches of 32 px", "the model of 16 px"):
        vitzoo.create("vit_s16", weights=path)


def test_a_grid_that_is_no_square(small, write):
    path = write(vitzoo.create(small, image_size=(16, 48)))
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    says(text, "pos_embed has 13 rows", "16 patches and 1 more", "a grid of 12", "image_size=")
    sizes = re.findall(r"\((\d+), (\d+)\)", text.partition("one of ")[2])
    assert ("16", "48") in sizes
    model = vitzoo.create(small, weights=path, image_size=(16, 48))
    assert not model.load_report.resampled
    path = write(vitzoo.create(small, pos_embed={"name": "learned", "prefix": False}))
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    says(text, "16 rows", "pos_embed={'name': 'learned', 'prefix': False}")
    assert {*pasted(text).load_report.kept} == {*model.state_dict()}


def test_a_table_without_batch_dimension(small, tmp_path):
    state = vitzoo.create(small).state_dict()
    save_file({**state, "pos_embed": state["pos_embed"][0].clone()}, tmp_path / "net.safetensors")
    with refuses(CheckpointError, "pos_embed has no batch dimension", "pos_embed[None]"):
        vitzoo.create(small, weights=tmp_path)


# Words of other libraries.


MEMBER = "a member of the enum"
WORDS = [
    "DEFAULT",
    "IMAGENET1K_V1",
    "IMAGENET1K_SWAG_E2E_V1",
    "ViT_B_16_Weights.DEFAULT",
    "imagenet",
]


@pytest.mark.parametrize("word", [*WORDS, MEMBER])
def test_a_word_of_another_library_for_weights_is_answered_with_the_default(word):
    if word == MEMBER:
        from torchvision.models import ViT_B_16_Weights

        word = ViT_B_16_Weights.DEFAULT
    default = vitzoo.describe("vit_b16").default_weights.name
    call = "vitzoo.create('vit_b16', pretrained=True)"
    with refuses(WeightsUnavailable, f"weights='{word}'", "torchvision", repr(default), call):
        vitzoo.create("vit_b16", weights=word)


def test_a_word_without_default_weights(tmp_path, monkeypatch, small):
    with refuses(WeightsUnavailable, "vit_gg14"):
        vitzoo.create("vit_gg14", weights="DEFAULT")
    with refuses(WeightsUnavailable, "names no variant", "weights='model.safetensors'"):
        vitzoo.create(small, weights="DEFAULT")
    monkeypatch.chdir(tmp_path)
    save_file(vitzoo.create(small).state_dict(), tmp_path / "DEFAULT")  # a file comes first
    assert vitzoo.create(small, weights="DEFAULT").load_report.source == "DEFAULT"
