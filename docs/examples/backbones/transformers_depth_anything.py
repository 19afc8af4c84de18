"""Train the neck and the head of Depth-Anything, of transformers, on a tiny ViT."""

import torch
import transformers
from transformers.modeling_outputs import BackboneOutput

import vitzoo

tiny = {"image_size": 56, "patch_size": 14, "embed_dim": 48, "depth": 4, "num_heads": 3}


class VitzooConfig(transformers.PreTrainedConfig):
    model_type = "vitzoo"
    options: dict | None = None  # of vitzoo.backbone


class VitzooBackbone(transformers.PreTrainedModel):
    config_class = VitzooConfig

    def __init__(self, config: VitzooConfig) -> None:
        super().__init__(config)
        self.backbone = vitzoo.backbone(**config.options)

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Keep the weights that vitzoo loaded."""

    def forward_with_filtered_kwargs(self, images: torch.Tensor, **_: object) -> BackboneOutput:
        tokens = [x.flatten(2).mT for x in self.backbone(images)]  # the neck drops the first one
        return BackboneOutput([torch.nn.functional.pad(x, (0, 0, 1, 0)) for x in tokens])


transformers.AutoBackbone.register(VitzooConfig, VitzooBackbone)
config = VitzooConfig(options={"source": tiny, "out": 4, "norm": True})
config = transformers.DepthAnythingConfig(backbone_config=config, reassemble_hidden_size=48)
model = transformers.DepthAnythingForDepthEstimation(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images, depth = torch.rand(2, 3, 84, 56), torch.rand(2, 84, 56)
for _ in range(2):
    loss = (model(images).predicted_depth - depth).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
