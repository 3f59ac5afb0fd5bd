"""Vectors that anybody made, looked at and recomputed: what is wrong with them, and why.

Design: docs/design/audits-and-receipts.md
"""

from __future__ import annotations

from shardmill.plugins.base import USES, Verb

VERB = Verb(
    name="audit",
    summary="Find what is wrong with vectors, whoever made them.",
    about="All rows are scanned for NaN, zeros, doubles, mixed dimensions and lengths. With --model a sample is "
    "recomputed, and the cause of a difference is named: pooling, prompt, cut, rows that moved, another model.",
    family=USES,
    examples=(
        "shardmill audit vectors.parquet --text body --column embedding --model all-MiniLM-L6-v2",
        "shardmill audit docs.jsonl --text body --vectors vectors.npy --model models/mine",
        "shardmill audit postgresql:///docs/documents --text body --id id --model models/mine",
        "shardmill audit runs/reviews",
    ),
    call='shardmill.audit("vectors.parquet", text="body", column="embedding", model="all-MiniLM-L6-v2")',
    returns="shardmill.verbs.audit.report:Audit",
    options="shardmill.verbs.audit.options:AuditOptions",
    start="shardmill.verbs.audit.start:start",
    show="shardmill.verbs.audit.show:show_audit",
)
