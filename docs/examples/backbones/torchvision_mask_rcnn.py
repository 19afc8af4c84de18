"""Train torchvision's Mask R-CNN on a tiny ViT with the feature pyramid of ViTDet."""

import torch
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import vitzoo

tiny = {"image_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 2, "num_heads": 3}
backbone = vitzoo.backbone(tiny, pyramid={"channels": 32}, returns="dict")
names = backbone.out_features
boxes, masks = (MultiScaleRoIAlign(names, output_size=n, sampling_ratio=2) for n in (7, 14))
anchors = AnchorGenerator(((32,), (64,), (128,), (256,)), ((0.5, 1, 2),) * 4)
model = MaskRCNN(backbone, 3, rpn_anchor_generator=anchors, box_roi_pool=boxes,
                 mask_roi_pool=masks, min_size=128)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images, mask = [torch.rand(3, 128, 160)], torch.zeros(1, 128, 160, dtype=torch.uint8)
mask[:, 20:90, 10:60] = 1
target = {"boxes": torch.tensor([[10.0, 20, 60, 90]]), "labels": torch.tensor([1]), "masks": mask}
for _ in range(2):
    loss = sum(model(images, [target]).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
