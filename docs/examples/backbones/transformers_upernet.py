"""Train UperNet of transformers on a tiny ViT; Mask2Former takes the same `VitzooConfig`."""

import torch
import transformers

import vitzoo

tiny = {"image_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 3}


class VitzooConfig(transformers.PreTrainedConfig):
    model_type = "vitzoo"
    options: dict | None = None  # of vitzoo.backbone


class VitzooBackbone(transformers.PreTrainedModel):
    config_class = VitzooConfig

    def __init__(self, config: VitzooConfig) -> None:
        super().__init__(config)
        self.backbone = vitzoo.backbone(**config.options, returns="output")
        self.channels = self.backbone.channels

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Keep the weights that vitzoo loaded."""

    def forward(self, images: torch.Tensor, **_: object) -> transformers.utils.ModelOutput:
        return self.backbone(images)

    forward_with_filtered_kwargs = forward


transformers.AutoBackbone.register(VitzooConfig, VitzooBackbone)
config = VitzooConfig(options={"source": tiny, "pyramid": {"channels": 32}})
config = transformers.UperNetConfig(backbone_config=config, hidden_size=32, num_labels=3)
model = transformers.UperNetForSemanticSegmentation(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images, labels = torch.rand(2, 3, 96, 64), torch.randint(3, (2, 96, 64))
for _ in range(2):
    loss = model(images, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
