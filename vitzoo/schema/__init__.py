"""The registry as data: what a manifest can state, read strictly; torch-free."""
