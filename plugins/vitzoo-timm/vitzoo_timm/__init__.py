"""Wrappers of timm networks, and conversion of timm models to vitzoo networks.

`registry.toml` declares the variants; vitzoo imports `vitzoo_timm.build`, and timm, when it builds
a variant. `vitzoo_timm.native` converts a timm model.
"""

__version__ = "0.1.0"
