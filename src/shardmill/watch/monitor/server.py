"""Starts the monitor: a port, a token, and the server of the application."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import resource
import socket
from collections.abc import Iterable
from pathlib import Path

from shardmill.core.console import say
from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.watch.monitor.access import Access
from shardmill.watch.monitor.watcher import Watcher

# Without --port, the first free port from here on.
_FIRST_PORT, _PORTS = 8321, 100
_MOST_FILES, _MOST_CLIENTS = 8192, 4000


def listen_on(host: str, port: int | None) -> socket.socket:
    """A socket on the port, or on the first free one. UsageError if it is taken, or is no address of this machine."""
    for candidate in range(_FIRST_PORT, _FIRST_PORT + _PORTS) if port is None else [port]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            # A port that another process listens on may be bound, but not listened on.
            listener.listen(1024)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"{host}:{candidate} cannot be listened on: {error.strerror or error}.",
                    hint="Give an address of this machine with --host, and a port above 1023 with --port.",
                ) from error
    if port is None:
        raise UsageError(f"No port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free.", hint="Give --port.")
    raise UsageError(f"Port {port} is taken.", hint="Give another --port, or none for the first free one.")


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: the token cannot be read: {error}.", hint="Give a text file with one line."
        ) from error
    if not text or "\n" in text:
        raise UsageError(f"{path} has no token.", hint="Write one line with at least 16 characters.")
    return text


def serve(
    place: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token_file: Path | None = None,
    root_path: str = "",
    allowed_hosts: Iterable[str] = (),
    alerts: Path | None = None,
    search: bool = True,
    worker_link: str = "",
) -> None:
    """Watch a run, or a folder of runs, and serve the monitor until it is interrupted. `alerts` names their file."""
    try:
        import uvicorn
    except ImportError as error:
        raise missing_package("uvicorn") from error
    from shardmill.watch.alerts import AlertDesk
    from shardmill.watch.monitor.alerting import AlertFeed
    from shardmill.watch.monitor.app import make_app
    from shardmill.watch.monitor.machines import machine_paths
    from shardmill.watch.monitor.protocol import TimedProtocol
    from shardmill.watch.monitor.search import Searcher

    if worker_link and not ("{name}" in worker_link and worker_link.startswith(("https://", "http://"))):
        raise UsageError(
            f"{worker_link!r} is not an address with a place for the name of a pod or job.",
            hint="For example: --worker-link 'https://console.example.org/pods/{name}'",
        )
    token = {} if token_file is None else {"token": read_token(token_file)}
    root_path = "/" + root_path.strip("/") if root_path.strip("/") else ""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen_on(host, port)))
        bound = int(listener.getsockname()[1])
        address = f"http://{_shown(host)}:{bound}{root_path}/"
        desk = AlertDesk(alerts, address, page=lambda key: f"#run={key}") if alerts is not None else None
        if desk is not None:
            stack.callback(desk.close)
        watcher = stack.enter_context(Watcher(place))
        if desk is not None:
            stack.callback(AlertFeed(watcher, desk).close)
        hosts = frozenset(name.lower() for name in (*allowed_hosts, socket.gethostname(), socket.getfqdn(), host))
        access = Access(port=bound, hosts=hosts, **token)
        if not watcher.runs():
            say(f"{watcher.url}: no run found here yet. Runs that start in it will be shown.")
        # Data goes to stdout: the address.
        print(address + ("" if token else f"?token={access.token}"), flush=True)
        say("The monitor only reads. Ctrl-C stops it, and no run.")
        _allow_many_clients()
        config = uvicorn.Config(
            make_app(
                watcher,
                access,
                routers=[machine_paths(watcher, desk)],
                searcher=Searcher() if search else None,
                desk=desk,
                root_path=root_path,
                worker_link=worker_link,
            ),
            log_level="warning",
            # Addresses may have the token in them.
            access_log=False,
            server_header=False,
            root_path=root_path,
            limit_concurrency=_MOST_CLIENTS,
            timeout_graceful_shutdown=1,
            lifespan="off",
            http=TimedProtocol,
            ws="none",
        )
        uvicorn.Server(config).run(sockets=[listener])


def _shown(host: str) -> str:
    """The address to open: that of this machine, if it listens on all."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host


def _allow_many_clients() -> None:
    """Every client takes a file of the process; the usual limit of 1,024 is for other programs."""
    with contextlib.suppress(ValueError, OSError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
