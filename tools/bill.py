"""Print what is installed with this Python as a bill of materials, CycloneDX 1.6, for scanners of images.

python tools/bill.py > sbom.json
"""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, distributions
from typing import Any

_LICENSE = "License :: OSI Approved :: "


def make_bill() -> dict[str, Any]:
    """The packages by name, each with its version, licence and what it needs of the others."""
    found = {_plain(each.name): each for each in distributions()}
    made = {name: _reference(name, found[name]) for name in sorted(found)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "shardmill", "bom-ref": "image"}},
        "components": [_component(name, found[name]) for name in made],
        "dependencies": [
            {"ref": made[name], "dependsOn": sorted(made[each] for each in _needs(found[name]) if each in made)}
            for name in made
        ],
    }


def _component(name: str, package: Distribution) -> dict[str, Any]:
    told = package.metadata
    said = "".join(told.get_all("License-Expression") or ())
    named = [each.removeprefix(_LICENSE) for each in told.get_all("Classifier") or () if each.startswith(_LICENSE)]
    licences: list[dict[str, Any]] = [{"expression": said}] if said else [{"license": {"name": n}} for n in named]
    reference = _reference(name, package)
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": reference,
        "bom-ref": reference,
        **({"licenses": licences} if licences else {}),
    }


def _needs(package: Distribution) -> set[str]:
    """Names before any version, extra or marker; what is not installed is left out later."""
    return {_plain(re.split(r"[^\w.-]", each.strip(), maxsplit=1)[0]) for each in package.requires or ()}


def _reference(name: str, package: Distribution) -> str:
    return f"pkg:pypi/{name}@{package.version}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(json.dumps(make_bill(), indent=1))
