"""One folder per verb: its options, its task, how it starts, its report. Found by name; no other room imports them."""
