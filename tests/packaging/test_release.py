"""What a release uploads: the same bits whoever builds it, with all of the package and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.test_constraints import ROOT
from tests.support.wheels import uv

ROOT_FILES = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}


def source_files(folder: Path) -> set[str]:
    found = (path for path in (folder / "src/shardmill").rglob("*") if path.is_file())
    return {path.relative_to(folder / "src").as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--quiet", "--no-config", "--sdist", "--wheel", "--out-dir", folder, ROOT)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_another_folder_at_another_time_gives_the_same_bits(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in (*ROOT_FILES, ".gitignore"):
        shutil.copyfile(ROOT / name, copy / name)
    shutil.copytree(ROOT / "src", copy / "src", copy_function=shutil.copyfile)
    for path in copy.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    out = tmp_path / "out"
    uv("build", "--quiet", "--no-config", "--sdist", "--wheel", "--out-dir", out, copy)
    assert digests(out) == digests(built)
    assert len(digests(built)) == 2


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (information,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        assert opened.read(f"{information}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "shardmill = shardmill.cli:main" in opened.read(f"{information}/entry_points.txt").decode()
    assert {name for name in names if not name.startswith(f"{information}/")} == source_files(ROOT)
    assert "shardmill/py.typed" in names


def test_the_source_distribution_has_what_builds_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names == ROOT_FILES | {"PKG-INFO", ".gitignore"} | {f"src/{name}" for name in source_files(ROOT)}
