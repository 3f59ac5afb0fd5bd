"""Vector databases: stores with upserts, in which a row replaces the one with the same id."""
