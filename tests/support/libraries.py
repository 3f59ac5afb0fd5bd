"""Libraries that some tests need."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needed(name: str) -> Any:
    """The library, or a skip of the tests that ask for it; on CI its absence is an error."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{name} is not installed", allow_module_level=True)
