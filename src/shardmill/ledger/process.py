"""The name of a process and of the person who runs it, and whether the process of a name is alive."""

from __future__ import annotations

import getpass
import os
import socket

_PROC = "/proc"


def name_process() -> str:
    """This process: its host, boot, pid namespace and start time. Hosts may share a name, and pids are used again.

    Without /proc it is the host alone, as in version 0.1.0, which takes any longer name for that of another host.
    """
    space, (_, started) = _pid_space(), _look("self")
    return " ".join((socket.gethostname(), *space, started) if space and started else (socket.gethostname(),))


def name_person() -> str:
    """The user of this process and the host; a container may have no name for its user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def process_alive(name: str, pid: int) -> bool | None:
    """Whether a process is alive; None if that cannot be seen from here."""
    host, *where = name.split(" ")
    if where[:-1] != _pid_space() if where else host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, started = _look(str(pid))
    return state != "Z" and not (where and started and where[-1] != started)


def _pid_space() -> list[str]:
    """What pids refer to here: the boot and the pid namespace; empty if unknown."""
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id") as file:
            return [file.read().strip(), os.readlink(f"{_PROC}/self/ns/pid")]
    except OSError:
        return []


def _look(process: str) -> tuple[str, str]:
    """The state of a process and its start in ticks since the boot; empty if they cannot be seen."""
    try:
        with open(f"{_PROC}/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
