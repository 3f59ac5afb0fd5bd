"""What the images of pods have in them: the packages of the Containerfile's extras, and no others."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import metadata
from pathlib import Path

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "Containerfile"
# Imports what belongs to a package of the image, or to Python, and nothing else of what is installed here. Python runs
# a file of this name before anything else, in each process that has its folder in PYTHONPATH.
SITE = "sitecustomize.py"
_ALONE = """
import sys
from importlib.machinery import PathFinder

absent = set({absent})

class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in absent else PathFinder.find_spec(name, path, target)

sys.meta_path = [Present if each is PathFinder else each for each in sys.meta_path]
"""


def site_of_image(*, light: bool = False) -> str:
    """The text of that file."""
    return _ALONE.format(absent=json.dumps(absent_from_image(light=light)))


def extras_of_image(*, light: bool = False) -> set[str]:
    """Of the image of workers, or of the one without torch."""
    words = r"--build-arg EXTRAS=(\S+) \.$" if light else r"^ARG EXTRAS=(\S+)$"
    found = re.search(words, CONTAINERFILE.read_text(), re.M)
    assert found
    return set(found[1].split(","))


def plain(name: str) -> str:
    """A package's name as the index compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_with(extras: set[str]) -> set[str]:
    """What pip would install for them, of what is installed here."""
    from packaging.requirements import Requirement

    found, open_ = set[tuple[str, str]](), {("shardmill", ""), *(("shardmill", each) for each in extras)}
    while open_:
        name, extra = open_.pop()
        found.add((name, extra))
        try:
            asked = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, asked):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                named = plain(requirement.name)
                open_ |= {(named, each) for each in ("", *requirement.extras)} - found
    return {name for name, _ in found}


@cache
def absent_from_image(*, light: bool = False) -> list[str]:
    """Modules that are installed here and are not in the image."""
    there = packages_with(extras_of_image(light=light))
    owners = metadata.packages_distributions()
    ours = {"shardmill", "tests", "tools", "docs", "benchmarks", "campaigns", "examples"}
    return sorted(
        module for module, names in owners.items() if module not in ours and not {plain(name) for name in names} & there
    )
