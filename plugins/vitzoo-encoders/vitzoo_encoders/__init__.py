"""Image encoders without a classifier: Perception Encoder, TIPSv2, C-RADIO and InternViT.

Each family has a manifest.
"""

__version__ = "0.1.0"
