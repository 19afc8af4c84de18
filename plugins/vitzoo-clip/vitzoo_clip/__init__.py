"""The image towers of CLIP and SigLIP.

Everything is declared in `clip.toml` and `siglip.toml`; vitzoo imports the modules beside them when
a part of them is used.
"""

__version__ = "0.1.0"
