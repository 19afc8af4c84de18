"""The command line. `main` is the light front door; commands import torch when they need it."""
