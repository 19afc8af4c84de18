"""Configs that other libraries write beside weights."""
