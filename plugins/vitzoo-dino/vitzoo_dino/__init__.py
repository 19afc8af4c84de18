"""DINO, DINOv2 and DINOv3.

Everything is declared in the manifests `dino.toml`, `dinov2.toml` and `dinov3.toml`; vitzoo imports
the modules beside them when a part of them is used.
"""

__version__ = "0.1.0"
