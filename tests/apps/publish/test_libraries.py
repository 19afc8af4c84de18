"""Other libraries load a folder of `link`, or its overlay, and compute what vitzoo computes."""

import socket

import pytest
import safetensors.torch
import torch
from PIL import Image

import stored
import vitzoo
from helpers import close, fill, same
from internals import of_entry, registry
from vitzoo.apps.identity.identity import Identity

pytestmark = pytest.mark.workflows
WEIGHTS = ("own", "scaled")
# One weights entry for each native family and checkpoint format, and the libraries that have it.
FAMILIES = {
    "vit_ti16:augreg_in21k": "timm transformers torchvision",
    "vit_b16:google_in21k_ft_in1k": "transformers",
    "aimv2/vit_l14:apple_pt": "timm",
    "beit/beit_b16:in22k_ft_in22k_in1k": "timm transformers",
    "beit/beit_b16:microsoft_in22k_ft_in22k_in1k": "transformers",
    "clip/vit_b32:openai": "timm transformers",
    "clip/vit_b32:openai_transformers": "timm transformers",
    "deit/deit_ti16:fb_in1k": "timm transformers torchvision",
    "deit/deit_ti16_distilled:fb_in1k": "timm transformers",
    "deit/deit_ti16_distilled:facebook_in1k": "transformers",
    "dino/vit_s16:dino": "timm transformers",
    "dinov2/vit_s14:lvd142m": "timm transformers",
    "dinov2/vit_s14_reg4:facebook_lvd142m": "timm transformers",
    "dinov3/vit_ti16_qkvb:eupe_lvd1689m": "timm",
    "dinov3/vit_s16_qkvb:facebook_lvd1689m": "timm transformers",
    "eva/vit_l14_196:in22k_ft_in1k": "timm",
    "eva02/vit_b14:mim_in22k": "timm",
    "flexivit/vit_s16_240:1200ep_in1k": "timm",
    "hybrid/r_vit_ti16:augreg_in21k": "timm",
    "internvit/vit_l14_448:ogvl_dist": "timm",
    "mae/vit_b16:mae": "timm transformers",
    "pe/vit_l14_lang_448:fb": "timm",
    "radio/vit_b16_v3:c_radio": "timm",
    "rope_vit/vit_s16_axial:naver_in1k": "timm",
    "sbb/vit_pwee16_reg1_256:sbb_in1k": "timm",
    "sbb/vit_m16_rope_reg1_256:sbb_in1k": "timm",
    "siglip/vit_b32_256:v2_webli": "timm transformers",
    "siglip/vit_b16:webli_transformers": "timm transformers",
    "tipsv2/vit_b14:webli": "timm transformers",
}


def call(linked):
    """Make the call that `link` printed."""
    import open_clip
    import timm
    import torchvision
    import transformers

    scope = {
        "timm": timm, "transformers": transformers, "torchvision": torchvision,
        "open_clip": open_clip, "safetensors": safetensors,
    }  # fmt: skip
    before, _, last = linked.call.rpartition("; ")
    exec(before, scope)
    result = eval(last, scope)
    return scope.get("model", result).eval()


