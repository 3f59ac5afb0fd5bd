"""A connection to one host: commands, files, and the agent. SSH errors become HostError or HostLost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import shlex
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import HostError, HostLost, WorkerFailed
from shardmill.core.extras import missing_package
from shardmill.engines.ssh.cluster import Host
from shardmill.engines.ssh.on_host import bare

try:
    import asyncssh
except ImportError as error:
    raise missing_package("asyncssh") from error

CONNECT_S = 15.0
_SILENCES = 3
_IS_IT_UP = "Check that it is up, and that its sshd listens there."
_ANSWER_S = 120.0
# Read all of stdin first: a connection whose input is not read breaks.
_RUN_CODE = 'python=$1; shift; code=$(cat); exec "$python" -c "$code" "$@"'
_CONDA = (
    'for c in conda "$HOME"/miniconda3/bin/conda "$HOME"/miniforge3/bin/conda "$HOME"/anaconda3/bin/conda '
    '/opt/conda/bin/conda; do command -v "$c" >/dev/null && exec "$c" run -n {name} python -c '
    "'import sys; print(sys.executable)'; done; echo 'conda was not found' >&2; exit 127"
)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a host has. Its clock is `skew_s` ahead of ours."""

    hostname: str
    work: str
    writable: bool
    free_bytes: int
    python: str
    python_version: tuple[int, ...]
    shardmill: str
    cores: int
    gpus: tuple[dict[str, str], ...]
    why_no_gpus: str
    skew_s: float


class Link:
    def __init__(self, host: Host, connection: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient) -> None:
        self.host, self.sftp = host, sftp
        self._connection = connection
        self._agent: asyncssh.SSHClientProcess[bytes] | None = None
        self._turn = asyncio.Lock()

    async def run(self, command: str, given: str = "", timeout_s: float = _ANSWER_S) -> tuple[int, str, str]:
        """Run a command; returns its exit status, stdout and stderr."""
        with lost(self.host):
            done = await self._connection.run(command, input=given, timeout=timeout_s)
        return done.exit_status if done.exit_status is not None else -1, str(done.stdout), str(done.stderr)

    async def remote(self, action: str, *more: str) -> dict[str, Any]:
        """Run one of the actions of `on_host.bare` on the host."""
        python = await self._interpreter()
        words = ["sh", "-c", _RUN_CODE, "sh", python or "python3", action, self.host.work, python, *more]
        status, said, complaint = await self.run(" ".join(map(quote, words)), inspect.getsource(bare))
        if status in (126, 127):
            what = f"the interpreter {python!r} was not found" if python else "python3 was not found"
            raise HostError(f"Host {self.host.name}: {what}.", hint="Name an existing one: python = … or conda = …")
        if status:
            raise HostError(f"Host {self.host.name}: {_last_line(complaint) or f'exit status {status}'}.")
        return dict(json.loads(said.splitlines()[-1]))

    async def _interpreter(self) -> str:
        """The interpreter that the user named, or ""."""
        if not self.host.conda:
            return self.host.python
        status, said, complaint = await self.run(f"bash -lc {quote(_CONDA.format(name=quote(self.host.conda)))}")
        if status:
            raise HostError(
                f"Host {self.host.name}: the conda environment {self.host.conda!r}: {_last_line(complaint)}.",
                hint="`conda env list` on the host shows the environments.",
            )
        return said.strip().splitlines()[-1]

    async def look(self) -> Looked:
        before = time.time()
        found = await self.remote("look")
        clock = found.pop("clock")
        # The clock is read near the end of the look.
        skew = 0.0 if before <= clock <= time.time() else clock - time.time()
        return Looked(
            **{**found, "python": found["python"] or "", "shardmill": found["shardmill"] or ""}
            | {"python_version": tuple(found["python_version"] or ()), "gpus": tuple(found["gpus"])},
            skew_s=skew,
        )

    async def start_agent(self, python: str) -> None:
        command = f"exec {quote(python)} -m shardmill.engines.ssh.on_host.agent"
        with lost(self.host):
            self._agent = await self._connection.create_process(command, encoding=None)

    async def ask(self, action: str, **given: Any) -> dict[str, Any]:
        """Ask the agent to do something. An error there is raised here."""
        assert self._agent is not None
        with lost(self.host):
            async with self._turn, asyncio.timeout(_ANSWER_S):
                self._agent.stdin.write(json.dumps({"do": action, **given}).encode() + b"\n")
                line = await self._agent.stdout.readline()
                if not line.endswith(b"\n"):
                    complaint = (await self._agent.stderr.read()).decode("utf-8", "replace")
                    if "Traceback" in complaint or "No module" in complaint:
                        raise HostError(f"Host {self.host.name}: {_last_line(complaint)}.")
                    raise HostLost(f"Host {self.host.name} went away: {_last_line(complaint) or 'connection closed'}.")
        answer: dict[str, Any] = json.loads(line)
        if (failed := answer.get("failed")) is not None:
            kind = WorkerFailed if failed["kind"] == WorkerFailed.__name__ else HostError
            raise kind(f"Host {self.host.name}: {failed['message']}", hint=failed["hint"])
        return answer


