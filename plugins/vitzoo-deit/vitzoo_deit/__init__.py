"""DeiT, distilled DeiT and DeiT III.

Everything is declared in `registry.toml`; vitzoo imports the modules beside it when a part of them
is used.
"""

__version__ = "0.1.0"
