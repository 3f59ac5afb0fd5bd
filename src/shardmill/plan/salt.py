"""What all rows of a task depend on besides their items, as a salt of the digests of items."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from shardmill.plan.plan import Plan

# Where a model is and how it is reached. Which model it is, the task's fingerprint says.
_PLACES = ("model", "endpoint", "key_variable")


def make_salt(task: str, params: Mapping[str, Any], fingerprint: Mapping[str, str]) -> bytes:
    """What all rows of a task depend on besides their items: its parameters and its model."""
    own = {name: value for name, value in params.items() if name not in _PLACES}
    encoded = json.dumps([task, own, dict(fingerprint)], sort_keys=True, default=str).encode()
    return hashlib.sha256(encoded).digest()


def salt_of(plan: Plan) -> bytes:
    """The salt of all rows of a plan."""
    return make_salt(plan.work.task, plan.work.params, plan.fingerprint)
