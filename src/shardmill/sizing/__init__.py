"""What work will take before it is begun: memory, time and money, from data sheets and from what was measured here."""

# A shard is about so many seconds of work, and there are at least so many shards for each worker.
SHARD_S = 90
SHARDS_PER_WORKER = 8
