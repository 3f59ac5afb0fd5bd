"""PostgreSQL: how it is reached, and what its errors mean."""

from shardmill.postgres.connect import connect, explain, is_postgres, load, reading

__all__ = ["connect", "explain", "is_postgres", "load", "reading"]
