"""Which module of the package imports which."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import shardmill

SOURCE = Path(shardmill.__file__).parent


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}
_PART = re.compile(r"[\w.]+:\w+")


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


def parts_of(path: Path) -> set[str]:
    """The modules of ours that a file names as "module:attribute", to be imported when they are used."""
    texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    found = {text.partition(":")[0] for text in texts if isinstance(text, str) and _PART.fullmatch(text)}
    return {name for name in found if name in MODULES}


def closure_of(module: str) -> dict[str, str]:
    """All modules of ours that come with a module of a verb, each with the one that brings it.

    What the files of a verb name to be imported later comes, too; what its declaration names does not.
    """
    found, left = {module: ""}, [module]
    while left:
        by = left.pop()
        for each in sorted(_brought(by) - found.keys()):
            found[each] = by
            left.append(each)
    return found


@cache
def _brought(module: str) -> frozenset[str]:
    packages = {".".join(module.split(".")[:n]) for n in range(2, module.count(".") + 1)}
    later = parts_of(MODULES[module]) if verb_of(module) and not is_package(module) else set()
    return frozenset(packages | imports_of(MODULES[module]) | later)


def verb_of(module: str) -> str:
    """The verb in whose folder a module is; "" if it is in none."""
    name = ".".join(module.split(".")[:3])
    return name.rpartition(".")[2].replace("_", "-") if name.startswith("shardmill.verbs.") and is_package(name) else ""


def is_package(module: str) -> bool:
    return module in MODULES and MODULES[module].name == "__init__.py"
