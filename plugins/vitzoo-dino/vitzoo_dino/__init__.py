"""DINO, DINOv2 and DINOv3, declared in `dino.toml`, `dinov2.toml` and `dinov3.toml`."""

__version__ = "0.1.0"
