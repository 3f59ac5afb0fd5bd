"""Programs from Debian's packages: found on the machine, or installed where everything has to be there.

`python -m tests.support.debian` installs what the tests need before any of them begins: make calls it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.services import unavailable

# How long apt-get waits for another that is at work.
LOCKED_S = 900.0
_REST_S = 1.0
_LOCKED = ("Could not get lock", "Unable to acquire the dpkg", "Unable to lock directory")

# Programs and their packages. Root's tests need the first; where everything has to be there, the others too.
ENGINES = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "munged": "munge",
    **dict.fromkeys(("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol"), "slurm-wlm"),
}
OTHERS = {
    "mariadbd": "mariadb-server-core",
    "pgbouncer": "pgbouncer",
    "pigz": "pigz",
    "bgzip": "tabix",
    "zstd": "zstd",
    "bzip2": "bzip2",
    "xz": "xz-utils",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
}


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
    # Test processes run side by side: one installs, the others find what it brought.
    with open(Path(tempfile.gettempdir()) / f"shardmill-apt-{os.geteuid()}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (missing := _missing(programs)):
            return
        if os.geteuid():
            raise LookupError(f"{missing} not found, and only root can install: {how}")
        if shutil.which("apt-get") is None:
            raise LookupError(f"{missing} not found, and there is no apt-get to install: {how}")
        said = _apt("update", "-qq")
        said = _apt("install", "-y", "-qq", "--no-install-recommends", *packages) or said
        if missing := _missing(programs):
            raise LookupError(f"apt-get did not bring {missing}: {how}{f' ({said})' if said else ''}")


def _apt(*words: str) -> str:
    """The last line of apt-get's errors, if it fails. It waits for another that is at work.

    Its own option waits for dpkg's lock, but not for those of the lists and of the archives.
    """
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={LOCKED_S:.0f}", *words]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C"}
    deadline = time.monotonic() + LOCKED_S
    while True:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if not any(sign in done.stderr for sign in _LOCKED) or time.monotonic() > deadline:
            break
        time.sleep(_REST_S)
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return (lines or [f"status {done.returncode}"])[-1] if done.returncode else ""


def _missing(programs: Sequence[str]) -> str:
    return ", ".join(name for name in programs if shutil.which(name, path=search_path()) is None)


def main() -> None:
    """Install what is missing, where that is possible: the tests say what they miss."""
    wanted = ENGINES | (OTHERS if os.environ.get("CI") == "true" else {})
    missing = {name: package for name, package in wanted.items() if _missing([name])}
    if not missing or os.geteuid():
        return
    packages = list(dict.fromkeys(missing.values()))
    print(f"Installing what the tests need from Debian: {', '.join(packages)} …", flush=True)
    try:
        install(list(missing), packages)
    except LookupError as error:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
