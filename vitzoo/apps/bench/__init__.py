"""The fastest way to run a network on this machine."""
