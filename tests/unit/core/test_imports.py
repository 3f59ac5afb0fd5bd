"""The modules that a function's file imports: which of them belong to its fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.core.functions import changed_parts, fingerprint_call
from shardmill.core.imports import say_imports


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(path: Path, text: str = "raise SystemExit('this was run')\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(code: str, package: str = "") -> list[str]:
    said = say_imports(code.encode(), package=package)
    return [each.split()[0] for each in said.split(", ") if each]


def test_modules_of_the_user_are_found_and_not_run(here: Path) -> None:
    write(here / "imports_plain.py")
    write(here / "imports_package/__init__.py")
    write(here / "imports_package/inner.py", "from . import other\nfrom .deep.er import thing\n")
    write(here / "imports_package/other.py")
    write(here / "imports_package/deep/er.py", "from ..last import *\n")
    write(here / "imports_package/last.py")
    code = "import imports_plain as p\n\ndef f(rows):\n    from imports_package.inner import a, b\n    return a(rows)\n"
    inner = [f"imports_package.{name}" for name in ("deep.er", "inner", "last", "other")]
    assert names(code) == ["imports_package", *inner, "imports_plain"]
    assert names("from . import other\n", package="imports_package") == ["imports_package", "imports_package.other"]


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys, json.decoder, _socket",
        "import numpy, pyarrow.parquet as pq",
        "from shardmill import task",
        "import no_such_module_anywhere",
        "from . import beside",
        "from .... import beyond",
        "this is not Python",
        "text = 'import imports_plain'",
    ],
)
def test_others_modules_are_left_out(here: Path, code: str) -> None:
    write(here / "imports_plain.py")
    assert say_imports(code.encode()) == ""


def test_the_fingerprint_follows_what_is_imported(here: Path) -> None:
    helper = write(here / "imports_helper.py", "SIZE = 1\n")
    code = "import imports_helper\n\ndef f(rows):\n    return rows\n"
    before = fingerprint_call("mine.py:f", code)
    helper.write_text("SIZE = 2\n")
    after = fingerprint_call("mine.py:f", code)
    assert before["function"] == after["function"]
    assert changed_parts(before, after) == ["imports"]
    assert before["imports"].startswith("imports_helper ")
    assert fingerprint_call("mine.py:f", "def f(rows):\n    return rows\n").keys() == {"function"}


def test_many_modules_are_one_digest(here: Path) -> None:
    for i in range(20):
        write(here / f"imports_many{i}.py", f"SIZE = {i}\n")
    code = "\n".join(f"import imports_many{i}" for i in range(20)).encode()
    before = say_imports(code)
    assert before.startswith("20 modules ")
    write(here / "imports_many7.py", "SIZE = 8\n")
    assert say_imports(code) != before
