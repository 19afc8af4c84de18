"""The image towers of CLIP and SigLIP, declared in `clip.toml` and `siglip.toml`."""

__version__ = "0.1.0"
