"""The fingerprints of shardmill's own functions: they stay when a file moves, and change by a decision alone."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from shardmill.core import functions as calls
from shardmill.core import permission

OWN = sorted(permission.OWN_CALLS)
# What plans of version 0.2.0 have.
FINGERPRINT = {"function": "3d749e74215412ce", "package": "shardmill 0.2.0"}
# The code of the module that has the functions, as it was when their fingerprints were last decided about.
DECIDED = "717579e6172acd4b"
DECIDE = """
The code of {names} has changed: its digest is {digest}.

Do the functions give the same results as before? Then write this digest into DECIDED.
Do they give others? Then a run that was begun with the old code must not go on with the new: give the functions
another fingerprint in _FINGERPRINTS of {calls}, write the digest into DECIDED, and say so in CHANGELOG.md.
"""


def digest_of(text: str) -> str:
    """Of a module's lines, without its imports, docstring, comments and blank lines: these may change when it moves."""
    tree = ast.parse(text)
    lines = text.splitlines()
    for node in tree.body:
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if said or isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    kept = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def module_of(name: str) -> Any:
    return sys.modules[calls.load_call(name).__module__]


@pytest.mark.parametrize("name", OWN)
def test_a_function_of_ours_has_the_fingerprint_of_version_0_2_0(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "9.9.9")
    assert calls.fingerprint_call(name) == FINGERPRINT


def test_code_of_our_functions_changes_by_a_decision() -> None:
    modules = {module.__name__: module for module in map(module_of, OWN)}
    text = "\n".join(Path(modules[name].__file__).read_text() for name in sorted(modules))
    digest = digest_of(text)
    message = DECIDE.format(names=", ".join(modules), digest=digest, calls=calls.__file__)
    assert digest == DECIDED, message


def test_a_function_of_ours_is_found_where_its_module_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    here = module_of(OWN[0])
    monkeypatch.setitem(sys.modules, "another_home", here)
    monkeypatch.setattr(calls, "_HOMES", dict.fromkeys(calls._HOMES, "another_home"))
    for name in OWN:
        assert calls.load_call(name) is getattr(here, name.rpartition(":")[2])


def test_what_moves_with_a_module_is_no_change_of_its_code() -> None:
    code = '"""Finds them."""\n\nimport os\n\n# A size.\nSIZE = 3\n\n\ndef find(n):\n    return n * SIZE\n'
    moved = '"""Finds all."""\n\nfrom a.b import (\n    os,\n)\n\nSIZE = 3\n\ndef find(n):\n    return n * SIZE\n'
    assert digest_of(code) == digest_of(moved) != digest_of(code.replace("3", "4"))
