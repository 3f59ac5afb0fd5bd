"""shardmill inside a larger Ray program: `map_shards`."""

from shardmill.run.ray import map_shards

__all__ = ["map_shards"]
