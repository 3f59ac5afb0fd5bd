"""Where a run stands, read from its folder alone, and how a terminal shows it."""
