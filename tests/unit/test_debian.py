"""Programs that tests take from Debian: installed by root where CI=true, else the test is skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("psycopg")

from tests.contract.sources import test_files_of_other_programs as other_programs
from tests.services.postgres import test_pooler
from tests.support import debian

APT = """#!/bin/sh
[ "$1" = -o ] && shift 2
echo "$@" >> {folder}/asked
if [ -e {folder}/locked-$1 ]; then
  rm {folder}/locked-$1
  echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)" >&2
  echo "E: Unable to lock directory /var/lib/apt/lists/" >&2
  exit 100
fi
[ "$1" = update ] && exit 0
[ -e {folder}/empty ] && {{ echo "E: Unable to locate package $5" >&2; exit 100; }}
for package in "$@"; do :; done
[ "$package" = tabix ] && package=bgzip
printf '#!/bin/sh\\n' > {folder}/$package; chmod 755 {folder}/$package
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of root's where CI=true, with an apt-get that writes a program named like its package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").write_text(APT.format(folder=folder))
    (folder / "apt-get").chmod(0o755)
    for name in ("sh", "chmod", "rm"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setattr(debian, "search_path", lambda: str(folder))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


@pytest.mark.parametrize(("program", "package"), [("pgbouncer", "pgbouncer"), ("pigz", "pigz"), ("bgzip", "tabix")])
def test_a_missing_program_is_installed_once(machine: Path, program: str, package: str) -> None:
    for _ in range(2):
        assert debian.require(program, package) == str(machine / program)
    assert (machine / "asked").read_text().splitlines() == [
        "update -qq",
        f"install -y -qq --no-install-recommends {package}",
    ]


def test_another_apt_get_is_waited_for(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_REST_S", 0.0)
    for command in ("update", "install"):
        (machine / f"locked-{command}").touch()
    assert debian.require("pigz", "pigz") == str(machine / "pigz")
    asked = [line.split()[0] for line in (machine / "asked").read_text().splitlines()]
    assert asked == ["update", "update", "install", "install"]


def test_what_is_missing_is_installed_before_the_tests(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "empty").touch()
    debian.main()
    said = capsys.readouterr()
    assert said.out.startswith("Installing what the tests need from Debian: openssh-server, ")
    assert "E: Unable to locate package" in said.err


def test_without_root_or_its_package_a_program_is_missed_in_ci(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "empty").touch()
    with pytest.raises(
        pytest.fail.Exception, match=r"did not bring bgzip: apt-get install tabix \(E: Unable to locate"
    ):
        debian.require("bgzip", "tabix")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.fail.Exception, match="only root can install: apt-get install tabix"):
        debian.require("bgzip", "tabix")


def test_on_a_developers_machine_nothing_is_installed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install pigz"):
        debian.require("pigz", "pigz")
    assert not (machine / "asked").exists()


def test_pooler_and_compressors_are_taken_from_debian() -> None:
    assert test_pooler.require is debian.require
    assert other_programs.require is debian.require
    assert {command[0] for command, _ in other_programs.COMPRESSORS.values()} == other_programs.PACKAGES.keys()
