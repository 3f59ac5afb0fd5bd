"""Sent to a host as text and run by any Python 3 there: inspects the host, stops workers, cleans up.

shardmill may not be installed there, so this imports nothing from it and stays compatible with Python 3.7.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

MARK = ".shardmill-work"
_NEWEST = ["python3.%d" % minor for minor in range(19, 10, -1)] + ["python3"]  # noqa: UP031
_OF_PYTHON = "import json, sys; print(json.dumps([sys.executable, list(sys.version_info[:3])]))"
_OF_SHARDMILL = "import shardmill; print(shardmill.__version__)"
_GPU_FIELDS = ("index", "name", "driver_version", "memory.total")


def look(work: str, named: str) -> dict[str, Any]:
    """What this host has. `named` is the interpreter that the user chose, or ""."""
    work = os.path.abspath(os.path.expanduser(work))
    there = work
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    pythons = [named] if named else _NEWEST
    found = [answer for answer in (_ask(p, _OF_PYTHON) for p in pythons) if answer]
    best = max((json.loads(answer) for answer in found), key=lambda pair: pair[1], default=None)
    gpus, why_none = _gpus()
    return {
        "hostname": os.uname().nodename,
        "work": work,
        "writable": os.access(there, os.W_OK),
        "free_bytes": shutil.disk_usage(there).free,
        "python": best and (os.path.expanduser(named) or best[0]),
        "python_version": best and best[1],
        "shardmill": named and best and _ask(named, _OF_SHARDMILL),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": gpus,
        "why_no_gpus": why_none,
        "clock": time.time(),
    }


def stop(work: str, named: str, run: str = "*") -> dict[str, Any]:
    """End the workers of one run, or of all runs: SIGTERM first, then SIGKILL after a timeout."""
    held = [lock for lock in glob.glob(os.path.join(_own(work), "runs", run, "seats", "*.lock")) if _is_held(lock)]
    for number, patience_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        for lock in filter(_is_held, held):
            with open(lock[: -len("lock")] + "json") as file:
                os.killpg(json.load(file)["pid"], number)
        deadline = time.time() + patience_s
        while any(map(_is_held, held)) and time.time() < deadline:
            time.sleep(0.1)
    return {"stopped": len(held)}


def clean(work: str, named: str) -> dict[str, Any]:
    """Stop all workers and remove the work folder, if shardmill created it."""
    work = _own(work)
    answer = stop(work, named)
    freed = 0
    for folder, _, files in os.walk(work):
        for name in files:
            freed += os.lstat(os.path.join(folder, name)).st_blocks * 512
    if os.path.isdir(work):
        shutil.rmtree(work)
    return dict(answer, freed_bytes=freed)


def _own(work: str) -> str:
    work = os.path.abspath(os.path.expanduser(work))
    if os.path.isdir(work) and os.listdir(work) and not os.path.exists(os.path.join(work, MARK)):
        raise SystemExit("%s is not a work folder of shardmill" % work)  # noqa: UP031
    return work


def _is_held(lock: str) -> bool:
    with open(lock, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _ask(python: str, code: str) -> str | None:
    try:
        done = subprocess.run(
            [os.path.expanduser(python), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode().strip() if done.returncode == 0 else None


def _gpus() -> tuple[list[dict[str, str]], str]:
    command = ["nvidia-smi", "--query-gpu=" + ",".join(_GPU_FIELDS), "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except OSError:
        return [], "nvidia-smi was not found"
    except subprocess.TimeoutExpired:
        return [], "nvidia-smi does not answer"
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        return [], "nvidia-smi says: " + said[:200]
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    return [dict(zip(("index", "name", "driver", "memory_mib"), row)) for row in rows], ""  # noqa: B905


if __name__ == "__main__":
    print(json.dumps({"look": look, "stop": stop, "clean": clean}[sys.argv[1]](*sys.argv[2:])))
