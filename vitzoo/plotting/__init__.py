"""Images of what a network has learned."""
