"""Programs from Debian's packages: found on the machine, or installed where everything has to be there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S


def search_path() -> str:
    """Daemons are where only root looks."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def require(program: str, package: str) -> str:
    """Where the program is. With CI=true it is installed if it is missing; otherwise the test is skipped."""
    if os.environ.get("CI") == "true":
        try:
            install([program], [package])
        except LookupError as error:
            unavailable(str(error))
    found = shutil.which(program, path=search_path())
    if found is None:
        unavailable(f"{program} not found: apt-get install {package}")
    return str(found)


def install(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install the packages of missing programs, as root; LookupError says why that is impossible."""
    how = f"apt-get install {' '.join(packages)}"
    # Test processes run side by side, and apt-get does not wait for another.
    with open(Path(tempfile.gettempdir()) / f"shardmill-apt-{os.geteuid()}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (missing := _missing(programs)):
            return
        if os.geteuid():
            raise LookupError(f"{missing} not found, and only root can install: {how}")
        if shutil.which("apt-get") is None:
            raise LookupError(f"{missing} not found, and there is no apt-get to install: {how}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, timeout=PATIENCE_S)
        if missing := _missing(programs):
            raise LookupError(f"apt-get did not bring {missing}: {how}")


def _missing(programs: Sequence[str]) -> str:
    return ", ".join(name for name in programs if shutil.which(name, path=search_path()) is None)
