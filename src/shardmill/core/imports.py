"""The modules of the user's own that code imports: found by reading their files, without running any of them."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

# At most this many modules are listed by name: a message can then name the one that changed.
_LISTED = 8


def say_imports(code: bytes, module: str = "", package: str = "") -> str:
    """The modules that `code` imports, and those that they import, each with the digest of its file; "" if none.

    Left out are the standard library, installed packages and shardmill. `module` is the name of the code itself,
    `package` what its relative imports start from.
    """
    found: dict[str, str] = {}
    seen, waiting = {module}, [(code, package)]
    while waiting:
        for name in _imported_by(*waiting.pop()):
            for whole, spec in _find(name):
                if whole in seen:
                    continue
                seen.add(whole)
                if spec.origin is None or not Path(spec.origin).is_file():
                    continue
                content = Path(spec.origin).read_bytes()
                found[whole] = hashlib.sha256(content).hexdigest()[:16]
                if spec.origin.endswith(".py"):
                    is_package = spec.submodule_search_locations is not None
                    waiting.append((content, whole if is_package else whole.rpartition(".")[0]))
    said = ", ".join(f"{name} {found[name]}" for name in sorted(found))
    return said if len(found) <= _LISTED else f"{len(found)} modules {hashlib.sha256(said.encode()).hexdigest()[:16]}"


@functools.lru_cache(maxsize=4096)
def _imported_by(code: bytes, package: str) -> tuple[str, ...]:
    """The names that code imports, anywhere in it; of `from a import b`, a.b, which may be a module."""
    names = set()
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError):
        return ()  # Whoever imports it is told.
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (start, node.module)))
            names |= {f"{base}.{each.name}" for each in node.names}
    return tuple(sorted(names))


def _find(name: str) -> Iterator[tuple[str, ModuleSpec]]:
    """The modules of the user's own that importing `name` runs: the packages around it, and itself."""
    first, *rest = name.split(".")
    whole, spec = first, next(filter(None, (finder.find_spec(first, None) for finder in sys.meta_path)), None)
    while spec is not None and first != "shardmill" and _is_users(spec):
        yield whole, spec
        if not rest or spec.submodule_search_locations is None:
            return
        # By its last part alone: with its whole name, the finder would look for packages that are not imported.
        part, *rest = rest
        whole, spec = f"{whole}.{part}", PathFinder.find_spec(part, list(spec.submodule_search_locations))


def _is_users(spec: ModuleSpec) -> bool:
    if spec.origin is None or spec.origin == "namespace":
        places = [Path(place) for place in spec.submodule_search_locations or ()]
    elif spec.has_location:
        places = [Path(spec.origin)]
    else:
        return False  # Built in, or frozen.
    return not any(_is_installed(place) for place in places)


def _is_installed(place: Path) -> bool:
    library = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")]
    return not {"site-packages", "dist-packages"}.isdisjoint(place.parts) or any(
        place.resolve().is_relative_to(each) for each in library
    )
