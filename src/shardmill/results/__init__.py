"""What is done with what a run made: merge, verify, search. Reads the run folder; never imports `run`."""
