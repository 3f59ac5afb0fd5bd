"""Generation with transformers' own modules: keys and values in pages, rows that join and leave a running batch."""
