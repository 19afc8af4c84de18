"""Weights and networks for other libraries and runtimes."""
