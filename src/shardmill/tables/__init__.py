"""Tables in PostgreSQL as results: load, search and verify one. Stands above `run`; only `api` and `cli` import it."""
