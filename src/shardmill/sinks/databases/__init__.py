"""Database files on one machine: the rows of a lot go in by one transaction."""
