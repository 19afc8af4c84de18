"""The parts of a Vision Transformer: one idea per file, `nn.Module` the only base class."""
