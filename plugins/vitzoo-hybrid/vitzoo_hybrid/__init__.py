"""Hybrids of a ResNet and a Vision Transformer, declared in `registry.toml`."""

__version__ = "0.1.0"
