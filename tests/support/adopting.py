"""Runs a command, and adopts processes that leave it, as slurmstepd does: they stay below this process, to be found.

python tests/support/adopting.py COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """The status of the command; what it leaves is not waited for."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.spawnvp(os.P_NOWAIT, command[0], command)
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
