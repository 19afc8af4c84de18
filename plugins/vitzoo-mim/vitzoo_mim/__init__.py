"""Networks pre-trained by masked image modelling: MAE, BEiT, BEiT v2 and EVA-02.

Each family has a manifest of its own beside this file; `mim.toml` declares the part they share.
vitzoo imports the modules here when a part or a checkpoint format of them is used.
"""

__version__ = "0.1.0"
