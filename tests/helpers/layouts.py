"""The layouts of the core, small networks of other libraries: `from layouts import FORMATS`."""

from vitzoo.formats import transformers_vit
from vitzoo.formats.google import big_vision, google, vit_jax
from vitzoo.formats.ports import port, torch_encoder
from vitzoo.formats.timm import timm_vit
from vitzoo.formats.torchvision import torchvision as torchvision_format

FORMATS = {
    "timm": timm_vit,
    "transformers_vit": transformers_vit,
    "torchvision": torchvision_format,
    "port": port,
    "torch_encoder": torch_encoder,
    "google": google,
    "vit_jax": vit_jax,
    "big_vision": big_vision,
}


def vit_config(**changes):
    from transformers import ViTConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 5}
    return ViTConfig(**(sizes | changes))


def vision_transformer(**changes):
    import torchvision

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2}
    sizes |= {"hidden_dim": 32, "mlp_dim": 64, "num_classes": 5}
    return torchvision.models.VisionTransformer(**(sizes | changes))
