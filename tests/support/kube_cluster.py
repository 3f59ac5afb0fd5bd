"""A real Kubernetes for tests: a cluster that a contributor names, or one that is started once for all processes.

`KUBECONFIG` with `SHARDMILL_TEST_IMAGE` names a cluster and an image on it. `SHARDMILL_TEST_CLUSTER` is a folder with a
`cluster.py` that starts one: its ports are fixed, so all test processes of this machine share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.guard import shared_environment
from tests.support.waiting import PATIENCE_S, wait_for

IMAGE = "localhost/shardmill:test"
SECRET = "bucket"
# Sockets lie in it, so its name is short.
_FOLDER = Path("/tmp/shardmill-kube")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")
_AWAY = ("Unable to connect to the server", "TLS handshake timeout", "connection refused", "request canceled")
_SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class KubeCluster:
    """`folder` is that of a cluster whose parts run on this machine, None of any other."""

    kubeconfig: Path
    image: str
    program: str
    folder: Path | None = None

    def kubectl(self, *words: str, feed: str = "", check: bool = True) -> str:
        """What kubectl says. It asks again while the API server is away: a test beside this one may have stopped it."""
        command = [self.program, "--kubeconfig", str(self.kubeconfig), *words]

        def ask() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run(command, input=feed or None, capture_output=True, text=True, timeout=PATIENCE_S)
            return None if done.returncode and any(sign in done.stderr for sign in _AWAY) else done

        done = wait_for(ask)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return str(done.stdout if not done.returncode else done.stderr)

    def json(self, *words: str) -> Any:
        return json.loads(self.kubectl(*words, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Create an object that `apply` cannot: one below another."""
        self.kubectl("create", "--raw", path, "-f", "-", feed=json.dumps(body))

    def pods(self, namespace: str) -> list[Any]:
        return list(self.json("-n", namespace, "get", "pods")["items"])

    def config_with(self, token: str, file: Path) -> Path:
        """A kubeconfig that differs in its token alone."""
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"][0]["user"] = {"token": token}
        file.write_text(json.dumps(config))
        return file

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace of its own, with the keys of the tests' S3 server as a Secret."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": name},
                "stringData": bucket_keys(),
            },
        )
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", check=False)

    def evict(self, namespace: str, pod: str) -> None:
        """What draining a node does to its pods."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        self.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)

    def starve(self, namespace: str, pod: str) -> None:
        """Fill the memory of a pod: what is in its /dev/shm counts as its own."""
        fill = "with open('/dev/shm/x', 'wb') as f:\n while True: f.write(bytes(1 << 20))"
        self.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", fill, check=False)

    def pid_of(self, pod: str) -> int:
        """The process of a pod's worker on this machine, by its environment."""
        mark = f"SHARDMILL_WORKER={pod}\0".encode()

        def find() -> int:
            for process in psutil.process_iter():
                with contextlib.suppress(OSError):
                    if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                        return process.pid
            return 0

        return int(watch_for(find))

    @contextlib.contextmanager
    def steady(self, *, alone: bool = False) -> Iterator[None]:
        """Meanwhile no test beside this one stops the API server: runs are short, and must not end before a request.

        Who is going to stop it is `alone`.
        """
        with open(_FOLDER.with_suffix(".steady"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """The API server hangs meanwhile: it accepts connections and answers nothing."""
        assert self.folder is not None
        pid = int((self.folder / "pids" / "kube-apiserver").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def bucket_keys() -> dict[str, str]:
    """The keys of the tests' S3 server, as variables of a pod."""
    return {key: os.environ[key] for key in _KEYS} | {"AWS_ALLOW_HTTP": "true"}


def watch_for(what: Callable[[], Any]) -> Any:
    """The first true answer of a cluster or a store. Looking costs what pods on the same cores could use."""
    return wait_for(what, rest_s=0.3)


def is_named() -> bool:
    """Whether the environment names a cluster."""
    given = {name for name in ("KUBECONFIG", "SHARDMILL_TEST_IMAGE", "SHARDMILL_TEST_CLUSTER") if os.environ.get(name)}
    return "SHARDMILL_TEST_CLUSTER" in given or {"KUBECONFIG", "SHARDMILL_TEST_IMAGE"} <= given


@contextlib.contextmanager
def kube_cluster() -> Iterator[KubeCluster]:
    """The cluster that the environment names; LookupError says why it does not start."""
    named, image = os.environ.get("KUBECONFIG"), os.environ.get("SHARDMILL_TEST_IMAGE")
    if named and image:
        config = Path(named)
        own = config.parent if (config.parent / "pids" / "kube-apiserver").exists() else None
        program = shutil.which("kubectl") or str(config.parent / "bin" / "kubectl")
        yield KubeCluster(config, image, program, own)
        return
    script = str(Path(os.environ["SHARDMILL_TEST_CLUSTER"]) / "cluster.py")
    with _shared(script) as folder, _named(folder / "kubeconfig"):
        yield KubeCluster(folder / "kubeconfig", IMAGE, str(folder / "bin" / "kubectl"), folder)


@contextlib.contextmanager
def _named(config: Path) -> Iterator[None]:
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(config)
    try:
        yield
    finally:
        os.environ.pop("KUBECONFIG") if before is None else os.environ.update(KUBECONFIG=before)


@contextlib.contextmanager
def _shared(script: str) -> Iterator[Path]:
    """The first process starts the cluster, the last one stops it."""
    _FOLDER.mkdir(exist_ok=True)
    me = f"{os.getpid()}:{psutil.Process().create_time()}"
    with _users() as users:
        if not users:
            _run(script, "down", str(_FOLDER))
            _run(script, "up", str(_FOLDER), "--mount", f"{_SOURCE}:/opt/src", "--gpus", "4")
            _run(script, "image", str(_FOLDER), IMAGE, "--module", "shardmill")
        users.append(me)
    try:
        yield _FOLDER
    finally:
        with _users() as users:
            users.remove(me)
            if not users:
                _run(script, "down", str(_FOLDER))


@contextlib.contextmanager
def _users() -> Iterator[list[str]]:
    """The processes that use the cluster, under a lock; those that died are left out."""
    with open(_FOLDER.with_suffix(".users"), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        users = [line for line in file.read().split() if _lives(line)]
        try:
            yield users
        finally:
            file.seek(0)
            file.truncate()
            file.write("\n".join(users))


def _lives(user: str) -> bool:
    pid, _, created = user.partition(":")
    try:
        return psutil.Process(int(pid)).create_time() == float(created)
    except psutil.NoSuchProcess:
        return False


def _run(*words: str) -> None:
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 2 * PATIENCE_S}
    done = subprocess.run([sys.executable, *words], env=shared_environment(), **how)
    if done.returncode:
        raise LookupError(f"no Kubernetes: cluster.py {words[1]}: {(done.stderr or done.stdout).strip()[-500:]}")
