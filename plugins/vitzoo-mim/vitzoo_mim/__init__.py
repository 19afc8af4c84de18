"""Networks pre-trained by masked image modelling: MAE, BEiT, BEiT v2 and EVA-02.

Each family has a manifest; `mim.toml` declares the relative positions.
"""

__version__ = "0.1.0"
