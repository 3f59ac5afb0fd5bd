"""What follows for a spec from a column of pictures."""

from __future__ import annotations

from typing import Any

from shardmill.core.dialect import name_option
from shardmill.core.errors import SpecError
from shardmill.core.template import NO_TEXT


def settle_embed(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Items that are pictures have no text, and the task is told what they are.

    >>> settle_embed({"picture": "image"}, {})[0]
    {'picture': 'image', 'text': '{:none}', 'params': {'pictures': True}}
    """
    params = work.get("params") or {}
    if not work.get("picture") or not isinstance(params, dict):
        if work.get("root") or (isinstance(params, dict) and params.get("pictures")):
            raise SpecError("No column of pictures is given.", hint="Name it: --picture COLUMN")
        return work, execution
    if work.get("text") not in (None, "", NO_TEXT):
        raise SpecError(
            f"Both {name_option('text')} and {name_option('picture')} are given.",
            hint="An item has one vector: of its text, or of its picture.",
        )
    return {**work, "text": NO_TEXT, "params": {**params, "pictures": True}}, execution
