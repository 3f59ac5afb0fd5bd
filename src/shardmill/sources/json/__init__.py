"""Files that are one JSON array. JSON Lines are in `sources.lines`."""
