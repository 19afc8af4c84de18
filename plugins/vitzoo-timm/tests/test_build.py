"""timm's own networks behind vitzoo's weights: the same numbers, honest arguments and errors."""

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import says
from vitzoo.errors import CheckpointError, InvalidOption

SMALLEST = "timm/pit_ti_224"
ONE_OF_EACH = (
    *("cait_xxs24_224", "convit_tiny", "crossvit_9_240", "hiera_tiny_224", "levit_128s"),
    *("levit_256d", "mvitv2_tiny", "pit_ti_distilled_224", "pvt_v2_b0", "samvit_base_patch16_224"),
    *("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"),
    *("tnt_s_patch16_224", "twins_svt_small", "visformer_tiny", "vitamin_small_224"),
    *("volo_d1_224", "xcit_nano_12_p16_224", "vit_relpos_small_patch16_224", "flexivit_small"),
    *("vit_dwee_patch16_reg1_gap_256", "vit_dpwee_patch16_reg1_gap_256", "vit_base_mci_224"),
    *("vit_small_resnet26d_224", "naflexvit_base_patch16_gap", "vit_small_patch16_18x2_224"),
    *("vit_base_patch16_sapiens2", "hieradet_small"),
)


def reference(name):
    """Return timm's network with random weights, running statistics and classifiers included."""
    import timm

    torch.manual_seed(1)
    model = timm.create_model(name, pretrained=False).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.1, generator=generator)
        for key, buffer in model.state_dict().items():
            if key.endswith("running_var"):
                buffer.uniform_(0.5, 2, generator=generator)
            elif key.endswith("num_batches_tracked"):
                buffer.fill_(7)
    return model


