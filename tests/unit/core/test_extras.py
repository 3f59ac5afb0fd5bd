"""Extras: each that an error, a page or a declaration names exists, and brings what it is named for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill.core.extras import EXTRA_OF, missing_package, pip_install
from shardmill.plugins import find
from shardmill.plugins.builtin import BUILTIN
from tools.extras import EXTRAS, PURPOSES, packages

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NAMED = {name for names in PURPOSES for name in names.split()}
# Packages that come with another, which pyproject names.
WITH = {"numba": "umap-learn", "cryptography": "securesystemslib"}
ASKS = {"missing_package": 1, "advise": 0, "pip_install": 0, "check_torch": 0}


def test_an_error_names_an_extra_that_brings_the_package() -> None:
    for package, extra in EXTRA_OF.items():
        assert WITH.get(package, package) in packages(extra), package


def test_a_package_of_an_extra_is_known_to_the_errors() -> None:
    every = {package for extra in EXTRAS for package in packages(extra)}
    assert every - {WITH.get(package, package) for package in EXTRA_OF} == {"opentelemetry-exporter-otlp-proto-http"}


def calls() -> Iterator[tuple[Path, str, ast.Call]]:
    texts = {path: text for path in SOURCES if any(f"{name}(" in (text := path.read_text()) for name in ASKS)}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKS:
                yield path, node.func.id, node


def test_what_errors_ask_for_is_there() -> None:
    seen = 0
    for path, name, call in calls():
        for given in call.args[ASKS[name] :]:
            if isinstance(given, ast.Constant):
                assert given.value in EXTRAS, f"{path}:{call.lineno}"
                seen += 1
        first = call.args[0] if call.args else None
        if name == "missing_package" and isinstance(first, ast.Constant):
            package = str(first.value).lower().replace("_", "-")
            wanted = call.args[1] if len(call.args) > 1 else None
            extra = wanted.value if isinstance(wanted, ast.Constant) else EXTRA_OF[package]
            assert WITH.get(package, package) in packages(str(extra)), f"{path}:{call.lineno}"
            seen += 1
    assert seen > 40


def test_only_the_table_names_an_extra_in_an_error() -> None:
    """No text of the code says which extra to install, but what makes the command."""
    found = [f"{path}" for path in SOURCES if re.search(r"shardmill\[\w", path.read_text())]
    assert [place for place in found if not place.endswith("core/extras.py")] == []


@pytest.mark.parametrize("group", ["verbs", "sources", "sinks"])
def test_what_declarations_ask_for_is_there(group: str) -> None:
    asked = {extra for name in BUILTIN[group] for extra in find(group, name).extras}  # type: ignore[arg-type]
    assert asked
    assert asked <= NAMED


def test_a_page_names_extras_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        extra
        for page in pages
        for inner in re.findall(r"shardmill\[([\w,]+)\]", page.read_text())
        for extra in inner.split(",")
    }
    assert {"light", "embed", "map"} <= named <= set(EXTRAS)
    advised = {each for page in pages[2:] for each in re.findall(r"pip install 'shardmill\[(\w+)\]'", page.read_text())}
    assert advised <= NAMED


def test_every_extra_is_explained_or_a_part_of_one_that_is() -> None:
    assert set(EXTRAS) >= NAMED
    for former in set(EXTRAS) - NAMED:
        assert any(packages(former) <= packages(name) for name in NAMED - {"all"}) or former == "cpu", former
    assert packages("all") == {p for extra in NAMED - {"augment"} for p in packages(extra)}


def test_former_names_bring_what_they_brought() -> None:
    brought = {
        "answer": {"openvino", "bm25s", "pystemmer", "usearch"},
        "avro": {"fastavro"},
        "cpu": {"torch", "openvino"},
        "demo": {"openvino", "bm25s", "fastapi", "uvicorn"},
        "documents": {"pypdfium2", "defusedxml"},
        "excel": {"python-calamine"},
    }
    assert set(brought) == set(EXTRAS) - NAMED
    for former, wanted in brought.items():
        assert wanted <= packages(former)


def test_the_command_is_said() -> None:
    assert pip_install("light", "map") == "pip install 'shardmill[light,map]'"
    assert str(missing_package("rouge_score")) == (
        "rouge_score is not installed.\nInstall it with: pip install 'shardmill[summarize]'"
    )
    assert missing_package("torch", "generate").hint.endswith("pip install 'shardmill[generate]'")
