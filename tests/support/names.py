"""Where a program asks for something by its name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

_LOOKUPS = ("get", "pop", "setdefault")
_FINDERS = ("find_verb",)


def find_names(source: str, names: Collection[str]) -> list[tuple[int, str]]:
    """The lines of a program that compare with one of the names or look something up by it, and which.

    A name counts in comparisons, cases, keys, subscripts and arguments of lookups, also by a constant of the module.

    >>> find_names('if task == "tune" or task in ("a", "map"): print({"tune": 1}["x"])', {"tune", "map"})
    [(1, 'map'), (1, 'tune'), (1, 'tune')]
    """
    tree = ast.parse(source)
    known = _constants(tree)
    found = [(place.lineno, text) for place in _asked(tree) for text in _texts(place, known)]
    return sorted((line, text) for line, text in found if text in names)


def _asked(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.MatchValue):
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in _LOOKUPS:
                # What stands second is what is returned, or kept, if nothing is found.
                yield from node.args[:1]
            elif isinstance(called, ast.Name) and called.id in _FINDERS:
                yield from node.args


def _texts(node: ast.expr, known: Mapping[str, list[str]]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield from known.get(node.id, ())
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from _texts(each, known)


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """The texts of names that the module gives to a text, or to several."""
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = list(_texts(node.value, {}))
    return found
