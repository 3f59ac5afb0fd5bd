"""Estimates of memory, time and cost before work begins, from data sheets and from measurements on this machine.

Design: docs/design/estimates.md
"""

# Target seconds of work per shard, and the minimum number of shards per worker.
SHARD_S = 90
SHARDS_PER_WORKER = 8
