"""Verified bytes by sha256, from the store, the Hub cache or the Hub; torch-free."""
