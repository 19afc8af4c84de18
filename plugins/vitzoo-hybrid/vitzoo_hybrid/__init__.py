"""Hybrid Vision Transformers: a ResNet reads the image, a ViT its feature map.

Everything is declared in `registry.toml`; vitzoo imports `vitzoo_hybrid.embed` when a part of it
is built.
"""

__version__ = "0.1.0"
