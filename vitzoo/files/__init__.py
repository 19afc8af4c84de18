"""Bytes on disk, checked before any data is read: no network, no registry, no torch."""
