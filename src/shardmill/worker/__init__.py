"""One process on one device: claims shards, reads, prepares, runs, writes, commits."""

from shardmill.worker.pipeline import Worker

__all__ = ["Worker"]
