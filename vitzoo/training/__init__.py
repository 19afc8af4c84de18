"""Training: parameter groups, freezing and adapters of a network."""
