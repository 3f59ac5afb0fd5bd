"""Examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

from shardmill.core.errors import MissingExtra
from tests.support.imports import MODULES

# What an example needs that its module imports later.
NEEDED = {"shardmill.models.answer_schema": "jsonschema", "shardmill.sources.configs": "yaml"}
WITH_EXAMPLES = sorted(name for name, path in MODULES.items() if ">>> " in path.read_text())


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except (ModuleNotFoundError, MissingExtra) as error:
        pytest.skip(str(error))
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert not failed
