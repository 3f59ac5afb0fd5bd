"""Code of a user."""
