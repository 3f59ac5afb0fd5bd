"""Which module of the package imports which."""

from __future__ import annotations

import ast
from pathlib import Path

import shardmill

SOURCE = Path(shardmill.__file__).parent


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}


def imports_of(path: Path) -> set[str]:
    """The modules of ours that a file imports: at its top, inside a function, or for its types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module or "")
    return {name for name in found if name in MODULES}


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes that lead back to themselves, or none."""
    done: set[str] = set()

    def walk(node: str, above: list[str]) -> list[str]:
        if node in above:
            return above[above.index(node) :]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            if found := walk(other, [*above, node]):
                return found
        done.add(node)
        return []

    return next((found for node in graph if (found := walk(node, []))), [])
