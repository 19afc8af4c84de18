"""Train torchvision's Faster R-CNN on a tiny ViT with the feature pyramid of ViTDet."""

import torch
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import vitzoo

tiny = {"image_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 3}
pyramid = {"channels": 32, "top": True}  # five maps, of stride 4, 8, 16, 32 and 64
backbone = vitzoo.backbone(tiny, pyramid=pyramid, returns="dict")
anchors = AnchorGenerator(((16,), (32,), (64,), (128,), (256,)), ((0.5, 1, 2),) * 5)
pool = MultiScaleRoIAlign(backbone.out_features[:4], output_size=7, sampling_ratio=2)
model = FasterRCNN(backbone, 3, rpn_anchor_generator=anchors, box_roi_pool=pool,
                   min_size=128, size_divisible=64)  # the largest stride  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images = [torch.rand(3, 128, 160), torch.rand(3, 150, 128)]
boxes = [torch.tensor([[10.0, 20, 60, 90]]), torch.tensor([[30.0, 40, 90, 110]])]
targets = [{"boxes": box, "labels": torch.tensor([1])} for box in boxes]
for _ in range(2):
    loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
