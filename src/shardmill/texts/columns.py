"""Names of columns on the way to a result without duplicates; a source hardly has them."""

from __future__ import annotations

NUMBER = "shardmill_item"
SIGNATURE = "shardmill_signature"
