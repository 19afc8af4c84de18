"""The bridge to timm: its networks behind vitzoo's weights, and its models as vitzoo's own.

Variants are declared in `registry.toml`; vitzoo imports `vitzoo_timm.build`, and timm, when one of
them is built. `vitzoo_timm.native` reads a timm model and says which vitzoo network computes the
same.
"""

__version__ = "0.1.0"
