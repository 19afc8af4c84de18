"""Finding plugins without importing them, loading them, and recording their errors; torch-free."""
