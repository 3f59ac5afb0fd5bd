"""What a text is made of, found by rules and without a model: its sentences. Imports nothing but errors."""
