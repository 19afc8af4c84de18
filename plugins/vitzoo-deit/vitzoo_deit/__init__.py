"""DeiT, distilled DeiT and DeiT III, declared in `registry.toml`."""

__version__ = "0.1.0"
