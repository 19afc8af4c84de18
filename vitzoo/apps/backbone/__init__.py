"""Networks as backbones: feature maps for detection, segmentation, depth and retrieval."""
