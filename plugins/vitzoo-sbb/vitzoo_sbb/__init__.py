"""Classifiers trained on ImageNet: the SBB networks of timm, and RoPE-ViT.

Each family has a manifest.
"""

__version__ = "0.1.0"
