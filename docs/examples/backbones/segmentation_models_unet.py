"""Train a U-Net of segmentation-models-pytorch on a tiny ViT."""

import segmentation_models_pytorch as smp
import torch
from segmentation_models_pytorch.encoders._base import EncoderMixin
from torch import Tensor, nn

import vitzoo

tiny = {"image_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 3}


class Encoder(nn.Module, EncoderMixin):
    def __init__(self, depth: int, output_stride: int, **options: object) -> None:
        super().__init__()
        self._depth, self._output_stride, self._in_channels = depth, output_stride, 3
        self.backbone = vitzoo.backbone(**options)
        self._out_channels = [3, 0, *self.backbone.channels]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the image, an empty map of stride 2, and the maps of stride 4 to 32."""
        b, _, h, w = x.shape
        return [x, x.new_empty(b, 0, h // 2, w // 2), *self.backbone(x)]


options = {"source": tiny, "pyramid": {"channels": 32}}
smp.encoders.encoders["vitzoo"] = {"encoder": Encoder, "params": options, "pretrained_settings": {}}
model = smp.Unet("vitzoo", encoder_weights=None, classes=3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images, labels = torch.rand(2, 3, 96, 64), torch.randint(3, (2, 96, 64))
for _ in range(2):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