def write(path, model):
    """Write the weights of timm's network."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(tensors, path)
    return path


def close(actual, expected):
    """Compare every element."""
    tolerance = 5e-5 * max(1, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def images(model, count=1):
    channels = model.spec.in_chans
    return torch.randn(count, channels, *model.spec.image_size)


@torch.inference_mode()
def test_a_file_of_timms_gives_timms_numbers(tmp_path):
    theirs = reference("pit_ti_224")
    model = vitzoo.create(SMALLEST, weights=write(tmp_path / "pit.safetensors", theirs)).eval()
    report = model.load_report
    assert set(report.kept) == set(theirs.state_dict())
    assert report.format == "timm"
    (assumed,) = report.assumed  # a file alone states no preprocessing
    says(assumed, "timm/pit_ti_224", "crop_pct 0.9")
    x = images(model, 2)
    close(model(x), theirs(x))
    assert type(model) is type(theirs)
    assert model.spec == vitzoo.describe(SMALLEST).spec


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("name", ["pit_ti_224", "vit_relpos_small_patch16_224", "twins_svt_small"])
def test_the_folder_of_a_wrapped_network(tmp_path, name):
    from timm.models import save_for_hf

    theirs = reference(name)
    save_for_hf(theirs, tmp_path, safe_serialization=True)
    ours = vitzoo.create(f"{tmp_path}/").eval()
    assert ours.spec.variant == f"timm/{name}"
    x = images(ours)
    close(ours(x), theirs(x))
    path = tmp_path / "config.json"
    other = {"avg": "token", "token": "avg"}[theirs.global_pool]
    changes = {"global_pool": other, "model_args": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=f"global_pool must be .*{name}.*'{other}'"):
        vitzoo.create(f"{tmp_path}/")


def test_the_folder_of_a_wrapped_network_of_transformers(tmp_path, transformers):
    config = transformers.TimmWrapperConfig(architecture="pit_ti_224", num_labels=5)
    wrapper = transformers.TimmWrapperForImageClassification(config).eval()
    wrapper.save_pretrained(tmp_path)
    ours = vitzoo.create(tmp_path).eval()
    x = images(ours)
    with torch.inference_mode():
        close(ours(x), wrapper(x).logits)
    assert "prefix = timm_model." in ours.load_report.assumed


def test_counters_of_batch_norm_keep_their_type(tmp_path):
    path = write(tmp_path / "levit.safetensors", reference("levit_128s"))
    model = vitzoo.create("timm/levit_128s", weights=path, dtype=torch.bfloat16)
    state = model.state_dict()
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    assert counters
    assert all(state[name].dtype == torch.int64 and state[name] == 7 for name in counters)
    assert state["head.linear.weight"].dtype == torch.bfloat16


@torch.inference_mode()
def test_other_classes_and_channels(tmp_path):
    theirs = reference("pit_ti_distilled_224")
    path = write(tmp_path / "pit.safetensors", theirs)
    options = {"num_classes": 5, "in_chans": 1}
    model = vitzoo.create("timm/pit_ti_distilled_224", weights=path, **options).eval()
    report = model.load_report
    heads = {f"{head}.{kind}" for head in ("head", "head_dist") for kind in ("weight", "bias")}
    assert set(report.reinitialised) == set(report.dropped) == heads
    assert report.converted == ("patch_embed.conv.weight",)
    assert not model(images(model)).any()  # fresh classifiers are zero
    assert model.labels == ()


def test_a_network_of_one_image_size_says_so():
    """On `meta`, MViTv2 seems to read positions that it does not have."""
    with pytest.raises(InvalidOption, match="mvitv2_tiny takes images of one size, 224x224"):
        vitzoo.create("timm/mvitv2_tiny", dynamic=True, device="meta")


@pytest.mark.slow
@torch.inference_mode()
def test_positions_are_resampled_as_timm_does(tmp_path, timm):
    theirs = reference("swin_s3_tiny_224")
    path = write(tmp_path / "swin.safetensors", theirs)
    size = (224, 448)
    model = vitzoo.create("timm/swin_s3_tiny_224", weights=path, image_size=size).eval()
    wider = timm.create_model("swin_s3_tiny_224", img_size=size).eval()
    wider.load_state_dict(theirs.state_dict())
    x = images(model)
    close(model(x), wider(x))  # its windows, and so its tables, are as large
    theirs = reference("flexivit_small")
    path = write(tmp_path / "flexi.safetensors", theirs)
    model = vitzoo.create("timm/flexivit_small", weights=path, image_size=size).eval()
    assert model.load_report.resampled == ("pos_embed",)
    theirs.set_input_size(size)
    x = images(model)
    close(model(x), theirs(x))


def test_what_cannot_be_resampled_is_refused(tmp_path):
    path = write(tmp_path / "pit.safetensors", reference("pit_ti_224"))
    with pytest.raises(CheckpointError, match=r"pos_embed.*\(1, 64, 27, 27\)"):
        vitzoo.create(SMALLEST, weights=path, image_size=448)


@pytest.mark.slow
@torch.inference_mode()
def test_saved_and_restored(tmp_path):
    model = vitzoo.create("timm/xcit_nano_12_p16_224", num_classes=3, drop_path=0.1).eval()
    model.labels = ("a", "b", "c")
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    again = vitzoo.create(path).eval()
    assert again.spec == model.spec
    assert again.labels == ("a", "b", "c")
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    x = images(model)
    close(again(x), model(x))


def test_rates_reach_the_network():
    model = vitzoo.create("timm/xcit_nano_12_p16_224", drop_path=0.2, dropout=0.3)
    drops = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
    paths = [m.drop_prob for m in model.modules() if type(m).__name__ == "DropPath"]
    assert 0.3 in drops
    assert max(paths) == pytest.approx(0.2)
    assert model.spec.dropout == 0.3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pool": "mean"}, "pool.*num_classes, in_chans"),
        ({"head": "mlp"}, "cannot change head"),
        ({"pos_embed": "rope"}, "cannot change pos_embed"),
        ({"patch_embed": "unfold"}, "cannot change patch_embed"),
        ({"block": {"norm_eps": 1e-5}}, "cannot change block"),
        ({"drop_path": {"name": "constant", "rate": 0.1}}, "drop path.*linear"),
        ({"drop_path": {"name": "linear", "rate": 0.1, "mode": "subset"}}, "drop path.*mask"),
    ],
    ids=str,
)
def test_what_timm_cannot_honour_is_refused(options, text):
    with pytest.raises(InvalidOption, match=text):
        vitzoo.create(SMALLEST, **options)


def test_lora_does_not_guess_the_layers_of_timm():
    with pytest.raises(InvalidOption, match=r"vitzoo's blocks.*target_modules"):
        vitzoo.lora(vitzoo.create(SMALLEST))


def test_dropout_is_refused_where_the_class_has_none():
    with pytest.raises(InvalidOption, match=r"dropout.*accepts.*num_classes"):
        vitzoo.create("timm/levit_128s", dropout=0.1)


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = write(tmp_path / "pit.safetensors", reference("pit_ti_224"))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        vitzoo.create("timm/pit_xs_224", weights=path)
    tensors = dict(safetensors.torch.load_file(path))
    tensors["cls_token"] = tensors["cls_token"].long()
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"cls_token is torch\.int64"):
        vitzoo.create(SMALLEST, weights=path)


def test_listing_imports_neither_timm_nor_torch():
    code = (
        "import sys, vitzoo; assert len(vitzoo.variants('timm/*')) > 200; "
        "assert vitzoo.describe('timm/pit_ti_224').params; "
        "print([m for m in ('timm', 'torch', 'vitzoo_timm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_timm_downloads_nothing(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("timm asked the network")

    monkeypatch.setattr("timm.models._builder.load_pretrained", refuse)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", refuse)
    assert vitzoo.create(SMALLEST, device="meta").pretrained_cfg


def test_there_is_one_architecture_for_each_class():
    listed = vitzoo.variants("timm/*")
    classes = {v.summary.rpartition(" ")[2] for v in listed}
    known = {v.name.removeprefix("timm/"): v for v in listed}
    assert {known[name].summary.rpartition(" ")[2] for name in ONE_OF_EACH} == classes


@pytest.mark.one_in(5)
@pytest.mark.parity
@torch.inference_mode()
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_one_of_each_class_from_a_file(tmp_path, name):
    theirs = reference(name)
    path = write(tmp_path / "net.safetensors", theirs)
    size = 256 if "sapiens2" in name else None  # of 1024 px it takes a minute
    model = vitzoo.create(f"timm/{name}", weights=path, image_size=size).eval()
    path.unlink()
    if size:
        theirs.set_input_size((size, size))
    x = images(model)
    expected = theirs(x)
    assert expected.any()
    close(model(x), expected)
    assert set(model.load_report.kept) == set(theirs.state_dict())
