"""Where the rows of a shard go: Parquet parts in the run folder, or a table. The contract is in `base`."""
