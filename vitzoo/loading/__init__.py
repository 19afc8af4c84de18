"""Tensors of a checkpoint into a network."""
