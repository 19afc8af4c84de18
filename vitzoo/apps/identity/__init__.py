"""Identities of vectors: which network they are from, and with which numerics."""