@torch.inference_mode()
def same_logits(theirs, ours, images):
    answer = theirs(images)
    names = ("logits", "image_embeds") + ("pooler_output",) * ("Siglip" in type(theirs).__name__)
    for name in names:
        if hasattr(answer, name):
            close(getattr(answer, name), ours(images))
            return
    if hasattr(answer, "last_hidden_state"):
        close(answer.last_hidden_state, ours.forward_features(images))
        return
    if isinstance(answer, tuple):  # of a distilled network in training
        answer = (answer[0] + answer[1]) / 2
    close(answer, ours(images))


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch):
    """No library may connect to anything."""

    def refuse(*_):
        raise AssertionError("a socket was used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse, raising=False)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("library", ["timm", "transformers", "torchvision"])
def test_a_library_has_the_same_logits(zoo, small, images, tmp_path, library, weights):
    eps = {"norm_eps": 1e-12} if library == "transformers" else {}
    zoo.put(fill(vitzoo.create(small, block=eps), weights))
    linked = vitzoo.link(zoo.name, tmp_path / "out", library)
    assert linked.copied == (library == "timm")
    ours = vitzoo.create(zoo.name, pretrained=True).eval()
    same_logits(call(linked), ours, images)
    assert {row.state for row in vitzoo.verify(tmp_path / "out")} == {"ok"}


@pytest.mark.parametrize("library", ["timm", "transformers"])
@pytest.mark.parametrize("block", [{"activation": "quick_gelu"}, {"qkv_bias": False}])
def test_settings_that_no_tensor_shows(zoo, small, images, tmp_path, library, block):
    zoo.put(fill(vitzoo.create(small, block=block)))
    ours = vitzoo.create(zoo.name, pretrained=True).eval()
    same_logits(call(vitzoo.link(zoo.name, tmp_path / "out", library)), ours, images)


def test_labels_and_preprocessing_go_along(zoo, small, tmp_path, transformers):
    model = fill(vitzoo.create(small, block={"norm_eps": 1e-12}))
    zoo.put(model, to="transformers_vit", labels=["a", "b", "c", "d", "e"])
    out = tmp_path / "out"
    vitzoo.link(zoo.name, out, "transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(out)
    assert list(theirs.config.id2label.values()) == ["a", "b", "c", "d", "e"]
    picture = Image.effect_noise((80, 60), 90).convert("RGB")
    picture.save(tmp_path / "picture.png")
    theirs = transformers.AutoImageProcessor.from_pretrained(out, backend="pil")(
        picture, return_tensors="pt"
    )
    ours = vitzoo.transform(zoo.name)(tmp_path / "picture.png")
    torch.testing.assert_close(theirs["pixel_values"][0], ours, rtol=0, atol=1e-5)
    again = vitzoo.create(f"{out}/")
    assert again.labels == ("a", "b", "c", "d", "e")
    assert torch.equal(vitzoo.transform(again)(tmp_path / "picture.png"), ours)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_whole_clip_for_open_clip(zoo, tmp_path, weights):
    import open_clip

    torch.manual_seed(0)
    config = {
        "embed_dim": 24, "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8,
                       "head_width": 32},
        "text_cfg": {"context_length": 9, "vocab_size": 50, "width": 64, "heads": 1, "layers": 2},
    }  # fmt: skip
    theirs = fill(open_clip.CLIP(**config), weights)
    file = tmp_path / "clip.safetensors"
    safetensors.torch.save_file({k: v.clone() for k, v in theirs.state_dict().items()}, file)
    zoo.entry = stored.entry(
        file, format="clip/open_clip", num_classes=24, block={"activation": "quick_gelu"}
    )
    tower = {
        "image_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2,
        "num_classes": 24, "pre_norm": True, "patch_embed": {"name": "conv", "bias": False},
        "block": {"norm_eps": 1e-5, "activation": "quick_gelu"},
    }  # fmt: skip
    zoo.register(vitzoo.create(tower))
    linked = vitzoo.link(zoo.name, tmp_path / "out", "open_clip")
    found = call(linked)
    images, text = torch.randn(2, 3, 32, 32), torch.randint(1, 49, (2, 9))
    ours = vitzoo.create(zoo.name, pretrained=True).eval()
    with torch.inference_mode():
        close(found.encode_image(images), theirs.encode_image(images))
        close(found.encode_text(text), theirs.encode_text(text))
        close(found.encode_image(images), ours(images))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("to", ["timm", "torchvision"])
def test_timm_loads_a_tag(zoo, small, images, weights, to, timm):
    zoo.put(fill(vitzoo.create(small, num_classes=1000), weights), to=to)
    tag = zoo.tag()
    overlay = vitzoo.timm_overlay(tag)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    sizes["mlp_ratio"] = 2
    theirs = timm.create_model(tag, pretrained=True, pretrained_cfg_overlay=overlay, **sizes)
    ours = vitzoo.create(zoo.name, pretrained=True).eval()
    same(theirs.state_dict(), ours.state_dict())
    same_logits(theirs.eval(), ours, images)


def narrow(name):
    """Return the spec of a weights entry with two narrow blocks, and its checkpoint format."""
    zoo = registry()
    variant, row = (name.partition(":")[i] for i in (0, 2))
    variant = zoo.variant(variant)
    row = next(w for w in variant.weights if w.name == row)
    data = of_entry(row, zoo).apply(variant.spec, zoo, variant).to_data()
    side = 64 if variant.namespace == "hybrid" else 4 * variant.spec.patch_size[0]
    ratio = variant.spec.mlp_dim / variant.spec.embed_dim
    classes = 5 if data["num_classes"] else 0
    numbers = {"depth": 2, "num_heads": 2, "embed_dim": 128, "mlp_dim": int(128 * ratio)}
    data |= numbers | {"image_size": side, "num_classes": classes, "variant": variant.name}
    return data, row.format


def without_metadata(folder):
    """Take what vitzoo writes out of a folder, and return it."""
    for file in folder.glob("*.safetensors"):
        tensors = {k: v.clone() for k, v in safetensors.torch.load_file(file).items()}
        file.unlink()
        safetensors.torch.save_file(tensors, file)
    return f"{folder}/"


def network_of(model):
    return Identity.parse(vitzoo.identity(model)).network


@pytest.mark.one_in(5)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_networks_of_every_family(zoo, tmp_path, name, weights):
    spec, layout = narrow(name)
    model = fill(vitzoo.create(spec), weights)
    if name.startswith("clip/"):  # transformers' projection has no bias
        model.head.bias.data.zero_()
    model.preprocessing = vitzoo.Preprocessing(**stored.PREPROCESSING)
    zoo.put(model, to=layout, base=spec["variant"])
    ours = vitzoo.create(zoo.name, pretrained=True).eval()
    same(ours.state_dict(), model.state_dict())
    images = torch.randn(2, 3, *ours.spec.image_size)
    for library in FAMILIES[name].split():
        linked = vitzoo.link(zoo.name, tmp_path / library, library)
        same_logits(call(linked), ours, images)
        assert {row.state for row in vitzoo.verify(tmp_path / library)} == {"ok"}
        if library != "torchvision":  # whose files state no network
            assert network_of(without_metadata(tmp_path / library)) == network_of(ours)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_timm_and_transformers_load_a_pushed_folder(
    small, images, tmp_path, weights, timm, transformers
):
    model = fill(vitzoo.create(small, block={"activation": "quick_gelu"}), weights)
    model.labels, model.output_activation = ("a", "b", "c", "d", "e"), "sigmoid"
    out = tmp_path / "out"
    vitzoo.push(model, "acme/net", folder=out, dry_run=True, license="mit")
    assert "| output activation | sigmoid: " in (out / "README.md").read_text()
    (out / "model.safetensors").rename(out / "kept")  # its metadata states the same
    tensors = safetensors.torch.load_file(out / "kept")
    safetensors.torch.save_file(tensors, out / "model.safetensors")
    assert vitzoo.create(f"{out}/").output_activation == "sigmoid"
    network = timm.create_model(f"local-dir:{out}", pretrained=True)
    same(network.state_dict(), model.state_dict())
    same_logits(network.eval(), model, images)
    wrapped = transformers.AutoModelForImageClassification.from_pretrained(out).eval()
    assert list(wrapped.config.id2label.values()) == list(model.labels)
    assert wrapped.config.problem_type == "multi_label_classification"
    same_logits(wrapped, model, images)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_transformers_own_network_loads_a_pushed_folder(
    small, images, tmp_path, weights, transformers
):
    model = fill(vitzoo.create(small, block={"norm_eps": 1e-12}), weights)
    out = tmp_path / "out"
    done = vitzoo.push(
        model, "acme/net", folder=out, dry_run=True, license="mit", library="transformers"
    )
    assert done.library == "transformers"
    network = transformers.AutoModelForImageClassification.from_pretrained(out).eval()
    assert type(network) is transformers.ViTForImageClassification
    same_logits(network, model, images)
    again = vitzoo.create(f"{out}/").eval()
    assert torch.equal(again(images), model(images))


def test_timm_loads_a_pushed_network_with_other_names(tmp_path, timm):
    """DINOv3's tensors have other names in timm than in vitzoo."""
    spec, layout = narrow("dinov3/vit_ti16_qkvb:eupe_lvd1689m")
    model = fill(vitzoo.create(spec))
    out = tmp_path / "out"
    vitzoo.push(model, "acme/net", folder=out, dry_run=True, license="mit")
    images = torch.randn(2, 3, *model.spec.image_size)
    same_logits(timm.create_model(f"local-dir:{out}", pretrained=True).eval(), model, images)
    again = vitzoo.create(f"{out}/").eval()
    assert again.load_report.format == layout
    close(again(images), model(images))
