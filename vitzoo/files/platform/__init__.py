"""What differs between Linux, macOS and Windows; torch-free."""
