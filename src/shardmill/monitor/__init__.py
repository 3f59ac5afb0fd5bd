"""What goes on in a run, read from its folder."""
