"""PostgreSQL: how to connect to it, and what its errors mean.

Design: docs/design/postgres.md
"""

from shardmill.postgres.connect import address, connect, explain, explained, is_postgres, limit, load, reading

__all__ = ["address", "connect", "explain", "explained", "is_postgres", "limit", "load", "reading"]
