"""PostgreSQL tables as results: load, search and verify them. Imports `run`; only `api` and `cli` import it."""
