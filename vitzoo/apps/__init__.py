"""What people do with a network: one folder each, with its command."""
