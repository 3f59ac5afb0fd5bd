"""Receipts: what a run made of what, as an in-toto statement that can be signed.

Design: docs/design/audits-and-receipts.md
"""

from __future__ import annotations

from shardmill.plugins.base import USES, Verb

VERB = Verb(
    name="receipt",
    summary="Write a receipt of a run, signed with your key, or check one.",
    about="It is an in-toto statement: digests of plan, source, model and every part, counts, failed rows, the last "
    "verification, hardware and cost. It has no path, host name or user name. The passphrase of a key is asked for, or "
    "is in SHARDMILL_KEY_PASSPHRASE.",
    family=USES,
    examples=(
        "shardmill receipt runs/reviews --key key.pem",
        "shardmill receipt --check receipt.json --public-key key.pub",
        "shardmill receipt runs/reviews --check receipt.json --public-key key.pub",
    ),
    call='shardmill.receipt("runs/reviews", key="key.pem")',
    returns="shardmill.verbs.receipt.receipt:Receipt",
    options="shardmill.verbs.receipt.options:ReceiptOptions",
    start="shardmill.verbs.receipt.start:start",
    show="shardmill.verbs.receipt.show:show",
)
