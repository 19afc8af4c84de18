"""The network, and what describes it."""
