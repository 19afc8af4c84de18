"""Looking up, listing and filtering registered names, and label sets; torch-free."""
