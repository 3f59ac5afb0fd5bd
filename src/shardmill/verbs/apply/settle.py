"""What follows for a spec from the function that it names."""

from __future__ import annotations

from typing import Any

from shardmill.core.functions import settle_call
from shardmill.core.template import NO_TEXT


def settle_apply(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text of the function's file goes along; items need no text; it runs on the CPU unless a device is named."""
    settled = {**work, "params": settle_call(work.get("params") or {}), "text": work.get("text") or NO_TEXT}
    return settled, {"device": "cpu", **execution}
