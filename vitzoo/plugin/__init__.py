"""Plugins: found without being imported, loaded, and kept from doing damage; torch-free."""
