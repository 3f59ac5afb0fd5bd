"""A real Slurm on this machine: one slurmctld, two slurmd as two nodes, four character devices as GPUs.

It has a folder, a munge key, a socket and ports of its own, and touches no existing Slurm.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support import debian
from tests.support.services import free_port
from tests.support.waiting import PATIENCE_S

NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
_PATH = debian.search_path()
_FIRST_MINOR = 240

_CONF = """\
ClusterName=shardmill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=10
MaxArraySize=4
UnkillableStepTimeout=180
EnforcePartLimits=ALL
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=60 State=UP
PartitionName=short Nodes={names} MaxTime=2 State=UP
PartitionName=down Nodes={names} MaxTime=60 State=DOWN
PartitionName=staff Nodes={names} MaxTime=60 AllowAccounts=staff State=UP
"""


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._ports = {name: free_port() for name in ("ctld", *NODES)}
        self._environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # A folder that is empty on the nodes, like one on a disk that they do not have; None if it cannot be created.
        self.only_at_home: Path | None = None

    def start(self) -> None:
        self._configure()
        self._daemons["munged"] = self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        _wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        _wait_for(lambda: self._idle() == set(NODES), "slurmd")

    def stop(self) -> None:
        for name in list(self._daemons):
            if name != "munged":
                self._kill(name)
        self._kill("munged")

    def start_controller(self, *words: str) -> None:
        self._daemons["slurmctld"] = self._daemon("slurmctld", "-D", *words)

    def stop_controller(self) -> None:
        """Stop it as for an update: it saves its state first."""
        controller = self._daemons.pop("slurmctld")
        controller.terminate()
        controller.wait(PATIENCE_S)

    def start_node(self, node: str) -> None:
        # Its steps leave it, and hide their environment: the guard of the tests finds them below this.
        adopting = [sys.executable, "-P", str(Path(__file__).with_name("adopting.py"))]
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self.only_at_home)]
        mount = hidden if self.only_at_home else []
        self._daemons[node] = self._daemon(*adopting, *mount, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Simulate a power loss: kill the daemon and all processes below it at once."""
        self._kill(node)
        self.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def revive_node(self, node: str) -> None:
        self.start_node(node)
        self.scontrol("update", f"NodeName={node}", "State=RESUME")
        _wait_for(lambda: node in self._idle(), f"slurmd of {node}")

    def scontrol(self, *words: str) -> str:
        return self._ask("scontrol", *words)

    def scancel(self, *words: str) -> None:
        self._ask("scancel", *words)

    def squeue(self, form: str, *words: str) -> list[str]:
        return self._ask("squeue", "-h", "-r", "-o", form, *words).split("\n")[:-1]

    def exit_status(self, job: str) -> int:
        """The exit status of a job of one task, or minus the signal that ended it."""
        waited = int(self._ask("squeue", "-h", "-r", "-O", "exit_code", "--states=all", f"--jobs={job}"))
        return waited >> 8 or -(waited & 0x7F)

    def cancel_all(self) -> None:
        self._ask("scancel", "--user", getpass.getuser())
        _wait_for(lambda: not self.squeue("%i"), "an empty queue")

    def _idle(self) -> set[str]:
        try:
            lines = self._ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %t").splitlines()
        except subprocess.CalledProcessError:
            return set()
        return {line.split()[0] for line in lines if line.split()[1] == "idle"}

    def _ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
        return done.stdout

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "daemons.log", "ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        victims = [daemon.pid, *self._steps(name)]
        for pid in victims:
            try:
                children = psutil.Process(pid).children(recursive=True)
                for process in [psutil.Process(pid), *children]:
                    process.kill()
            except psutil.NoSuchProcess:
                continue
        daemon.wait()

    def _steps(self, node: str) -> list[int]:
        """A node's slurmstepd processes, found by their sockets in its spool folder: they are no children of slurmd."""
        found = []
        for process in psutil.process_iter(["name"]):
            try:
                if process.info["name"] == "slurmstepd" and any(
                    f"{self.folder}/spool-{node}/" in (c.laddr or "") for c in process.net_connections("unix")
                ):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0:
            self.only_at_home = self.folder / "only-at-home"
            self.only_at_home.mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        nodes, gres = [], []
        for n, node in enumerate(NODES):
            for gpu in range(2):
                device = self.folder / f"{node}-gpu{gpu}"
                os.mknod(device, 0o666 | 0o020000, os.makedev(_FIRST_MINOR, 2 * n + gpu))
                gres.append(f"NodeName={node} Name=gpu Type=t4 File={device}")
            nodes.append(
                f"NodeName={node} NodeHostname={socket.gethostname().partition('.')[0]} NodeAddr=127.0.0.1 "
                f"Port={self._ports[node]} CPUs=4 RealMemory=2000 Gres=gpu:t4:2 State=UNKNOWN"
            )
        (self.folder / "gres.conf").write_text("\n".join(gres) + "\n")
        self.conf.write_text(
            _CONF.format(
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                folder=self.folder,
                ctld_port=self._ports["ctld"],
                nodes="\n".join(nodes),
                names=",".join(NODES),
            )
        )


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A cluster for the duration of a block, in a folder whose name is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="shardmill-slurm-"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def install() -> None:
    """Install missing packages from Debian, as root; LookupError says why that is impossible."""
    if os.geteuid():
        raise LookupError("a Slurm of our own needs root, for its daemons and for mknod")
    debian.install(_PROGRAMS, sorted({debian.ENGINES[name] for name in _PROGRAMS}))


def _wait_for(what: Callable[[], Any], name: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not come up")
        time.sleep(0.1)
