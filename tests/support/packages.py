"""Packages with entry points, as pip would have installed them."""

from __future__ import annotations

import importlib
from pathlib import Path

from shardmill import plugins
from shardmill.sources import formats


def install_package(folder: Path, package: str, entries: dict[str, dict[str, str]], **modules: str) -> None:
    """Write a package of version 1.0 into a folder of sys.path: its entry points by group and name, and its modules."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, named in entries.items():
        lines += [f"[shardmill.{group}]", *(f"{name} = {place}" for name, place in named.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    forget_installed()


def forget_installed() -> None:
    """What is installed is looked for again."""
    importlib.invalidate_caches()
    for cached in (plugins.installed, plugins._declared, formats.every_format, formats.suffixes):
        cached.cache_clear()
