"""Hosts for tests, all on this machine: each has its own sshd, address and home folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import shardmill
from tests.support import debian
from tests.support.guard import MARK
from tests.support.services import free_port, unavailable
from tests.support.waiting import PATIENCE_S

_CONFIG = """
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
SetEnv HOME={home} {mark}
Subsystem sftp internal-sftp
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
LogLevel ERROR
"""


def find_sshd() -> str:
    programs = ["sshd", "ssh-keygen"]
    if os.geteuid() == 0:
        with contextlib.suppress(LookupError):
            debian.install(programs, [debian.ENGINES[name] for name in programs])
    found = [shutil.which(name, path=debian.search_path()) for name in programs]
    if None in found:
        unavailable("there is no sshd: apt-get install openssh-server")
    return str(found[0])


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


class TestHost:
    """One host: its sshd and all processes started through it."""

    __test__ = False

    def __init__(self, folder: Path, address: str, key: Path) -> None:
        self.folder, self.address, self.key = folder, address, key
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        make_key(folder / "host_key")
        shutil.copy(key.with_suffix(".pub"), folder / "authorized_keys")
        self.port = free_port(address)
        public = (folder / "host_key.pub").read_text().split()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(f"[{address}]:{self.port} {public[0]} {public[1]}\n")
        # Commands that come over the network do not inherit it.
        mark = f"{MARK}={os.environ.get(MARK, '')}"
        text = _CONFIG.format(port=self.port, address=address, folder=folder, home=self.home, mark=mark)
        (folder / "sshd_config").write_text(text)
        self.python = folder / "python"
        where = f"{Path(shardmill.__file__).parents[1]}:{Path(__file__).parents[2]}"
        self.python.write_text(f'#!/bin/sh\nexport PYTHONPATH={where}\nexec {sys.executable} "$@"\n')
        self.python.chmod(0o755)
        self._server: subprocess.Popen[bytes] | None = None
        self._cut: list[list[str]] = []

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        command = [find_sshd(), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with open(self.folder / "sshd.log", "ab") as log:
            self._server = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
                return
            time.sleep(0.05)
        unavailable(f"sshd does not start: {(self.folder / 'sshd.log').read_text()[-500:]}")

    def processes(self) -> list[psutil.Process]:
        """The processes of this host: its sshd's sessions, and all with its home folder."""
        found = []
        for process in psutil.process_iter(["pid", "status"]):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", "shardmill.worker"]:
                    found.append(process)
        return found

    def kill(self) -> None:
        """Simulate a power loss."""
        server = self._server
        sessions = psutil.Process(server.pid).children(recursive=True) if server and server.poll() is None else []
        for process in [*sessions, *self.processes()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if server is not None:
            server.kill()
            server.wait()
            self._server = None

    def cut(self) -> None:
        """Silently drop all packets to and from this host's sshd."""
        for side in (["-d", self.address, "--dport"], ["-s", self.address, "--sport"]):
            rule = ["INPUT", "-p", "tcp", *side[:2], side[2], str(self.port), "-j", "DROP"]
            if (
                shutil.which("iptables")
                and subprocess.run(["iptables", "-I", *rule], capture_output=True).returncode == 0
            ):
                self._cut.append(rule)
            else:
                self._freeze(signal.SIGSTOP)

    def mend(self) -> None:
        for rule in self._cut:
            subprocess.run(["iptables", "-D", *rule], check=True)
        self._cut.clear()
        self._freeze(signal.SIGCONT)

    def _freeze(self, number: int) -> None:
        if self._server is not None and self._server.poll() is None:
            for process in [psutil.Process(self._server.pid), *psutil.Process(self._server.pid).children(True)]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def entry(self, **more: object) -> str:
        """Its entry in a cluster.toml."""
        fields = {
            "address": self.address,
            "port": self.port,
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "python": str(self.python),
            "gpus": 0,
            **more,
        }
        lines = [f"{name} = {_toml(value)}" for name, value in fields.items() if value is not None]
        return "\n".join(["[[hosts]]", *lines, ""])


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextlib.contextmanager
def running_hosts(folder: Path, count: int) -> Iterator[list[TestHost]]:
    find_sshd()
    folder.mkdir(exist_ok=True)
    key = make_key(folder / "key")
    hosts = [TestHost(folder / f"host{i}", f"127.0.0.{i + 2}", key) for i in range(count)]
    try:
        for host in hosts:
            host.start()
        yield hosts
    finally:
        for host in hosts:
            host.mend()
            host.kill()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[TestHost]]:
    with running_hosts(tmp_path / "hosts", 2) as made:
        yield made