@contextlib.asynccontextmanager
async def connect(host: Host, silence_s: float = 60.0) -> AsyncIterator[Link]:
    """A link to a host, which counts as lost after about `silence_s` without an answer."""
    options: dict[str, Any] = {
        "port": host.port or (),
        "username": host.user or (),
        "client_keys": [str(Path(host.key).expanduser())] if host.key else (),
        "known_hosts": str(Path(host.known_hosts).expanduser()) if host.known_hosts else (),
        "connect_timeout": min(CONNECT_S, silence_s),
        "login_timeout": min(CONNECT_S, silence_s),
        "keepalive_interval": silence_s / (_SILENCES + 1),
        "keepalive_count_max": _SILENCES,
    }
    with _explained(host), lost(host):
        connection = await asyncssh.connect(host.address, **options)
    try:
        with lost(host):
            try:
                sftp = await connection.start_sftp_client()
            except asyncssh.ChannelOpenError as error:
                raise HostError(f"Host {host.name} has no SFTP.", hint="Turn it on in its sshd_config.") from error
        yield Link(host, connection, sftp)
    finally:
        connection.abort()


@contextlib.contextmanager
def lost(host: Host) -> Iterator[None]:
    """Turn the errors of a broken connection into HostLost."""
    try:
        yield
    except asyncssh.SFTPNoSuchFile:
        raise
    except asyncssh.SFTPError as error:
        if isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
            raise HostLost(f"Host {host.name} does not answer: {_describe(error)}.", hint=_IS_IT_UP) from error
        raise HostError(
            f"Host {host.name}: a file could not be read or written ({_describe(error)}).",
            hint="Often the disk there is full: `shardmill hosts check` shows the free space.",
        ) from error
    except (asyncssh.Error, OSError, EOFError, TimeoutError, ConnectionError) as error:
        raise HostLost(f"Host {host.name} does not answer: {_describe(error)}.", hint=_IS_IT_UP) from error


@contextlib.contextmanager
def _explained(host: Host) -> Iterator[None]:
    """Turn errors that a retry cannot fix into HostError."""
    where = f"{host.address}:{host.port}" if host.port else host.address
    try:
        yield
    except HostLost as error:
        cause = error.__cause__
        if isinstance(cause, asyncssh.HostKeyNotVerifiable):
            raise _unknown_key(host, where) from error
        if isinstance(cause, asyncssh.PermissionDenied):
            raise HostError(
                f"Host {host.name}: {where} denies access to {host.user or 'this user'}.",
                hint="Check user and key in the hosts file: `ssh` must log in with them without a password.",
            ) from error
        if isinstance(cause, socket.gaierror):
            raise HostError(
                f"Host {host.name}: the address {host.address!r} cannot be resolved ({cause.strerror}).",
                hint="Check its address in the hosts file.",
            ) from error
        if isinstance(cause, FileNotFoundError | PermissionError) and cause.filename:
            raise HostError(
                f"Host {host.name}: {cause.filename}: {cause.strerror}.", hint="Check key and known_hosts in its entry."
            ) from error
        raise
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise HostError(
            f"Host {host.name}: the key {host.key or 'in use'} cannot be read: {error}.",
            hint="Add a key with a passphrase to the ssh-agent.",
        ) from error


def _unknown_key(host: Host, where: str) -> HostError:
    place = Path(host.known_hosts or "~/.ssh/known_hosts").expanduser()
    known: Any = ()
    with contextlib.suppress(OSError, ValueError, asyncssh.Error):
        known = asyncssh.match_known_hosts(str(place), host.address, "", host.port or 22)
    if known and known[0]:
        return HostError(
            f"Host {host.name}: the key that {where} shows is not the one in {place}.",
            hint="Someone may be intercepting. If the host was reinstalled, remove its old key with ssh-keygen -R.",
        )
    return HostError(
        f"Host {host.name}: the key of {where} is not in {place}.",
        hint="Log in once with `ssh` and compare the fingerprint, or set known_hosts in the hosts file.",
    )


def quote(word: str) -> str:
    """Quote a word for a shell, but keep a leading ~/."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(error).rstrip(".") or type(error).__name__


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""
