"""Train a linear head for semantic segmentation on a tiny ViT, with Lightning."""

import lightning
import torch
from torch import Tensor, nn

import vitzoo

tiny = {"image_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 3}


class Segmenter(lightning.LightningModule):
    def __init__(self, source: object) -> None:
        super().__init__()
        self.backbone = vitzoo.backbone(source, norm=True)
        self.head = nn.Conv2d(self.backbone.out_channels, 3, 1)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        logits = self.head(self.backbone(images)[-1])
        logits = nn.functional.interpolate(logits, labels.shape[1:], mode="bilinear")
        return nn.functional.cross_entropy(logits, labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


model = Segmenter(tiny)
batches = [(torch.rand(2, 3, 96, 64), torch.randint(3, (2, 96, 64))) for _ in range(2)]
trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))
